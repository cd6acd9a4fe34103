"""A search node, and one answer out of the results of many rollouts."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trunkline._internal.text import scrub
from trunkline._internal.validation import check_choice, check_float, check_int, short_repr, type_phrase
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.openai_client import ClientLLM, as_llm
from trunkline.scoring.aggregators.base import Candidate
from trunkline.scoring.aggregators.llm import Integrate
from trunkline.scoring.aggregators.voting import poll, weights
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.types import LLMClient


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
        if reward is None or _missing(reward):
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
        Cesa-Bianchi and Fischer, "Finite-time analysis of the multiarmed bandit problem" (2002), and Kocsis and
        Szepesvári (2006) for trees.

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


def as_client(client: object, max_concurrency: int | None = None) -> LLMClient:
    """Return the LLM of an ``AsyncOpenAI`` client or an object with ``async complete(request)``, else ConfigError."""
    limit = None if max_concurrency is None else check_int("max_concurrency", max_concurrency, 1)
    if not callable(getattr(client, "complete", None)):
        return ClientLLM(client) if limit is None else ClientLLM(client, max_concurrency=limit)
    if limit is not None:
        raise ConfigError(f"max_concurrency belongs to a client; {type(client).__name__} has a limit of its own")
    return as_llm(client)


_WITHOUT: Final = tuple(termination.value for termination in UNSCORED)
"""Terminations of results without a vote."""

_MOST: Final = 1e15
"""The largest confidence, and the size of the largest reward."""

_log = logging.getLogger("trunkline.compat")


def aggregate_results(rollout_results: Sequence[Mapping[str, Any]], question: str) -> str:
    """The answer with the most weight behind it, by the rules of ``trunkline.aggregators.WeightedVote``.

    A result weighs its ``confidence`` times its ``reward``, of which one below 0 counts as 0. A result without one of
    the two counts as the mean of the others there, and where none has one, or all have 0, it changes nothing. Where all
    products are 0, rewards decide. Answers that say the same are counted together (``1/2`` and ``0.5``, ``Paris`` and
    ``paris.``). Of equal weights the first in the order of normalised answers wins, so the order of the results makes
    no difference. The spelling is the most frequent one.

    Args:
        rollout_results: What ``run_parallel_rollouts`` returned, or dicts like it: of each, ``answer`` (or
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
    """Let a model pick one of the answers, after reading a report on each of the results.

    Reports that are needed are written first, all at once, each by one request that shows the conversation. Then one
    request shows all answers with their reports, and must pick one; a reply that picks none is asked for once more.
    Where there is one answer or none, nothing is sent. The order of the results makes no difference to what is asked.

    Args:
        rollout_results: As ``aggregate_results`` takes them; reports are in ``compressed_reasoning``, conversations
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
        if messages is None:
            messages = []
        elif not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise ConfigError(f"{place}: messages must be a list of chat messages, not {short_repr(messages)}")
        candidate = Candidate(
            id=position,
            answer=_answer(result, place),
            confidence=_measure(result, "confidence", 0, place),
            reward=_measure(result, "reward", -_MOST, place),
            report="" if anew and messages else report or "",
            messages=tuple(messages),
        )
        if result.get("termination") not in _WITHOUT:
            found.append(candidate)
    return found


def _answer(result: Mapping[str, Any], place: str) -> str | None:
    name = "final_answer" if result.get("answer") is None else "answer"
    answer = result.get(name)
    if _missing(answer):
        return None
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise ConfigError(f"{place}: {name} must be a text, a number or None, not {short_repr(answer)}")
    try:
        return scrub(str(answer))
    except ValueError:
        raise ConfigError(f"{place}: {name} is a number of thousands of digits; give it as a text") from None


def _measure(result: Mapping[str, Any], name: str, least: float, place: str) -> float:
    """Return the confidence or reward of a result; NaN where it has none."""
    value = result.get(name)
    if _missing(value):
        return math.nan
    if not isinstance(value, int | float) or (isinstance(value, bool) and least == 0) or not least <= value <= _MOST:
        raise ConfigError(
            f"{place}: {name} must be a number from {least:g} to {_MOST:g}, or None, not {short_repr(value)}"
        )
    return float(value)


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))  # tables have NaN for no value
