"""Supervision: who is alive, who is replaced, and when there is nobody left."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from trunkline._internal.aio import wait_uninterrupted
from trunkline.errors import WorkerError
from trunkline.protocol.messages import Ping, WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.controller.scheduler import WorkerRegistry
    from trunkline.protocol.backend import Backend, WorkerExited
    from trunkline.store.writer import RunWriter


__all__ = ["BEAT", "HeartbeatMonitor", "RestartPolicy", "Supervisor"]


logger = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds between two pings."""

WARN = 5.0
HUNG = 30.0
"""Seconds of silence until a worker is warned of, and until it is ended."""


class HeartbeatMonitor:
    """Counts for each worker how many beats ago it was heard.

    In beats of the controller and not by a clock: when the controller itself was stopped for a minute, nobody is dead.
    """

    def __init__(self) -> None:
        self._silent: dict[int, int] = {}

    @property
    def silent(self) -> dict[int, float]:
        """Seconds since each worker was heard that has not answered the last ping."""
        # The first ping was sent a beat before anybody could have answered it.
        return {worker_id: (beats - 1) * BEAT for worker_id, beats in self._silent.items() if beats > 1}

    def seen(self, worker_id: int) -> None:
        """Note that a worker said something."""
        self._silent.pop(worker_id, None)

    def gone(self, worker_id: int) -> None:
        """Forget a worker."""
        self._silent.pop(worker_id, None)

    def beat(self, worker_ids: Iterable[int]) -> dict[int, float]:
        """Let a beat pass.

        Args:
            worker_ids: The workers that are asked for an answer now.

        Returns:
            Those that hang, each with its seconds of silence.
        """
        hung = {}
        for worker_id in worker_ids:
            silent = self._silent[worker_id] = self._silent.get(worker_id, 0) + 1
            # The first ping was sent a beat before anybody could have answered it.
            since = (silent - 1) * BEAT
            if since >= HUNG:
                hung[worker_id] = since
            elif WARN <= since < WARN + BEAT:
                logger.warning(
                    "worker %d has not answered for %.0f s: something blocks its event loop", worker_id, since
                )
        return hung


_MOST = 5
"""Workers of one place that may die in a row without having got anywhere."""

_FIRST = 0.1
_LONGEST = 5.0
"""Seconds before a place is filled again that was filled in vain; twice as long each time."""


class RestartPolicy:
    """Decides place by place, as a supervisor does that restarts one for one."""

    def __init__(self) -> None:
        self._vain: dict[int, int] = {}

    def began(self, worker_id: int, instead: int | None = None) -> None:
        """Note that a worker was started, ``instead`` of one that is gone."""
        self._vain[worker_id] = 0 if instead is None else self._vain.pop(instead, 0)

    def knows(self, worker_id: int) -> bool:
        """Whether a worker has a place."""
        return worker_id in self._vain

    def progress(self, worker_id: int) -> None:
        """Note that something a worker made is in the run file."""
        if worker_id in self._vain:
            self._vain[worker_id] = 0

    def died(self, worker_id: int, *, known: bool = False) -> float | None:
        """Note that a worker died, or could not be started.

        Args:
            worker_id: The worker, or the one whose place it was to take.
            known: Whether one of its tasks is suspected anyway: then its place is not at fault.

        Returns:
            Seconds until another is to be started; None when its place is given up.
        """
        if known:
            return 0.0
        vain = self._vain[worker_id] = self._vain[worker_id] + 1
        if vain >= _MOST:
            del self._vain[worker_id]
            return None
        return min(_LONGEST, _FIRST * 2 ** (vain - 2)) if vain > 1 else 0.0


START_WITHIN = 120.0
"""Seconds that a worker has to import the user's code and come up."""

_OVER = 1.25
"""So many times the memory that a worker may hold, and it is ended at once."""


class Supervisor:
    """Keeps engines alive, one for one: who dies is replaced, who hangs or holds too much memory is ended.

    Args:
        backend: Where engines live.
        registry: Those that are alive.
        writer: The run file, which keeps what came to pass.
        memory: Bytes that an engine's process may hold; None for no limit.

    Attributes:
        engines: How each engine is that is up.
    """

    def __init__(self, backend: Backend, registry: WorkerRegistry, writer: RunWriter, memory: int | None) -> None:
        self.engines: dict[int, WorkerState] = {}
        self._backend = backend
        self._registry = registry
        self._writer = writer
        self._memory = memory
        self._restarts = RestartPolicy()
        self._heartbeats = HeartbeatMonitor()
        self._first: set[int] = set()
        self._hung: set[int] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self._given_up = ""

    @property
    def assembling(self) -> bool:
        """Whether engines that the run starts with are not up yet."""
        return bool(self._first)

    @property
    def nobody(self) -> bool:
        """Whether no engine is alive, and none will be."""
        return not self._registry and not self._starting

    @property
    def why(self) -> str:
        """How the last engine ended whose place was given up."""
        return self._given_up

    @property
    def silent(self) -> dict[int, float]:
        """Engines that have not answered, each with the seconds since it was heard."""
        return self._heartbeats.silent

    def began(self, worker_ids: Sequence[int]) -> None:
        """Note the engines that the run starts with."""
        for worker_id in worker_ids:
            self._registry.add(worker_id)
            self._restarts.began(worker_id)
        self._first.update(worker_ids)

    def message_received(self, worker_id: int) -> None:
        """Note that an engine said something."""
        self._heartbeats.seen(worker_id)

    def progress(self, worker_id: int) -> None:
        """Note that something an engine made is in the run file."""
        self._restarts.progress(worker_id)

    def came_up(self, worker_id: int, slots: int) -> None:
        """Note that an engine is ready."""
        self._first.discard(worker_id)
        self._registry.came_up(worker_id, slots)

    def state_received(self, worker_id: int, state: WorkerState) -> None:
        """Note how an engine is, and end one that holds too much memory once its tasks are done, or at once."""
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
        """Ask every engine how it is; end those that do not answer any more, and those that are done.

        Raises:
            Exception: Whatever kept an engine from being started.
        """
        if self._broken is not None:
            raise self._broken
        for worker_id, seconds in self._heartbeats.beat(self._registry.ready).items():
            if worker_id not in self._hung:
                self._hung.add(worker_id)
                self._writer.event("hung", worker=worker_id, seconds=seconds)
            # Again and again: what is out of reach may come back.
            self._backend.kill(worker_id, f"its event loop did not answer for {seconds:.0f} s")
        for worker_id in self._registry.ready:
            self._backend.send(worker_id, Ping())
        for worker_id in self._registry.idle():
            self._backend.kill(worker_id, "it held too much memory")
        for worker_id, since in self._registry.starting.items():
            if time.monotonic() - since > START_WITHIN:
                late = f"it did not come up within {START_WITHIN:.0f} s"
                self._backend.kill(worker_id, f"{late}: does a module of yours take that long to import?")

    def died(self, worker_id: int, gone: WorkerExited, *, known: bool) -> None:
        """Have an engine replaced that is gone, as soon as its place allows.

        Args:
            worker_id: The engine.
            gone: How it ended.
            known: Whether one of its tasks is suspected anyway.

        Raises:
            WorkerError: It ended by itself before the run had really begun: others would, too.
        """
        self.engines.pop(worker_id, None)
        self._heartbeats.gone(worker_id)
        if worker_id in self._first and not gone.killed:
            raise WorkerError(f"{gone.reason} before it was ready")
        self._first.discard(worker_id)
        if self._restarts.knows(worker_id):
            self._replace(worker_id, gone.reason, known=known)
        # Else it is gone before replace() has told who it is: whoever has it started sees that.

    async def close(self) -> None:
        """Start nobody any more."""
        for task in self._starting:
            task.cancel()
        await wait_uninterrupted(asyncio.gather(*self._starting, return_exceptions=True))

    def _replace(self, worker_id: int, reason: str, *, known: bool) -> None:
        delay = self._restarts.died(worker_id, known=known)
        if delay is None:
            logger.warning("%s; its place is given up: so many workers in a row made nothing there", reason)
            self._writer.event("given up", worker=worker_id, reason=reason)
            self._given_up = reason
            return
        task = asyncio.get_running_loop().create_task(self._start(worker_id, reason, delay))
        self._starting.add(task)
        task.add_done_callback(self._started)

    async def _start(self, worker_id: int, reason: str, delay: float) -> None:
        """Start an engine in the place of another, beside everything else that goes on."""
        await asyncio.sleep(delay)
        try:
            new = await self._backend.replace(worker_id)
        except WorkerError as error:
            self._replace(worker_id, str(error), known=False)
            return
        if new is None:
            self._given_up = reason
        else:
            self._registry.add(new)
            self._restarts.began(new, worker_id)
            if self._registry.is_gone(new):
                self._replace(new, f"worker {new} ended as it was started", known=False)

    def _started(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if not task.cancelled():
            self._broken = self._broken or task.exception()
