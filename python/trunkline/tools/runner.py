"""Runs the calls a model asked for; whatever happens becomes an observation the model can read."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline.bounds import number, shown, whole
from trunkline.errors import ConfigError, EnvironmentFailed, ForkRefused, ToolError
from trunkline.llm.text import excerpt, without_secrets
from trunkline.printable import printable, said
from trunkline.tools.repair import Mended, mend, need_library, sound
from trunkline.tools.result import LIMIT, as_text, bounded
from trunkline.tools.schema import ArgumentError
from trunkline.tools.syntax import unreadable
from trunkline.tools.threads import ExhaustedError, Threads
from trunkline.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trunkline.llm.protocol import ToolCall
    from trunkline.tools.environment import Environment

__all__ = ["Observation", "Toolbox"]

GRACE: Final = 1.0
"""Seconds a cancelled async tool has to clean up before it is left behind."""

_MESSAGE: Final = 2_000

_log = logging.getLogger("trunkline.tools")


class Observation(NamedTuple):
    """What the model is told about one call.

    Attributes:
        text: The result, or what went wrong.
        ok: Whether the tool ran and returned.
        micros: Wall time in microseconds.
    """

    text: str
    ok: bool
    micros: int


class _Failure(NamedTuple):
    error: BaseException


class Toolbox:
    """The tools of one agent, ready to be called by name.

    Args:
        tools: The tools.
        timeout: Seconds a call may take when its tool sets no limit.
        limit: Characters of a result that are kept.
        threads: Sync tools that run at once.
        parallel: Calls of one turn that run at once; the others wait their turn.
        repair: Whether calls of broken JSON are repaired where possible (:mod:`trunkline.tools.repair`), and the
            observation says so; else the observation says what is wrong with them.

    Raises:
        ConfigError: One is no tool, two share a name, an option is out of range, or the library for repairs is missing.
    """

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
        number("tool timeout", timeout, 0, above=True, unit="seconds")
        for option, value in (("limit", limit), ("threads", threads), ("parallel", parallel)):
            whole(f"toolbox option {option}", value, 1)
        if repair:
            need_library()
        self._repair = repair
        self._tools: dict[str, Tool[..., Any]] = {}
        for item in tools:
            if not isinstance(item, Tool):
                raise ConfigError(f"{shown(item)} in tools is not a tool; decorate the function with @tool")
            if item.name in self._tools:
                raise ConfigError(f"two tools are named {item.name!r}; rename one with @tool(name=...)")
            self._tools[item.name] = item
        self._timeout = timeout
        self._limit = limit
        self._parallel = parallel
        self._threads = Threads(threads)
        self._left: set[asyncio.Future[Any]] = set()
        self._definitions = msgspec.json.encode([item.definition for item in self._tools.values()])

    @property
    def names(self) -> list[str]:
        """Names of the tools, in the order they were given."""
        return list(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def definitions(self) -> bytes:
        """The tools as a JSON array for a request; equal toolboxes give equal bytes."""
        return self._definitions

    async def call(self, name: str, arguments: str, environment: Environment | None = None) -> Observation:
        """Run one call.

        Args:
            name: The tool's name as the model wrote it; empty for a call that a dialect could not read.
            arguments: Its arguments as the model wrote them; of a call that could not be read, all of it.
            environment: What the rollout's tools work on, where it has one.

        Returns:
            The result, or an error for the model: an unknown tool, arguments that do not fit, an exception, a
            timeout. Only cancellation is raised.
        """
        start = time.perf_counter_ns()
        text, ok = await self._call(name, arguments, environment)
        return Observation(bounded(text, self._limit + 100), ok, (time.perf_counter_ns() - start) // 1000)

    async def call_all(self, calls: Sequence[ToolCall], environment: Environment | None = None) -> list[Observation]:
        """Run the calls of one turn concurrently; those that take the environment one after the other, in call order.

        Args:
            calls: The calls.
            environment: What the rollout's tools work on, where it has one.

        Returns:
            One observation a call, in call order.
        """
        turn = await self._mended(calls)
        if len(turn) == 1:
            return [await self._run(turn[0], environment)]
        gate, line = asyncio.Semaphore(self._parallel), asyncio.Lock()

        async def gated(mended: Mended) -> Observation:
            # A lock is handed on in the order in which it was asked for.
            async with line if self._stateful(mended) else nullcontext(), gate:
                return await self._run(mended, environment)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(gated(mended)) for mended in turn]
        return [task.result() for task in tasks]

    async def replay(self, calls: Sequence[ToolCall], environment: Environment) -> list[Observation | None]:
        """Run the calls of a recorded turn again that take the environment, in call order.

        Args:
            calls: The calls.
            environment: One in the state before that turn.

        Returns:
            For each call its observation; None for one that does not take the environment, and was not run.

        Raises:
            ForkRefused: One of them must not run again.
        """
        turn = await self._mended(calls)
        fixed = [mended.call.name for mended in turn if self._stateful(mended) and not self._again(mended, environment)]
        if fixed:
            raise ForkRefused(
                f"there is no snapshot to go back to, and calls of {fixed[0]} on {type(environment).__name__} must not "
                "run again (replay is false)"
            )
        return [await self._run(mended, environment) if self._stateful(mended) else None for mended in turn]

    async def manage(self, environment: Environment, method: str, *given: object) -> Any:
        """Await a method of an environment, which is anybody's code.

        Args:
            environment: The environment.
            method: The method's name.
            *given: Its arguments.

        Returns:
            What it returned.

        Raises:
            EnvironmentFailed: It raised, or took longer than the environment's own limit.
        """
        place = f"{method}() of the environment {type(environment).__name__}"
        try:
            value = await self._execute(partial(getattr(environment, method), *given), True, environment.timeout)
        except TimeoutError:
            raise EnvironmentFailed(f"{place} took longer than {environment.timeout:g} s") from None
        if isinstance(value, _Failure):
            what = f"{type(value.error).__name__}: {without_secrets(said(value.error))}"
            raise EnvironmentFailed(f"{place} raised {what}") from value.error
        return value

    async def _mended(self, calls: Sequence[ToolCall]) -> list[Mended]:
        """Repair the calls of one turn, where that is wanted."""
        if not self._repair or all(map(sound, calls)):
            return [Mended(call) for call in calls]
        # In a thread: a hostile text can take long.
        return await asyncio.to_thread(mend, calls)

    def _stateful(self, mended: Mended) -> bool:
        """Whether a call takes the environment."""
        found = self._tools.get(mended.call.name)
        return found is not None and found.schema.slot is not None

    def _again(self, mended: Mended, environment: Environment) -> bool:
        """Whether a call that takes the environment may run again."""
        return environment.replay and self._tools[mended.call.name].replay

    async def _run(self, mended: Mended, environment: Environment | None) -> Observation:
        """Run a call of a turn, and say first what was done to it."""
        seen = await self.call(mended.call.name, mended.call.arguments, environment)
        return seen._replace(text=mended.note + seen.text) if mended.note else seen

    async def close(self) -> None:
        """Cancel async tools that were left behind and let idle threads end. May be called more than once."""
        left = list(self._left)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=GRACE)
        self._threads.close()

    async def _call(self, name: str, arguments: str, environment: Environment | None) -> tuple[str, bool]:
        found = self._tools.get(name)
        if found is None:
            return self._unknown(name, arguments), False
        try:
            positional, named = found.schema.decode(arguments)
            named |= _filled(found, environment)
        except ArgumentError as error:
            return f"Error: {error}.", False
        timeout = self._timeout if found.timeout is None else found.timeout
        try:
            value = await self._execute(partial(found.__wrapped__, *positional, **named), found.is_async, timeout)
            if isinstance(value, _Failure):
                return self._describe(found, value.error), False
            return as_text(value, self._limit), True
        except TimeoutError:
            return f"Error: {found.name} gave no result within {timeout:g} s and was stopped.", False
        except (ExhaustedError, TypeError) as error:
            return f"Error: {found.name} gave no result: {error}.", False

    def _unknown(self, name: str, arguments: str) -> str:
        """Say why a call leads to no tool."""
        if not name:
            return f"Error: the tool call could not be read: {unreadable(arguments)}."
        known = ", ".join(self._tools) or "none"
        return f"Error: there is no tool named '{excerpt(name, 80)}'. Available tools: {known}."

    async def _execute(self, function: Callable[[], Any], is_async: bool, timeout: float) -> object:  # noqa: ASYNC109
        if not is_async:
            value = await self._threads.run(partial(_guarded, function), timeout)
            if not inspect.isawaitable(value):
                return value
            function = partial(_same, value)
        task = asyncio.ensure_future(_awaited(function))
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout)
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        if not done:
            await self._stop(task)
            raise TimeoutError
        if task.cancelled():
            return _Failure(asyncio.CancelledError("the tool cancelled itself"))
        return task.result()

    async def _stop(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=GRACE)
        if not done:
            # It swallows its cancellation. Hold it, so that it is neither collected nor reported as lost.
            self._left.add(task)
            task.add_done_callback(self._left.discard)

    @staticmethod
    def _describe(found: Tool[..., Any], error: BaseException) -> str:
        try:
            message = excerpt(str(error), _MESSAGE) if not isinstance(error, ToolError) else str(error)
        except Exception:  # noqa: BLE001  (a foreign exception's own __str__ may fail)
            message = ""
        if isinstance(error, ToolError):
            return message
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("tool %s failed:\n%s", found.name, "\n".join(map(printable, traceback.format_exception(error))))
        kind = type(error).__name__
        return (
            f"Error: {found.name} failed with {kind}: {message}" if message else f"Error: {found.name} failed: {kind}"
        )


def _filled(found: Tool[..., Any], environment: Environment | None) -> dict[str, Environment]:
    """Return the argument that a tool gets from us."""
    slot = found.schema.slot
    if slot is None:
        return {}
    if not isinstance(environment, slot.kind):
        raise ArgumentError(f"{found.name} works on an environment, {slot.kind.__name__}, which is not there")
    return {slot.name: environment}


def _guarded(function: Callable[[], Any]) -> object:
    try:
        return function()
    except BaseException as error:  # noqa: BLE001  (SystemExit from a tool ends the call, not the process)
        return _Failure(error)


async def _awaited(function: Callable[[], Any]) -> object:
    # Inside the task: a SystemExit that leaves a task would end the event loop.
    try:
        return await function()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001
        return _Failure(error)


def _same(value: object) -> object:
    return value
