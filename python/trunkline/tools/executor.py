"""Runs calls of one tool: on the event loop, in a daemon thread, or in a process.

The standard executor joins its threads when the interpreter ends and never replaces one that hangs. A tool may never
return, so here threads are daemons, and one that overran its time stops counting.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from trunkline._internal.frames import users_traceback
from trunkline._internal.text import format_error, printable
from trunkline.tools.calls import as_text, call_at, describe
from trunkline.tools.isolation.process_pool import ToolProcessPool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trunkline.tools.calls import Call, CallPlace
    from trunkline.tools.tool import Tool

STUCK_FACTOR: Final = 4
"""How many times the pool's size may be stuck in tools that never return, before calls are refused."""

IDLE: Final = 10.0
"""Seconds after which a thread without work ends."""

TOOL_THREAD: Final = "trunkline-tool"
"""The name of threads in which sync tools run."""

_Job = tuple["Callable[[], Any]", asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class ExhaustedError(RuntimeError):
    """Too many threads hang in tools that never returned."""


class Threads:
    """A pool of daemon threads, in which at most ``size`` calls run at once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots = asyncio.Semaphore(size)
        self._lock = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._idle = 0
        self._stuck = 0
        self._closed = False

    async def run(self, function: Callable[[], Any], timeout: float) -> Any:  # noqa: ASYNC109
        """Run a function in a thread; return its result or ``Raised``. A thread that overran its time is left."""
        # The wait for a free thread does not count as time. One that is left runs on, but takes no slot.
        async with self._slots:
            if self._stuck >= STUCK_FACTOR * self.size:
                raise ExhaustedError(
                    f"{self._stuck} earlier tool calls never returned; @tool(isolated=True) would run them in "
                    "processes that are killed"
                )
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Any] = loop.create_future()
            context = contextvars.copy_context()
            self._submit((lambda: context.run(function), loop, future))
            try:
                await asyncio.wait({future}, timeout=timeout)
            finally:
                # Timed out or cancelled: the thread runs on until its function returns.
                if not future.done():
                    self._stuck += 1
                    future.add_done_callback(self._unstick)
            if not future.done():
                raise TimeoutError
            return future.result()

    def close(self) -> None:
        """Let idle threads end. Threads that hang end with the process."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the toolbox is closed")
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._lock.notify()
                return
        threading.Thread(target=self._work, name=TOOL_THREAD, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._jobs:
                    if self._closed or self._idle >= self.size:
                        return
                    self._idle += 1
                    called = self._lock.wait(IDLE)
                    self._idle -= 1
                    if not called and not self._jobs:
                        return
                function, loop, future = self._jobs.popleft()
            result = _guarded(function)
            with contextlib.suppress(RuntimeError):  # the loop is closed, with all that waited
                loop.call_soon_threadsafe(_settle, future, result)
            del function, loop, future, result

    def _unstick(self, _future: asyncio.Future[Any]) -> None:
        self._stuck -= 1


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


GRACE: Final = 1.0
"""Seconds a cancelled async tool has to clean up before it is left behind."""


class Raised(NamedTuple):
    """The error that a function raised."""

    error: BaseException


class UserCodeRunner:
    """Runs functions that may never return; at most ``threads`` sync ones at once."""

    def __init__(self, threads: int) -> None:
        self._threads = Threads(threads)
        self._left: set[asyncio.Future[Any]] = set()

    async def run(self, function: Callable[[], Any], is_async: bool, timeout: float) -> object:  # noqa: ASYNC109
        """Run a function, async on this loop or sync in a thread; return what it returned, or ``Raised``."""
        if not is_async:
            value = await self._threads.run(function, timeout)
            if not inspect.isawaitable(value):
                return value
            function = partial(_same, value)
        return await self.finish(started(function), timeout)

    async def finish(self, task: asyncio.Task[object], timeout: float) -> object:  # noqa: ASYNC109
        """Wait for a function that was started; return what it returned, or ``Raised``."""
        try:
            if not task.done():
                await NEXT_PASS  # a task begins in the next pass of the event loop, and many end in it
            if not task.done():
                await asyncio.wait({task}, timeout=timeout)
        except asyncio.CancelledError:
            await self.stop(task)
            raise
        if not task.done():
            await self.stop(task)
            raise TimeoutError
        return outcome(task)

    async def close(self) -> None:
        """Cancel async functions that were left behind and let idle threads end. May be called more than once."""
        left = list(self._left)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=GRACE)
        self._threads.close()

    async def stop(self, task: asyncio.Future[Any]) -> None:
        """Cancel a function, and leave it behind if it does not end soon."""
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=GRACE)
        if not done:
            # It ignores its cancellation. Held, so that it is neither collected nor reported as lost.
            self._left.add(task)
            task.add_done_callback(self._left.discard)


EAGER: Final = sys.version_info >= (3, 12)
"""Whether a task runs at once up to where it first waits, and not from the next pass of the event loop on."""


def started(function: Callable[[], Any]) -> asyncio.Task[object]:
    """Run an async function in a task of the running loop, at once where Python can."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(_awaited(function), loop=asyncio.get_running_loop(), eager_start=True)
    return asyncio.Task(_awaited(function))


def outcome(task: asyncio.Task[object]) -> object:
    """Return what an ended task returned, or ``Raised``."""
    if task.cancelled():
        return Raised(asyncio.CancelledError("the tool cancelled itself"))
    return task.result()


class _NextPass(tuple[None]):
    __slots__ = ()
    __await__ = tuple.__iter__


NEXT_PASS: Final = cast("Awaitable[None]", _NextPass((None,)))
"""Awaited, lets one pass of the event loop go by."""


def _guarded(function: Callable[[], Any]) -> object:
    try:
        return function()
    except BaseException as error:  # noqa: BLE001  (SystemExit from a tool ends the call, not the process)
        return Raised(error)


async def _awaited(function: Callable[[], Any]) -> object:
    # Inside the task: a SystemExit that leaves a task would end the event loop.
    try:
        return await function()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001
        return Raised(error)


def _same(value: object) -> object:
    return value


_log = logging.getLogger("trunkline.tools")


class Executor:
    """Runs calls of one tool, which keep at most ``limit`` characters; ``timeout`` holds for a tool that sets none.

    A ``direct`` tool is async, in this process, and runs as often at once as it is called: its task may be started
    elsewhere, and is told and finished here.
    """

    def __init__(self, tool: Tool[..., Any], user_code: UserCodeRunner, timeout: float, limit: int) -> None:
        policy = tool.policy
        self.tool = tool
        self.pure = policy.pure
        self.direct = tool.is_async and not policy.isolated and policy.concurrency is None
        self._user_code = user_code
        self.timeout = timeout if policy.timeout is None else policy.timeout
        self._limit = limit
        self._processes = ToolProcessPool(tool) if policy.isolated else None
        self._gate = None if policy.concurrency is None else asyncio.Semaphore(policy.concurrency)
        self._warned = False

    async def run(
        self, positional: list[Any], named: dict[str, Any], arguments: str, call: Call | CallPlace | None
    ) -> tuple[str, bool]:
        """Run a call; return what the model is told, and whether the tool returned."""
        if self._processes is not None:
            return await self._processes.run(arguments, call_at(call), self._limit, self.timeout)
        function = partial(self.tool.__wrapped__, *positional, **named)
        if self._gate is None:
            return await self._rest(self._user_code.run(function, self.tool.is_async, self.timeout))
        async with self._gate:
            return await self._rest(self._user_code.run(function, self.tool.is_async, self.timeout))

    def told(self, task: asyncio.Task[object]) -> tuple[str, bool] | None:
        """Return what the model is told of a direct tool's task, as ``run`` does; None while it runs."""
        try:
            value = task.result()
        except asyncio.InvalidStateError:
            return None
        except asyncio.CancelledError:
            value = outcome(task)
        if type(value) is str and value.isascii() and len(value) <= self._limit and "\0" not in value:
            return value, True
        return self._said(value)

    async def finish(self, task: asyncio.Task[object]) -> tuple[str, bool]:
        """Wait for a direct tool's task, and return what ``told`` says of it."""
        return await self._rest(self._user_code.finish(task, self.timeout))

    async def close(self) -> None:
        if self._processes is not None:
            await self._processes.close()

    async def _rest(self, running: Awaitable[object]) -> tuple[str, bool]:
        name = self.tool.name
        try:
            value = await running
        except TimeoutError:
            self._warn()
            return f"Error: {name} gave no result within {self.timeout:g} s and was stopped.", False
        except (ExhaustedError, TypeError) as error:
            return f"Error: {name} gave no result: {error}.", False
        return self._said(value)

    def _said(self, value: object) -> tuple[str, bool]:
        if isinstance(value, Raised):
            return self._failed(value.error), False
        try:
            return as_text(value, self._limit), True
        except TypeError as error:
            return f"Error: {self.tool.name} gave no result: {format_error(error)}.", False
        except BaseException as error:  # noqa: BLE001 - methods of a result are the tool's code
            return self._failed(error), False

    def _failed(self, error: BaseException) -> str:
        if _log.isEnabledFor(logging.DEBUG):
            lines = "\n".join(map(printable, users_traceback(error).splitlines()))
            _log.debug("tool %s failed:\n%s", self.tool.name, lines)
        return describe(self.tool.name, error)

    def _warn(self) -> None:
        """Log once that a thread runs on, which blocks all others where it holds the interpreter's lock."""
        if not self.tool.is_async and not self._warned:
            self._warned = True
            _log.warning(
                "tool %s did not return within %g s, and its thread is still running: Python cannot stop one. "
                "@tool(isolated=True) runs it in a process that is killed (said once)",
                self.tool.name,
                self.timeout,
            )
