"""A thread with an event loop of its own, for work that outlives the loops of those who ask for it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import uvloop

from trunkline.runtime.closed import to_the_end

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["Errand", "Home", "close_loop"]

T = TypeVar("T")

_CLOSE_WITHIN = 4.0
"""Seconds that cancelled work has to end before its loop is closed over it."""


class Errand(Generic[T]):
    """Work that is done in a home. It is over when it has ended, cancelled or not, and not before.

    Args:
        loop: The home's loop.
        work: What to do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[None, None, T]) -> None:
        self._loop = loop
        self._over: Future[asyncio.Task[T]] = Future()
        self._over.set_running_or_notify_cancel()
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._begin, work)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over.done()

    def cancel(self) -> None:
        """Cancel the work, from any thread."""
        if not self.over:
            self._loop.call_soon_threadsafe(self._cancel)

    def wait(self) -> T:
        """Block this thread until it is over; returns or raises what the work did."""
        return self._over.result().result()

    async def ended(self) -> T:
        """Wait in any loop until it is over. A cancel is passed on, waited for and then raised."""
        await to_the_end(asyncio.wrap_future(self._over), self.cancel)
        return self._over.result().result()

    def _begin(self, work: Coroutine[None, None, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._over.set_result)

    def _cancel(self) -> None:
        assert self._task is not None
        # One tick later: work that was cancelled before its first step would never have a chance to clean up.
        self._loop.call_soon(self._task.cancel)


class Home:
    """A thread that runs an event loop until :meth:`close`.

    What child processes it starts live as long as it does: the kernel ends them with the thread that started them.

    Args:
        name: What the thread is called.
    """

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._guard = threading.Lock()
        self._errands: set[Errand[Any]] = set()
        # A daemon: it must not keep an interpreter that wants to end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, work: Coroutine[None, None, T]) -> Errand[T]:
        """Do work there, from any thread."""
        errand = Errand(self._loop, work)
        with self._guard:
            self._errands = {one for one in self._errands if not one.over} | {errand}
        return errand

    def call(self, step: Callable[[], object]) -> None:
        """Call something there soon, from any thread."""
        self._loop.call_soon_threadsafe(step)

    def close(self, last: Coroutine[None, None, None]) -> None:
        """Cancel the work that is left, do one last thing, and end the thread.

        Args:
            last: What to do when the other work has ended.
        """
        if threading.current_thread() is self._thread:
            # It cannot wait for itself.
            task = self._loop.create_task(self._finish(last))
            task.add_done_callback(lambda _: self._loop.stop())
            return
        try:
            Errand(self._loop, self._finish(last)).wait()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _finish(self, last: Coroutine[None, None, None]) -> None:
        with self._guard:
            left = [errand for errand in self._errands if not errand.over]
        for errand in left:
            errand.cancel()
        await asyncio.gather(*(errand.ended() for errand in left), return_exceptions=True)
        await last

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            close_loop(self._loop)


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop within seconds, whatever somebody's code still does in it."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_CLOSE_WITHIN))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
