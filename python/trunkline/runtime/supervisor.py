"""One worker process, as seen from the controller: started, listened to, ended, reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from trunkline.runtime.channel import Channel, connect

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Process", "spawn"]

_GRACE = 2.0
"""Seconds a worker has to leave once its socket is closed."""


class Process:
    """A worker process and the channel to it.

    Args:
        number: The worker's number.
        popen: The process.
        lifeline: Write end of a pipe; the worker ends when it closes.
        deliver: Called with (number, payload) for each message.
        gone: Called with (number, reason), last.
    """

    def __init__(
        self,
        number: int,
        popen: subprocess.Popen[bytes],
        lifeline: int,
        deliver: Callable[[int, bytes], None],
        gone: Callable[[int, str], None],
    ) -> None:
        self.number = number
        self.pid = popen.pid
        self._popen = popen
        self._lifeline: int | None = lifeline
        self._deliver = deliver
        self._gone = gone
        self._channel: Channel | None = None
        self._closed = False
        self._left = asyncio.Event()
        self._farewell: asyncio.Task[None] | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Begin to take messages."""
        self._channel = await connect(sock, self._receive, self._lost)

    def send(self, payload: bytes) -> None:
        """Send one message, unless the process is gone."""
        if self._channel is not None and not self._closed:
            self._channel.send(payload)

    async def close(self) -> None:
        """Close the socket; end the process if it does not leave by itself; reap it."""
        if self._channel is not None:
            self._channel.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        await self._reap()
        await self._left.wait()

    def _receive(self, payload: bytes) -> None:
        self._deliver(self.number, payload)

    def _lost(self, error: Exception | None) -> None:
        """The socket was read to its end: nothing more will come."""
        self._closed = True
        self._farewell = asyncio.get_running_loop().create_task(self._say_gone(error))

    async def _say_gone(self, error: Exception | None) -> None:
        code = await self._reap()
        if error is not None and not isinstance(error, ConnectionError):
            reason = f"worker {self.number} broke the protocol: {error}"
        elif code < 0:
            reason = f"worker {self.number} (pid {self.pid}) was killed by {signal.Signals(-code).name}"
        else:
            reason = f"worker {self.number} (pid {self.pid}) exited with code {code}"
        self._gone(self.number, reason)
        self._left.set()

    async def _reap(self) -> int:
        """Wait for the process, politely and then not; return its exit code."""
        deadline = asyncio.get_running_loop().time() + _GRACE
        while (code := self._popen.poll()) is None:
            if asyncio.get_running_loop().time() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    self._popen.kill()
            await asyncio.sleep(0.005)
        return code


async def spawn(number: int, deliver: Callable[[int, bytes], None], gone: Callable[[int, str], None]) -> Process:
    """Start a worker process on one end of a socket pair.

    It is exec'd, never forked from this process's state; it gets a session of its own, so that Ctrl-C reaches the
    controller alone; its standard output is ours for errors, so that a tool's print never mixes with results.

    Args:
        number: The worker's number.
        deliver: Called with (number, payload) for each message.
        gone: Called with (number, reason), last.
    """
    ours, theirs = socket.socketpair()
    hold, lifeline = os.pipe()
    try:
        popen = subprocess.Popen(  # noqa: ASYNC220 - exec takes a millisecond and must happen on this very thread
            [sys.executable, "-m", "trunkline.runtime.worker", str(theirs.fileno()), str(hold)],
            pass_fds=(theirs.fileno(), hold),
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
    finally:
        theirs.close()
        os.close(hold)
    process = Process(number, popen, lifeline, deliver, gone)
    await process.listen(ours)
    return process
