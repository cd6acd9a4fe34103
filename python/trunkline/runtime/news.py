"""Which tasks of a run are finished, told in one loop while the run goes on in the same or another one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from trunkline.runtime.closed import to_the_end
from trunkline.runtime.home import Errand

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.runtime.home import Home
    from trunkline.runtime.plan import Plan

__all__ = ["News"]


class News:
    """Starts a run; iterating yields the id of each task as soon as its tree is complete, and then the run's error.

    Args:
        plan: The run.
        home: Where it goes on; in the running loop when None.
    """

    def __init__(self, plan: Plan, home: Home | None) -> None:
        self._plan = plan
        self._home = home
        self._box: asyncio.Queue[str | None] = asyncio.Queue()
        self._run: asyncio.Task[None] | Errand[None]
        if home is None:
            self._run = asyncio.ensure_future(self._tell(self._box.put_nowait))
        else:
            loop = asyncio.get_running_loop()
            self._run = home.send(self._tell(lambda done: _post(loop, self._box, done)))

    def __aiter__(self) -> News:
        return self

    async def __anext__(self) -> str:
        done = await self._box.get()
        if done is None:
            await self._ended()
            raise StopAsyncIteration
        return done

    async def close(self) -> None:
        """Stop the run and wait until it has ended, whoever cancels meanwhile."""
        self._stop()
        with suppress(Exception):
            await self._ended()

    def _stop(self) -> None:
        """Ask the run to end, without waiting for what is out."""
        stop = partial(self._plan.controller.stop, at_once=True)
        if self._home is None:
            stop()
        elif isinstance(self._run, Errand) and not self._run.over:
            self._home.call(stop)

    async def _ended(self) -> None:
        if isinstance(self._run, Errand):
            await self._run.ended()
        else:
            await to_the_end(self._run, self._run.cancel)
            self._run.result()

    async def _tell(self, post: Callable[[str | None], None]) -> None:
        """Run, and pass on what is finished meanwhile."""
        finished = self._plan.controller.finished
        running = asyncio.ensure_future(self._plan.execute())
        # A run that fails before its controller begins finishes nothing.
        running.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while (done := await finished.get()) is not None:
                post(done)
        except asyncio.CancelledError:
            running.cancel()
            raise
        finally:
            try:
                await to_the_end(running, running.cancel)
                running.result()
            finally:
                post(None)


def _post(loop: asyncio.AbstractEventLoop, box: asyncio.Queue[str | None], done: str | None) -> None:
    """Tell another loop, if it is there any more."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(box.put_nowait, done)
