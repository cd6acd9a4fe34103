"""How a reward is called: whatever goes wrong in it leaves a trajectory unscored, never at 0."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from typing import TYPE_CHECKING, Any, cast

from trunkline.bounds import shown
from trunkline.errors import ConfigError, TrunklineError
from trunkline.printable import printable, said
from trunkline.score.notes import as_graded
from trunkline.score.rewards.policy import policy_of
from trunkline.score.rewards.reward import LARGEST, REWARD_TIMEOUT, Reward, Scored
from trunkline.tools.threads import ExhaustedError, Threads
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.score.rewards.policy import Policy
    from trunkline.tree.trajectory import Trajectory

__all__ = ["apply", "ask", "ask_all", "cancelled", "close", "opened", "report", "score", "unseen"]

_WIDTH = 300
"""Cells of a reason that are kept."""

_log = logging.getLogger("trunkline.score")


def _name(reward: Reward) -> str:
    given = policy_of(reward).name or getattr(reward, "__qualname__", type(reward).__qualname__)
    return printable(str(given), 80)


def cancelled() -> bool:
    """Return whether the current task is being cancelled; user code may raise the same error by itself."""
    own = asyncio.current_task()
    return own is not None and own.cancelling() > 0


def unseen(trajectory: Trajectory, *, cut: bool) -> Scored | None:
    """Return what is said of a trajectory that no reward is shown; None of one that it is.

    Args:
        trajectory: A rollout.
        cut: Whether one that was cut is shown after all.
    """
    ended = trajectory.termination
    if ended is None:
        return Scored(math.nan, "the rollout has not ended")
    if ended in UNSCORED and not (cut and ended is Termination.CENSORED):
        return Scored(math.nan)
    return None


def _within(policy: Policy) -> float:
    return REWARD_TIMEOUT if policy.timeout is None else policy.timeout


async def _threaded(reward: Reward, given: Any, policy: Policy, threads: Threads) -> tuple[object, str | None]:
    """What a blocking reward says in a thread; one that is late is left behind there."""

    def run() -> tuple[object, str | None]:
        try:
            return reward(given), None
        except BaseException as problem:  # noqa: BLE001 - user code may raise anything, SystemExit included
            return None, f"{_name(reward)} raised {type(problem).__name__}: {said(problem)}"

    seconds = _within(policy)
    try:
        # A lock waits for some 290 years at most, and nobody for longer than a year.
        result: tuple[object, str | None] = await threads.run(run, min(seconds, 3e7))
    except TimeoutError:
        return None, f"{_name(reward)} gave no result within {seconds:g} s"
    except ExhaustedError:
        return None, f"{_name(reward)} was not asked: too many earlier calls of it never returned"
    return result


async def _awaited(reward: Reward, given: Any, policy: Policy) -> tuple[object, str | None]:
    """What a reward says in this thread, or what went wrong in it: whatever it raises is data here."""
    seconds = _within(policy)
    deadline = asyncio.timeout(None if math.isinf(seconds) else seconds)
    try:
        result: object = reward(given)
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
        return None, f"{_name(reward)} gave no result within {seconds:g} s"
    return result, None


async def _asked(reward: Reward, given: Any, policy: Policy, threads: Threads | None) -> tuple[object, str | None]:
    if not policy.thread:
        return await _awaited(reward, given, policy)
    own = Threads(1) if threads is None else threads
    try:
        return await _threaded(reward, given, policy, own)
    finally:
        if threads is None:
            own.close()


def _read(name: Callable[[], str], result: object) -> Scored:
    """Read what a reward returned about one trajectory."""
    if result is None:
        return Scored(math.nan)
    if isinstance(result, Scored):
        return _said(name, result)
    try:
        # Through __float__, so that NumPy's and Decimal's numbers count; text does not, whatever it spells.
        value = math.nan if isinstance(result, (str, bytes, bytearray)) else float(cast("float", result))
    except Exception:  # noqa: BLE001 - whatever a foreign number's own method raises, it is no reward
        value = math.nan
    if not math.isfinite(value):
        return Scored(math.nan, f"{name()} returned {shown(result)}, expected a finite number, a bool or None")
    if abs(value) > LARGEST:
        return Scored(math.nan, f"{name()} returned {value}, which is beyond {LARGEST:g}: no mean could be taken of it")
    return Scored(value)


def _said(name: Callable[[], str], result: Scored) -> Scored:
    """Read what a reward itself said of its value: it may be anybody's, and is to be printed and noted."""
    try:
        for part in result.parts:
            as_graded(part)
    except (ConfigError, AttributeError, TypeError) as problem:
        return Scored(math.nan, f"{name()} returned parts that cannot be: {said(problem)}")
    if not (isinstance(result.value, float) and math.isnan(result.value)):
        return _read(name, result.value)._replace(parts=tuple(result.parts))
    why = None if result.problem is None else printable(str(result.problem), _WIDTH)
    return Scored(math.nan, why, tuple(result.parts))


async def ask(reward: Reward, trajectory: Trajectory, policy: Policy, threads: Threads | None = None) -> Scored:
    """Ask a reward about one trajectory that it may see.

    Args:
        reward: The reward; nothing is opened.
        trajectory: An ended rollout.
        policy: How it is asked; one that takes several is given a list of this one.
        threads: Where it runs if it blocks; threads of its own when None.

    Returns:
        The reward, or NaN with the reason.
    """
    if policy.batch is not None:
        return (await ask_all(reward, [trajectory], policy, threads))[0]
    result, problem = await _asked(reward, trajectory, policy, threads)
    return _read(lambda: _name(reward), result) if problem is None else Scored(math.nan, problem)


async def ask_all(
    reward: Reward, trajectories: Sequence[Trajectory], policy: Policy, threads: Threads | None = None
) -> list[Scored]:
    """Ask a reward that takes several trajectories about some that it may see.

    Args:
        reward: The reward; nothing is opened.
        trajectories: Ended rollouts.
        policy: How it is asked.
        threads: Where it runs if it blocks; threads of its own when None.

    Returns:
        One for each, in their order. What goes wrong in the call leaves all of them unscored.
    """
    result, problem = await _asked(reward, list(trajectories), policy, threads)
    if problem is None:
        try:
            if isinstance(result, str | bytes | bytearray | dict | Scored):
                raise TypeError
            found = list(cast("Any", result))
        except Exception:  # noqa: BLE001 - whatever a foreign sequence's own method raises, it is no list
            problem = f"{_name(reward)} returned {shown(result)}, expected a list of {len(trajectories)} results"
        else:
            if len(found) == len(trajectories):
                return [_read(lambda: _name(reward), one) for one in found]
            problem = f"{_name(reward)} returned {len(found)} results for {len(trajectories)} trajectories"
    return [Scored(math.nan, problem)] * len(trajectories)


async def score(reward: Reward, trajectory: Trajectory, *, cut: bool = False) -> Scored:
    """Ask a reward about a trajectory. Whatever goes wrong in it leaves the trajectory unscored, never at 0.

    Args:
        reward: The reward; a plain function runs in this thread unless it says otherwise, an awaitable result is
            awaited, for at most ``REWARD_TIMEOUT`` seconds or as it says (``trunkline.reward``).
        trajectory: An ended rollout. One that broke, was cut or filtered is not shown to the reward.
        cut: Whether one that was cut is shown to it after all: a value function judges states, not answers.

    Returns:
        The reward, or NaN with the reason.
    """
    early = unseen(trajectory, cut=cut)
    if early is not None:
        return early
    live = opened(reward)
    try:
        return await ask(live, trajectory, policy_of(live))
    finally:
        if live is not reward:
            await close(live)


def opened(reward: Reward) -> Reward:
    """Return what is asked in place of a reward while something lasts: what it opens for that, or itself.

    Raises:
        ConfigError: It could not be opened.
    """
    make = None if isinstance(reward, type) else getattr(reward, "opened", None)
    try:
        return make() if callable(make) else reward
    except TrunklineError:
        raise
    except Exception as problem:
        raise ConfigError(
            f"{_name(reward)} could not be opened: {type(problem).__name__}: {said(problem)}"
        ) from problem


async def close(reward: Reward) -> None:
    """Close what a reward holds open, where it has a coroutine of this name; what goes wrong there is logged."""
    end = None if isinstance(reward, type) else getattr(reward, "close", None)
    if not inspect.iscoroutinefunction(end):
        return
    try:
        await end()
    except Exception as problem:  # noqa: BLE001 - user code
        _log.warning("%s could not be closed: %s: %s", _name(reward), type(problem).__name__, said(problem))


def report(trajectory: Trajectory, scored: Scored) -> float:
    """Return the value, and log why there is none (``trunkline.score``).

    Args:
        trajectory: What was scored.
        scored: What was said about it.
    """
    if scored.problem is not None:
        task = printable(trajectory.task.id, 80)
        _log.warning("task %s, rollout %d is unscored: %s", task, trajectory.id, scored.problem)
    return scored.value


async def apply(reward: Reward, trajectory: Trajectory, *, cut: bool = False) -> float:
    """The reward of a trajectory, or NaN if it stays unscored, which is logged (``trunkline.score``).

    Args:
        reward: The reward.
        trajectory: An ended rollout.
        cut: See :func:`score`.

    Returns:
        A finite number, or NaN. See :func:`score` for the reason as data.
    """
    return report(trajectory, await score(reward, trajectory, cut=cut))
