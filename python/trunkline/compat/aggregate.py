"""One answer out of results: by a vote, or picked by a model that reads how each of them came about."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trunkline.bounds import choice, kind, shown
from trunkline.compat.parallel_rollout.options import as_client
from trunkline.errors import ConfigError
from trunkline.llm.text import scrub
from trunkline.score.aggregators.aggregator import Candidate
from trunkline.score.aggregators.ballot import poll, weights
from trunkline.score.aggregators.integrate import Integrate
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["aggregate_results", "integrate"]

_ANSWERS: Final = ("answer", "final_answer")
"""Where an answer stands, the first that is there."""

_WITHOUT: Final = tuple(termination.value for termination in UNSCORED)
"""Results that ended so have no vote."""

_MOST: Final = 1e15
"""The largest confidence."""

_log = logging.getLogger("trunkline.compat")


def aggregate_results(rollout_results: Sequence[Mapping[str, Any]], question: str) -> str:
    """The answer with the most weight behind it, by the rules of :class:`trunkline.Weighted`.

    A result weighs what its ``confidence`` says; one without counts as the mean of the others, and where none has any,
    all weigh the same. Answers that say the same are counted together (``1/2`` and ``0.5``, ``Paris`` and ``paris.``).
    Of equal weights the first in the order of normalised answers wins, so the order of the results makes no difference.
    The spelling is the most frequent one.

    Args:
        rollout_results: What :func:`run_parallel_rollouts` returned, or dicts like it: of each, ``answer`` (or
            ``final_answer``), ``confidence`` and ``termination`` are read where they are there. Results without an
            answer do not vote, and neither do those that failed or were cut.
        question: What was asked; a vote does not need it.

    Returns:
        The answer; empty where nobody has one.

    Raises:
        ConfigError: A result is no dict, or one of these fields has a value it cannot have; the message names it.
    """
    candidates = _candidates(rollout_results)
    if not isinstance(question, str):
        raise ConfigError(f"question must be a text, not {kind(question)}")
    weigh, _ = weights(candidates, "confidence")
    return poll(candidates, weigh).answer or ""


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
        model: Who reads and picks.
        reports: ``stored`` writes the reports that are missing, ``model`` writes all of them anew. Where a request for
            one fails or brings nothing, an extracted report stands for it.

    Returns:
        One of the answers; where the model picks none, or its request fails, the votes decide, of which those count
        half whose report does not state their answer. Empty where nobody has an answer.

    Raises:
        ConfigError: A result or an argument cannot be used; the message names it.
        EndpointError: The endpoint serves nobody.
    """
    choice("reports", reports, "stored", "model")
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"question must be a text, not {shown(question)}")
    candidates = _candidates(rollout_results, anew=reports == "model")
    decision = await Integrate(as_client(client), model).decide(question, candidates)
    _log.info("integrate: %s", decision.why)
    return decision.answer or ""


def _candidates(results: Sequence[Mapping[str, Any]], *, anew: bool = False) -> list[Candidate]:
    """Read the results that did not fail and were not cut; ``anew`` leaves out their reports.

    Raises:
        ConfigError: One cannot be read; the message names the field.
    """
    if not isinstance(results, list | tuple):
        raise ConfigError(f"rollout_results must be a list of dicts, not {kind(results)}")
    found = []
    for position, result in enumerate(results):
        place = f"rollout_results[{position}]"
        if not isinstance(result, Mapping):
            raise ConfigError(f"{place} is {kind(result)}, expected a dict as run_parallel_rollouts returns it")
        report, messages = result.get("compressed_reasoning"), result.get("messages")
        if report is not None and not isinstance(report, str):
            raise ConfigError(f"{place}: compressed_reasoning must be a text or None, not {shown(report)}")
        candidate = Candidate(
            id=position,
            answer=_answer(result, place),
            confidence=_confidence(result, place),
            report="" if anew and messages else report or "",
            messages=_conversation(messages, place),
        )
        if result.get("termination") not in _WITHOUT:
            found.append(candidate)
    return found


def _answer(result: Mapping[str, Any], place: str) -> str | None:
    """The answer of a result, if it has one; NaN is none, as in tables."""
    name = next((name for name in _ANSWERS if result.get(name) is not None), None)
    if name is None:
        return None
    answer = result[name]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise ConfigError(f"{place}: {name} must be a text, a number or None, not {shown(answer)}")
    if isinstance(answer, float) and math.isnan(answer):
        return None
    try:
        return scrub(str(answer))
    except ValueError:
        raise ConfigError(f"{place}: {name} is a number of thousands of digits; give it as a text") from None


def _confidence(result: Mapping[str, Any], place: str) -> float:
    """The confidence of a result; NaN where it has none."""
    confidence = result.get("confidence")
    if confidence is None or (isinstance(confidence, float) and math.isnan(confidence)):
        return math.nan
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= _MOST:
        raise ConfigError(f"{place}: confidence must be a number from 0 to {_MOST:g}, or None, not {shown(confidence)}")
    return float(confidence)


def _conversation(messages: object, place: str) -> tuple[dict[str, Any], ...]:
    """The conversation of a result; empty where it has none."""
    if messages is None:
        return ()
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ConfigError(f"{place}: messages must be a list of chat messages, not {shown(messages)}")
    return tuple(messages)
