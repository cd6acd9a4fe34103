"""A child process of this interpreter: started, watched, asked to end, killed with its group, and waited for."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from trunkline._internal.leftovers import MARK, new_mark
from trunkline._internal.processes import HEAD, kill_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POLL: Final = 0.005


class Child:
    """A process started by exec, in a session of its own: Ctrl-C does not reach it, and its group can be killed."""

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        sockets: int = 0,
        marked: bool = False,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.mark = new_mark() if marked else ""
        self.sockets: list[socket.socket] = []
        self._pidfd: int | None = None
        self._over = False
        with ExitStack() as undo, ExitStack() as theirs:
            undo.callback(self.close_sockets)
            passed = []
            for _ in range(sockets):
                ours, other = socket.socketpair()
                self.sockets.append(ours)
                passed.append(theirs.enter_context(other).fileno())
            told = [*passed, os.getpid()] if passed else []
            self._popen = subprocess.Popen(
                [sys.executable, *arguments, *map(str, told)],
                pass_fds=passed,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**env, MARK: self.mark} if marked else env,
            )
            undo.pop_all()
        self.pid = self._popen.pid
        self.stdout = self._popen.stdout

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def watch(self, ended: Callable[[], object]) -> None:
        """Have the running event loop call a function once the process has ended."""
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._has_ended, ended)

    def close_sockets(self) -> None:
        """Close this side's ends that no transport has."""
        for sock in self.sockets:
            sock.close()

    def kill(self) -> None:
        """Kill the process, but none of its group."""
        with suppress(ProcessLookupError):
            self._popen.kill()

    async def wait(self, patience: float) -> int:
        """Wait until the process has ended, kill its group, and return the exit code; negative is a signal's number."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while (code := self._popen.poll()) is None:
            if loop.time() > deadline:
                self.kill()
            await asyncio.sleep(_POLL)
        self._end_group()
        return code

    def end(self, patience: float = 0.0, *, ask: bool = True) -> int:
        """End the process and its group, block until it has ended, and return its exit code."""
        try:
            if ask and patience:
                self._popen.terminate()
            self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
            code = self._popen.wait()
            self._end_group()
            for pipe in (self._popen.stdin, self._popen.stdout):
                if pipe is not None:
                    pipe.close()
        return code

    def _has_ended(self, ended: Callable[[], object]) -> None:
        self.unwatch()
        ended()

    def unwatch(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _end_group(self) -> None:
        # Once: later the number may be another group's.
        if not self._over:
            self._over = True
            kill_group(self.pid)


async def read_frame(reader: asyncio.StreamReader, most: int) -> bytes:
    (size,) = HEAD.unpack(await reader.readexactly(HEAD.size))
    if size > most:
        raise EOFError(f"a frame of {size} bytes was announced; the limit is {most}")
    return await reader.readexactly(size)
