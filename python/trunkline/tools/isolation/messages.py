"""Messages between a worker and the process of an isolated tool: msgpack in frames."""

from __future__ import annotations

from typing import Final

import msgspec

from trunkline._internal.processes import frame

# Fields are read at run time.
from trunkline._internal.serialization import SerializedObject
from trunkline.tools.calls import Call


class ToolSetup(msgspec.Struct, tag=True, array_like=True):
    """The first message: the tool, the path of modules, the bytes that a call may use, and modules to import first.

    ``argv`` is the worker's ``sys.argv``.
    """

    tool: SerializedObject
    path: list[str]
    memory: int
    preload: tuple[str, ...] = ()
    argv: list[bytes] = []


class CallRequest(msgspec.Struct, tag=True, array_like=True):
    """Run one call, within a limit of characters of its result and CPU seconds of each of its processes."""

    arguments: str
    limit: int
    seconds: int
    call: Call | None


class ToolReady(msgspec.Struct, tag=True, array_like=True):
    """The tool is loaded."""


class ToolBroken(msgspec.Struct, tag=True, array_like=True):
    """The tool cannot be loaded."""

    why: str


class CallResult(msgspec.Struct, tag=True, array_like=True):
    """The result of a call; ``worn`` says that the call left something behind, so it is the last one of its process."""

    text: str
    ok: bool
    worn: bool
    traceback: str = ""


class ToolEnded(msgspec.Struct, array_like=True):
    """The process is gone with all that it had started: its wait status, the end and the bytes of its output."""

    status: int
    output: bytes
    printed: int


ToHelper = ToolSetup | CallRequest
FromHelper = ToolReady | ToolBroken | CallResult

_encoder: Final = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    return frame(_encoder.encode(message))
