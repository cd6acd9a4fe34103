"""Checks of values that a caller gave, and how their errors describe a value."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec

from trunkline._internal.text import printable
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

P = ParamSpec("P")

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
    """Describe a value for an error message: ``a string``, ``an empty list``, ``null``, ``of type Path``."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    named = _KINDS.get(type(value))
    if named is None:
        return f"of type {printable(type(value).__name__, 60)}"
    if isinstance(value, str | list | tuple | dict) and not value:
        return f"an empty {named.split()[1]}"
    return named


def short_repr(value: object) -> str:
    """Return a value as Python writes it, on one printable line of at most 60 cells, even if its ``repr`` fails."""
    try:
        written = repr(value)
    except Exception:  # noqa: BLE001 - foreign code; a whole number of thousands of digits cannot be written either
        written = f"<{type(value).__name__}>"
    return printable(written, 60)


def check_int(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return a whole number within bounds; a bool is refused."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high):
        return value
    span = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise ConfigError(f"{name} must be a whole number {span}, not {short_repr(value)}")


def check_float(
    name: str, value: object, low: float, high: float = math.inf, *, above: bool = False, unit: str = ""
) -> float:
    """Return a finite number from ``low``, or ``above`` it, to ``high``; a bool is refused."""
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
    """Return an amount of memory in bytes; a text such as ``512MB`` or ``1.5GiB`` is read."""
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        value = round(float(found[1]) * _UNITS[found[2].upper()])
    if isinstance(value, int) and not isinstance(value, bool) and value >= low:
        return value
    raise ConfigError(
        f"{name} must be a size of at least {low} bytes, such as '512MB' or '2GB', not {short_repr(value)}"
    )


def check_text(name: str, value: object) -> str:
    """Return a text that can be sent or stored."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, not {short_repr(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as problem:
        raise ConfigError(
            f"{name} holds a lone surrogate, {short_repr(value[problem.start])}, which no request can carry: remove it"
        ) from None
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean X?)`` for the known name that is spelled almost like one; empty without any."""
    near = get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def check_choice(name: str, value: object, *words: str) -> None:
    """Check a setting that must be one of some words."""
    if value not in words:
        raise ConfigError(f"{name} must be one of {', '.join(words)}, not {short_repr(value)}")


def check_that(fits: object, what: str, value: object) -> None:
    """Raise ConfigError for a value that does not fit; ``what`` begins the message: ``Agent: tools must be a list``."""
    if not fits:
        raise ConfigError(f"{what}, not {short_repr(value)}")


def check_optional(
    check: Callable[Concatenate[str, object, P], object], name: str, value: object, *args: P.args, **kwargs: P.kwargs
) -> None:
    """Check a value that may be None."""
    if value is not None:
        check(name, value, *args, **kwargs)


def parse_amounts(given: str, names: Collection[str], *, what: str, foreign: str, write: str) -> dict[str, float]:
    """Read numbers by name from a command line, ``name=1,other=2.5``; ``foreign`` says what an unknown name is."""
    found: dict[str, float] = {}
    for part in given.split(","):
        name, _, amount = (piece.strip() for piece in part.partition("="))
        if name not in names or name in found:
            wrong = "is there twice" if name in found else foreign + did_you_mean(name, names)
            raise ConfigError(f"{short_repr(name)} {wrong}; write {write}")
        try:
            found[name] = float(amount)
        except ValueError:
            raise ConfigError(f"{what}: {name} must be a number, not {short_repr(amount)}") from None
    return found
