"""Text that came from a model, a tool or a file, made safe to print."""

from __future__ import annotations

import unicodedata

__all__ = ["cells", "printable", "quoted", "said"]

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    # Not printable are controls, formats (bidi overrides and zero-width characters among them), surrogates, private
    # use, unassigned, and every space but the common one: each can move the cursor, hide text or reorder it.
    if char.isprintable():
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _cells(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cells(text: str) -> int:
    """How many terminal cells a printable text takes at most: a combining mark is counted as one."""
    return len(text) if text.isascii() else sum(_cells(char) for char in text)


def printable(text: str, width: int | None = None) -> str:
    """Escape everything in a text that could steer a terminal, and cut it to a width.

    Line breaks, other control characters (those of ANSI sequences) and format characters (bidirectional
    overrides) become escapes as in a Python string, so the result is always one line that shows in the order
    in which it is stored. Backslashes are left alone: escaping twice changes nothing.

    Args:
        text: Any text, hostile or not.
        width: The most terminal cells the result may take, or None. A cut text ends in an ellipsis.

    Returns:
        The text on one line.
    """
    if width is None:
        return "".join(map(_escape, text))
    pieces: list[str] = []
    used = 0
    # One more character than there are cells is enough to know that it does not fit.
    for char in text[: width + 1]:
        piece = _escape(char)
        size = cells(piece)
        if used + size > width:
            break
        pieces.append(piece)
        used += size
    else:
        if len(text) <= width + 1:
            return "".join(pieces)
    while pieces and used >= width:
        used -= cells(pieces.pop())
    return "".join(pieces) + ("…" if width > 0 else "")


def quoted(text: str, width: int = 60) -> str:
    """A short, escaped excerpt between double quotes, for error messages."""
    return '"' + printable(text, width).replace('"', '\\"') + '"'


def said(error: BaseException, width: int | None = 300) -> str:
    """What an exception says, on one printable line; foreign ones may fail even at that."""
    try:
        return printable(str(error), width)
    except Exception:  # noqa: BLE001 - its own __str__ is anybody's code
        return "(its message cannot be read)"
