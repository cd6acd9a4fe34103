"""Runs the calls of a turn; each result or failure becomes an observation for the model. Pure tools share results."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from trunkline._internal.aio import SharedTasks
from trunkline._internal.text import excerpt, format_error, without_secrets
from trunkline._internal.validation import check_float, check_int, short_repr
from trunkline.errors import ConfigError, EnvironmentFailed, ForkRefused
from trunkline.llm.types import ToolCall
from trunkline.tools.calls import CURRENT, LIMIT, Call, CallPlace, bounded, unreadable
from trunkline.tools.environment_pool import PooledEnvironment, PoolKeeper
from trunkline.tools.executor import EAGER, NEXT_PASS, Executor, Raised, UserCodeRunner, started
from trunkline.tools.json_repair import mend, need_library, sound
from trunkline.tools.schema import BadArguments, EnvironmentSlot
from trunkline.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from trunkline.tools.calls import Origin
    from trunkline.tools.environment import Environment
    from trunkline.tools.review import ToolReview
    from trunkline.tree.records import DecisionMark

OnBegin: TypeAlias = Callable[[Sequence[tuple[str, Call]]], Awaitable[None]]
"""Awaited with names of tools with side effects and their calls before these begin."""


_encoder: Final = msgspec.json.Encoder(order="deterministic")

SIZE: Final = 64_000_000
"""Bytes of results, and of the arguments they are for, that are kept."""

_ASIDE: Final = 200
"""Bytes that an entry takes beside its texts, about."""


def key_of(tool: str, positional: object, named: object, arguments: str) -> bytes:
    """Return what equal calls share: the tool and the converted arguments, or their text if they are no JSON."""
    try:
        return _encoder.encode((tool, positional, named))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return _encoder.encode((tool, arguments))


class Results:
    """The latest results by key, up to a size; ``hits`` counts by tool the calls that another one worked for."""

    def __init__(self, size: int = SIZE) -> None:
        self.hits: Counter[str] = Counter()
        self._left = size
        self._kept: OrderedDict[bytes, str] = OrderedDict()
        self._running: SharedTasks[tuple[str, bool]] = SharedTasks()

    async def get(
        self, tool: str, key: bytes, work: Callable[[], Coroutine[Any, Any, tuple[str, bool]]]
    ) -> tuple[str, bool, bool]:
        """Return the result of a call, kept, shared or new; whether it succeeded (failures are not kept); if shared."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self.hits[tool] += 1
            return kept, True, True
        joins = key in self._running
        self.hits[tool] += joins
        text, ok = await self._running.run(key, work)
        if ok:
            self._keep(key, text)
        return text, ok, joins

    def _keep(self, key: bytes, text: str) -> None:
        if key in self._kept:
            return
        self._kept[key] = text
        self._left -= _size(key, text)
        while self._left < 0:
            self._left += _size(*self._kept.popitem(last=False))


def _size(key: bytes, text: str) -> int:
    """Return about how many bytes an entry takes."""
    return sys.getsizeof(key) + sys.getsizeof(text) + _ASIDE


class Observation(NamedTuple):
    """What the model reads about one call, whether the tool returned, and its microseconds; 0 for a shared result."""

    text: str
    ok: bool
    micros: int


class PreparedCall(NamedTuple):
    """A call as it runs, with a note that the model reads before the result; with a refusal it does not run."""

    call: ToolCall
    note: str = ""
    refusal: str | None = None


class Toolbox:
    """The tools of one agent, ready to be called by name."""

    def __init__(
        self,
        tools: Iterable[Tool[..., Any]] = (),
        *,
        timeout: float = 60.0,
        limit: int = LIMIT,
        threads: int = 32,
        parallel: int = 32,
        repair: bool = False,
    ) -> None:
        check_float("tool timeout", timeout, 0, above=True, unit="seconds")
        for option, value in (("limit", limit), ("threads", threads), ("parallel", parallel)):
            check_int(f"toolbox option {option}", value, 1)
        if repair:
            need_library()
        self._repair = repair
        self._tools: dict[str, Tool[..., Any]] = {}
        self._executors: dict[str, Executor] = {}
        self._results = Results()
        self._user_code = UserCodeRunner(threads)
        self.pool: PoolKeeper | None = None  # of environments, once one was asked for
        for item in tools:
            if not isinstance(item, Tool):
                raise _not_a_tool(item)
            if item.name in self._tools:
                raise ConfigError(f"two tools are named {item.name!r}; rename one with @tool(name=...)")
            self._tools[item.name] = item
            self._executors[item.name] = Executor(item, self._user_code, timeout, limit)
        self.names = list(self._tools)
        self._stateful_names = {item.name for item in self._tools.values() if item.schema.slot is not None}
        self._replayed_names = {item.name for item in self._tools.values() if item.replayed}
        self._acting = any(item.policy.side_effects for item in self._tools.values())
        self._limit = limit
        self._parallel = parallel
        self._definitions = msgspec.json.encode([item.definition for item in self._tools.values()])

    @property
    def hits(self) -> Mapping[str, int]:
        """By pure tool, how many calls got a result that another call had worked for."""
        return self._results.hits

    def __len__(self) -> int:
        return len(self._tools)

    def definitions(self) -> bytes:
        """The tools as a JSON array for a request; equal toolboxes give equal bytes."""
        return self._definitions

    async def call(
        self,
        name: str,
        arguments: str,
        environment: Environment | None = None,
        call: Call | CallPlace | None = None,
    ) -> Observation:
        """Run one call; all failures become errors for the model, but cancels and failed imports of isolated tools."""
        return (await self._alone(name, arguments, environment, call))[0]

    async def _alone(
        self, name: str, arguments: str, environment: Environment | None, call: Call | CallPlace | None
    ) -> list[Observation]:
        start = time.perf_counter_ns()
        before, shared = CURRENT.set(call), False
        try:
            executor = self._executors[name] if name in self._executors else None  # noqa: SIM401
            if executor is None:
                text, ok = self._unknown(name, arguments), False
            else:
                tool = executor.tool
                positional, named = tool.schema.decode(arguments)
                if tool.schema.slot is not None:
                    if isinstance(environment, PooledEnvironment):
                        return await self._pooled(name, arguments, environment, call)
                    named |= _filled(tool, tool.schema.slot, environment)
                if executor.pure:
                    work = partial(executor.run, positional, named, arguments, call)
                    key = key_of(name, positional, named, arguments)
                    text, ok, shared = await self._results.get(name, key, work)
                elif executor.direct:
                    task = started(partial(tool.__wrapped__, *positional, **named))
                    try:
                        if not (EAGER and task.done()):
                            await NEXT_PASS
                    except asyncio.CancelledError:
                        await self._user_code.stop(task)
                        raise
                    text, ok = executor.told(task) or await executor.finish(task)
                else:
                    text, ok = await executor.run(positional, named, arguments, call)
        except BadArguments as error:
            text, ok = f"Error: {error}.", False
        finally:
            CURRENT.reset(before)
        micros = 0 if shared else (time.perf_counter_ns() - start) // 1000
        if not ok or len(text) > self._limit + 100:
            text = bounded(text, self._limit + 100)
        return [tuple.__new__(Observation, (text, ok, micros))]

    async def _pooled(
        self, name: str, arguments: str, environment: PooledEnvironment, call: Call | CallPlace | None
    ) -> list[Observation]:
        """Run a call on an environment of a pool, which is not used again where the call was stopped."""
        place = environment.place
        async with place.using() as state:
            seen = await self._alone(name, arguments, state, call)
        if not seen[0].ok and seen[0].micros >= self._executors[name].timeout * 1e6:
            place.broken = True
        return seen

    def call_all(
        self,
        calls: Sequence[ToolCall],
        environment: Environment | None = None,
        origin: Origin | None = None,
        begin: OnBegin | None = None,
        review: ToolReview | None = None,
    ) -> Coroutine[Any, Any, list[Observation]]:
        """Run the calls of one turn concurrently; those that take the environment one after the other, in order."""
        if len(calls) == 1 and not self._acting and not self._repair and review is None:
            (one,) = calls
            return self._alone(one.name, one.arguments, environment, None if origin is None else (origin, 0))
        return self._together(calls, environment, origin, begin, review)

    async def _together(
        self,
        calls: Sequence[ToolCall],
        environment: Environment | None,
        origin: Origin | None,
        begin: OnBegin | None,
        review: ToolReview | None,
    ) -> list[Observation]:
        turn = await self._mended(calls)
        if review is not None and origin is not None:
            turn = await self._reviewed(turn, origin, review)
        places = [None if origin is None else (origin, index) for index in range(len(turn))]
        if begin is not None and self._acting:
            risky = [
                (one.call.name, place[0].call(place[1]))
                for one, place in zip(turn, places, strict=True)
                if place and self._acts(one)
            ]
            if risky:
                await begin(risky)
        if len(turn) == 1:
            return [await self._run(turn[0], places[0], environment)]
        lock, line = asyncio.Semaphore(self._parallel), asyncio.Lock()

        async def gated(mended: PreparedCall, place: CallPlace | None) -> Observation:
            # A lock is handed on in the order in which it was asked for.
            async with line if self._stateful(mended) else nullcontext(), lock:
                return await self._run(mended, place, environment)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(gated(*one)) for one in zip(turn, places, strict=True)]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _reviewed(self, turn: Sequence[PreparedCall], origin: Origin, review: ToolReview) -> list[PreparedCall]:
        """Return the calls of a turn as they are to run; raises BeforeToolFailed."""
        decided: dict[int, DecisionMark] = {}
        for index, one in enumerate(turn):
            tool = self._tools.get(one.call.name)
            if tool is not None and (
                mark := await review.ask(tool, one.call.arguments, origin, index, self._user_code)
            ):
                decided[index] = mark
        return _decided(turn, decided)

    def stateful(self, calls: Iterable[ToolCall]) -> bool:
        """Whether one of some calls takes the environment."""
        return any(call.name in self._stateful_names for call in calls)

    def acts(self, calls: Iterable[ToolCall]) -> bool:
        """Whether one of some calls has side effects and would have to run again for its environment."""
        return any(call.name in self._replayed_names and self._tools[call.name].policy.side_effects for call in calls)

    async def replay(
        self,
        calls: Sequence[ToolCall],
        environment: Environment,
        origin: Origin | None = None,
        first: int = 0,
        decisions: Mapping[int, DecisionMark] = MappingProxyType({}),
    ) -> list[Observation | None]:
        """Run the calls of a recorded turn again that made the environment's state, as decided; others give None."""
        turn = _decided(await self._mended(calls), decisions)
        again = [one.call.name for one in turn if one.call.name in self._replayed_names and one.refusal is None]
        fixed = [name for name in again if not (environment.replay and self._tools[name].policy.replay)]
        if fixed:
            raise ForkRefused(
                f"there is no snapshot to go back to, and calls of {fixed[0]} on {type(environment).__name__} must not "
                "run again (replay is false)"
            )
        return [
            await self._run(one, None if origin is None else (origin, first + index), environment)
            if one.call.name in self._replayed_names and one.refusal is None
            else None
            for index, one in enumerate(turn)
        ]

    async def manage(self, environment: Environment, method: str, *given: object) -> Any:
        """Await a method of an environment, which is user code; one of a pool is waited for, and given back."""
        if isinstance(environment, PooledEnvironment):
            return await self._manage_pooled(environment, method, *given)
        place = f"{method}() of the environment {type(environment).__name__}"
        try:
            value = await self._user_code.run(partial(getattr(environment, method), *given), True, environment.timeout)
        except TimeoutError:
            raise EnvironmentFailed(f"{place} took longer than {environment.timeout:g} s") from None
        if isinstance(value, Raised):
            what = f"{type(value.error).__name__}: {without_secrets(format_error(value.error))}"
            raise EnvironmentFailed(f"{place} raised {what}") from value.error
        return value

    async def _manage_pooled(self, environment: PooledEnvironment, method: str, *given: object) -> Any:
        place = environment.place
        if method in {"fresh", "restore"}:
            if self.pool is None:
                self.pool = PoolKeeper(place.pool, self.manage)
            place.task_seed = environment.task_seed
            return await self.pool.open(place, method, *given)
        if method == "close":
            return None if place.keeper is None else await place.keeper.leave(place)
        async with place.using() as state:
            return await self.manage(state, method, *given)

    async def _mended(self, calls: Sequence[ToolCall]) -> list[PreparedCall]:
        """Return the calls of a turn, repaired where that is needed."""
        if not self._repair or all(map(sound, calls)):
            return [PreparedCall(call) for call in calls]
        mended = await asyncio.to_thread(mend, calls)  # hostile text can take long
        return [PreparedCall(one.call, one.note) for one in mended]

    def _stateful(self, mended: PreparedCall) -> bool:
        return mended.call.name in self._stateful_names and mended.refusal is None

    def _acts(self, mended: PreparedCall) -> bool:
        """Whether a call will run and has side effects."""
        found = self._tools.get(mended.call.name)
        if found is None or not found.policy.side_effects or mended.refusal is not None:
            return False
        try:
            found.schema.decode(mended.call.arguments)
        except BadArguments:
            return False
        return True

    async def _run(self, mended: PreparedCall, place: CallPlace | None, environment: Environment | None) -> Observation:
        if mended.refusal is not None:
            return Observation(bounded(mended.note + mended.refusal, self._limit), False, 0)
        seen = await self.call(mended.call.name, mended.call.arguments, environment, place)
        return seen._replace(text=mended.note + seen.text) if mended.note else seen

    async def close(self) -> None:
        """End all processes, idle threads and tasks. May be called again; threads that hang end with this process."""
        if self.pool is not None:
            await self.pool.close()
        await asyncio.gather(*(executor.close() for executor in self._executors.values()))
        await self._user_code.close()

    def _unknown(self, name: str, arguments: str) -> str:
        if not name:
            return f"Error: the tool call could not be read: {unreadable(arguments)}."
        known = ", ".join(self._tools) or "none"
        return f"Error: there is no tool named '{excerpt(name, 80)}'. Available tools: {known}."


def _not_a_tool(item: object) -> ConfigError:
    what, name = "decorate the function with @tool", getattr(item, "__name__", "")
    if str(getattr(item, "__module__", "")).startswith("trunkline.tools.builtin."):
        what = f"call it: tl.tools.{name}()"
    return ConfigError(f"{short_repr(item)} in tools is not a tool; {what}")


def _decided(turn: Sequence[PreparedCall], decisions: Mapping[int, DecisionMark]) -> list[PreparedCall]:
    """Return the calls of a turn as they run by some decisions."""
    found = list(turn)
    for index, mark in decisions.items():
        one = found[index]
        changed = one.call if mark.refusal is not None else ToolCall(one.call.id, one.call.name, mark.arguments)
        found[index] = PreparedCall(changed, one.note, mark.refusal)
    return found


def _filled(found: Tool[..., Any], slot: EnvironmentSlot, environment: Environment | None) -> dict[str, Environment]:
    if not isinstance(environment, slot.kind):
        raise BadArguments(f"{found.name} works on an environment, {slot.kind.__name__}, which is not there")
    return {slot.name: environment}
