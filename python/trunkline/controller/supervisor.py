"""Supervision of workers: heartbeats, restarts, memory."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from trunkline._internal.aio import wait_uninterrupted
from trunkline.controller.component import Component
from trunkline.errors import WorkerError
from trunkline.protocol.messages import Ping, Pong

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.controller.component import Death
    from trunkline.controller.scheduler import WorkerRegistry
    from trunkline.protocol.backend import Backend
    from trunkline.protocol.messages import Batch, WorkerState
    from trunkline.store.writer import RunWriter


logger = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds between two pings."""

WARN = 5.0
HUNG = 30.0
"""Seconds of silence after which a worker is warned of, and after which it is killed."""


class HeartbeatMonitor:
    """Counts beats since each worker's last message; seconds would count a suspended controller as silence."""

    def __init__(self) -> None:
        self._silent: dict[int, int] = {}

    @property
    def silent(self) -> dict[int, float]:
        """Seconds since the last message of each worker that has not answered the last ping."""
        # The first ping was sent a beat before it could be answered.
        return {worker_id: (beats - 1) * BEAT for worker_id, beats in self._silent.items() if beats > 1}

    def seen(self, worker_id: int) -> None:
        self._silent.pop(worker_id, None)

    def beat(self, worker_ids: Iterable[int]) -> dict[int, float]:
        """Count a beat for these workers; return those that hang, with their seconds of silence."""
        hung = {}
        for worker_id in worker_ids:
            silent = self._silent[worker_id] = self._silent.get(worker_id, 0) + 1
            since = (silent - 1) * BEAT
            if since >= HUNG:
                hung[worker_id] = since
            elif WARN <= since < WARN + BEAT:
                logger.warning(
                    "worker %d has not answered for %.0f s: something blocks its event loop", worker_id, since
                )
        return hung


_MOST = 5
"""Workers that may die in one place in a row without a commit."""

_FIRST = 0.1
_LONGEST = 5.0
"""Seconds before a place is filled again after its worker died without a commit; doubled each time."""


class RestartPolicy:
    """When each place is filled again: one for one, with exponential backoff."""

    def __init__(self) -> None:
        self._vain: dict[int, int] = {}

    def began(self, worker_id: int, instead: int | None = None) -> None:
        self._vain[worker_id] = 0 if instead is None else self._vain.pop(instead, 0)

    def knows(self, worker_id: int) -> bool:
        return worker_id in self._vain

    def progress(self, worker_id: int) -> None:
        if worker_id in self._vain:
            self._vain[worker_id] = 0

    def died(self, worker_id: int, *, known: bool = False) -> float | None:
        """Return the seconds until a place is filled again; None to give it up. ``known`` suspects do not count."""
        if known:
            return 0.0
        vain = self._vain[worker_id] = self._vain[worker_id] + 1
        if vain >= _MOST:
            del self._vain[worker_id]
            return None
        return min(_LONGEST, _FIRST * 2 ** (vain - 2)) if vain > 1 else 0.0


START_WITHIN = 120.0
"""Seconds that a worker has to import the user's code and be ready."""

_OVER = 1.25
"""A worker that holds this many times its memory limit is killed at once."""


class Supervisor(Component):
    """Replaces workers that die, kills those that hang or hold too much memory; ``engines`` are their last states."""

    handles = (Pong,)

    def __init__(self, backend: Backend, registry: WorkerRegistry, writer: RunWriter, memory: int | None) -> None:
        self.engines: dict[int, WorkerState] = {}
        self._backend = backend
        self._registry = registry
        self._writer = writer
        self._memory = memory
        self._restarts = RestartPolicy()
        self.heartbeats = HeartbeatMonitor()
        self._first: set[int] = set()
        self._hung: set[int] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self.given_up = ""

    @property
    def assembling(self) -> bool:
        return bool(self._first)

    @property
    def exhausted(self) -> bool:
        return not self._registry and not self._starting

    def began(self, worker_ids: Sequence[int]) -> None:
        for worker_id in worker_ids:
            self._registry.add(worker_id)
            self._restarts.began(worker_id)
        self._first.update(worker_ids)

    def on_ready(self, worker_id: int, slots: int) -> None:
        self._first.discard(worker_id)
        self._registry.came_up(worker_id, slots)

    def on_commit(self, worker_id: int, batch: Batch, seconds: float) -> None:
        if batch.progressed:
            self._restarts.progress(worker_id)

    def on_message(self, worker_id: int, message: Pong) -> None:
        """Keep a worker's state; end a worker that holds too much memory once its tasks are done, or at once."""
        state = message.state
        self.engines[worker_id] = state
        if self._memory is None or state.memory <= self._memory:
            return
        limit = f"it holds {state.memory >> 20:,} MiB, more than {self._memory >> 20:,}"
        if self._registry.retire(worker_id):
            running = f"; {state.tools} tool calls run, {state.tool} longest" if state.tools else ""
            logger.warning("worker %d is given no more tasks: %s%s", worker_id, limit, running)
            self._writer.event("recycled", worker=worker_id, memory=state.memory, limit=self._memory, tool=state.tool)
        if state.memory > _OVER * self._memory:
            self._backend.kill(worker_id, limit)

    def beat(self) -> None:
        """Ping every worker; kill those that hang, start late, or are retired and idle."""
        if self._broken is not None:
            raise self._broken
        for worker_id, seconds in self.heartbeats.beat(self._registry.ready).items():
            if worker_id not in self._hung:
                self._hung.add(worker_id)
                self._writer.event("hung", worker=worker_id, seconds=seconds)
            # At each beat: a machine that is out of reach may come back.
            self._backend.kill(worker_id, f"its event loop did not answer for {seconds:.0f} s")
        for worker_id in self._registry.ready:
            self._backend.send(worker_id, Ping())
        for worker_id in self._registry.idle():
            self._backend.kill(worker_id, "it held too much memory")
        for worker_id, since in self._registry.starting.items():
            if time.monotonic() - since > START_WITHIN:
                late = f"it did not come up within {START_WITHIN:.0f} s"
                self._backend.kill(worker_id, f"{late}: does a module of yours take that long to import?")

    def on_lost(self, worker_id: int, death: Death) -> None:
        """Have a worker replaced; WorkerError if it ended by itself before the run had begun, as others would."""
        exited, report = death.exited, death.report
        self.engines.pop(worker_id, None)
        self.heartbeats.seen(worker_id)
        if death.expected():
            return
        if worker_id in self._first and not exited.killed:
            raise WorkerError(f"{exited.reason} before it was ready")
        self._first.discard(worker_id)
        # A worker that _start() does not know yet is replaced there.
        if self._restarts.knows(worker_id):
            self._replace(worker_id, exited.reason, known=report.known)
        again = len(death.tasks) - len(report.guilty)
        logger.warning("%s; %d unfinished tasks are assigned again", exited.reason, again)
        self._writer.event("died", worker=worker_id, reason=exited.reason, tasks=death.tasks)

    async def close(self) -> None:
        for task in self._starting:
            task.cancel()
        await wait_uninterrupted(asyncio.gather(*self._starting, return_exceptions=True))

    def _replace(self, worker_id: int, reason: str, *, known: bool) -> None:
        delay = self._restarts.died(worker_id, known=known)
        if delay is None:
            logger.warning("%s; its place is given up: so many workers in a row made nothing there", reason)
            self._writer.event("given up", worker=worker_id, reason=reason)
            self.given_up = reason
            return
        task = asyncio.get_running_loop().create_task(self._start(worker_id, reason, delay))
        self._starting.add(task)
        task.add_done_callback(self._started)

    async def _start(self, worker_id: int, reason: str, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            new = await self._backend.replace(worker_id)
        except WorkerError as error:
            self._replace(worker_id, str(error), known=False)
            return
        if new is None:
            self.given_up = reason
        else:
            self._registry.add(new)
            self._restarts.began(new, worker_id)
            if new in self._registry.gone:
                self._replace(new, f"worker {new} ended as it was started", known=False)

    def _started(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if not task.cancelled():
            self._broken = self._broken or task.exception()
