"""Records as JSON lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

__all__ = ["Lines", "line"]

# Characters that end a line for some readers, such as str.splitlines of Python; control characters proper are escaped
# by JSON itself. Within a line of JSON these bytes stand in strings alone, and mean nothing else in UTF-8.
_BREAKS: Final = {
    "\x85".encode(): b"\\u0085",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}
_FOREIGN: Final = re.compile(r"[^\x20-\x7e]")
_encoder = msgspec.json.Encoder()


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def line(record: Mapping[str, Any], *, ascii_only: bool = False) -> bytes:
    """Encode one record as one line, whatever a reader takes for the end of a line.

    Args:
        record: What JSON can hold; NaN and the infinities become null.
        ascii_only: Escape everything beyond printable ASCII, which is safe for a terminal.
    """
    data = _encoder.encode(record)
    for char, escape in _BREAKS.items():
        if char in data:
            data = data.replace(char, escape)
    if ascii_only:
        data = _FOREIGN.sub(_escaped, data.decode()).encode("ascii")
    return data + b"\n"


class Lines:
    """Writes records as lines.

    Args:
        stream: Where they go.
        ascii_only: See :func:`line`.
    """

    def __init__(self, stream: BinaryIO, *, ascii_only: bool = False) -> None:
        self._stream = stream
        self._ascii = ascii_only

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record."""
        self._stream.write(line(record, ascii_only=self._ascii))

    def close(self) -> None:
        """Nothing is held back."""

    def abandon(self) -> None:
        """Nothing is to be put away."""
