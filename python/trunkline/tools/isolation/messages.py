"""What a worker and the process of an isolated tool say to one another: msgpack behind a little-endian u32 length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

# Fields are read at run time.
from trunkline._internal.serialization import SerializedObject
from trunkline.tools.calls import Call

if TYPE_CHECKING:
    import socket

__all__ = [
    "HEAD",
    "CallRequest",
    "CallResult",
    "ToHelper",
    "ToolBroken",
    "ToolEnded",
    "ToolReady",
    "ToolSetup",
    "frame",
    "longest",
    "receive",
]

HEAD: Final = 4
"""Bytes of the length."""

_ASIDE: Final = 64 * 1024
"""Bytes of a frame beside the result: a traceback, an error."""


class ToolSetup(msgspec.Struct, tag=True, array_like=True):
    """What to run, once, first.

    Attributes:
        tool: The tool.
        path: Where modules are found.
        memory: Bytes that a call may use.
        preload: Modules to import beforehand, whose import would else count as part of the first call.
    """

    tool: SerializedObject
    path: list[str]
    memory: int
    preload: tuple[str, ...] = ()


class CallRequest(msgspec.Struct, tag=True, array_like=True):
    """Run one call.

    Attributes:
        arguments: As the model wrote them; they have been read once without complaint.
        limit: Characters of the result that are kept.
        seconds: CPU time that it may take in one process, should nobody stop it.
        call: Which call it is, if that is known.
    """

    arguments: str
    limit: int
    seconds: int
    call: Call | None


class ToolReady(msgspec.Struct, tag=True, array_like=True):
    """The tool is there."""


class ToolBroken(msgspec.Struct, tag=True, array_like=True):
    """The tool cannot be had."""

    why: str


class CallResult(msgspec.Struct, tag=True, array_like=True):
    """What a call came to.

    Attributes:
        text: What the model is told.
        ok: Whether the tool returned.
        worn: Whether it left something behind, so that no other call should follow in this process.
        traceback: Where it failed.
    """

    text: str
    ok: bool
    worn: bool
    traceback: str = ""


class ToolEnded(msgspec.Struct, array_like=True):
    """The process is gone, and whatever it had started.

    Attributes:
        status: How it ended, as ``waitpid`` says it.
        output: The end of what it printed.
        printed: How many bytes it printed in all.
    """

    status: int
    output: bytes
    printed: int


ToHelper = ToolSetup | CallRequest
_encoder: Final = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """Return a message as it is sent."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(HEAD, "little") + payload


def longest(limit: int) -> int:
    """Return the most bytes of a frame about a result of so many characters."""
    return 4 * limit + _ASIDE


def receive(sock: socket.socket) -> bytes:
    """Read one payload from a blocking socket; empty when the other side has hung up."""
    head = _exactly(sock, HEAD)
    return _exactly(sock, int.from_bytes(head, "little")) if head else b""


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)
