"""Values: how good an unfinished rollout looks, for searches that go on with the best ones."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.tree.node import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.tree.trajectory import Trajectory

__all__ = ["Value", "best", "check", "confidence", "worth"]

Value = Callable[[Any], float | None]
"""What judges a :class:`~trunkline.tree.trajectory.Trajectory` that has not ended: a plain function of it, never a
coroutine function, that depends on nothing else. Higher is better; None if it cannot say, which ranks last.
"""

_ALL = 2
"""The place of the whole turn among the regions think, tool call and all."""


def check(name: str, value: object) -> None:
    """Check what a user gives as a value function.

    Args:
        name: What it is called, for the message.
        value: What was given; None for none.

    Raises:
        ConfigError: It is no function, or a coroutine function: who decides between two steps cannot wait.
    """
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise ConfigError(f"{name} must be a plain function of a trajectory, not {shown(value)}")


def confidence(trajectory: Trajectory) -> float:
    """How sure the model was of its last turn: minus the mean entropy of the turn's tokens, in nats.

    That is minus the logarithm of the turn's perplexity: 0 for certainty, less for doubt. NaN where the server gave
    no log-probabilities of the likeliest tokens, and before the first turn.
    """
    core = trajectory.tree.core
    turns = [node.id for node in trajectory.nodes if node.kind is Kind.TURN]
    return -core.node(turns[-1]).entropy[_ALL] if turns else math.nan


def worth(trajectory: Trajectory, value: Value | None = None) -> float:
    """What a rollout is worth to a search: what ``value`` says of it, or the model's own confidence.

    Returns:
        A number, or NaN where ``value`` cannot say.

    Raises:
        ConfigError: ``value`` returned no number, or none was given and there are no log-probabilities.
    """
    if value is None:
        found = confidence(trajectory)
        if math.isnan(found):
            raise ConfigError(
                "the server gave no log-probabilities of the likeliest tokens, so nobody knows how sure the model was: "
                "set sampling=Sampling(logprobs=True, top_logprobs=5), or give the strategy a value function"
            )
        return found
    said: object = value(trajectory)
    if said is None:
        return math.nan
    # Infinities order well, and 1e400 as a whole number does not fit a float.
    if isinstance(said, str | bytes | bytearray) or not hasattr(said, "__float__"):
        raise ConfigError(f"value must return a number or None at once, not {shown(said)}")
    try:
        return float(said)
    except Exception as problem:
        raise ConfigError(f"value must return a number or None, not {shown(said)}") from problem


def best(values: Sequence[float], k: int) -> list[int]:
    """Return the places of the ``k`` highest values, highest first; the earlier where two are equal, NaN last."""
    return sorted(range(len(values)), key=lambda place: (math.isnan(values[place]), -values[place]))[: max(k, 0)]
