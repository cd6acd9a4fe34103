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
        return {seat: (beats - 1) * BEAT for seat, beats in self._silent.items() if beats > 1}

    def heard(self, seat: int) -> None:
        """Note that a worker said something."""
        self._silent.pop(seat, None)

    def gone(self, seat: int) -> None:
        """Forget a worker."""
        self._silent.pop(seat, None)

    def beat(self, seats: Iterable[int]) -> dict[int, float]:
        """Let a beat pass.

        Args:
            seats: The workers that are asked for an answer now.

        Returns:
            Those that hang, each with its seconds of silence.
        """
        hung = {}
        for seat in seats:
            silent = self._silent[seat] = self._silent.get(seat, 0) + 1
            # The first ping was sent a beat before anybody could have answered it.
            since = (silent - 1) * BEAT
            if since >= HUNG:
                hung[seat] = since
            elif WARN <= since < WARN + BEAT:
                logger.warning("worker %d has not answered for %.0f s: something blocks its event loop", seat, since)
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

    def began(self, seat: int, instead: int | None = None) -> None:
        """Note that a worker was started, ``instead`` of one that is gone."""
        self._vain[seat] = 0 if instead is None else self._vain.pop(instead, 0)

    def knows(self, seat: int) -> bool:
        """Whether a worker has a place."""
        return seat in self._vain

    def progress(self, seat: int) -> None:
        """Note that something a worker made is in the run file."""
        if seat in self._vain:
            self._vain[seat] = 0

    def died(self, seat: int, *, known: bool = False) -> float | None:
        """Note that a worker died, or could not be started.

        Args:
            seat: The worker, or the one whose place it was to take.
            known: Whether one of its tasks is suspected anyway: then its place is not at fault.

        Returns:
            Seconds until another is to be started; None when its place is given up.
        """
        if known:
            return 0.0
        vain = self._vain[seat] = self._vain[seat] + 1
        if vain >= _MOST:
            del self._vain[seat]
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
        roster: Those that are alive.
        writer: The run file, which keeps what came to pass.
        memory: Bytes that an engine's process may hold; None for no limit.

    Attributes:
        engines: How each engine is that is up.
    """

    def __init__(self, backend: Backend, roster: WorkerRegistry, writer: RunWriter, memory: int | None) -> None:
        self.engines: dict[int, WorkerState] = {}
        self._backend = backend
        self._roster = roster
        self._writer = writer
        self._memory = memory
        self._restarts = RestartPolicy()
        self._pulse = HeartbeatMonitor()
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
        return not self._roster and not self._starting

    @property
    def why(self) -> str:
        """How the last engine ended whose place was given up."""
        return self._given_up

    @property
    def silent(self) -> dict[int, float]:
        """Engines that have not answered, each with the seconds since it was heard."""
        return self._pulse.silent

    def began(self, seats: Sequence[int]) -> None:
        """Note the engines that the run starts with."""
        for seat in seats:
            self._roster.add(seat)
            self._restarts.began(seat)
        self._first.update(seats)

    def heard(self, seat: int) -> None:
        """Note that an engine said something."""
        self._pulse.heard(seat)

    def progress(self, seat: int) -> None:
        """Note that something an engine made is in the run file."""
        self._restarts.progress(seat)

    def came_up(self, seat: int, slots: int) -> None:
        """Note that an engine is ready."""
        self._first.discard(seat)
        self._roster.came_up(seat, slots)

    def felt(self, seat: int, state: WorkerState) -> None:
        """Note how an engine is, and end one that holds too much memory once its tasks are done, or at once."""
        self.engines[seat] = state
        if self._memory is None or state.memory <= self._memory:
            return
        limit = f"it holds {state.memory >> 20:,} MiB, more than {self._memory >> 20:,}"
        if self._roster.retire(seat):
            running = f"; {state.tools} tool calls run, {state.tool} longest" if state.tools else ""
            logger.warning("worker %d is given no more tasks: %s%s", seat, limit, running)
            self._writer.event("recycled", worker=seat, memory=state.memory, limit=self._memory, tool=state.tool)
        if state.memory > _OVER * self._memory:
            self._backend.kill(seat, limit)

    def beat(self) -> None:
        """Ask every engine how it is; end those that do not answer any more, and those that are done.

        Raises:
            Exception: Whatever kept an engine from being started.
        """
        if self._broken is not None:
            raise self._broken
        for seat, seconds in self._pulse.beat(self._roster.ready).items():
            if seat not in self._hung:
                self._hung.add(seat)
                self._writer.event("hung", worker=seat, seconds=seconds)
            # Again and again: what is out of reach may come back.
            self._backend.kill(seat, f"its event loop did not answer for {seconds:.0f} s")
        for seat in self._roster.ready:
            self._backend.send(seat, Ping())
        for seat in self._roster.idle():
            self._backend.kill(seat, "it held too much memory")
        for seat, since in self._roster.starting.items():
            if time.monotonic() - since > START_WITHIN:
                late = f"it did not come up within {START_WITHIN:.0f} s"
                self._backend.kill(seat, f"{late}: does a module of yours take that long to import?")

    def died(self, seat: int, gone: WorkerExited, *, known: bool) -> None:
        """Have an engine replaced that is gone, as soon as its place allows.

        Args:
            seat: The engine.
            gone: How it ended.
            known: Whether one of its tasks is suspected anyway.

        Raises:
            WorkerError: It ended by itself before the run had really begun: others would, too.
        """
        self.engines.pop(seat, None)
        self._pulse.gone(seat)
        if seat in self._first and not gone.killed:
            raise WorkerError(f"{gone.reason} before it was ready")
        self._first.discard(seat)
        if self._restarts.knows(seat):
            self._replace(seat, gone.reason, known=known)
        # Else it is gone before replace() has told who it is: whoever has it started sees that.

    async def close(self) -> None:
        """Start nobody any more."""
        for task in self._starting:
            task.cancel()
        await wait_uninterrupted(asyncio.gather(*self._starting, return_exceptions=True))

    def _replace(self, seat: int, reason: str, *, known: bool) -> None:
        delay = self._restarts.died(seat, known=known)
        if delay is None:
            logger.warning("%s; its place is given up: so many workers in a row made nothing there", reason)
            self._writer.event("given up", worker=seat, reason=reason)
            self._given_up = reason
            return
        task = asyncio.get_running_loop().create_task(self._start(seat, reason, delay))
        self._starting.add(task)
        task.add_done_callback(self._started)

    async def _start(self, seat: int, reason: str, delay: float) -> None:
        """Start an engine in the place of another, beside everything else that goes on."""
        await asyncio.sleep(delay)
        try:
            new = await self._backend.replace(seat)
        except WorkerError as error:
            self._replace(seat, str(error), known=False)
            return
        if new is None:
            self._given_up = reason
        else:
            self._roster.add(new)
            self._restarts.began(new, seat)
            if self._roster.is_gone(new):
                self._replace(new, f"worker {new} ended as it was started", known=False)

    def _started(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if not task.cancelled():
            self._broken = self._broken or task.exception()
