"""A process in which calls of an isolated tool run, as seen from the worker: started, asked, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Self

import msgspec

from trunkline.errors import CrossingError
from trunkline.tools.frames import HEAD, Broken, Ended, Ran, Ready, Setup, frame, longest

if TYPE_CHECKING:
    from trunkline.tools.frames import Run

__all__ = ["FailedStart", "Gone", "Helper"]

START: Final = 60.0
"""Seconds a process has to import the tool."""

_END: Final = 5.0
"""Seconds in which a process and what it started are to be gone; what the system cannot kill is left behind."""

_LAST_WORDS: Final = 0.5
"""Seconds for the guard of a process that hung up to say how it ended."""

_POLL: Final = 0.002

_answers: Final[msgspec.msgpack.Decoder[Ready | Broken | Ran]] = msgspec.msgpack.Decoder(Ready | Broken | Ran)
_ends: Final = msgspec.msgpack.Decoder(Ended)


class FailedStart(Exception):
    """The process did not come to the point where it could run a call."""


class Gone(Exception):
    """The process ended in the middle of a call.

    Args:
        how: What became of it, as the end of a sentence about the tool.
        output: The end of what it printed.
    """

    def __init__(self, how: str, output: bytes) -> None:
        super().__init__(how)
        self.how = how
        self.output = output


class Helper:
    """A process, and the way to it; make it with :meth:`start`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._process = process
        self._ways: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._ended: asyncio.Task[Ended | None] | None = None

    @classmethod
    async def start(cls) -> Self:
        """Start a process.

        Raises:
            FailedStart: The system has no process or descriptor left.
        """
        pairs = []
        try:
            pairs = [socket.socketpair() for _ in range(2)]
            helper = cls(_spawned([theirs.fileno() for _, theirs in pairs]))
            for ours, _ in pairs:
                helper._ways.append(await asyncio.open_connection(sock=ours))
        except OSError as error:
            for ours, _ in pairs:
                ours.close()
            raise FailedStart(str(error)) from error
        finally:
            for _, theirs in pairs:
                theirs.close()
        return helper

    async def load(self, setup: Setup) -> None:
        """Let the process load the tool.

        Args:
            setup: The tool.

        Raises:
            CrossingError: It cannot be imported there.
            FailedStart: Importing it takes too long, or ends the process.
        """
        try:
            async with asyncio.timeout(START):
                answer = await self._ask(frame(setup), longest(0))
        except TimeoutError:
            raise FailedStart(f"importing its module took longer than {START:g} s") from None
        except Gone as gone:
            raise FailedStart(f"while its module was imported, it {gone.how}") from None
        if isinstance(answer, Broken):
            raise CrossingError(answer.why)

    @property
    def alive(self) -> bool:
        """Whether the process can be asked for one more call."""
        return self._ended is None and not self._ways[0][0].at_eof() and self._process.poll() is None

    async def run(self, call: Run) -> Ran:
        """Run a call.

        Args:
            call: The call.

        Raises:
            Gone: The process ended.
        """
        answer = await self._ask(frame(call), longest(call.limit))
        if not isinstance(answer, Ran):
            raise await self._gone()
        return answer

    def hang_up(self, patience: float = 0.0) -> asyncio.Task[Ended | None]:
        """Let the process be killed with everything it started; the task is done when that is over.

        Args:
            patience: Seconds it has to end by itself.
        """
        if self._ended is None:
            if self.timer is not None:
                self.timer.cancel()
            self._ended = asyncio.get_running_loop().create_task(self._end(patience))
        return self._ended

    async def _ask(self, message: bytes, most: int) -> Ready | Broken | Ran:
        reader, writer = self._ways[0]
        try:
            writer.write(message)
            size = int.from_bytes(await reader.readexactly(HEAD), "little")
            if size > most:
                raise await self._gone()
            return _answers.decode(await reader.readexactly(size))
        except (OSError, EOFError, msgspec.MsgspecError):
            raise await self._gone() from None

    async def _gone(self) -> Gone:
        # It may have closed its descriptors and go on; else its guard is about to say how it ended.
        ended = await asyncio.shield(self.hang_up(_LAST_WORDS))
        return Gone("ended without a word", b"") if ended is None else Gone(_how(ended.status), ended.output)

    async def _end(self, patience: float) -> Ended | None:
        """Hang up, read how it ended, reap it."""
        loop, ended = asyncio.get_running_loop(), None
        reader, writer = self._ways[1]
        reading = loop.create_task(reader.read(-1))
        await asyncio.wait({reading}, timeout=patience)
        with contextlib.suppress(OSError, RuntimeError):  # the guard is gone
            writer.write_eof()
        await asyncio.wait({reading}, timeout=_END)
        with contextlib.suppress(OSError, asyncio.CancelledError, msgspec.MsgspecError):
            if not reading.cancel():
                ended = _ends.decode(reading.result())
        deadline = loop.time() + _END
        while self._process.poll() is None:
            if loop.time() > deadline:
                self._process.kill()
            await asyncio.sleep(_POLL)
        for _, writer in self._ways:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return ended


def _spawned(descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Start the process: never forked from this one's state, and in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trunkline.tools.process", *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
        # Address space is limited there, and an arena for each thread would take much of it.
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
    )


def _how(status: int) -> str:
    """Say how a process ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        named = number in {one.value for one in signal.Signals}
        return f"was killed by {signal.Signals(number).name if named else f'signal {number}'}"
    return f"ended its process with exit code {os.WEXITSTATUS(status)}"
