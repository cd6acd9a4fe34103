"""Values that a caller gave, checked: what each must be, and how an error says what it is instead."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from trunkline._internal.text import printable
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "check_bool",
    "check_choice",
    "check_float",
    "check_int",
    "check_size",
    "check_text",
    "parse_amounts",
    "short_repr",
    "type_phrase",
]

_KINDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    tuple: "a tuple",
    dict: "an object",
}

_SIZE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([kmgt]i?b|b)", re.IGNORECASE)
_UNITS: Final = {"B": 1} | {
    f"{prefix}{binary}B": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("KMGT", 1)
    for binary in ("", "I")
}


def type_phrase(value: object) -> str:
    """What a value is, in the words of an error message: ``a string``, ``an empty list``, ``null``, ``of type Path``.

    Args:
        value: Any value.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    named = _KINDS.get(type(value))
    if named is None:
        return f"of type {printable(type(value).__name__, 60)}"
    if isinstance(value, str | list | tuple | dict) and not value:
        return f"an empty {named.split()[1]}"
    return named


def short_repr(value: object) -> str:
    """A value as Python writes it, on one printable line of at most 60 cells.

    Args:
        value: Any value, also one whose own ``repr`` fails.
    """
    try:
        written = repr(value)
    except Exception:  # noqa: BLE001 - foreign code; a whole number of thousands of digits cannot be written either
        written = f"<{type(value).__name__}>"
    return printable(written, 60)


def check_int(name: str, value: object, low: int, high: int | None = None) -> int:
    """Check a whole number.

    Args:
        name: What it is called, for the message.
        value: What was given; a bool is no number.
        low: The least it may be.
        high: The most it may be; unlimited when None.

    Returns:
        The value.

    Raises:
        ConfigError: It is none, or out of range.
    """
    if isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high):
        return value
    span = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise ConfigError(f"{name} must be a whole number {span}, not {short_repr(value)}")


def check_float(
    name: str, value: object, low: float, high: float = math.inf, *, above: bool = False, unit: str = ""
) -> float:
    """Check a finite number.

    Args:
        name: What it is called, for the message.
        value: What was given; a bool is no number, and neither are NaN and the infinities.
        low: The least it may be.
        high: The most it may be.
        above: Whether ``low`` itself is too little.
        unit: What it counts, for the message, such as ``seconds``.

    Returns:
        The value.

    Raises:
        ConfigError: It is none, or out of range.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        fits = low < value if above else low <= value
        # The comparison with infinity, not isfinite: a whole number may be too large for a float.
        if fits and value <= high and value < math.inf:
            return value
    counted = f"a number of {unit}" if unit else "a number"
    if above:
        span = f"above {low:g}" + ("" if math.isinf(high) else f" and at most {high:g}")
    else:
        span = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
    raise ConfigError(f"{name} must be {counted} {span}, not {short_repr(value)}")


def check_bool(name: str, value: object) -> bool:
    """Check a setting that is true or false; ``name`` is what the message calls it."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {short_repr(value)}")
    return value


def check_size(name: str, value: object, low: int = 1) -> int:
    """Check an amount of memory.

    Args:
        name: What it is called, for the message.
        value: What was given: bytes, or a text such as ``512MB`` or ``1.5GiB``.
        low: The least it may be, in bytes.

    Returns:
        Bytes.

    Raises:
        ConfigError: It is none, or too little.
    """
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        value = round(float(found[1]) * _UNITS[found[2].upper()])
    if isinstance(value, int) and not isinstance(value, bool) and value >= low:
        return value
    raise ConfigError(
        f"{name} must be a size of at least {low} bytes, such as '512MB' or '2GB', not {short_repr(value)}"
    )


def check_text(name: str, value: object) -> str:
    """Check a text that is to be sent or stored.

    Args:
        name: What it is called, for the message.
        value: What was given.

    Returns:
        The value.

    Raises:
        ConfigError: It is no string, or holds a lone surrogate, which UTF-8 cannot carry.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, not {short_repr(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as problem:
        raise ConfigError(
            f"{name} holds a lone surrogate, {short_repr(value[problem.start])}, which no request can carry: remove it"
        ) from None
    return value


def check_choice(name: str, value: object, *words: str) -> None:
    """Check a setting that is one of some words.

    Args:
        name: What it is called, for the message.
        value: What was given.
        words: What it may be.

    Raises:
        ConfigError: It is none of them.
    """
    if value not in words:
        raise ConfigError(f"{name} must be one of {', '.join(words)}, not {short_repr(value)}")


def parse_amounts(given: str, names: Collection[str], *, what: str, foreign: str, write: str) -> dict[str, float]:
    """Read numbers by name from a command line: ``name=1,other=2.5``.

    Args:
        given: The text.
        names: The names there are; each may be given once.
        what: What they are together, for the message.
        foreign: What is said of another name.
        write: How it is written, for the message.

    Raises:
        ConfigError: A name or a number is none.
    """
    found: dict[str, float] = {}
    for part in given.split(","):
        name, _, amount = (piece.strip() for piece in part.partition("="))
        if name not in names or name in found:
            raise ConfigError(f"{short_repr(name)} {'is there twice' if name in found else foreign}; write {write}")
        try:
            found[name] = float(amount)
        except ValueError:
            raise ConfigError(f"{what}: {name} must be a number, not {short_repr(amount)}") from None
    return found
