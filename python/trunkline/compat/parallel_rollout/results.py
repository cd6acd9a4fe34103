"""What a rollout came to, as plain JSON data that outlives its run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline import _core
from trunkline.compat.parallel_rollout.reasoning import extract
from trunkline.tree.node import Kind, Node
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
        * ``confidence``: the geometric mean of the probabilities of its tokens, from 0 to 1, by their log-probabilities
          or, without token ids, their entropies. None where the server gave neither; ask with ``logprobs=True`` and
          ``top_logprobs`` of at least 2.
        * ``compressed_reasoning``: how it got there in a few lines, without asking a model.
        * ``nodes``: ids of its nodes in the tree, from the first prompt to the end; those that rollouts share are in
          the results of each.
        * ``rollout``: its number among the results.
        * ``reward``: its reward, or None where it is unscored.
    """
    failure, termination = rollout.error, rollout.termination
    error = None if failure is None else ": ".join(filter(None, (failure.kind, failure.message)))
    messages, answer = rollout.messages, rollout.answer
    return {
        "messages": messages,
        "answer": answer,
        "final_answer": answer,
        "termination": (Termination.LOST if termination is None else termination).value,
        "error": broken if termination is None else error,
        "usage": msgspec.structs.asdict(rollout.usage),
        "confidence": _number(_confidence(rollout)),
        "compressed_reasoning": extract(messages),
        "nodes": [node.id for node in rollout.nodes],
        "rollout": rollout.id,
        "reward": _number(rollout.reward),
    }


def _number(value: float) -> float | None:
    """A number that JSON can hold, or None."""
    return value if math.isfinite(value) else None


def _confidence(rollout: Trajectory) -> float:
    """How sure the model was of its tokens on average; NaN where that is not known of every turn."""
    total, count = 0.0, 0
    for node in rollout.nodes:
        if node.kind is Kind.TURN:
            nats, tokens = _surprise(rollout.tree.core, node)
            total += nats
            count += tokens
    return math.exp(-total / count) if count else math.nan


def _surprise(core: _core.Tree, node: Node) -> tuple[float, int]:
    """The negative log-probability of a turn's tokens in nats, and how many they are; NaN where it is not known.

    A server that gives no token ids leaves the entropy of the alternatives it listed, which is what is expected of it.
    """
    tokens = core.tokens_of(node.id)
    if tokens is not None and len(tokens):
        sampled = [value for value, flag in zip(tokens.logprobs, tokens.flags, strict=True) if flag & _core.SAMPLED]
        return -math.fsum(sampled), len(sampled)
    count = node.generated_tokens or 1
    return core.node(node.id).entropy[2] * count, count
