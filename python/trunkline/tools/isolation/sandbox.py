"""Programs that nobody has read, run in a killable process: started, fed, ended, as seen from a worker."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from trunkline._internal.aio import off_the_loop
from trunkline._internal.leftovers import remove_folder
from trunkline._internal.text import printable
from trunkline.tools.isolation.confinement import WAYS

if TYPE_CHECKING:
    from types import TracebackType

    from trunkline.tools.isolation.confinement import ResourceLimits

__all__ = ["NoSandbox", "NoWay", "ProgramResult", "Sandbox", "find_way"]

_HEAD: Final = 4
_LONGEST: Final = 1 << 28
_START: Final = 120.0
"""Seconds for the first program of a process to find a place to run in, and for the system to start anything."""
_SLACK: Final = 60.0
"""Seconds beyond its limit that a program may take to be reported: a loaded machine is slow to start and end them."""
_LEAVE: Final = 30.0

_ROOT: Final = str(Path(__file__).parents[3])
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from trunkline.tools.isolation.sandbox_supervisor import main; main()"
)
_BURY: Final = "import os, sys; uid = int(sys.argv[1]); os.setgroups([]); os.setresuid(uid, uid, uid); os.kill(-1, 9)"

_log = logging.getLogger("trunkline.tools")

_found: dict[tuple[str, ...], dict[str, str]] = {}
"""The place that was found, by what may be used."""


class NoSandbox(Exception):
    """No program can be run here, or could be just now; the message says why. Nothing is known of the program."""


class NoWay(NoSandbox):
    """No program can be run here in any of the ways that may be used; the message says why for each."""


class ProgramResult(NamedTuple):
    """How a program ended.

    Attributes:
        ended: ``exit``; or why it was killed: ``time``, ``output``.
        status: As ``os.waitpid`` gives it; 0 where it was killed for a reason above.
        out: What it printed, as far as it was heard.
        err: The end of its error stream.
        many: Whether it had as many processes as it may.
    """

    ended: str
    status: int
    out: bytes
    err: bytes
    many: bool

    @property
    def ok(self) -> bool:
        """Whether it ended by itself and with exit code 0."""
        return self.ended == "exit" and self.status == 0

    def how(self, limits: ResourceLimits) -> str:
        """Say how it ended, on one printable line, as the end of a sentence about it.

        Args:
            limits: The limits that it ran under.
        """
        words = self.err.decode("utf-8", "replace").strip().splitlines()
        last = words[-1] if words else ""
        # Of processes that fail at once, the lines are mixed: whose is the last one is chance.
        refused = ("Resource temporarily unavailable", "can't start new thread")
        if self.many or any(why in line for line in words for why in refused):
            return "started too many processes"
        if self.ended == "time":
            return f"took longer than {limits.seconds:g} s"
        if self.ended == "output":
            return f"printed more than {limits.output:,} bytes"
        if last.startswith("MemoryError"):
            return f"used more than {limits.memory / 1e6:,.0f} MB"
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            named = number in {one.value for one in signal.Signals}
            return f"was killed by {signal.Signals(number).name if named else f'signal {number}'}"
        code = os.WEXITSTATUS(self.status)
        return f"ended with exit code {code}" + (f": {printable(last, 200)}" if code and last else "")


class Sandbox:
    """Runs programs one after the other; use it as ``async with Sandbox(limits) as sandbox``.

    What it started is gone when it is left, when it is cancelled, and when this process dies.

    Args:
        limits: What each program may use.
        ways: Ways of shutting a program in that may be used, as :class:`.confinement.Way` names
            them; the best of them that there is here is taken.
    """

    def __init__(self, limits: ResourceLimits, ways: tuple[str, ...] = WAYS) -> None:
        self._limits = limits
        self._ways = ways
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._writer: asyncio.WriteTransport | None = None
        self._folder = ""
        self._uid = 0
        self.way = ""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def run(self, source: str, text: str = "") -> ProgramResult:
        """Run a program.

        Args:
            source: The program.
            text: Its standard input.

        Raises:
            NoSandbox: It could not be started.
        """
        self._write({"source": _clean(source), "stdin": _clean(text)})
        said = await self._read(self._limits.seconds + _SLACK)
        if said["refused"]:
            raise NoSandbox(printable(said["refused"], 300))
        out, err = (base64.b64decode(said[name]) for name in ("out", "err"))
        return ProgramResult(said["ended"], said["status"], out, err, said["many"])

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            process = self._process = _started()
        except OSError as error:
            raise NoSandbox(f"no process can be started: {error.strerror}") from None
        self._reader = asyncio.StreamReader(limit=_LONGEST)
        reader = self._reader
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        self._transports.append(transport)
        self._writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        self._transports.append(self._writer)
        known = _found.get(self._ways, {})
        self._write({"limits": list(self._limits), "ways": self._ways, "way": "", "python": "", **known})
        said = await self._read(_START)
        self._folder = said["folder"]
        if "refused" in said:
            raise NoWay(printable(said["refused"], 1000))
        if not known and said["way"] == "limit":
            _log.warning(
                "programs are run as the user of this process, without namespaces: they are limited and killed, but "
                "they can read that user's files and what its other processes hold, and they have the network"
            )
        _found[self._ways] = {name: said[name] for name in ("way", "python")}
        self.way = said["way"]
        self._uid = said["uid"]

    def _write(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        data = msgspec.json.encode(message)
        self._writer.write(len(data).to_bytes(_HEAD, "little") + data)

    async def _read(self, seconds: float) -> dict[str, Any]:
        assert self._reader is not None
        try:
            async with asyncio.timeout(seconds):
                size = int.from_bytes(await self._reader.readexactly(_HEAD), "little")
                said: dict[str, Any] = msgspec.json.decode(await self._reader.readexactly(min(size, _LONGEST)))
        except TimeoutError:
            raise NoSandbox("the process that runs programs gives no answer") from None
        except (OSError, EOFError, msgspec.MsgspecError):
            raise NoSandbox("the process that runs programs ended") from None
        return said

    async def _leave(self) -> None:
        """Stop, and wait for that even when cancelled meanwhile."""
        stopping = asyncio.get_running_loop().create_task(self._stop())
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise

    async def _stop(self) -> None:
        """Hang up, which ends whatever runs, and wait for that."""
        process = self._process
        if process is None:
            return
        # A transport closes its pipe itself; what was not given to one is closed here.
        for pipe, transport in zip((process.stdout, process.stdin), [*self._transports, None, None], strict=False):
            if transport is None and pipe is not None:
                pipe.close()
        if self._writer is not None and not self._writer.is_closing():
            self._writer.abort()
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + _LEAVE, 0.001
        while process.poll() is None:
            if loop.time() > deadline:
                process.kill()
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        for transport in self._transports:
            transport.close()
        await asyncio.sleep(0)  # in which they do
        if process.returncode and self._folder:
            # It was killed, and has not tidied up.
            await off_the_loop(self._tidy)

    def _tidy(self) -> None:
        """End what a supervisor has left, where that can be told from others, and remove its files."""
        if self._uid:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run([sys.executable, "-I", "-S", "-c", _BURY, str(self._uid)], check=False, timeout=_LEAVE)
        remove_folder(self._folder)


def find_way(limits: ResourceLimits, ways: tuple[str, ...]) -> str:
    """Return the best way of some that programs can be run in here; it is tried once a process.

    Waits for that in this thread, a tenth of a second as a rule.

    Args:
        limits: What a program may use.
        ways: As for :class:`Sandbox`.

    Raises:
        NoWay: There is none.
        NoSandbox: Nothing could be tried.
    """

    async def enter() -> str:
        async with Sandbox(limits, ways) as sandbox:
            return sandbox.way

    if ways in _found:
        return _found[ways]["way"]
    with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop already
        return pool.submit(lambda: asyncio.run(enter())).result()


def _started() -> subprocess.Popen[bytes]:
    """Start the supervisor, with nothing of this process's environment but where to put files and find libraries."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={name: os.environ[name] for name in ("TMPDIR", "LD_LIBRARY_PATH") if name in os.environ},
    )


def _clean(text: str) -> str:
    """A text without lone surrogates, which no pipe can carry."""
    return text.encode("utf-8", "replace").decode()
