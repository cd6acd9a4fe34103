"""A worker process: ``python -m trunkline.runtime.worker SOCKET LIFELINE PARENT``, started by the supervisor only."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

import uvloop

from trunkline._core import __version__
from trunkline.errors import TrunklineError, WorkerError
from trunkline.runtime.channel import Channel, attach
from trunkline.runtime.engine import Engine, slots
from trunkline.runtime.job import unpack_job
from trunkline.runtime.watchdog import Watchdog
from trunkline.runtime.wire import PROTOCOL, Begin, Bye, Fatal, FromWorker, Hello, Ready, decode_to_worker, encode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1

_COLLECT = (10_000, 10, 20)
"""Thresholds of the garbage collector. Thousands of live rollouts are millions of objects that outlive every look at
them: with Python's own thresholds a worker with 10,000 requests in flight spends two thirds of its time looking."""


class _Host:
    """Serves one controller: an engine for each of its runs, one after the other."""

    def __init__(self) -> None:
        self.channel = Channel(self.receive, self.lost)
        self._engine: Engine | None = None
        self._greeted = False
        self._over = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()
        self._watchdog = Watchdog()

    def receive(self, payload: memoryview) -> None:
        """Take a message of the controller."""
        match decode_to_worker(payload):
            case Hello() as hello if not self._greeted:
                self._greeted = True
                self._guarded(_same_build, hello)
            case Begin(job) if self._greeted and self._engine is None:
                self._guarded(self._begin, job)
            case message if self._engine is not None:
                self._engine.receive(message)
            case message:
                raise WorkerError(f"a worker without a run does not take {type(message).__name__}")

    def lost(self, _error: Exception | None) -> None:
        """The controller is gone, or wants nothing more."""
        self._over.set()

    def send(self, message: FromWorker) -> None:
        """Send a message to the controller."""
        self.channel.send(encode(message))
        if isinstance(message, Bye | Fatal) and self._engine is not None:
            # The next run may begin at once: this one's engine is let go beside it.
            engine, self._engine = self._engine, None
            task = asyncio.get_running_loop().create_task(engine.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def serve(self) -> None:
        """Wait for the end, and leave nothing behind."""
        await self._over.wait()
        if self._engine is not None:
            await self._engine.close()
        if self._closing:
            await asyncio.wait(self._closing)
        self._watchdog.close()

    def _begin(self, packed: bytes) -> None:
        job = unpack_job(packed)
        self._engine = Engine(job, self.send, self._watchdog.lag)
        # What is loaded by now stays: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT)
        self.send(Ready(PROTOCOL, __version__, os.getpid(), slots(job)))

    def _guarded(self, step: Callable[[Any], None], given: object) -> None:
        """Tell the controller what keeps a run from beginning."""
        try:
            step(given)
        except TrunklineError as error:
            self.send(Fatal(type(error).__name__, str(error)))


async def serve(sock: socket.socket) -> None:
    """Serve one controller until it hangs up."""
    host = _Host()
    await attach(host.channel, sock)
    await host.serve()
    await host.channel.drain()
    host.channel.close()


def _same_build(hello: Hello) -> None:
    """Refuse a controller of another build."""
    if (hello.protocol, hello.build) != (PROTOCOL, __version__):
        raise WorkerError(
            f"the controller speaks protocol {hello.protocol} of trunkline {hello.build}, "
            f"this worker protocol {PROTOCOL} of {__version__}; install one version"
        )


def _end_group() -> None:
    """Kill what tools have started, and this process with it; nothing where it leads no group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(os.getpid(), signal.SIGKILL)


def _die_with_parent(lifeline: int, parent: int) -> None:
    """Leave no orphan: end when the controller does, with whatever tools have started, even while the loop is blocked.

    A thread sees the lifeline close and takes the process group along. Should foreign code hold the interpreter's lock,
    so that no thread runs, the kernel's word is enough: its signal is answered by ``alarm`` of the C library, which
    takes the signal's number, 1, for seconds, and after these the process ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.signal(signal.SIGHUP, libc.alarm)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)

    def wait() -> None:
        os.read(lifeline, 1)
        _end_group()
        os._exit(1)

    if os.getppid() != parent:
        # It was gone before the kernel had been told.
        os._exit(1)
    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def main() -> None:
    """Run the worker on the inherited descriptors."""
    descriptor, lifeline, parent = map(int, sys.argv[1:4])
    # Not for the children of tools: one that outlives this process would keep its death from being seen.
    os.set_inheritable(descriptor, False)
    os.set_inheritable(lifeline, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(lifeline, parent)
    # Registered first, so it comes last: the event loop may see the end before the thread does.
    atexit.register(_end_group)
    with socket.socket(fileno=descriptor) as sock:
        uvloop.run(serve(sock))


if __name__ == "__main__":
    main()
