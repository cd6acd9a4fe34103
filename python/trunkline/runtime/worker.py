"""A worker process: ``python -m trunkline.runtime.worker SOCKET LIFELINE``, started by the supervisor only."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import sys
import threading

import uvloop

from trunkline._core import __version__
from trunkline.errors import TrunklineError, WorkerError
from trunkline.runtime.channel import connect
from trunkline.runtime.engine import Engine, slots
from trunkline.runtime.job import unpack_job
from trunkline.runtime.wire import PROTOCOL, Bye, Fatal, FromWorker, Hello, Ready, decode_to_worker, encode

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1

_COLLECT = (10_000, 10, 20)
"""Thresholds of the garbage collector. Thousands of live rollouts are millions of objects that outlive every look at
them: with Python's own thresholds a worker with 10,000 requests in flight spends two thirds of its time looking."""


async def serve(sock: socket.socket) -> None:
    """Serve one controller until it says stop or is gone."""
    hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()
    engine: Engine | None = None

    def receive(payload: bytes) -> None:
        message = decode_to_worker(payload)
        if engine is not None:
            engine.receive(message)
        elif isinstance(message, Hello) and not hello.done():
            hello.set_result(message)
        else:
            raise WorkerError(f"expected a hello, got {type(message).__name__}")

    def lost(_error: Exception | None) -> None:
        over.set()
        if not hello.done():
            hello.cancel()

    def send(message: FromWorker) -> None:
        channel.send(encode(message))
        if isinstance(message, Bye | Fatal):
            over.set()

    channel = await connect(sock, receive, lost)
    try:
        greeting = await hello
        _same_build(greeting)
        job = unpack_job(greeting.job)
        engine = Engine(job, send)
    except asyncio.CancelledError:
        # The controller left before it said anything.
        pass
    except TrunklineError as error:
        send(Fatal(type(error).__name__, str(error)))
    else:
        # What is loaded by now stays: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT)
        send(Ready(PROTOCOL, __version__, os.getpid(), slots(job)))
    await over.wait()
    if engine is not None:
        await engine.close()
    await channel.drain()
    channel.close()


def _same_build(hello: Hello) -> None:
    """Refuse a controller of another build."""
    if (hello.protocol, hello.build) != (PROTOCOL, __version__):
        raise WorkerError(
            f"the controller speaks protocol {hello.protocol} of trunkline {hello.build}, "
            f"this worker protocol {PROTOCOL} of {__version__}; install one version"
        )


def _die_with_parent(lifeline: int) -> None:
    """Leave no orphan: end when the controller does, even while user code blocks the loop."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def main() -> None:
    """Run the worker on the inherited descriptors."""
    descriptor, lifeline = int(sys.argv[1]), int(sys.argv[2])
    # Not for the children of tools: one that outlives this process would keep its death from being seen.
    os.set_inheritable(descriptor, False)
    os.set_inheritable(lifeline, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(lifeline)
    with socket.socket(fileno=descriptor) as sock:
        uvloop.run(serve(sock))


if __name__ == "__main__":
    main()
