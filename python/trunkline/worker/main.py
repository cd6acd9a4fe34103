"""The worker process: entry, end with its controller, one engine for each run."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import io
import logging
import os
import signal
import socket
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from trunkline._core import __version__
from trunkline._internal.leftovers import MARK, end_marked
from trunkline._internal.processes import die_with_parent, kill_group
from trunkline._internal.serialization import set_argv
from trunkline.errors import TrunklineError, WorkerError
from trunkline.observability.logging import conceal
from trunkline.protocol import messages
from trunkline.protocol.channel import Channel, attach
from trunkline.protocol.job import unpack_job
from trunkline.worker.engine import Engine, slots
from trunkline.worker.health import Watchdog
from trunkline.worker.log_relay import LogForwarder

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Host", "main"]


_COLLECT = (10_000, 10, 20)
"""Thresholds of the garbage collector. Thousands of live rollouts are millions of objects that outlive every
collection: with Python's own thresholds a worker with 10,000 requests in flight spends two thirds of its time there.
"""


class Host:
    """Serves one controller from a process of its own: an engine for each of its runs, one after the other."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._deliver = send
        self._engine: Engine | None = None
        self._run = 0
        self._greeted = False
        self._closing: set[asyncio.Task[None]] = set()
        self._log_forwarder: LogForwarder | None = None
        self._watchdog: Watchdog | None = None

    def receive(self, payload: bytes | memoryview) -> None:
        """Take an encoded message; WorkerError if it is out of order, msgspec.MsgspecError if it is no message."""
        match messages.decode_to_worker(payload):
            case messages.Hello() as hello if not self._greeted:
                self._greeted = True
                self._guarded(_same_build, hello)
            case messages.Begin(job, level, argv) if self._greeted and self._engine is None:
                set_argv(argv)
                logging.getLogger("trunkline").setLevel(level)
                self._guarded(self._begin, job)
            case message if self._engine is not None:
                self._engine.receive(message)
            case messages.Hello() | messages.Begin() as message:
                raise WorkerError(f"a worker does not take {type(message).__name__} now")
            case _:
                pass  # Of the run before: it crossed with our messages.Bye.

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
        if self._closing:
            await asyncio.wait(self._closing)
        if self._watchdog is not None:
            self._watchdog.close()
        if self._log_forwarder is not None:
            logging.getLogger().removeHandler(self._log_forwarder)

    def _send(self, message: messages.FromWorker) -> None:
        self._deliver(messages.encode(message))

    def _say(self, run: int, message: messages.FromWorker) -> None:
        """Send a message of an engine, unless its run is over: a tool that ignores its end may still send."""
        if run != self._run:
            return
        self._send(message)
        if isinstance(message, messages.Bye | messages.Fatal) and self._engine is not None:
            # The next run may begin at once: this one's engine is let go beside it.
            engine, self._engine = self._engine, None
            self._run += 1
            if self._watchdog is not None:
                self._watchdog.pause()
            task = asyncio.get_running_loop().create_task(_let_go(engine))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _begin(self, packed: bytes) -> None:
        # Here, because an actor is not made in its event loop.
        if self._log_forwarder is None:
            self._log_forwarder = LogForwarder(self._send)
            logging.getLogger().addHandler(self._log_forwarder)
        self._watchdog = self._watchdog or Watchdog(self._log_forwarder.spill)
        self._watchdog.pause()
        job = unpack_job(packed)
        conceal(*job.llms.values())
        self._engine = Engine(job, partial(self._say, self._run), self._watchdog.lag)
        if not self._run:
            _settle_down()
        self._watchdog.resume()
        self._send(messages.WorkerReady(messages.PROTOCOL, __version__, os.getpid(), slots(job)))

    def _guarded(self, step: Callable[[Any], None], given: object) -> None:
        try:
            step(given)
        except TrunklineError as error:
            self._send(messages.Fatal(type(error).__name__, str(error)))


async def _let_go(engine: Engine) -> None:
    await engine.close()
    _settle_down()


def _settle_down() -> None:
    """Keep the garbage collector from visiting what is loaded by now again and again."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)


def _same_build(hello: messages.Hello) -> None:
    if (hello.protocol, hello.build) != (messages.PROTOCOL, __version__):
        raise WorkerError(
            f"the controller speaks protocol {hello.protocol} of trunkline {hello.build}, "
            f"this worker protocol {messages.PROTOCOL} of {__version__}; install one version"
        )


logger = logging.getLogger(__name__)


async def serve(sock: socket.socket) -> bool:
    """Serve one controller until it hangs up; returns whether nothing else ended that."""
    over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def answer(payload: bytes) -> None:
        channel.send(payload)

    host = Host(answer)
    channel = Channel(host.receive, over.set_result)
    await attach(channel, sock)
    error = await over
    await host.close()
    broke = error is not None and not isinstance(error, ConnectionError)
    if broke:
        # Last: while the host is open, what is logged goes to the controller, where nothing arrives any more.
        logger.error("this worker ends: it cannot take a message of its controller", exc_info=error)
    return not broke


def _end_group() -> None:
    """Kill this process and those that tools have started; nothing where it leads no group and has no mark."""
    if mark := os.environ.get(MARK):
        end_marked(mark, below=False)
    kill_group(os.getpid())


def _die_with_parent(lifeline: int, parent: int) -> None:
    """Leave no orphan: end when the controller does, with whatever tools have started, even while the loop is blocked.

    A thread sees the lifeline close and takes the process group along. Should foreign code hold the interpreter's lock,
    so that no thread runs, the kernel's word is enough: its signal is answered by ``alarm`` of the C library, which
    takes the signal's number, 1, for seconds, and after these the process ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.signal(signal.SIGHUP, libc.alarm)
    die_with_parent(parent, signal.SIGHUP)

    def wait() -> None:
        os.read(lifeline, 1)
        _end_group()
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def main() -> None:
    descriptor, lifeline, parent = map(int, sys.argv[1:4])
    # Not for the children of tools: one that outlives this process would keep its death from being seen.
    os.set_inheritable(descriptor, False)
    os.set_inheritable(lifeline, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # It is a pipe: what a tool prints is to be there when it crashes.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    _die_with_parent(lifeline, parent)
    # Registered first, so it comes last: the event loop may see the end before the thread does.
    atexit.register(_end_group)
    with socket.socket(fileno=descriptor) as sock:
        hung_up = False
        try:
            hung_up = uvloop.run(serve(sock))
        finally:
            if not hung_up:
                # The controller is there: it sees to the group, and is to know how this ended.
                atexit.unregister(_end_group)
    sys.exit(not hung_up)


if __name__ == "__main__":
    main()
