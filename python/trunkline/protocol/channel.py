"""Frames over a socket pair: a little-endian u32 length, then the payload. A long message is several frames."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from trunkline._internal.processes import HEAD
from trunkline.errors import WorkerError
from trunkline.protocol.messages import MAX_FRAME

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_MORE = 1 << 31
"""Bit of a length: the next frame belongs to the same message."""

_ROOM = 256 * 1024
"""Bytes of the receive buffer; it is larger only while it holds a longer frame."""


class Channel(asyncio.BufferedProtocol):
    """One end of a framed connection. Messages of one tick of the loop leave in one write.

    ``receive`` is called with each payload, which is valid until it returns; an exception it raises closes the channel.
    ``lost`` is called once when the connection is gone, with the error if there was one.
    """

    def __init__(self, receive: Callable[[memoryview], None], lost: Callable[[Exception | None], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._buffer = memoryview(bytearray(_ROOM))
        self._start = self._end = 0
        self._parts: list[bytes] = []
        self._out: list[bytes] = []
        self._flushing = False
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def send(self, payload: bytes) -> None:
        """Queue one message; nothing is sent once the connection is gone."""
        last = max(0, len(payload) - 1) // MAX_FRAME * MAX_FRAME
        for start in range(0, last, MAX_FRAME):
            self._out += (HEAD.pack(MAX_FRAME | _MORE), payload[start : start + MAX_FRAME])
        self._out += (HEAD.pack(len(payload) - last), payload[last:])
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def drain(self) -> None:
        """Wait until the peer reads again, where the queue has grown past the transport's limit."""
        await self._writable.wait()

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._flushing = False
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes are read to: behind the part of a frame that is there."""
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        try:
            need = self._frames()
        except Exception as error:  # noqa: BLE001 - handed to the owner, whole
            self._error = error
            self._start = self._end = 0
            self.abort()
            return
        self._make_room(need)

    def _frames(self) -> int:
        """Handle complete messages; returns the bytes that the next frame takes, as far as it is known."""
        buffer = self._buffer
        while self._end - self._start >= HEAD.size:
            body = self._start + HEAD.size
            (head,) = HEAD.unpack_from(buffer, self._start)
            size: int = head & ~_MORE
            if size > MAX_FRAME:
                raise WorkerError(f"a frame of {size} bytes was announced; the limit is {MAX_FRAME}")
            if self._end - body < size:
                return HEAD.size + size
            self._start = body + size
            frame = buffer[body : self._start]
            if head & _MORE:
                self._parts.append(bytes(frame))
            elif self._parts:
                parts, self._parts = self._parts, []
                self._receive(memoryview(b"".join((*parts, frame))))
            else:
                self._receive(frame)
        return HEAD.size

    def _make_room(self, need: int) -> None:
        """Let the frame that has begun fit into the buffer."""
        room = max(_ROOM, need)
        if self._start == self._end and len(self._buffer) == room:
            self._start = self._end = 0
        elif self._start + need > len(self._buffer) or self._end == len(self._buffer) or len(self._buffer) > room:
            left = self._end - self._start
            # A new one: a view of the old one may still be in use.
            buffer = memoryview(bytearray(room))
            buffer[:left] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = buffer, 0, left

    def connection_lost(self, error: Exception | None) -> None:
        self._writable.set()
        self._lost(self._error or error)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


async def connect(
    sock: socket.socket, receive: Callable[[memoryview], None], lost: Callable[[Exception | None], None]
) -> Channel:
    channel = Channel(receive, lost)
    await attach(channel, sock)
    return channel


async def attach(channel: Channel, sock: socket.socket) -> None:
    """Connect a channel to one end of a socket pair; messages may come before this returns."""
    sock.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=sock)
