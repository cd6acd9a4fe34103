"""Terminal-safe printing, secret redaction, surrogate scrubbing."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON = Any
"""A value that JSON can hold."""

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
    """The most terminal cells that a printable text takes: a combining mark is counted as one."""
    return len(text) if text.isascii() else sum(_cells(char) for char in text)


def printable(text: str, width: int | None = None) -> str:
    """Escape all that could steer a terminal, line breaks included; cut to ``width`` cells with an ellipsis."""
    if text.isascii() and text.isprintable() and (width is None or len(text) <= width):
        return text
    # Backslashes stay: escaping twice changes nothing.
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


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 task``, ``1,200 tasks``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def by_frequency(counts: Mapping[str, int]) -> str:
    """The most frequent first: ``24 × 429, 5 × timeout``."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} × {printable(name, 40)}" for name, count in ordered)


def duration(seconds: float, decimals: int = 1) -> str:
    """A time in the units that a person would use; decimals are those of less than 10 s."""
    if seconds < 10:
        return f"{seconds:.{decimals}f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def format_error(error: BaseException, width: int | None = 300) -> str:
    """What an exception says, on one printable line; foreign ones may fail even at that."""
    said = message_of(error)
    return "(its message cannot be read)" if said is None else printable(said, width)


def describe_error(error: BaseException) -> str:
    """An exception's class and message, on one printable line."""
    return f"{type(error).__name__}: {format_error(error)}"


def message_of(error: BaseException) -> str | None:
    """What an exception says, or None: its own ``__str__`` may raise anything, ``SystemExit`` included."""
    try:
        return str.__str__(str(error))
    except BaseException:  # noqa: BLE001
        return None


def from_difference(one: bytes | str, other: bytes | str, before: int) -> tuple[int, str, str]:
    """Return a position so many characters before two texts begin to differ, and both texts from there on."""
    a, b = (text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in (one, other))
    pairs = enumerate(zip(a, b, strict=False))
    start = max(0, next((at for at, (x, y) in pairs if x != y), min(len(a), len(b))) - before)
    return start, a[start:], b[start:]


HIDDEN = "(not stored)"
"""What stands where a secret stood."""

_SECRET_LENGTH = 8
_SURROGATE = re.compile("[\ud800-\udfff]")
_USER = re.compile(r"(?<=://)[^/?#\s@]*@")
_QUERY = re.compile(r"(?i)([?&](?:[^=&#\s]*[-_])?(?:key|token|secret|password|sig|signature)=)[^&#\s]*")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"']+")
_KEY = re.compile(r"(?<![^\W_])sk-[A-Za-z0-9_-]{8,}")


@overload
def scrub(value: str) -> str: ...


@overload
def scrub(value: JSON) -> JSON: ...


def scrub(value: JSON) -> JSON:
    """Replace lone surrogates, which UTF-8 cannot carry, by U+FFFD: in a text, or in every string of a JSON value."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return _SURROGATE.sub("\ufffd", value)
    elif isinstance(value, list):
        return [scrub(item) for item in value]
    elif isinstance(value, dict):
        return {scrub(str(key)): scrub(item) for key, item in value.items()}
    return value


def loads(data: bytes | str) -> JSON:
    """Read JSON with a byte order mark or lone surrogates, which become U+FFFD; NaN and infinities stay refused."""
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data.removeprefix("\ufeff")
    return scrub(json.loads(text, parse_constant=_no_constant))


def without_key(text: str, secret: str | tuple[str, ...]) -> str:
    """Replace one or several known keys in a text. One too short to be a secret, such as ``EMPTY``, stays."""
    for each in (secret,) if isinstance(secret, str) else secret:
        if len(each) >= _SECRET_LENGTH:
            text = text.replace(each, "[key]")
    return text


def without_secrets(text: str) -> str:
    """Replace in a text all that looks like a key, a bearer token, or a user and password in an address."""
    text = _QUERY.sub(rf"\1{HIDDEN}", _USER.sub("", text))
    return _KEY.sub(HIDDEN, _BEARER.sub(rf"\1 {HIDDEN}", text))


def excerpt(data: bytes | str, limit: int = 200, secret: str | tuple[str, ...] = "") -> str:
    """The first ``limit`` characters of data from outside, on one printable line, without a key that it may echo."""
    if isinstance(data, bytes):
        # The secret could straddle the cut, so it is looked for in more than is shown.
        data = data[: 4 * limit + 4096].decode("utf-8", "replace")
    data = without_key(data, secret)
    shown = printable(data[:limit])
    return shown + "..." if len(data) > limit else shown


def _no_constant(name: str) -> JSON:
    raise ValueError(f"{name} is no JSON value")


_SECRET = re.compile(r"(?i)(^|[-_.])(api[-_]?key|key|authorization|password|passwd|secret|credentials?|token|cookie)$")


def is_credential(name: str) -> bool:
    """Whether a field of a request's body is a key by its name; ``prompt_cache_key`` and the like are none."""
    return bool(re.fullmatch(r"(?i)(.*[-_.])?(api[-_]?key|authorization|password|passwd|secret|credentials?)", name))


def is_secret(name: str) -> bool:
    """Whether the value of a variable or an option is a secret by its name."""
    return _SECRET.search(name) is not None


def redact(value: JSON) -> JSON:
    """Return a copy of a JSON value ``without_secrets``, and without the texts that stand under a secret's name."""
    if isinstance(value, dict):
        return {
            without_secrets(name): HIDDEN if _SECRET.search(name) and isinstance(item, str) and item else redact(item)
            for name, item in ((str(key), item) for key, item in value.items())
        }
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


def redact_command(command: list[str]) -> list[str]:
    """Return a command line without secrets and without the values of options that are named like one."""
    safe: list[str] = []
    hide = False
    for argument in command:
        name, equals, _value = argument.partition("=")
        secret = argument.startswith("-") and bool(_SECRET.search(name.lstrip("-")))
        if hide:
            safe.append(HIDDEN)
        elif secret and equals:
            safe.append(f"{name}={HIDDEN}")
        else:
            safe.append(without_secrets(argument))
        hide = not hide and secret and not equals
    return safe
