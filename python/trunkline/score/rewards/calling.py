"""How a reward is called: whatever goes wrong in it leaves a trajectory unscored, never at 0."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from typing import TYPE_CHECKING, cast

from trunkline.bounds import shown
from trunkline.printable import printable, said
from trunkline.score.rewards.reward import REWARD_TIMEOUT, Reward, Scored
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from trunkline.tree.trajectory import Trajectory

__all__ = ["apply", "cancelled", "score"]

_log = logging.getLogger("trunkline.score")


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
