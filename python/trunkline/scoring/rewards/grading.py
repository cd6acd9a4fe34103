"""Call rewards safely: batches, threads, weighted sums."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

import msgspec

from trunkline._internal.aio import raised_by_user_code
from trunkline._internal.text import describe_error, format_error, printable
from trunkline._internal.validation import check_float, check_that, short_repr
from trunkline.errors import ConfigError, TrunklineError
from trunkline.scoring.notes import as_graded
from trunkline.scoring.rewards.base import (
    LARGEST,
    REWARD_TIMEOUT,
    OpenedPerCall,
    OpenTrajectory,
    Reward,
    RewardPart,
    Scored,
    full_name,
    policy_of,
    short_name,
)
from trunkline.tools.environment_pool import asked_in
from trunkline.tools.executor import ExhaustedError, Threads
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trunkline.scoring.rewards.base import RewardPolicy
    from trunkline.tree.views import Trajectory


_WIDTH = 300  # cells of a reason that are kept
_VALUES: Final = frozenset({float, int, bool, type(None)})  # results that are there at once, as most are
_MOST_PARTS: Final = 100  # parts of a dict that are kept; it may be what a judge wrote
_log = logging.getLogger("trunkline.scoring")


def _name(reward: Reward) -> str:
    given = policy_of(reward).name or getattr(reward, "__qualname__", type(reward).__qualname__)
    return printable(str(given), 80)


def cancelled() -> bool:
    """Return whether the current task is being cancelled; user code may raise the same error by itself."""
    own = asyncio.current_task()
    return own is not None and own.cancelling() > 0


def unseen(trajectory: Trajectory, *, cut: bool) -> Scored | None:
    """The result for a trajectory that rewards are not shown; None for one that they are."""
    ended = trajectory.termination
    if ended is None:
        return Scored(math.nan, "the rollout has not ended")
    if ended in UNSCORED and not (cut and ended is Termination.CENSORED):
        return Scored(math.nan)
    return None


async def _threaded(reward: Reward, given: Any, policy: RewardPolicy, threads: Threads) -> tuple[object, str | None]:
    """Call a blocking reward in a thread; after its timeout the thread is left behind."""

    def run() -> tuple[object, str | None]:
        try:
            return reward(given), None
        except BaseException as problem:  # noqa: BLE001 - user code may raise anything, SystemExit included
            return None, f"{_name(reward)} raised {describe_error(problem)}"

    seconds = REWARD_TIMEOUT if policy.timeout is None else policy.timeout
    try:
        # A lock waits for some 290 years at most; a year is enough.
        result: tuple[object, str | None] = await threads.run(run, min(seconds, 3e7))
    except TimeoutError:
        return None, f"{_name(reward)} gave no result within {seconds:g} s"
    except ExhaustedError:
        return None, f"{_name(reward)} was not asked: too many earlier calls of it never returned"
    return result


def _called(reward: Reward, given: Any) -> tuple[object, str | None, bool]:
    """Call a reward in this thread: result, problem (an exception becomes one), and whether to wait for the result."""
    try:
        result = reward(given)
        return result, None, type(result) not in _VALUES and inspect.isawaitable(result)
    except BaseException as problem:
        if isinstance(problem, asyncio.CancelledError) and cancelled():
            raise
        return None, f"{_name(reward)} raised {describe_error(problem)}", False


async def _awaited(reward: Reward, result: Awaitable[object], policy: RewardPolicy) -> tuple[object, str | None]:
    """Wait for what a reward returned; an exception of it becomes the returned problem."""
    seconds = REWARD_TIMEOUT if policy.timeout is None else policy.timeout
    own, deadline = asyncio.current_task(), asyncio.timeout(None if math.isinf(seconds) else seconds)
    try:
        async with deadline:
            found = await result
    except BaseException as problem:
        if isinstance(problem, asyncio.CancelledError) and cancelled():
            raise
        if isinstance(problem, GeneratorExit) and not raised_by_user_code(problem, own):
            raise
        if not deadline.expired():
            return None, f"{_name(reward)} raised {describe_error(problem)}"
    if deadline.expired():
        return None, f"{_name(reward)} gave no result within {seconds:g} s"
    return found, None


async def _asked(
    reward: Reward, given: Any, policy: RewardPolicy, threads: Threads | None
) -> tuple[object, str | None]:
    if not policy.thread:
        result, problem, waits = _called(reward, given)
        return await _awaited(reward, cast("Any", result), policy) if waits else (result, problem)
    own = Threads(1) if threads is None else threads
    try:
        return await _threaded(reward, given, policy, own)
    finally:
        if threads is None:
            own.close()


def _read(reward: Reward, result: object) -> Scored:
    """Read the result of a reward for one trajectory."""
    if type(result) is float:
        value = result
    else:
        match result:
            case None:
                return Scored(math.nan)
            case Scored():
                return _stated(reward, result)
            case dict():
                return _told(reward, dict(result))
            case str() | bytes() | bytearray():
                value = math.nan
            case _:
                try:
                    # Through __float__, so that NumPy's and Decimal's numbers count; text does not, whatever it spells.
                    value = float(result)  # type: ignore[arg-type]
                except Exception:  # noqa: BLE001 - whatever a foreign number's own method raises, it is no reward
                    value = math.nan
    if -LARGEST <= value <= LARGEST:
        return Scored(value)
    if not math.isfinite(value):
        return Scored(
            math.nan, f"{_name(reward)} returned {short_repr(result)}, expected a finite number, a bool or None"
        )
    return Scored(
        math.nan, f"{_name(reward)} returned {value}, which is beyond {LARGEST:g}: no mean could be taken of it"
    )


def _stated(reward: Reward, result: Scored) -> Scored:
    """Read a Scored that a reward returned: its parts are checked, its problem made printable."""
    try:
        for part in result.parts:
            as_graded(part)
    except (ConfigError, AttributeError, TypeError) as problem:
        return Scored(math.nan, f"{_name(reward)} returned parts that cannot be: {format_error(problem)}")
    if not (isinstance(result.value, float) and math.isnan(result.value)):
        return _read(reward, result.value)._replace(parts=tuple(result.parts))
    why = None if result.problem is None else printable(str(result.problem), _WIDTH)
    return Scored(math.nan, why, tuple(result.parts))


def _told(reward: Reward, result: dict[Any, object]) -> Scored:
    """Read a dict that a reward returned: numbers become parts, other values are noted as text."""
    value = result.pop("reward", ...)
    if value is ... or isinstance(value, dict | Scored):
        keys = ", ".join(map(short_repr, result)) or "nothing"
        return Scored(
            math.nan, printable(f"{_name(reward)} returned a dict without a number under 'reward': {keys}", _WIDTH)
        )
    parts = []
    for key, other in islice(result.items(), _MOST_PARTS):
        number = _read(reward, None if isinstance(other, dict | Scored) else other).value
        text = None
        if other is not None and math.isnan(number):
            text = printable(other if isinstance(other, str) else short_repr(other), _WIDTH)
        parts.append(RewardPart(key if isinstance(key, str) else short_repr(key), number, 0.0, text))
    if len(result) > _MOST_PARTS:
        parts.append(RewardPart("...", math.nan, 0.0, f"{len(result) - _MOST_PARTS} more, which are not kept"))
    return _read(reward, value)._replace(parts=tuple(parts))


def ask(
    reward: Reward, policy: RewardPolicy, threads: Threads | None, trajectory: Trajectory
) -> Scored | Awaitable[Scored]:
    """Ask a reward about one trajectory; returns what to wait for where the result is not there at once."""
    if policy.thread:
        return _scored(reward, _asked(reward, trajectory, policy, threads))
    result, problem, waits = _called(reward, trajectory)
    if waits:
        return _scored(reward, _awaited(reward, cast("Any", result), policy))
    return _read(reward, result) if problem is None else Scored(math.nan, problem)


async def _scored(reward: Reward, asked: Awaitable[tuple[object, str | None]]) -> Scored:
    result, problem = await asked
    return _read(reward, result) if problem is None else Scored(math.nan, problem)


async def ask_all(
    reward: Reward, trajectories: Sequence[Trajectory], policy: RewardPolicy, threads: Threads | None = None
) -> list[Scored]:
    """Ask a batch reward about several trajectories."""
    result, problem = await _asked(reward, list(trajectories), policy, threads)
    if problem is None:
        try:
            if isinstance(result, str | bytes | bytearray | dict | Scored):
                raise TypeError
            found = list(cast("Any", result))
        except Exception:  # noqa: BLE001 - whatever a foreign sequence's own method raises, it is no list
            problem = f"{_name(reward)} returned {short_repr(result)}, expected a list of {len(trajectories)} results"
        else:
            if len(found) == len(trajectories):
                return [_read(reward, one) for one in found]
            problem = f"{_name(reward)} returned {len(found)} results for {len(trajectories)} trajectories"
    return [Scored(math.nan, problem)] * len(trajectories)


async def score(reward: Reward, trajectory: Trajectory, *, cut: bool = False) -> Scored:
    """Ask a reward about a trajectory; any failure leaves it unscored, never at 0."""
    early = unseen(trajectory, cut=cut)
    if early is not None:
        return early
    live = opened(reward)
    try:
        policy = policy_of(live)
        if policy.batch is not None:
            return (await ask_all(live, [trajectory], policy))[0]
        said = ask(with_environment(live), policy, None, trajectory)
        return said if isinstance(said, Scored) else await said
    finally:
        if live is not reward:
            await close(live)


def _has_parameter(reward: object) -> bool:
    try:
        return "environment" in inspect.signature(cast("Any", reward)).parameters
    except (TypeError, ValueError):  # some builtins say nothing of their parameters
        return False


def takes_environment(reward: object) -> bool:
    """Return whether a reward, or a part of it, takes the environment; ConfigError for one of many trajectories."""
    if isinstance(reward, WeightedRewards):
        return any(takes_environment(part) for part in reward.rewards.values())
    takes = callable(reward) and _has_parameter(reward)
    if takes and policy_of(reward).batch is not None:
        raise ConfigError(
            f"reward {short_name(reward)} has a parameter environment, and batch: it is asked about many trajectories "
            "at once, which have an environment each; drop one of the two"
        )
    if takes:
        try:
            inspect.signature(cast("Any", reward)).bind(None, environment=None)
        except TypeError as problem:
            raise ConfigError(
                f"reward {short_name(reward)} cannot be asked with a trajectory and environment=...: {problem}; write "
                "it as reward(trajectory, environment)"
            ) from None
    return takes


def with_environment(reward: Reward) -> Reward:
    """Return a reward of the trajectory alone, which passes the environment on to one that takes it."""
    if not _has_parameter(reward):
        return reward

    def asked(trajectory: Trajectory) -> Any:
        if isinstance(trajectory, OpenTrajectory):
            return asked_in(trajectory.environment, lambda state: reward(trajectory, environment=state))
        return Scored(
            math.nan,
            f"{_name(reward)} takes the rollout's environment, which is there only while the run scores the rollout; "
            "trajectory.final_info has the facts that it left",
        )

    asked.__qualname__ = _name(reward)
    return asked


def opened(reward: Reward) -> Reward:
    """Open a reward that has ``opened()``; other rewards are returned as they are."""
    make = None if isinstance(reward, type) else getattr(reward, "opened", None)
    try:
        return make() if callable(make) else reward
    except TrunklineError:
        raise
    except Exception as problem:
        raise ConfigError(f"{_name(reward)} could not be opened: {describe_error(problem)}") from problem


async def close(reward: Reward) -> None:
    """Close a reward that has an async ``close()``; an error there is logged."""
    end = None if isinstance(reward, type) else getattr(reward, "close", None)
    if not inspect.iscoroutinefunction(end):
        return
    try:
        await end()
    except Exception as problem:  # noqa: BLE001 - user code
        _log.warning("%s could not be closed: %s", _name(reward), describe_error(problem))


def report(trajectory: Trajectory, scored: Scored) -> float:
    """Return the value of a rollout, and log why it has none (``trunkline.scoring``)."""
    if scored.problem is not None:
        task = printable(trajectory.task.id, 80)
        _log.warning("task %s, rollout %d is unscored: %s", task, trajectory.id, scored.problem)
    return scored.value


AT_ONCE: Final = 64
"""Calls of a reward that are open at once when many finished trajectories are graded."""

_THREADS: Final = 16  # calls of a blocking reward that run at once
_GATHER: Final = 0.005  # seconds after the first trajectory of a batch in which others may join it
_LEAVE: Final = 2.0  # seconds that calls have to end once they are cancelled
_Waiting = tuple["Trajectory", "asyncio.Future[Scored]"]


class Grader:
    """Asks one reward in one event loop.

    Trajectories within a few milliseconds share a call of a batch reward: values must not depend on which those are.
    """

    def __init__(self, reward: Reward) -> None:
        self.name = full_name(reward)
        self._reward = opened(reward)
        self.in_environment = takes_environment(reward) or _has_parameter(self._reward)
        self._policy = policy_of(self._reward)
        self._threads = Threads(_THREADS) if self._policy.thread else None
        self.ask: Callable[[Trajectory], Scored | Awaitable[Scored]] = (
            partial(ask, with_environment(self._reward), self._policy, self._threads)
            if self._policy.batch is None
            else partial(self._gathered, most=self._policy.batch)
        )
        """Scores a trajectory that rewards are shown; returns what to wait for where the score is not there at once."""
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def score(self, trajectory: Trajectory, *, cut: bool = False) -> Scored:
        early = unseen(trajectory, cut=cut)
        said = self.ask(trajectory) if early is None else early
        return said if isinstance(said, Scored) else await said

    async def score_all(self, trajectories: Sequence[Trajectory], *, at_once: int = AT_ONCE) -> list[Scored]:
        """Score trajectories in full batches, or one by one, ``at_once`` calls at a time."""
        found = [unseen(trajectory, cut=False) for trajectory in trajectories]
        shown = [position for position, early in enumerate(found) if early is None]
        size = self._policy.batch or 1
        batches = iter([shown[start : start + size] for start in range(0, len(shown), size)])

        async def work() -> None:
            for positions in batches:
                listed = [trajectories[position] for position in positions]
                if self._policy.batch is None:
                    asked = self.ask(listed[0])
                    said = [asked if isinstance(asked, Scored) else await asked]
                else:
                    said = await ask_all(self._reward, listed, self._policy, self._threads)
                for position, one in zip(positions, said, strict=True):
                    found[position] = one

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
        return [Scored(math.nan) if one is None else one for one in found]

    async def close(self) -> None:
        """Cancel pending calls and close the reward; nothing is asked afterwards."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_LEAVE)
        if self._threads is not None:
            self._threads.close()
        await close(self._reward)

    async def _gathered(self, trajectory: Trajectory, most: int) -> Scored:
        """Wait until the batch is full or its first trajectory has waited long enough."""
        if self._closed:
            raise RuntimeError("the grader is closed")  # what waits would never be sent
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Scored] = loop.create_future()
        self._waiting.append((trajectory, future))
        if len(self._waiting) >= most:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(_GATHER, self._send)
        return await future

    def _send(self) -> None:
        """Ask about the waiting trajectories."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = [one for one in self._waiting if not one[1].done()], []
        if waiting:
            call = asyncio.get_running_loop().create_task(self._call(waiting))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, waiting: list[_Waiting]) -> None:
        try:
            said = await ask_all(self._reward, [one for one, _ in waiting], self._policy, self._threads)
            for (_, future), one in zip(waiting, said, strict=True):
                if not future.done():
                    future.set_result(one)
        finally:
            for _, future in waiting:
                future.cancel()


class WeightedRewards(OpenedPerCall, msgspec.Struct, frozen=True):
    """The sum of several rewards, each times its weight.

    The weights count as they are given; they need not come to 1, and one may be negative. All rewards are asked at
    once. If one of them has no value the whole has none: a sum without it would be another quantity. What each said
    stands in the rollout's note.

    Args:
        rewards: The rewards by their names.
        weights: What each counts; 1 where nothing is said.

    Raises:
        ConfigError: There is no reward, one cannot be called, or a weight is no number or of no reward.
    """

    # What is a function, or has fields of its own, reaches workers by its name.
    rewards: dict[str, Any]
    weights: dict[str, float] = {}

    timeout: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        rewards: Any = self.rewards
        weights: Any = self.weights
        check_that(
            isinstance(rewards, dict) and rewards, "weighted: rewards must be a dict of at least one reward", rewards
        )
        check_that(isinstance(weights, dict), "weighted: weights must be a dict", weights)
        for name, reward in rewards.items():
            check_that(isinstance(name, str) and name.strip(), "weighted: the name of a reward must be a string", name)
            fits = callable(reward) and not isinstance(reward, type)
            check_that(fits, f"weighted: {short_repr(name)} must be a reward that can be called", reward)
            policy_of(reward)
        for name, weight in weights.items():
            if name not in rewards:
                raise ConfigError(
                    f"weighted: there is a weight of {short_repr(name)}; the rewards are {', '.join(rewards)}"
                )
            check_float(f"weighted: weight of {name}", weight, -LARGEST, LARGEST)

    async def __call__(self, trajectory: Trajectory) -> Scored:
        """Ask all of them about one ended rollout, with connections or processes of their own."""
        return cast("Scored", await OpenedPerCall.__call__(self, trajectory))

    def opened(self) -> OpenRewards:
        """Return what asks them while a run lasts."""
        return OpenRewards({name: (Grader(one), self.weights.get(name, 1.0)) for name, one in self.rewards.items()})


class OpenRewards:
    """Several rewards asked concurrently, each under its own timeout."""

    timeout = math.inf

    def __init__(self, graders: Mapping[str, tuple[Grader, float]]) -> None:
        self._graders = graders

    async def __call__(self, trajectory: Trajectory) -> Scored:
        """Ask all rewards about a trajectory that may be seen."""
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(grader.score(trajectory, cut=True)) for grader, _weight in self._graders.values()
            ]
        said = [one.result() for one in asked]
        named = list(zip(self._graders.items(), said, strict=True))
        summed = [RewardPart(name, one.value, weight, one.problem) for (name, (_grader, weight)), one in named]
        told = [part._replace(name=f"{name}.{part.name}", weight=0.0) for (name, _), one in named for part in one.parts]
        parts = (*summed, *told)
        missing = [f"{part.name}: {part.problem or 'it gave no value'}" for part in summed if math.isnan(part.value)]
        if missing:
            return Scored(math.nan, "; ".join(missing), parts)
        whole = math.fsum(part.weight * part.value for part in summed)
        if abs(whole) > LARGEST:
            return Scored(math.nan, "the weighted sum is too large for a number", parts)
        return Scored(whole, None, parts)

    async def close(self) -> None:
        for grader, _weight in self._graders.values():
            await grader.close()


def weighted(rewards: Mapping[str, Reward | tuple[Reward, float]]) -> WeightedRewards:
    """Make one reward of several.

    Args:
        rewards: The rewards by their names, each alone or with its weight: ``{"f1": (F1(), 0.5),
            "exact": exact_match}``.

    Raises:
        ConfigError: As ``WeightedRewards``.
    """
    given: Any = rewards
    check_that(isinstance(given, dict), "weighted takes a dict of rewards", given)
    held: dict[str, Any] = {}
    weights: dict[str, float] = {}
    for name, one in given.items():
        held[name] = one
        if isinstance(one, tuple):
            if len(one) != 2:
                raise ConfigError(f"weighted: {short_repr(name)} must be a reward, or a reward and its weight")
            held[name], weights[name] = one
    return WeightedRewards(held, weights)
