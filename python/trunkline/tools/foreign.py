"""Runs foreign functions in this process: async ones on its loop, sync ones in threads, each for a while only."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trunkline.tools.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Foreign", "Raised"]

GRACE: Final = 1.0
"""Seconds a cancelled async tool has to clean up before it is left behind."""


class Raised(NamedTuple):
    """What a function raised, which may be anything."""

    error: BaseException


class Foreign:
    """Runs functions that may never return.

    Args:
        threads: Sync functions that run at once.
    """

    def __init__(self, threads: int) -> None:
        self._threads = Threads(threads)
        self._left: set[asyncio.Future[Any]] = set()

    async def run(self, function: Callable[[], Any], is_async: bool, timeout: float) -> object:  # noqa: ASYNC109
        """Run a function and wait for it.

        Args:
            function: Called without arguments.
            is_async: Whether that gives an awaitable, to be called on this loop; others are called in a thread.
            timeout: Seconds it may take.

        Returns:
            What it returned, or :class:`Raised`.

        Raises:
            TimeoutError: It took too long.
            ExhaustedError: Too many threads hang in calls that never returned.
        """
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
            return Raised(asyncio.CancelledError("the tool cancelled itself"))
        return task.result()

    async def close(self) -> None:
        """Cancel async functions that were left behind and let idle threads end. May be called more than once."""
        left = list(self._left)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=GRACE)
        self._threads.close()

    async def _stop(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=GRACE)
        if not done:
            # It swallows its cancellation. Hold it, so that it is neither collected nor reported as lost.
            self._left.add(task)
            task.add_done_callback(self._left.discard)


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
