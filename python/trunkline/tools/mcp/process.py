"""The process of an MCP server: started with an environment made from little, and ended with all that it started."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.aio import off_the_loop, wait_uninterrupted
from trunkline._internal.child import Child, read_frame
from trunkline._internal.leftovers import end_marked
from trunkline._internal.processes import frame, signal_name
from trunkline._internal.text import printable
from trunkline.errors import InfrastructureError

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST: Final = 4 << 20
"""Bytes of one message of a server: to read one that is made to be slow takes a second."""

GRACE: Final = 1.0
"""Seconds in which a server may end by itself once its input has ended."""

_START: Final = 60.0
_LEAVE: Final = 30.0
_FRAME: Final = 1 << 16

_ROOT: Final = str(Path(__file__).parents[3])
_BOOT: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from trunkline.tools.mcp.guard import main; main()"


class PipeWriter(asyncio.BaseProtocol):
    """Feeds a pipe; ``drained`` waits while the other end does not read."""

    def __init__(self) -> None:
        self.transport: asyncio.WriteTransport | None = None
        self._free = asyncio.Event()
        self._free.set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def pause_writing(self) -> None:
        self._free.clear()

    def resume_writing(self) -> None:
        self._free.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._free.set()

    async def drained(self) -> None:
        await self._free.wait()


class ServerProcess:
    """One server; ``folder`` is a folder to copy into its own, empty for an empty one, None for that of this process.

    Attributes:
        folder: The path of its own folder; empty without one.
        err: The end of its standard error, on one printable line, once it has ended.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str], folder: str | None) -> None:
        self._setup = {"command": [*command], "env": env, "folder": folder}
        self._child: Child | None = None
        self._says: asyncio.Task[dict[str, Any]] | None = None
        self._line: asyncio.StreamWriter | None = None
        self._ending: asyncio.Task[None] | None = None
        self._pipes: list[asyncio.BaseTransport] = []
        self.reader = asyncio.StreamReader(LONGEST)
        self.writer = PipeWriter()
        self.folder = ""
        self.err = ""

    async def start(self) -> None:
        """Start it.

        Raises:
            InfrastructureError: No process can be started, or its folder cannot be made.
        """
        given, ours_in = os.pipe()
        ours_out, taken = os.pipe()
        small = {name: os.environ[name] for name in ("TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        try:
            self._child = Child(
                ("-I", "-S", "-c", _BOOT, _ROOT),
                small,
                sockets=1,
                marked=True,
                stdin=given,
                stdout=taken,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            os.close(ours_in)
            os.close(ours_out)
            raise InfrastructureError(f"no process can be started: {error.strerror}") from None
        finally:
            os.close(given)
            os.close(taken)
        loop = asyncio.get_running_loop()
        reading = asyncio.StreamReaderProtocol(self.reader)
        self._pipes.append((await loop.connect_read_pipe(lambda: reading, os.fdopen(ours_out, "rb", 0)))[0])
        self._pipes.append((await loop.connect_write_pipe(lambda: self.writer, os.fdopen(ours_in, "wb", 0)))[0])
        line, self._line = await asyncio.open_connection(sock=self._child.sockets[0])
        self._line.write(frame(msgspec.json.encode(self._setup)))
        try:
            async with asyncio.timeout(_START):
                said = msgspec.json.decode(await read_frame(line, _FRAME))
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError):
            raise InfrastructureError("the process that starts it gives no answer") from None
        if said.get("refused"):
            raise InfrastructureError(f"its folder cannot be made: {printable(said['refused'], 300)}")
        self.folder = said["folder"]
        self._says = loop.create_task(_last(line))

    def write(self, data: bytes) -> None:
        """Write to its standard input; what comes after its end is dropped."""
        if self.writer.transport is not None:
            self.writer.transport.write(data)

    async def how(self) -> str:
        """Wait for a server that closed its output to end, and say how it ended, as the end of a sentence."""
        if self._says is None:
            return "did not start"
        done, _ = await asyncio.wait((self._says,), timeout=GRACE)
        if not done:
            return "closed its output"
        status = self._says.result().get("status", 0)
        return f"was killed by {signal_name(-status)}" if status < 0 else f"ended with exit code {status}"

    async def close(self) -> None:
        """End its input, wait a little, and end it with all that it has started."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        await wait_uninterrupted(self._ending)
        self._ending.result()

    async def _end(self) -> None:
        if self.writer.transport is not None:
            self.writer.transport.close()
        if self._says is not None:
            await asyncio.wait((self._says,), timeout=GRACE)
        child, self._child = self._child, None
        if child is None:
            return
        if self._line is not None:
            with suppress(OSError):
                self._line.write_eof()
        if self._says is not None:
            done, _ = await asyncio.wait((self._says,), timeout=_LEAVE)
            if done:
                self.err = printable(self._says.result().get("err", "").strip()[-300:])
            else:
                self._says.cancel()
        if self._line is not None:
            self._line.transport.abort()
        else:
            child.close_sockets()
        for pipe in self._pipes:
            pipe.close()
        if await child.wait(_LEAVE):
            await off_the_loop(lambda: end_marked(child.mark))  # it was killed


async def _last(line: asyncio.StreamReader) -> dict[str, Any]:
    try:
        said: dict[str, Any] = msgspec.json.decode(await read_frame(line, _FRAME))
    except (OSError, EOFError, msgspec.MsgspecError):
        return {}
    return said
