"""What a rollout came to, as plain JSON data that outlives its run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.score.confidence import entropy, logprob
from trunkline.score.reports.extract import extract
from trunkline.types import Termination

if TYPE_CHECKING:
    from trunkline.tree.trajectory import Trajectory

__all__ = ["result_of"]


def result_of(rollout: Trajectory, broken: str = "") -> dict[str, Any]:
    """Describe a rollout.

    Args:
        rollout: The rollout.
        broken: Why its run ended before it did, if that is so.

    Returns:
        A dict of plain JSON data:

        * ``messages``: the conversation from the first prompt to the end, in the OpenAI form.
        * ``answer``: the final answer, or None; ``final_answer`` is the same.
        * ``termination``: why it ended, a value of :class:`trunkline.Termination`; ``answer`` where it has one.
        * ``error``: what went wrong, one printable line, or None.
        * ``usage``: what its own calls cost, the fields of :class:`trunkline.Usage`.
        * ``confidence``: how sure the model was of the tokens of its last turn, from 0 to 1: the geometric mean of
          their probabilities, or where the server gives no token ids, one over their perplexity by the likeliest
          tokens. None where it gave neither; ask with ``logprobs=True`` and ``top_logprobs`` of at least 2.
        * ``compressed_reasoning``: how it got there in a few lines, without asking a model.
        * ``nodes``: ids of its nodes in the tree, from the first prompt to the end; those that rollouts share are in
          the results of each.
        * ``rollout``: its number among the results.
        * ``reward``: its reward, or None where it is unscored.
    """
    failure, termination = rollout.error, rollout.termination
    # Without token ids no log-probability is kept of a token, and the entropy is what is left of them.
    sure = logprob(rollout)
    confidence = entropy(rollout) if math.isnan(sure) else sure
    error = None if failure is None else ": ".join(filter(None, (failure.kind, failure.message)))
    messages, answer = rollout.messages, rollout.answer
    return {
        "messages": messages,
        "answer": answer,
        "final_answer": answer,
        "termination": (Termination.LOST if termination is None else termination).value,
        "error": broken if termination is None else error,
        "usage": msgspec.structs.asdict(rollout.usage),
        "confidence": _number(confidence),
        "compressed_reasoning": extract(messages, answer=answer),
        "nodes": [node.id for node in rollout.nodes],
        "rollout": rollout.id,
        "reward": _number(rollout.reward),
    }


def _number(value: float) -> float | None:
    """A number that JSON can hold, or None."""
    return value if math.isfinite(value) else None
