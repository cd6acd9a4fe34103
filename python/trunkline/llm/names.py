"""Names of the LLMs of a run that has several, and what their endpoints are called on record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.llm.price import EVERYWHERE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trunkline.llm.price import Price

__all__ = ["MAIN", "asking", "check_name", "llm_in", "named", "prices_named", "there_is"]

MAIN: Final = ""
"""The name of the LLM that an agent asks which names none."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,59}")
_MARK: Final = re.compile(rf" llm:({_NAME.pattern})(?: weights:|\Z)")


def check_name(what: str, name: object) -> str:
    """Return the name of an LLM.

    Args:
        what: What it is, for the message.
        name: What was given.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(name, str) or not (name == MAIN or _NAME.fullmatch(name)):
        raise ConfigError(f"{what} must be a name of letters, digits, - and _, not {shown(name)}")
    return name


def there_is(names: Collection[str]) -> str:
    """The names of a run's LLMs, for messages."""
    return ", ".join(shown(name) if name else "one without a name" for name in sorted(names))


def asking(namespace: str, llm: str) -> str:
    """A merge namespace of turns that an LLM is asked for: those of two LLMs are never one node."""
    return f"{namespace} llm:{llm}" if llm else namespace


def llm_in(namespace: str) -> str:
    """The name in what :func:`asking` made, under a version or none."""
    found = _MARK.search(namespace)
    return MAIN if found is None else found[1]


def named(llm: str, endpoint: str) -> str:
    """What an endpoint is called on record: two LLMs may have one URL, and other prices.

    Args:
        llm: The name of the LLM that it belongs to.
        endpoint: Its base URL, or what else a reply calls it.
    """
    return f"{llm}/{endpoint}" if llm else endpoint


def prices_named(llm: str, prices: Mapping[str, Price]) -> dict[str, Price]:
    """The prices of an LLM by what its endpoints are called on record.

    Args:
        llm: Its name.
        prices: By base URL, or one that is everywhere the same.
    """
    if not llm:
        return dict(prices)
    return {llm if url == EVERYWHERE else named(llm, url): price for url, price in prices.items()}
