"""Node, aggregate_results, integrate."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import scrub
from trunkline._internal.validation import check_choice, check_float, check_int, short_repr, type_phrase
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.openai_client import ClientLLM, as_llm
from trunkline.llm.request import Sampling
from trunkline.scoring.aggregators.base import Candidate
from trunkline.scoring.aggregators.llm import Integrate
from trunkline.scoring.aggregators.voting import poll, weights
from trunkline.types import UNSCORED, accepted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.types import LLM


class SearchNode:
    """A state of a search, which its owner links, fills and reads; it is no view of a tree of the library.

    Making one with a parent does not append it to the parent's children.

    Args:
        parent: The node before it; None for a root.

    Attributes:
        parent: The node before it, or None.
        children: The nodes after it, a list.
        state: Whatever its owner keeps, such as the messages so far.
        visits: Number of rewards backed up through it.
        value: V(s), the mean of these rewards; 0.0 before the first.
        compressed_reasoning: A report on how this state was reached; empty at first.

    Raises:
        ConfigError: The parent is no node.
    """

    def __init__(self, parent: Node | None = None) -> None:
        if parent is not None and not isinstance(parent, Node):
            raise ConfigError(f"Node: parent must be a Node or None, not {short_repr(parent)}")
        self.parent = parent
        self.children: list[Node] = []
        self.state: Any = None
        self.visits = 0
        self.value = 0.0
        self.compressed_reasoning = ""

    def backpropagate(self, reward: float | None) -> None:
        """Count a reward here and in every node above, whose values stay the means of their rewards.

        Args:
            reward: A finite number. None and NaN stand for a rollout without a score, and change nothing.

        Raises:
            ConfigError: It is no such number; nothing was changed.
            UsageError: The parents lead back to a node they began with; nothing was changed.
        """
        if reward is None or (isinstance(reward, float) and math.isnan(reward)):
            return
        if not isinstance(reward, int | float) or isinstance(reward, bool) or not abs(reward) <= sys.float_info.max:
            raise ConfigError(f"backpropagate: reward must be a finite number, not {short_repr(reward)}")
        path: dict[int, Node] = {}
        node: Node | None = self
        while node is not None:
            if id(node) in path:
                raise UsageError("backpropagate: following the parents leads back to where it began; a root has None")
            path[id(node)] = node
            node = node.parent
        for node in path.values():
            node.visits += 1
            # Each divided by itself, as the difference of two huge rewards may be infinite.
            node.value += reward / node.visits - node.value / node.visits

    def best_child(self, c: float) -> Node:
        """The best child by UCB1: ``value + c * sqrt(ln(visits of this node) / visits of the child)``.

        A child without visits comes first, one whose value is NaN last; of equal ones the first is taken. See Auer,
        Cesa-Bianchi and Fischer (2002), and Kocsis and Szepesvári (2006) for trees.

        Args:
            c: Weight of the exploration term; 0 takes the child of the highest value.

        Raises:
            UsageError: There are no children.
            ConfigError: ``c`` is no number of at least 0.
        """
        check_float("best_child: c", c, 0)
        if not self.children:
            raise UsageError("best_child: this node has no children; append some to its list of children first")
        seen = math.log(max(self.visits, 1))  # visits may be set by hand

        def bound(child: Node) -> float:
            if child.visits <= 0:
                return math.inf
            found = child.value + c * math.sqrt(seen / child.visits)
            return -math.inf if math.isnan(found) else found

        return max(self.children, key=bound)

    def __repr__(self) -> str:
        return f"<Node {len(self.children)} children, {self.visits} visits, value {self.value:.4g}>"


Node = SearchNode
"""The name that examples know it by."""

SAMPLING: Final = tuple(name for name in Sampling.__struct_fields__ if name != "extra")
"""Fields of a request that the library knows, by their own names."""

BODY: Final = (
    "logit_bias",
    "max_completion_tokens",
    "metadata",
    "modalities",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "service_tier",
    "store",
    "tool_choice",
    "user",
    "verbosity",
    "web_search_options",
)
"""Further fields of a chat completion, which go into its body as they are."""

AGENT: Final = ("system", "max_tool_calls", "dialect", "malformed")
RUN: Final = ("seed", "strategy", "reward", "out", "budget", "cache")
OWN: Final = ("max_iterations", "tool_functions", "max_concurrency", "reference", "extra_body")

_INSTEAD: Final = {
    "n": "num_rollouts says how many tries there are",
    "stream": "replies are read whole",
    "stream_options": "replies are read whole",
    "functions": "give tools",
    "function_call": "give tool_choice",
    "messages": "they grow with the rollout",
    "timeout": "set it on the client: client.with_options(timeout=...)",
    "extra_headers": "set them on the client: client.with_options(default_headers=...)",
    "extra_query": "set it on the client: client.with_options(default_query=...)",
}

_AS_IT_IS: Final = {"stream": False, "n": 1}
"""Values of those that ask for what is done anyway, beside None."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked keyword arguments of a call: sampling, fields of the agent, options of the run, and the adapter's own."""

    sampling: Sampling
    agent: dict[str, Any]
    run: dict[str, Any]
    reference: tuple[str, ...]
    tool_functions: Mapping[str, Any]
    max_concurrency: int | None
    max_iterations: int | None


def settings(function: str, given: Mapping[str, Any], without: tuple[str, ...] = ()) -> Settings:
    """Check and sort the keyword arguments of a function that lacks the names of ``without``."""
    known = [name for name in (*SAMPLING, *BODY, *AGENT, *RUN, *OWN) if name not in without]
    given = _asking(given)
    for name in given:
        if name not in known:
            why = _INSTEAD.get(name)
            if why is not None:
                raise ConfigError(f"{function} does not take {name}: {why}")
            raise ConfigError(
                f"{function} has no option {short_repr(name)}; it has {', '.join(sorted(known))}; "
                "further fields of the request go into extra_body"
            )
    functions = given.get("tool_functions")
    if functions is not None and not isinstance(functions, Mapping):
        raise ConfigError(f"tool_functions must be a dict of functions by name, not {type_phrase(functions)}")
    limit, turns = given.get("max_concurrency"), given.get("max_iterations")
    return Settings(
        sampling=_sampling(given),
        agent={name: given[name] for name in AGENT if name in given},
        run={name: given[name] for name in RUN if name in given},
        reference=accepted("reference", given.get("reference")),
        tool_functions=functions or {},
        max_concurrency=None if limit is None else check_int("max_concurrency", limit, 1),
        max_iterations=None if turns is None else check_int("max_iterations", turns, 1),
    )


def _asking(given: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out fields that the library writes itself, where they ask for what it writes."""
    return {
        name: value
        for name, value in given.items()
        if name not in _INSTEAD or (value is not None and value is not _AS_IT_IS.get(name))
    }


def as_client(client: object, max_concurrency: int | None = None) -> LLM:
    """Return the LLM of an ``AsyncOpenAI`` client or an object with ``async complete(request)``, else ConfigError."""
    if callable(getattr(client, "complete", None)):
        if max_concurrency is not None:
            raise ConfigError(f"max_concurrency belongs to a client; {type(client).__name__} has a limit of its own")
        return as_llm(client)
    return ClientLLM(client) if max_concurrency is None else ClientLLM(client, max_concurrency=max_concurrency)


def _sampling(given: Mapping[str, Any]) -> Sampling:
    body = given.get("extra_body")
    if body is not None and not isinstance(body, Mapping):
        raise ConfigError(f"extra_body must be a dict of body fields, not {type_phrase(body)}")
    # As with the SDK, what stands in extra_body is the last word on a field.
    fields = {name: given[name] for name in (*SAMPLING, *BODY) if given.get(name) is not None} | _asking(body or {})
    known = {name: fields.pop(name) for name in SAMPLING if name in fields}
    if isinstance(known.get("stop"), str):
        known["stop"] = (known["stop"],)
    if isinstance(known.get("stop"), list):
        known["stop"] = tuple(known["stop"])
    return Sampling(**known, extra=fields)


_ANSWERS: Final = ("answer", "final_answer")
"""Where an answer stands, the first that is there."""

_WITHOUT: Final = tuple(termination.value for termination in UNSCORED)
"""Results that ended so have no vote."""

_MOST: Final = 1e15
"""The largest confidence, and the size of the largest reward."""

_log = logging.getLogger("trunkline.compat")


def aggregate_results(rollout_results: Sequence[Mapping[str, Any]], question: str) -> str:
    """The answer with the most weight behind it, by the rules of :class:`trunkline.Weighted`.

    A result weighs its ``confidence`` times its ``reward``, of which one below 0 counts as 0. A result without one of
    the two counts as the mean of the others there, and where none has one, or all have 0, it changes nothing. Where all
    products are 0, rewards decide. Answers that say the same are counted together (``1/2`` and ``0.5``, ``Paris`` and
    ``paris.``). Of equal weights the first in the order of normalised answers wins, so the order of the results makes
    no difference. The spelling is the most frequent one.

    Args:
        rollout_results: What :func:`run_parallel_rollouts` returned, or dicts like it: of each, ``answer`` (or
            ``final_answer``), ``confidence``, ``reward`` and ``termination`` are read where they are there. Results
            without an answer do not vote, and neither do those that failed or were cut.
        question: What was asked; a vote does not need it.

    Returns:
        The answer; empty where no result has one.

    Raises:
        ConfigError: A result is no dict, or one of these fields has a value it cannot have; the message names it.
    """
    candidates = _candidates(rollout_results)
    if not isinstance(question, str):
        raise ConfigError(f"question must be a text, not {type_phrase(question)}")
    sure, _ = weights(candidates, "confidence")
    weigh, _ = weights(candidates, "reward")
    if sure and weigh:
        both = {one: weight * weigh[one] for one, weight in sure.items()}
        weigh = both if any(both.values()) else weigh
    return poll(candidates, weigh or sure).answer or ""


async def integrate(
    rollout_results: Sequence[Mapping[str, Any]], question: str, client: Any, model: str, *, reports: str = "stored"
) -> str:
    """Let a model pick one of the answers, after reading a report on each of the results: :class:`trunkline.Integrate`.

    Reports that are needed are written first, all at once, each by one request that shows the conversation. Then one
    request shows all answers with their reports, and must pick one; a reply that picks none is asked for once more.
    Where there is one answer or none, nothing is sent. The order of the results makes no difference to what is asked.

    Args:
        rollout_results: As :func:`aggregate_results` takes them; reports are in ``compressed_reasoning``, conversations
            in ``messages``.
        question: What was asked.
        client: An ``AsyncOpenAI`` client, through which every request goes.
        model: The model that reads and picks.
        reports: ``stored`` writes the reports that are missing, ``model`` writes all of them anew. Where a request for
            one fails or brings nothing, an extracted report stands for it.

    Returns:
        One of the answers; where the model picks none, or its request fails, the votes decide, of which those count
        half whose report does not state their answer. Empty where no result has an answer.

    Raises:
        ConfigError: A result or an argument cannot be used; the message names it.
        EndpointError: The endpoint refuses every request.
    """
    check_choice("reports", reports, "stored", "model")
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"question must be a text, not {short_repr(question)}")
    candidates = _candidates(rollout_results, anew=reports == "model")
    decision = await Integrate(as_client(client), model).decide(question, candidates)
    _log.info("integrate: %s", decision.why)
    return decision.answer or ""


def _candidates(results: Sequence[Mapping[str, Any]], *, anew: bool = False) -> list[Candidate]:
    """Return the results that may vote; ``anew`` leaves out their reports. ConfigError names a wrong field."""
    if not isinstance(results, list | tuple):
        raise ConfigError(f"rollout_results must be a list of dicts, not {type_phrase(results)}")
    found = []
    for position, result in enumerate(results):
        place = f"rollout_results[{position}]"
        if not isinstance(result, Mapping):
            raise ConfigError(f"{place} is {type_phrase(result)}, expected a dict as run_parallel_rollouts returns it")
        report, messages = result.get("compressed_reasoning"), result.get("messages")
        if report is not None and not isinstance(report, str):
            raise ConfigError(f"{place}: compressed_reasoning must be a text or None, not {short_repr(report)}")
        candidate = Candidate(
            id=position,
            answer=_answer(result, place),
            confidence=_measure(result, "confidence", 0, place),
            reward=_measure(result, "reward", -_MOST, place),
            report="" if anew and messages else report or "",
            messages=_conversation(messages, place),
        )
        if result.get("termination") not in _WITHOUT:
            found.append(candidate)
    return found


def _answer(result: Mapping[str, Any], place: str) -> str | None:
    """Return the answer of a result; None for none, and for NaN, as tables have it."""
    name = next((name for name in _ANSWERS if result.get(name) is not None), None)
    if name is None:
        return None
    answer = result[name]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise ConfigError(f"{place}: {name} must be a text, a number or None, not {short_repr(answer)}")
    if isinstance(answer, float) and math.isnan(answer):
        return None
    try:
        return scrub(str(answer))
    except ValueError:
        raise ConfigError(f"{place}: {name} is a number of thousands of digits; give it as a text") from None


def _measure(result: Mapping[str, Any], name: str, least: float, place: str) -> float:
    """Return the confidence or reward of a result; NaN where it has none."""
    value = result.get(name)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return math.nan
    if not isinstance(value, int | float) or (isinstance(value, bool) and least == 0) or not least <= value <= _MOST:
        raise ConfigError(
            f"{place}: {name} must be a number from {least:g} to {_MOST:g}, or None, not {short_repr(value)}"
        )
    return float(value)


def _conversation(messages: object, place: str) -> tuple[dict[str, Any], ...]:
    if messages is None:
        return ()
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ConfigError(f"{place}: messages must be a list of chat messages, not {short_repr(messages)}")
    return tuple(messages)
