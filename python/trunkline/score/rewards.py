"""Rewards: what a trajectory is worth, and how a reward function is called."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from trunkline.bounds import shown
from trunkline.printable import printable, said
from trunkline.score.answers import number, tail
from trunkline.tree.vote import fold, normalise
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from trunkline.tree.trajectory import Trajectory

__all__ = [
    "REWARD_TIMEOUT",
    "Reward",
    "Scored",
    "apply",
    "cancelled",
    "contains",
    "exact_match",
    "numeric_match",
    "score",
]

REWARD_TIMEOUT = 300.0
"""Seconds that an awaited reward has to give its result."""

_CONTAINS = 50_000  # characters at the end of an answer that are searched

_log = logging.getLogger("trunkline.score")

Reward = Callable[["Trajectory"], "Awaitable[float | bool | None] | float | bool | None"]
"""What scores a trajectory: a function, a coroutine function, or an object that can be called like one.

It takes the trajectory (whose ``task`` has the accepted answers) and returns a number, True or False, or
None if it cannot say. An exception in it, also ``SystemExit``, leaves the trajectory unscored, and so does an
awaited result that takes longer than ``REWARD_TIMEOUT``.
"""


class Scored(NamedTuple):
    """What a reward said about one trajectory.

    Attributes:
        value: The reward; NaN if there is none.
        problem: Why there is none, on one printable line; None if there is one, or if the reward said None
            itself.
    """

    value: float
    problem: str | None = None


def _name(reward: Reward) -> str:
    return printable(str(getattr(reward, "__qualname__", type(reward).__qualname__)), 80)


def cancelled() -> bool:
    """Return whether the current task is being cancelled; user code may raise the same error by itself."""
    own = asyncio.current_task()
    return own is not None and own.cancelling() > 0


async def _asked(reward: Reward, trajectory: Trajectory) -> tuple[object, str | None]:
    """What a reward says, or what went wrong in it: it is user code, and whatever it raises is data here."""
    deadline = asyncio.timeout(REWARD_TIMEOUT)
    try:
        result: object = reward(trajectory)
        if inspect.isawaitable(result):
            async with deadline:
                result = await result
    except GeneratorExit:
        raise
    except BaseException as problem:
        if isinstance(problem, asyncio.CancelledError) and cancelled():
            raise
        if not deadline.expired():
            return None, f"{_name(reward)} raised {type(problem).__name__}: {said(problem)}"
    if deadline.expired():
        return None, f"{_name(reward)} gave no result within {REWARD_TIMEOUT:g} s"
    return result, None


async def score(reward: Reward, trajectory: Trajectory, *, cut: bool = False) -> Scored:
    """Ask a reward about a trajectory. Whatever goes wrong in it leaves the trajectory unscored, never at 0.

    Args:
        reward: The reward; a plain function runs in this thread, an awaitable result is awaited, for at most
            ``REWARD_TIMEOUT`` seconds.
        trajectory: An ended rollout. One that broke, was cut or filtered is not shown to the reward.
        cut: Whether one that was cut is shown to it after all: a value function judges states, not answers.

    Returns:
        The reward, or NaN with the reason.
    """
    ended = trajectory.termination
    if ended is None:
        return Scored(math.nan, "the rollout has not ended")
    if ended in UNSCORED and not (cut and ended is Termination.CENSORED):
        return Scored(math.nan)
    result, problem = await _asked(reward, trajectory)
    if result is None:
        return Scored(math.nan, problem)
    try:
        # Through __float__, so that NumPy's and Decimal's numbers count; text does not, whatever it spells.
        value = math.nan if isinstance(result, (str, bytes, bytearray)) else float(cast("float", result))
    except Exception:  # noqa: BLE001 - whatever a foreign number's own method raises, it is no reward
        value = math.nan
    if not math.isfinite(value):
        return Scored(math.nan, f"{_name(reward)} returned {shown(result)}, expected a finite number, a bool or None")
    return Scored(value)


async def apply(reward: Reward, trajectory: Trajectory, *, cut: bool = False) -> float:
    """The reward of a trajectory, or NaN if it stays unscored, which is logged (``trunkline.score``).

    Args:
        reward: The reward.
        trajectory: An ended rollout.
        cut: See :func:`score`.

    Returns:
        A finite number, or NaN. See :func:`score` for the reason as data.
    """
    said = await score(reward, trajectory, cut=cut)
    if said.problem is not None:
        task = printable(trajectory.task.id, 80)
        _log.warning("task %s, rollout %d is unscored: %s", task, trajectory.id, said.problem)
    return said.value


def exact_match(trajectory: Trajectory) -> float | None:
    """1.0 if the answer equals an accepted one after normalisation, else 0.0.

    Args:
        trajectory: An ended rollout.

    Returns:
        The reward; None if the task has no accepted answer.
    """
    accepted = {normalise(reference) for reference in trajectory.task.reference}
    if not accepted:
        return None
    answer = trajectory.answer
    return float(answer is not None and normalise(answer) in accepted)


def _searched(text: str) -> str:
    return fold(tail(text.strip(), _CONTAINS))


def contains(trajectory: Trajectory) -> float | None:
    """1.0 if an accepted answer stands in the answer as whole words after normalisation, else 0.0.

    Of an answer of more than 50,000 characters only the last ones are searched.

    Args:
        trajectory: An ended rollout.

    Returns:
        The reward; None if the task has no accepted answer.
    """
    accepted = [_searched(reference) for reference in trajectory.task.reference]
    if not any(accepted):
        return None
    answer = f" {_searched(trajectory.answer or '')} "
    return float(any(f" {reference} " in answer for reference in accepted if reference))


def numeric_match(trajectory: Trajectory, *, relative: float = 1e-6, absolute: float = 1e-9) -> float | None:
    """1.0 if the number in the answer is close to the number in an accepted one, else 0.0.

    Args:
        trajectory: An ended rollout.
        relative: Largest difference as a share of the larger number.
        absolute: Largest difference that is always accepted.

    Returns:
        The reward; None if no accepted answer states a number.
    """
    accepted = [value for value in map(number, trajectory.task.reference) if value is not None]
    if not accepted:
        return None
    found = number(trajectory.answer or "")
    if found is None:
        return 0.0
    return float(any(math.isclose(found, value, rel_tol=relative, abs_tol=absolute) for value in accepted))
