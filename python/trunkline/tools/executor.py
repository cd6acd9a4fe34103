"""Threads for sync tools: bounded, reused, and expendable when a tool hangs in one.

The standard executor joins its threads when the interpreter ends and never replaces one that hangs. A tool is
foreign code that may never return, so here threads are daemons, and one that overran its time stops counting.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ExhaustedError", "Threads"]

STUCK_FACTOR: Final = 4
"""How many times the pool's size may be stuck in tools that never return, before calls are refused."""

IDLE: Final = 10.0
"""Seconds after which a thread without work ends."""

_Job = tuple["Callable[[], Any]", asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class ExhaustedError(RuntimeError):
    """Too many threads hang in tools that never returned."""


class Threads:
    """A pool of daemon threads.

    Args:
        size: Most calls that run at once.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots = asyncio.Semaphore(size)
        self._lock = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._idle = 0
        self._stuck = 0
        self._closed = False

    async def run(self, function: Callable[[], Any], timeout: float) -> Any:  # noqa: ASYNC109
        """Run a function in a thread and wait for it.

        Waiting for a free thread does not count against the timeout. After it the thread is left behind:
        Python cannot stop it, but it takes no slot.

        Args:
            function: Called without arguments, in a copy of the current context.
            timeout: Seconds the function may run.

        Returns:
            What the function returned.

        Raises:
            TimeoutError: It ran too long.
            ExhaustedError: Too many earlier calls still hang.
            BaseException: Whatever the function raised.
        """
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
                # Timed out or cancelled: the thread goes on alone until its function returns.
                if not future.done():
                    self._stuck += 1
                    future.add_done_callback(self._unstick)
            if not future.done():
                raise TimeoutError
            kind, value = future.result()
            if kind == "raised":
                raise value
            return value

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
        threading.Thread(target=self._work, name="trunkline-tool", daemon=True).start()

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
            result: tuple[str, Any]
            try:
                result = ("returned", function())
            except BaseException as error:  # noqa: BLE001  (a tool may raise anything, SystemExit included)
                result = ("raised", error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, future, result)
            del function, loop, future, result

    def _unstick(self, _future: asyncio.Future[Any]) -> None:
        self._stuck -= 1


def _settle(future: asyncio.Future[Any], result: tuple[str, Any]) -> None:
    if not future.done():
        future.set_result(result)
