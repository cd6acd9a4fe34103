"""A worker process: ``python -m trunkline.runtime.worker SOCKET LIFELINE PARENT``, started by the supervisor only."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading

import uvloop

from trunkline.runtime.channel import Channel, attach
from trunkline.runtime.host import Host

__all__ = ["main"]

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


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
