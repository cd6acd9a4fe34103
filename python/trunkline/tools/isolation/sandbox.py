"""Runs untrusted programs: the worker's side of a supervisor of confined programs."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from trunkline._internal.aio import off_the_loop, wait_uninterrupted
from trunkline._internal.child import Child, read_frame
from trunkline._internal.leftovers import remove_folder
from trunkline._internal.processes import frame, signal_name
from trunkline._internal.text import printable, scrub
from trunkline.tools.isolation.confinement import WAYS

if TYPE_CHECKING:
    from trunkline.tools.isolation.confinement import ResourceLimits

_LONGEST: Final = 1 << 28
_START: Final = 120.0
"""Seconds for the first program of a process to find a place to run in, and for the system to start anything."""
_SLACK: Final = 60.0
"""Seconds beyond its limit that a program may take to be reported: a loaded machine is slow to start and end them."""
_LEAVE: Final = 30.0
_END: Final = 10.0
"""Seconds for a program that has hung up to be reported."""

_ROOT: Final = str(Path(__file__).parents[3])
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from trunkline.tools.isolation.sandbox_supervisor import main; main()"
)
_BURY: Final = "import os, sys; uid = int(sys.argv[1]); os.setgroups([]); os.setresuid(uid, uid, uid); os.kill(-1, 9)"

_log = logging.getLogger("trunkline.tools")

_found: dict[tuple[str, ...], dict[str, str]] = {}
"""The place that was found, by the ways that may be used."""


class NoSandbox(Exception):
    """No program can be run here, or could be just now; the message says why. Nothing is known of the program."""


class NoWay(NoSandbox):
    """No program can be run here in any of the ways that may be used; the message says why for each."""


class ProgramResult(NamedTuple):
    """How a program ended: ``exit``, ``time`` or ``output``; its wait status, its output, and too many processes."""

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
        """Say how it ended under its limits, on one printable line, as the end of a sentence about it."""
        words = self.err.decode("utf-8", "replace").strip().splitlines()
        last = words[-1] if words else ""
        # Of processes that fail at once, the lines are mixed: which is the last one is chance.
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
            return f"was killed by {signal_name(os.WTERMSIG(self.status))}"
        code = os.WEXITSTATUS(self.status)
        return f"ended with exit code {code}" + (f": {printable(last, 200)}" if code and last else "")


class Sandbox:
    """Runs programs in turn; all that they started is gone when the context is left, or when this process dies.

    One made for ``talking`` runs a single program instead, which answers requests as long as it lives.
    """

    def __init__(self, limits: ResourceLimits, ways: tuple[str, ...] = WAYS, *, talking: bool = False) -> None:
        self._limits = limits
        self._ways = ways
        self._talking = talking
        self._channel: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._process: Child | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
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

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    async def run(self, source: str, text: str = "") -> ProgramResult:
        self._write({"source": scrub(source), "stdin": scrub(text)})
        said = await self._read(self._limits.seconds + _SLACK)
        if said["refused"]:
            raise NoSandbox(printable(said["refused"], 300))
        out, err = (base64.b64decode(said[name]) for name in ("out", "err"))
        return ProgramResult(said["ended"], said["status"], out, err, said["many"])

    async def begin(self, source: str) -> None:
        """Start the program that is talked to: it reads and writes frames at its standard input, a socket."""
        assert self._process is not None
        self._channel = await asyncio.open_connection(sock=self._process.sockets[1])
        self._write({"source": scrub(source), "stdin": ""})

    async def ask(self, request: bytes, seconds: float, most: int) -> bytes:
        """Return what the program answers to a request; NoSandbox where it ended, or gives no answer in time."""
        assert self._channel is not None
        reader, writer = self._channel
        try:
            async with asyncio.timeout(seconds):
                writer.write(frame(request))
                return await read_frame(reader, most)
        except TimeoutError:
            raise NoSandbox("the program gave no answer in time") from None
        except (OSError, asyncio.IncompleteReadError):
            pass
        except EOFError:
            raise NoSandbox("the program answered more than it may") from None
        said = await self._read(_END)
        if said["refused"]:
            raise NoSandbox(printable(said["refused"], 300))
        out, err = (base64.b64decode(said[name]) for name in ("out", "err"))
        ended = ProgramResult(said["ended"], said["status"], out, err, said["many"])
        raise NoSandbox(f"the program {ended.how(self._limits)}")

    async def _start(self) -> None:
        # The supervisor gets nothing of this process's environment but where to put files and find libraries.
        env = {name: os.environ[name] for name in ("TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        silent = subprocess.DEVNULL
        try:
            sockets = 2 if self._talking else 1
            self._process = Child(("-I", "-S", "-c", _BOOT, _ROOT), env, sockets=sockets, stdout=silent, stderr=silent)
        except OSError as error:
            raise NoSandbox(f"no process can be started: {error.strerror}") from None
        self._reader, self._writer = await asyncio.open_connection(sock=self._process.sockets[0])
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
        self._writer.write(frame(msgspec.json.encode(message)))

    async def _read(self, seconds: float) -> dict[str, Any]:
        assert self._reader is not None
        try:
            async with asyncio.timeout(seconds):
                said: dict[str, Any] = msgspec.json.decode(await read_frame(self._reader, _LONGEST))
        except TimeoutError:
            raise NoSandbox("the process that runs programs gives no answer") from None
        except (OSError, EOFError, msgspec.MsgspecError):
            raise NoSandbox("the process that runs programs ended") from None
        return said

    async def _leave(self) -> None:
        stopping = asyncio.get_running_loop().create_task(self._stop())
        await wait_uninterrupted(stopping)
        stopping.result()

    async def _stop(self) -> None:
        """Hang up, which ends the program that runs, and wait for the supervisor."""
        if self._process is None:
            return
        if self._writer is None:
            self._process.close_sockets()
        else:
            self._writer.transport.abort()
        for sock in self._process.sockets[1:]:
            if self._channel is None:
                sock.close()
            else:
                self._channel[1].transport.abort()
        if await self._process.wait(_LEAVE) and self._folder:
            # It was killed, and has not tidied up.
            await off_the_loop(self._tidy)

    def _tidy(self) -> None:
        """End what a supervisor has left, where that can be told from other processes, and remove its files."""
        if self._uid:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run([sys.executable, "-I", "-S", "-c", _BURY, str(self._uid)], check=False, timeout=_LEAVE)
        remove_folder(self._folder)


def find_way(limits: ResourceLimits, ways: tuple[str, ...]) -> str:
    """Return the best of some ways that programs can be confined in here, tried once a process; blocks meanwhile."""

    async def enter() -> str:
        async with Sandbox(limits, ways) as sandbox:
            return sandbox.way

    if ways in _found:
        return _found[ways]["way"]
    with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop already
        return pool.submit(lambda: asyncio.run(enter())).result()
