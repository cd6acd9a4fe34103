"""Dialects by name, and dialects of a user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.llm.dialects.dialect import Dialect
from trunkline.llm.dialects.hermes import Hermes
from trunkline.llm.dialects.native import Native
from trunkline.llm.dialects.search_r1 import SearchR1

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DIALECTS", "describe", "find", "label"]

DIALECTS: Final[dict[str, Callable[[], Dialect]]] = {
    "native": Native,
    "hermes": Hermes,
    "search-r1": SearchR1,
}
"""The dialects that come with the library, by the name an agent gives."""

_NAMES: Final = {kind: name for name, kind in DIALECTS.items()}


def find(given: object) -> Dialect:
    """Return the dialect that an agent speaks.

    Args:
        given: A name in ``DIALECTS``, or an object with the members of :class:`.dialect.Dialect`.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(given, str) and given in DIALECTS:
        return DIALECTS[given]()
    if isinstance(given, type):
        raise ConfigError(f"Agent: dialect is the class {given.__name__}: give an instance of it, {given.__name__}()")
    if not isinstance(given, Dialect):
        raise ConfigError(
            f"Agent: dialect must be {', '.join(DIALECTS)}, or an object with native, prompt(), sampling(), parse() "
            f"and observe(), not {shown(given)}"
        )
    return given


def label(dialect: Dialect) -> str:
    """What a dialect is called, on one line."""
    return _NAMES.get(type(dialect), type(dialect).__name__)


def describe(dialect: Dialect) -> dict[str, Any]:
    """Describe a dialect for the run file: what it is called, and its options as far as they are data."""
    try:
        options = msgspec.to_builtins(dialect)
    except (TypeError, msgspec.MsgspecError):
        options = None
    return {"kind": label(dialect), "options": options}
