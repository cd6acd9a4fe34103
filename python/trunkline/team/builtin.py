"""The search team: a verifier decides whether what was found is enough; then one agent answers, or another searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trunkline.bounds import shown, whole
from trunkline.errors import ConfigError
from trunkline.team.programs.verdict import check_lenient, said_yes
from trunkline.team.projection import Tag
from trunkline.team.role import Role
from trunkline.team.team import Team
from trunkline.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.team.play import TeamPlay

__all__ = ["SearchTeam"]

_YES: Final = "<verify>yes</verify>"
_NO: Final = "<verify>no</verify>"

_TASK: Final = """A team of agents answers this question step by step, with the help of a search engine:
{question}
{history}
"""

_VERIFIER: Final = (
    _TASK
    + """
You are the verifier, and this is step {step}. Look at the searches so far, which stand within <search> </search>, and \
at what they found, within <information> </information>: were they precise and to the point, and is what was found \
enough to answer the question? Reason step by step, then decide:
<verify>yes</verify> if it is enough;
<verify>no</verify> if more has to be searched for.
"""
)

_SEARCHER: Final = (
    _TASK
    + """
What your colleagues said at step {step}:
{context}

You are the searcher. Reason first, within <think> </think>, about what is known, what was searched for and what is \
missing. Then write the next query for the search engine: <search>your query</search>.
"""
)

_ANSWERER: Final = (
    _TASK
    + """
You are the answerer. Reason first, within <think> </think>, about everything that was found and what you know \
yourself. Then give the final answer, short and without explanation, within <answer> </answer>, such as \
<answer>Beijing</answer>.
"""
)


class SearchTeam(Team, frozen=True, kw_only=True):
    """A verifier, who sends each step to the searcher or to the answerer.

    All see the question and the latest actions with what they found; the searcher also sees what the verifier said. A
    step ends with what the query found. Where the verifier is not satisfied at the last step nobody is asked any more,
    and the answer is the empty text. An answer that cannot be read costs a step and does not end the rollout. The
    rollout's answer is what stands in the answerer's tag.

    Searcher and answerer act validly if they thought first, and the verifier if it gave a verdict; Chinese characters
    make any action invalid. Such an action costs 0.01 and is used all the same.

    Attributes:
        tool: The search engine, which must be given: a :func:`trunkline.tool` that takes a query, or a list of them.
        max_steps: The most steps.
        history: How many of the latest actions are shown, with what they found; their number is shown, too.
        lenient: Whether a verdict that is none, or is both, sends the step to the answerer; else to the searcher.

    Raises:
        ConfigError: A setting has a value it cannot have, or there is no tool.
    """

    verifier = Role(prompt=_VERIFIER, slots=("history",), reads=Tag("verify", keep="all", chinese=False), penalty=0.01)
    searcher = Role(prompt=_SEARCHER, slots=("history",), reads=Tag("search", thinks=True, chinese=False), penalty=0.01)
    answerer = Role(prompt=_ANSWERER, slots=("history",), reads=Tag("answer", thinks=True, chinese=False), penalty=0.01)

    tool: Tool[..., Any] | None = None
    max_steps: int = 4
    history: int = 2
    lenient: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tool(self.tool)
        whole("max_steps", self.max_steps, 1)
        whole("history", self.history, 0)
        check_lenient(self.lenient)

    async def play(self, rollout: TeamPlay) -> str:
        """Search until what was found is enough, and answer."""
        answer: str | None = None
        done: list[str] = []
        for step in range(1, self.max_steps + 1):
            action = await self._act(rollout, done, active=answer is None, last=step == self.max_steps)
            answer = _answer_in(action) if answer is None else answer
            if step == self.max_steps or (answer is not None and self.early_termination):
                break
            found = await self._search(rollout, action if answer is None else "")
            done.append(f"Step {step}:{action} {found}\n")
        return answer or ""

    async def _act(self, rollout: TeamPlay, done: list[str], *, active: bool, last: bool) -> str:
        """Play one step, and return its action: a query, an answer, or the empty text."""
        history = self._told(done)
        verdict = await rollout.ask(self.verifier, active=active, history=history)
        enough = said_yes(verdict, _YES, _NO, lenient=self.lenient)
        action = ""
        for role, acts in ((self.searcher, not enough and not last), (self.answerer, enough)):
            if (active and acts) or not self.agent_skip:
                action += await rollout.ask(role, active=active and acts, history=history)
        return action

    async def _search(self, rollout: TeamPlay, action: str) -> str:
        """End the step with what its query found, as later steps are shown it."""
        query = next(_in_tag(action, "search"), None)
        if query is None:
            await rollout.observe("")
            return ""
        assert self.tool is not None
        seen = await rollout.observe(self.tool, [query] if _takes_list(self.tool) else query)
        return f"<information>{seen.text}</information>" if seen.text else ""

    def _told(self, done: list[str]) -> str:
        """What is told of the steps so far; nothing at the first one."""
        if not done or not self.history:
            return ""
        return f"\nSteps taken so far: {len(done)}. The latest:\n" + "\n".join(done[-self.history :])


def _answer_in(action: str) -> str | None:
    """Return the answer of an action that ends the rollout, whoever gave it; None for another action."""
    if "<answer>" not in action or "</answer>" not in action:
        return None
    return ["", *_in_tag(action, "answer")][-1]


def _in_tag(text: str, name: str) -> Iterator[str]:
    """What stands between one tag and the next one that closes it, again and again."""
    opens, closes = f"<{name}>", f"</{name}>"
    end = 0
    while (start := text.find(opens, end)) >= 0 and (end := text.find(closes, start)) >= 0:
        yield text[start + len(opens) : end].strip()


def _takes_list(tool: Tool[..., Any]) -> bool:
    first, *_ = tool.parameters["properties"].values()
    return bool(first.get("type") == "array")


def _check_tool(tool: object) -> None:
    if not isinstance(tool, Tool):
        raise ConfigError(
            "tool must be the search engine, a @tool such as search(query: str) -> str; "
            + ("it is missing" if tool is None else f"it is {shown(tool)}")
        )
    takes = tool.parameters["properties"]
    needed = tool.parameters.get("required", [])
    if not takes or set(needed) - set(list(takes)[:1]):
        raise ConfigError(f"tool must take a query and need nothing else, but {tool.name} takes {shown(list(takes))}")
    if tool.schema.slot is not None:
        raise ConfigError(f"tool {tool.name} works on an environment, which a team has none of")
