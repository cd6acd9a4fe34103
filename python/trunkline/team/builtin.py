"""Search, math, experts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from trunkline._internal.validation import check_bool, check_int, short_repr
from trunkline.errors import ConfigError
from trunkline.scoring.answers import extract_answer
from trunkline.team.projection import Boxed, Tag
from trunkline.team.role import Role
from trunkline.team.team import Team
from trunkline.tools.tool import Tool, check_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.team.team import TeamPlay


_SYNTHESIS: Final = """Several experts have worked on this question, each on their own:
{question}

What they said:
{context}

Weigh their arguments, not their number. Then give the final answer, short and without explanation, within \
<answer> </answer>.
"""


class ExpertsTeam(Team, frozen=True, kw_only=True):
    """Three experts, asked at the same time, and a synthesiser who sees what they said.

    The experts see nothing of one another. The rollout's answer is what stands in the synthesiser's ``<answer>`` tag;
    the empty text where it has none.
    """

    theorist = Role(
        system="You are a theorist: you reason from definitions and first principles.",
        prompt="{question}\n\nDerive the answer step by step, and say what it rests on.",
    )
    practitioner = Role(
        system="You are a practitioner: you work with examples, numbers and known methods.",
        prompt="{question}\n\nWork the answer out in the most direct way you know, and check it on an example.",
    )
    sceptic = Role(
        system="You are a sceptic: you look for traps, special cases and hidden assumptions.",
        prompt="{question}\n\nSay what is easy to get wrong here, and what the answer is once that is avoided.",
    )
    synthesiser = Role(prompt=_SYNTHESIS, reads=Tag("answer", keep="content"))

    async def play(self, rollout: TeamPlay) -> str:
        """Ask the experts together, then the synthesiser."""
        experts = (self.theorist, self.practitioner, self.sceptic)
        await asyncio.gather(*(rollout.ask(expert) for expert in experts))
        return await rollout.ask(self.synthesiser)


def is_yes(text: str, yes: str, no: str, *, lenient: bool, cased: bool = False) -> bool:
    """Read a verdict; ``lenient`` takes one without yes and no, or with both, for a yes."""
    read = text if cased else text.lower()
    return yes in read or no not in read if lenient else yes in read and no not in read


_YES: Final = "<verify>yes</verify>"
_NO: Final = "<verify>no</verify>"

_TASK: Final = """A team of agents answers this question step by step, with the help of a search engine:
{question}
{history}
"""

_SEARCH_VERIFIER: Final = (
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
    step ends with what the query found. Where the verifier is not satisfied at the last step no role is asked any more,
    and the answer is the empty text. An answer that cannot be read costs a step and does not end the rollout. The
    rollout's answer is what stands in the answerer's tag.

    Searcher and answerer act validly if they thought first, and the verifier if it gave a verdict; Chinese characters
    make any action invalid. Such an action costs 0.01 and is used all the same.

    Attributes:
        tool: The search engine, which must be given: a ``trunkline.tool`` that takes a query, or a list of them.
        max_steps: The most steps.
        history: How many of the latest actions are shown, with what they found; their number is shown, too.
        lenient: Whether an unclear verdict (no yes or no, or both) leads to the answerer; else to the searcher.

    Raises:
        ConfigError: A setting has a value it cannot have, or there is no tool.
    """

    verifier = Role(
        prompt=_SEARCH_VERIFIER, slots=("history",), reads=Tag("verify", keep="all", chinese=False), penalty=0.01
    )
    searcher = Role(prompt=_SEARCHER, slots=("history",), reads=Tag("search", thinks=True, chinese=False), penalty=0.01)
    answerer = Role(prompt=_ANSWERER, slots=("history",), reads=Tag("answer", thinks=True, chinese=False), penalty=0.01)

    tool: Tool[..., Any] | None = None
    max_steps: int = 4
    history: int = 2
    lenient: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tool(self.tool, self.environment)
        check_int("max_steps", self.max_steps, 1)
        check_int("history", self.history, 0)
        check_bool("lenient", self.lenient)

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
        """Play one step and return its action: a query, an answer, or the empty text."""
        history = self._told(done)
        verdict = await rollout.ask(self.verifier, active=active, history=history)
        enough = is_yes(verdict, _YES, _NO, lenient=self.lenient)
        action = ""
        for role, acts in ((self.searcher, not enough and not last), (self.answerer, enough)):
            if (active and acts) or not self.agent_skip:
                action += await rollout.ask(role, active=active and acts, history=history)
        return action

    async def _search(self, rollout: TeamPlay, action: str) -> str:
        """End the step with the result of its query, as later steps are shown it."""
        query = next(_in_tag(action, "search"), None)
        if query is None:
            await rollout.observe("")
            return ""
        assert self.tool is not None
        seen = await rollout.observe(self.tool, [query] if _takes_list(self.tool) else query)
        return f"<information>{seen.text}</information>" if seen.text else ""

    def _told(self, done: list[str]) -> str:
        if not done or not self.history:
            return ""
        return f"\nSteps taken so far: {len(done)}. The latest:\n" + "\n".join(done[-self.history :])


def _answer_in(action: str) -> str | None:
    """Return the answer of an action that ends the rollout; None for another action."""
    if "<answer>" not in action or "</answer>" not in action:
        return None
    return ["", *_in_tag(action, "answer")][-1]


def _in_tag(text: str, name: str) -> Iterator[str]:
    """Yield the texts between a tag and the next one that closes it."""
    opens, closes = f"<{name}>", f"</{name}>"
    end = 0
    while (start := text.find(opens, end)) >= 0 and (end := text.find(closes, start)) >= 0:
        yield text[start + len(opens) : end].strip()


def _takes_list(tool: Tool[..., Any]) -> bool:
    first, *_ = tool.parameters["properties"].values()
    return bool(first.get("type") == "array")


def _check_tool(tool: object, environment: object) -> None:
    if not isinstance(tool, Tool):
        raise ConfigError(
            "tool must be the search engine, a @tool such as search(query: str) -> str; "
            + ("it is missing" if tool is None else f"it is {short_repr(tool)}")
        )
    takes = tool.parameters["properties"]
    needed = tool.parameters.get("required", [])
    if not takes or set(needed) - set(list(takes)[:1]):
        raise ConfigError(
            f"tool must take a query and need nothing else, but {tool.name} takes {short_repr(list(takes))}"
        )
    check_environment(environment, [tool], "team")


_APPROVES: Final = "<verify>approve</verify>"
_REJECTS: Final = "<verify>reject</verify>"

_SOLVER: Final = """A team of agents works on this math problem:
{question}

What has been said in the team so far:
{context}

You are the solver. Work the problem out step by step; where the verifier found fault with an earlier solution, mend \
it or find another way. State the final answer within \\boxed{}.
"""

_MATH_VERIFIER: Final = """A team of agents works on this math problem:
{question}

What has been said in the team so far:
{context}

You are the verifier. Check the solver's latest solution: each step, each formula and the result. End with your \
verdict, which is one of these two:
<verify>approve</verify> if all of it is right;
<verify>reject</verify> if anything is wrong, and say before it what is.
"""


class MathTeam(Team, frozen=True, kw_only=True):
    r"""A solver, and a verifier who approves or rejects its solution, for at most so many rounds.

    The last solution is not reviewed, so a rollout has at most ``2 * rounds - 1`` turns. Both roles see all that was
    said. The rollout's answer is read in the solver's latest text as that of an agent is, so rewards and votes fit:
    thoughts are left out, then it is the last ``\boxed{...}``, else the whole text.

    The solver's action is valid if its last ``\boxed`` holds a group that closes; the verifier's if it has a verdict
    tag and no Chinese characters. One that is not costs 0.1 and is used all the same.

    Attributes:
        rounds: The most solutions.
        lenient: Whether a verdict counts as approval that is no verdict, or is both; only lower case counts then.
            Without, a solution is approved if the verdict approves, in any case, and does not reject.
    """

    solver = Role(prompt=_SOLVER, reads=Boxed(), penalty=0.1)
    verifier = Role(prompt=_MATH_VERIFIER, reads=Tag("verify", keep="all", chinese=False), penalty=0.1)

    rounds: int = 3
    lenient: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("rounds", self.rounds, 1)
        check_bool("lenient", self.lenient)

    async def play(self, rollout: TeamPlay) -> str:
        """Solve and verify by turns until a solution is approved."""
        solution, approved = "", False
        for number in range(1, self.rounds + 1):
            said = await rollout.ask(self.solver, active=not approved)
            if not approved:
                solution = said
            if number == self.rounds:
                break
            verdict = await rollout.ask(self.verifier, active=not approved)
            approved = approved or self._approves(verdict)
            if approved and self.early_termination:
                break
        return extract_answer(solution)

    def _approves(self, verdict: str) -> bool:
        return is_yes(verdict, _APPROVES, _REJECTS, lenient=self.lenient, cased=self.lenient)
