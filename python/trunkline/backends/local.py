"""Engines on this machine: in worker processes, or in this process and event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING, Self

from trunkline._core import __version__
from trunkline._internal.aio import off_the_loop, wait_uninterrupted
from trunkline._internal.child import Child
from trunkline._internal.leftovers import end_worker_processes
from trunkline._internal.processes import signal_name
from trunkline._internal.tool_output import OutputForwarder
from trunkline.backends.base import RemoteBackend
from trunkline.errors import WorkerError
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.channel import Channel, connect
from trunkline.protocol.messages import PROTOCOL, Hello, WorkerReady, decode_from_worker, encode
from trunkline.worker.engine import Engine, slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.protocol.backend import Event, Inbox
    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import ToWorker

_GRACE = 2.0
"""Seconds a worker has to leave once its socket is closed."""

_LAST_WORDS = 0.5
"""Seconds to read what a dead worker had sent, should another process hold its end of the socket open."""


class WorkerProcess:
    """A worker process and the channel to it; make it with ``start``."""

    def __init__(self, number: int, child: Child, deliver: Callable[[int, Event], None]) -> None:
        self.number = number
        self.pid = child.pid
        self._child = child
        self._output: OutputForwarder | None = None
        self._deliver = deliver
        self._channel: Channel | None = None
        self._over = False
        self._why: str | None = None
        self._said_gone = asyncio.Event()
        self._farewell: asyncio.Task[None] | None = None

    @classmethod
    def start(cls, number: int, deliver: Callable[[int, Event], None]) -> Self:
        """Start a worker process with two sockets: its channel, and a lifeline at whose end it ends."""
        # Its output comes to our standard error, escaped and bounded, so that a tool's print neither mixes with results
        # nor steers a terminal. -P keeps files of the current folder from replacing Python's own modules.
        with contextlib.ExitStack() as undo:
            try:
                output, printed = os.pipe()
                undo.callback(os.close, output)
                try:
                    child = Child(
                        ("-P", "-m", "trunkline.worker.main"),
                        os.environ,
                        sockets=2,
                        marked=True,
                        stdout=printed,
                        stderr=printed,
                    )
                finally:
                    os.close(printed)
                undo.callback(child.close_sockets)
                undo.callback(child.end)
                undo.callback(child.unwatch)
                process = cls(number, child, deliver)
                child.watch(process._exited)
                process._output = OutputForwarder(f"worker {number}", child.pid, output)
            except (OSError, RuntimeError) as error:
                raise WorkerError(f"worker {number} cannot be started: {error}") from error
            undo.pop_all()
        return process

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as can be told."""
        return not self._over and self._child.alive

    async def listen(self) -> None:
        self._channel = await connect(self._child.sockets[0], self._receive, self._lost)

    def send(self, payload: bytes) -> None:
        if self._channel is not None and not self._over:
            self._channel.send(payload)

    def hang_up(self) -> None:
        """Close both sockets, so that the process ends even if this one dies meanwhile."""
        channel, lifeline = self._child.sockets
        if self._channel is None:
            channel.close()
        else:
            self._channel.close()
        # A process forked from this one since holds the lifeline too, and would keep a mere close from being seen.
        with contextlib.suppress(OSError):
            lifeline.shutdown(socket.SHUT_RDWR)
        lifeline.close()

    def kill(self, why: str) -> None:
        """Kill the process, for a reason that is reported with its end."""
        self._why = why
        self._child.kill()

    async def close(self) -> None:
        """Hang up; end the process if it does not leave by itself; reap it."""
        self.hang_up()
        await self._reap()
        if self._channel is not None:
            self._channel.abort()
            await self._said_gone.wait()
        self._child.unwatch()

    def _receive(self, payload: memoryview) -> None:
        self._deliver(self.number, decode_from_worker(payload))

    def _exited(self) -> None:
        """End the channel soon: a child of the process may hold its end of the socket."""
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._abort)

    def _abort(self) -> None:
        if self._channel is not None:
            self._channel.abort()

    def _lost(self, error: Exception | None) -> None:
        """Note that the socket was read to its end."""
        self._over = True
        self._farewell = asyncio.get_running_loop().create_task(self._say_gone(error))

    async def _say_gone(self, error: Exception | None) -> None:
        try:
            code = await self._reap()
            killed = self._why is None and code in (-signal.SIGKILL, -signal.SIGTERM)
            self._deliver(self.number, WorkerExited(self._ended(code, error), killed))
        finally:
            # Also when this is cancelled: close() waits for it.
            self._said_gone.set()

    def _ended(self, code: int, error: Exception | None) -> str:
        if error is not None and not isinstance(error, ConnectionError):
            return f"worker {self.number} broke the protocol: {error}"
        who = f"worker {self.number} (pid {self.pid})"
        if self._why is not None:
            return f"{who} was killed: {self._why}"
        return f"{who} was killed by {signal_name(-code)}" if code < 0 else f"{who} exited with code {code}"

    async def _reap(self) -> int:
        """Wait for the process, kill it after a while, and clean up after it; return its exit code."""
        code = await self._child.wait(_GRACE)
        await off_the_loop(self._clean)
        return code

    def _clean(self) -> None:
        end_worker_processes(self._child.mark)
        if self._output is not None:
            self._output.join(_LAST_WORDS)


class LocalBackend(RemoteBackend[WorkerProcess]):
    """Hosts engines in processes; one that rests serves the next run, and one that has died is replaced then."""

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        """Give the job to as many processes as it needs, and start missing ones."""
        for worker_id in [one for one, process in self._hosts.items() if not process.alive]:
            await self._bury(worker_id)
        idle = iter(list(self._hosts))
        self._inbox = inbox
        number, begin = self._packed(job)
        return [await self._begin(next(idle, None), begin) for _ in range(number)]

    async def replace(self, worker_id: int) -> int | None:
        await self._bury(worker_id)
        new = await self._begin(None, self._begins[worker_id])
        self._begins.pop(worker_id, None)
        return new

    async def close(self) -> None:
        """End the processes and reap them, even if this is cancelled meanwhile."""
        self._closing = True
        processes = list(self._hosts.values())
        for process in processes:
            process.hang_up()
        closing = asyncio.gather(*(process.close() for process in processes))
        await wait_uninterrupted(closing)
        closing.result()
        self._hosts.clear()

    async def _begin(self, worker_id: int | None, begin: bytes) -> int:
        """Give a job to a process, or to a new one."""
        if worker_id is None:
            worker_id = next(self._worker_ids)
            process = self._hosts[worker_id] = WorkerProcess.start(worker_id, self._received)
            # It is of this run from now on: it may be gone before it listens.
            self._begins[worker_id] = begin
            try:
                await process.listen()
            except BaseException:
                # It was not greeted, and cannot serve.
                await self._bury(worker_id)
                raise
            process.send(encode(Hello(PROTOCOL, __version__)))
        return self._give(worker_id, begin)

    async def _bury(self, worker_id: int) -> None:
        process = self._hosts.pop(worker_id, None)
        if process is not None:
            await wait_uninterrupted(asyncio.ensure_future(process.close()))


class InlineBackend:
    """Hosts one engine in this process and event loop: for live clients, notebooks and debugging."""

    workers = 0

    def __init__(self) -> None:
        self._engine: Engine | None = None

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        self._engine = Engine(job, lambda message: inbox.put_nowait((0, message)))
        inbox.put_nowait((0, WorkerReady(PROTOCOL, __version__, os.getpid(), slots(job))))
        return [0]

    async def replace(self, worker_id: int) -> int | None:
        """Return None: there is no other process."""
        return None

    def send(self, worker_id: int, message: ToWorker) -> None:
        """Deliver a message one tick later, as over a socket: an engine is never re-entered while it sends."""
        if self._engine is not None:
            asyncio.get_running_loop().call_soon(self._engine.receive, message)

    def kill(self, worker_id: int, why: str) -> None:
        """Do nothing: an engine that blocks its own loop cannot be killed."""

    async def rest(self) -> None:
        await self.close()

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
