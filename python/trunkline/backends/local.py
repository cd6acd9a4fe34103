"""One worker process, as seen from the controller: started, listened to, ended, reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from trunkline.errors import WorkerError
from trunkline.runtime.backend import Gone
from trunkline.runtime.channel import Channel, connect

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Process"]

_GRACE = 2.0
"""Seconds a worker has to leave once its socket is closed."""

_LAST_WORDS = 0.5
"""Seconds to read what a dead worker had sent, should somebody else hold its end of the socket open."""


class Process:
    """A worker process and the channel to it; make it with :meth:`start`.

    Args:
        number: The worker's number.
        popen: The process.
        sock: Our end of the socket pair.
        lifeline: Write end of a pipe; the worker ends when it closes.
        deliver: Called with (number, payload) for each message.
        gone: Called with (number, how it ended), last.
    """

    def __init__(
        self,
        number: int,
        popen: subprocess.Popen[bytes],
        sock: socket.socket,
        lifeline: int,
        deliver: Callable[[int, memoryview], None],
        gone: Callable[[int, Gone], None],
    ) -> None:
        self.number = number
        self.pid = popen.pid
        self._popen = popen
        self._sock = sock
        self._lifeline: int | None = lifeline
        self._deliver = deliver
        self._gone = gone
        self._pidfd: int | None = os.pidfd_open(popen.pid)
        self._channel: Channel | None = None
        self._over = False
        self._why: str | None = None
        self._said_gone = asyncio.Event()
        self._farewell: asyncio.Task[None] | None = None

    @classmethod
    def start(cls, number: int, deliver: Callable[[int, memoryview], None], gone: Callable[[int, Gone], None]) -> Self:
        """Start a worker process on one end of a socket pair.

        It is exec'd, never forked from this process's state; it gets a session of its own, so that Ctrl-C reaches the
        controller alone; its standard output is ours for errors, so that a tool's print never mixes with results; and
        ``-P`` keeps files of the current folder from standing in for modules of Python's own.

        Args:
            number: The worker's number.
            deliver: Called with (number, payload) for each message.
            gone: Called with (number, how it ended), last.

        Raises:
            WorkerError: If the system has no process or descriptor left.
        """
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                with theirs:
                    hold, lifeline = os.pipe()
                    undo.callback(os.close, lifeline)
                    inherited = (theirs.fileno(), hold, os.getpid())
                    try:
                        popen = subprocess.Popen(
                            [sys.executable, "-P", "-m", "trunkline.runtime.worker", *map(str, inherited)],
                            pass_fds=(theirs.fileno(), hold),
                            stdin=subprocess.DEVNULL,
                            stdout=2,
                            start_new_session=True,
                        )
                    finally:
                        os.close(hold)
                undo.callback(_end, popen)
                process = cls(number, popen, ours, lifeline, deliver, gone)
            except OSError as error:
                raise WorkerError(f"worker {number} cannot be started: {error}") from error
            undo.pop_all()
        return process

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as can be told."""
        return not self._over and self._popen.poll() is None

    async def listen(self) -> None:
        """Begin to take messages."""
        self._channel = await connect(self._sock, self._receive, self._lost)
        assert self._pidfd is not None
        asyncio.get_running_loop().add_reader(self._pidfd, self._exited)

    def send(self, payload: bytes) -> None:
        """Send one message, unless the process is gone."""
        if self._channel is not None and not self._over:
            self._channel.send(payload)

    def hang_up(self) -> None:
        """Close the socket and the lifeline: the process ends, whatever becomes of us."""
        if self._channel is None:
            self._sock.close()
        else:
            self._channel.close()
        if self._lifeline is not None:
            # A byte as well: a process that was forked from this one since holds the pipe open.
            with contextlib.suppress(OSError):
                os.write(self._lifeline, b".")
            os.close(self._lifeline)
            self._lifeline = None

    def kill(self, why: str) -> None:
        """Kill the process, for a reason that is given when it is gone."""
        self._why = why
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()

    async def close(self) -> None:
        """Hang up; end the process if it does not leave by itself; reap it."""
        self.hang_up()
        await self._reap()
        if self._channel is not None:
            self._channel.abort()
            await self._said_gone.wait()
        self._unwatch()

    def _receive(self, payload: memoryview) -> None:
        self._deliver(self.number, payload)

    def _exited(self) -> None:
        """The process has ended: its socket is to be at its end too, unless a child of its own holds it."""
        self._unwatch()
        assert self._channel is not None
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._channel.abort)

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _lost(self, error: Exception | None) -> None:
        """The socket was read to its end: nothing more will come."""
        self._over = True
        self._farewell = asyncio.get_running_loop().create_task(self._say_gone(error))

    async def _say_gone(self, error: Exception | None) -> None:
        try:
            code = await self._reap()
            killed = self._why is None and code in (-signal.SIGKILL, -signal.SIGTERM)
            self._gone(self.number, Gone(self._ended(code, error), killed))
        finally:
            # Cancelled, too: who closes us waits for this.
            self._said_gone.set()

    def _ended(self, code: int, error: Exception | None) -> str:
        """How the process ended, in one line."""
        if error is not None and not isinstance(error, ConnectionError):
            return f"worker {self.number} broke the protocol: {error}"
        who = f"worker {self.number} (pid {self.pid})"
        if self._why is not None:
            return f"{who} was killed: {self._why}"
        return f"{who} was killed by {_signal_name(-code)}" if code < 0 else f"{who} exited with code {code}"

    async def _reap(self) -> int:
        """Wait for the process, politely and then not; return its exit code."""
        deadline = asyncio.get_running_loop().time() + _GRACE
        while (code := self._popen.poll()) is None:
            if asyncio.get_running_loop().time() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    self._popen.kill()
            await asyncio.sleep(0.005)
        # Its tools' children are of its process group, unless they left it on purpose.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return code


def _end(popen: subprocess.Popen[bytes]) -> None:
    """Kill a process and reap it."""
    popen.kill()
    popen.wait()


def _signal_name(number: int) -> str:
    """Return what a signal is called; some have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
