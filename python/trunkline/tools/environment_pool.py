"""Keeps environments of one class for the rollouts of a worker: a bound on live ones, reuse, and replacement."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from types import new_class
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import msgspec

from trunkline._internal.registry import load_named
from trunkline._internal.text import describe_error, format_error
from trunkline._internal.validation import check_int, check_optional, short_repr
from trunkline.errors import ConfigError, EnvironmentFailed
from trunkline.tools.environment import Environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_GRACE: Final = 0.05
"""Seconds for which all environments are held between two steps before some are taken away."""

_SETTINGS: Final = ("replay", "timeout", "snapshots", "snapshot_bytes")

logger = logging.getLogger(__name__)


class EnvironmentPool(msgspec.Struct, frozen=True, dict=True):
    """Keeps environments of one class, at most ``size`` live at once in each worker process.

    It is given as ``Agent(environment=pool)``. Tools are annotated with the class itself, and tools and rewards of a
    rollout get the same object, which goes back to the pool after the reward. A rollout that waits for an environment
    is idle, and is served in the order of asking.

    A rollout that waits between two steps (for its strategy, or for its task's budget) keeps its environment. Where
    all are kept so while others wait, environments are taken away by ``snapshot`` and made again by ``restore``; a
    run whose rollouts may wait between two steps is therefore refused where the class has no snapshots.

    Attributes:
        cls: A class derived from ``Environment``, a function without arguments that
            returns one, or its name, ``"module:Class"``.
        size: The most environments that live at once in each worker process: ``workers`` times as many in a run.
        warm: How many are kept started beyond those in use, from the first rollout of a worker on. The class then has
            a method ``async def start(self)``, which is awaited once for each environment before ``fresh`` or
            ``restore``.
        reset: The method that brings a used environment to the state in which a rollout begins, called as
            ``reset(task)`` in place of ``fresh``; True for ``"reset"``. ``restore`` must then work on a used
            environment, too. None: every rollout gets a new one.
        max_uses: How many rollouts an environment serves before it is replaced; unlimited when None. One that raised
            an exception, took too long or was cut in the middle of a call is replaced at once.

    Raises:
        ConfigError: If a field has a value it cannot have, or the class lacks a method.
    """

    cls: Any
    size: int = 8
    warm: int = 0
    reset: str | bool | None = None
    max_uses: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.cls, str):
            msgspec.structs.force_setattr(self, "cls", load_named(self.cls, "EnvironmentPool: cls"))
        check_int("EnvironmentPool: size", self.size, 1)
        check_int("EnvironmentPool: warm", self.warm, 0, self.size)
        check_optional(check_int, "EnvironmentPool: max_uses", self.max_uses, 1)
        if not isinstance(self.reset, str | bool | None):
            raise ConfigError(f"EnvironmentPool: reset must be the name of a method, not {short_repr(self.reset)}")
        if self.max_uses is not None and not self.reset:
            raise ConfigError("EnvironmentPool: max_uses counts uses of one environment: set reset=, or drop it")
        kind = self._lease
        needed = [(self.resetting, "reset")] * bool(self.reset) + [("start", "warm")] * bool(self.warm)
        for method, option in needed:
            if not inspect.iscoroutinefunction(getattr(kind, method, None)):
                raise ConfigError(
                    f"EnvironmentPool: {option}= needs {kind.__name__}.{method} to be a method written with `async def`"
                )

    def __call__(self) -> Environment:
        """Return what stands for the environment of one rollout, until it holds one."""
        lease = self._lease()
        object.__setattr__(lease, "_place", PoolPlace(self))
        return lease

    @property
    def resetting(self) -> str:
        """Name of the method that brings a used environment back to fresh; empty where none is used again."""
        return "reset" if self.reset is True else self.reset or ""

    @property
    def movable(self) -> bool:
        """Whether an environment may be taken from a rollout that waits, and made again."""
        return bool(self._lease.snapshots) and self._lease.snapshot is not Environment.snapshot

    @cached_property
    def _lease(self) -> type[PooledEnvironment]:
        """A class that is taken for that of the environments, with its settings, and holds a place instead."""
        expected = "EnvironmentPool: cls must be a class derived from Environment, or a function that returns one"
        if not callable(self.cls):
            raise ConfigError(f"{expected}, not {short_repr(self.cls)}")
        try:
            made = self.cls()
        except Exception as problem:
            raise ConfigError(
                f"EnvironmentPool: {_name(self.cls)} cannot be made without arguments: {describe_error(problem)}"
            ) from problem
        kind = type(made)
        if not isinstance(made, Environment) or isinstance(made, PooledEnvironment):
            raise ConfigError(f"{expected}; {_name(self.cls)} returns {short_repr(made)}")
        body = {name: getattr(made, name) for name in _SETTINGS}
        body |= {"__module__": kind.__module__, "_kind_in_pool": kind}
        try:
            return new_class(kind.__name__, (PooledEnvironment, kind), {}, lambda names: names.update(body))
        except ConfigError:
            raise
        except Exception as problem:
            raise ConfigError(
                f"EnvironmentPool: no class can be derived from {kind.__name__}: {describe_error(problem)}"
            ) from problem


class PooledEnvironment(Environment):
    """Stands for the environment that a rollout has from a pool: user code is given that one, never this."""

    _kind_in_pool: ClassVar[type[Environment]]
    _place: PoolPlace

    def __init__(self) -> None:
        pass  # not that of the class: it is no environment of its own

    def __del__(self) -> None:
        pass

    @property
    def place(self) -> PoolPlace:
        """The rollout's place in the pool."""
        return self._place


class LiveEnvironment(msgspec.Struct, eq=False):
    """An environment, and how many rollouts have used it."""

    environment: Environment
    uses: int = 0


class PoolPlace:
    """The place of one rollout in a pool, with its environment while it holds one."""

    __slots__ = ("broken", "busy", "counted", "keeper", "kept", "live", "lock", "paused", "pool", "task_seed")

    def __init__(self, pool: EnvironmentPool) -> None:
        self.pool = pool
        self.keeper: PoolKeeper | None = None  # that of the worker, once it was asked
        self.live: LiveEnvironment | None = None
        self.kept: Any = None  # a snapshot, where the environment was taken away
        self.paused = False  # whether the rollout waits between two steps
        self.busy = 0  # calls that use the environment now
        self.broken = False
        self.counted = True  # towards the pool's size
        self.lock = asyncio.Lock()
        self.task_seed = 0

    @property
    def environment(self) -> Environment:
        """The environment itself; EnvironmentFailed where the rollout holds none."""
        if self.live is None:
            raise EnvironmentFailed(f"a rollout holds no environment of the pool of {_name(self.pool.cls)}")
        return self.live.environment

    @asynccontextmanager
    async def using(self) -> AsyncIterator[Environment]:
        """Provide the environment for a call, which breaks it by raising; raises EnvironmentFailed."""
        await self._regain()
        environment = self.environment
        self.busy += 1
        try:
            yield environment
        except BaseException:
            self.broken = True
            raise
        finally:
            self.busy -= 1
            if self.keeper is not None:
                self.keeper.check_stuck()

    def pause(self) -> None:
        """Note that the rollout waits between two steps."""
        self.paused = True
        if self.keeper is not None:
            self.keeper.check_stuck()

    async def resume(self) -> None:
        """Note that the rollout resumes, and hold its environment again; raises EnvironmentFailed."""
        self.paused = False
        await self._regain()

    async def _regain(self) -> None:
        """Make the environment again, if it was taken away."""
        if self.keeper is not None and (self.kept is not None or self.lock.locked()):
            await self.keeper.reopen(self)


class PoolCounts(NamedTuple):
    """Environments of a pool: live now, made, given to another rollout after a reset, replaced; waiting rollouts."""

    live: int
    waiting: int
    made: int
    reused: int
    replaced: int


class PoolKeeper:
    """The live environments of a pool in one worker; ``ask`` awaits a method of one, and raises EnvironmentFailed."""

    def __init__(self, pool: EnvironmentPool, ask: Callable[..., Awaitable[Any]]) -> None:
        self.pool = pool
        self._ask = ask
        self._free: deque[LiveEnvironment] = deque()
        self._holders: dict[PoolPlace, None] = {}
        self._taken = 0
        self._starting = 0
        self._waiting: deque[asyncio.Future[LiveEnvironment | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False
        self._closed = False
        self._made = self._reused = self._replaced = 0

    @property
    def counts(self) -> PoolCounts:
        live = len(self._free) + len(self._holders) + self._starting
        return PoolCounts(live, len(self._waiting), self._made, self._reused, self._replaced)

    async def open(self, place: PoolPlace, method: str, *given: object) -> None:
        """Wait for an environment, and bring it to the state that ``fresh`` or ``restore`` makes."""
        place.keeper = self
        async with place.lock:
            await self._open(place, method, *given)

    async def reopen(self, place: PoolPlace) -> None:
        """Make the environment again that was taken away from a place, if it was."""
        async with place.lock:
            kept, place.kept = place.kept, None
            if kept is not None:
                await self._open(place, "restore", kept)

    async def leave(self, place: PoolPlace) -> None:
        """Take an environment back, for the next rollout or to close it."""
        async with place.lock:
            place.kept = None
            if place in self._holders:
                await self._release(place)

    async def close(self) -> None:
        """Close all environments, also those that rollouts still hold."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(EnvironmentFailed("the pool of environments is closed"))
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        free, self._free = self._free, deque()
        ending = [self._end(live.environment) for live in free]
        await asyncio.gather(*ending, *map(self.leave, list(self._holders)), return_exceptions=True)

    def check_stuck(self) -> None:
        """Have environments taken away, unless this moment passes, where all are held by rollouts that wait."""
        if self._timer is None and self._is_stuck():
            self._timer = asyncio.get_running_loop().call_later(_GRACE, self._relieve)

    async def _open(self, place: PoolPlace, method: str, *given: object) -> None:
        place.live = live = await self._take()
        self._holders[place] = None
        place.broken, place.counted = True, True
        if live is not None:
            live.environment.task_seed = place.task_seed
        if live is not None and live.uses:
            again = self.pool.resetting if method == "fresh" else method
            try:
                await self._ask(live.environment, again, *given)
                self._reused += 1
            except EnvironmentFailed as error:
                self._warn(f"a used one is replaced: {format_error(error)}")
                self._replaced += 1
                place.live = None
                await self._end(live.environment)
                live = None
        if live is None:
            place.live = live = await self._started()
            live.environment.task_seed = place.task_seed
        if not live.uses:
            await self._ask(live.environment, method, *given)
        live.uses += 1
        place.broken = False

    async def _release(self, place: PoolPlace) -> None:
        """Free a place once its environment is closed, or may be used again."""
        live, place.live = place.live, None
        broken = place.broken or place.busy > 0
        most = self.pool.max_uses
        worn = broken or (most is not None and live is not None and live.uses >= most)
        reusable = bool(self.pool.resetting) and not worn and not self._closed
        try:
            if live is not None and not reusable:
                self._replaced += worn
                await self._ask(live.environment, "close")
        finally:
            del self._holders[place]
            self._taken -= place.counted
            place.busy = 0
            if live is not None and reusable:
                self._free.append(live)
            self._serve()

    async def _take(self) -> LiveEnvironment | None:
        """Wait for a place in order; return an environment for it, or None where one is to be made."""
        if self._closed:
            raise EnvironmentFailed("the pool of environments is closed")
        if not self._waiting and self._has_room():
            granted = self._grant()
            self._serve()
            return granted
        turn: asyncio.Future[LiveEnvironment | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self.check_stuck()
        try:
            return await turn
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiting.remove(turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._taken -= 1
                if (live := turn.result()) is not None:
                    self._free.appendleft(live)
                self._serve()
            raise

    def _has_room(self) -> bool:
        return bool(self._free) or self._taken + self._starting < self.pool.size

    def _grant(self) -> LiveEnvironment | None:
        self._taken += 1
        return self._free.popleft() if self._free else None

    def _serve(self, *, ahead: bool = True) -> None:
        """Give places to those that wait longest, then start environments ahead."""
        while self._waiting and self._has_room():
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._grant())
        while (
            ahead
            and len(self._free) + self._starting < self.pool.warm
            and len(self._free) + self._starting + self._taken < self.pool.size
            and not self._closed
        ):
            self._starting += 1
            self._spawn(self._start_ahead())
        self.check_stuck()

    async def _start_ahead(self) -> None:
        live: LiveEnvironment | None = None
        try:
            live = await self._started()
            self._free.append(live)
        except EnvironmentFailed as error:
            self._warn(f"none was started ahead: {format_error(error)}")
        finally:
            self._starting -= 1
            self._serve(ahead=live is not None)

    async def _started(self) -> LiveEnvironment:
        """Make an environment, and start it where some are started ahead."""
        try:
            environment = self.pool.cls()
        except Exception as error:
            raise EnvironmentFailed(f"the environment could not be made: {describe_error(error)}") from error
        if not isinstance(environment, Environment):
            raise EnvironmentFailed(f"the environment could not be made: {short_repr(environment)} is none")
        self._made += 1
        if self.pool.warm:
            try:
                await self._ask(environment, "start")
            except BaseException:
                await self._end(environment)
                raise
        return LiveEnvironment(environment)

    async def _end(self, environment: Environment) -> None:
        """Close an environment that no rollout has."""
        try:
            await self._ask(environment, "close")
        except EnvironmentFailed as error:
            self._warn(f"not closed: {format_error(error)}")

    def _is_stuck(self) -> bool:
        """Whether rollouts wait for environments that are all held by rollouts that wait themselves."""
        return bool(
            self._waiting
            and not self._starting
            and self._holders
            and all(place.paused and not place.busy for place in self._holders)
        )

    def _relieve(self) -> None:
        self._timer = None
        if self._is_stuck():
            held = [place for place in self._holders if place.counted and not place.lock.locked()]
            for place in held[: len(self._waiting)]:
                self._spawn(self._take_away(place))

    async def _take_away(self, place: PoolPlace) -> None:
        """Take an environment from a rollout that waits between two steps, and keep its state."""
        async with place.lock:
            if not place.paused or place.busy or place.live is None:
                return
            with suppress(EnvironmentFailed):
                place.kept = await self._ask(place.live.environment, "snapshot")
            if place.kept is None:
                # Better more than the size than none that moves.
                self._warn("more than size are live: one that is held between two steps gave no snapshot")
                self._taken -= place.counted
                place.counted = False
                self._serve()
                return
            try:
                await self._release(place)
            except EnvironmentFailed as error:
                self._warn(f"not closed: {format_error(error)}")

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("pool of environments, %s: %s (said once)", _name(self.pool.cls), what)


def asked_in(environment: Any, ask: Callable[[Any], Any]) -> Any:
    """Call a function, such as a reward, with an environment, which it breaks by raising or not coming to its end."""
    if not isinstance(environment, PooledEnvironment):
        return ask(environment)
    place = environment.place
    place.busy += 1
    said = ask(place.environment)
    if not inspect.isawaitable(said):
        place.busy -= 1
        return said

    async def rest() -> Any:
        value = await said
        place.busy -= 1
        return value

    return rest()


def _name(cls: Any) -> str:
    return str(getattr(cls, "__qualname__", type(cls).__name__))
