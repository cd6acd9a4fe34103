"""Text from outside made safe: for a request body on its way out, and for a terminal or a log."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from trunkline.printable import printable

if TYPE_CHECKING:
    from trunkline.types import JSON

__all__ = ["HIDDEN", "excerpt", "loads", "scrub", "scrub_deep", "without_key", "without_secrets"]

HIDDEN = "(not stored)"
"""What stands where a secret stood."""

_SECRET_LENGTH = 8
_SURROGATE = re.compile("[\ud800-\udfff]")
_USER = re.compile(r"(?<=://)[^/?#\s@]*@")
_QUERY = re.compile(r"(?i)([?&](?:[^=&#\s]*[-_])?(?:key|token|secret|password|sig|signature)=)[^&#\s]*")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"']+")
_KEY = re.compile(r"\bsk-[A-Za-z0-9_-]{8,}")


def scrub(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 body can carry, by U+FFFD.

    Args:
        text: Any string.

    Returns:
        ``text`` itself when there was nothing to replace.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def scrub_deep(value: JSON) -> JSON:
    """Apply :func:`scrub` to every string of a JSON value, keys included.

    Args:
        value: A value that ``json.loads`` could have made.

    Raises:
        RecursionError: The value is nested too deeply.
    """
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [scrub_deep(item) for item in value]
    if isinstance(value, dict):
        return {scrub(str(key)): scrub_deep(item) for key, item in value.items()}
    return value


def loads(data: bytes | str) -> JSON:
    """Read JSON that a strict reader refused although its content can be saved.

    A byte order mark is skipped, escaped lone surrogates become U+FFFD; NaN and the infinities stay refused.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data.removeprefix("\ufeff")
    return scrub_deep(json.loads(text, parse_constant=_no_constant))


def without_key(text: str, secret: str | tuple[str, ...]) -> str:
    """Take a key, or several, out of a text. One too short to be a secret, such as ``EMPTY``, stays."""
    for each in (secret,) if isinstance(secret, str) else secret:
        if len(each) >= _SECRET_LENGTH:
            text = text.replace(each, "[key]")
    return text


def without_secrets(text: str) -> str:
    """Take out of a text whatever looks like a key, a bearer token, or a user and password in an address."""
    text = _QUERY.sub(rf"\1{HIDDEN}", _USER.sub("", text))
    return _KEY.sub(HIDDEN, _BEARER.sub(rf"\1 {HIDDEN}", text))


def excerpt(data: bytes | str, limit: int = 200, secret: str | tuple[str, ...] = "") -> str:
    """The beginning of something from outside, on one line and safe to print.

    Args:
        data: What was received.
        limit: Most characters of it to show.
        secret: A key that must not be shown, should the other side echo it; or several.
    """
    if isinstance(data, bytes):
        # The secret could straddle the cut, so it is looked for in more than is shown.
        data = data[: 4 * limit + 4096].decode("utf-8", "replace")
    data = without_key(data, secret)
    shown = printable(data[:limit])
    return shown + "..." if len(data) > limit else shown


def _no_constant(name: str) -> JSON:
    raise ValueError(f"{name} is no JSON value")
