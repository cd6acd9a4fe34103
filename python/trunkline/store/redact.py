"""Settings and command lines without the keys in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trunkline.llm.text import HIDDEN, without_secrets

if TYPE_CHECKING:
    from trunkline.types import JSON

__all__ = ["redact", "redact_command"]

_SECRET = re.compile(r"(?i)(^|[-_.])(api[-_]?key|key|authorization|password|passwd|secret|credentials?|token|cookie)$")


def redact(value: JSON) -> JSON:
    """A copy of a JSON value without secrets.

    Values under names that stand for a secret are replaced, user names and passwords are cut out of
    addresses, and what looks like a key or a bearer token is replaced wherever it stands, in names too: some are
    addresses.

    Args:
        value: A JSON value.

    Returns:
        The copy.
    """
    if isinstance(value, dict):
        return {
            without_secrets(name): HIDDEN if _SECRET.search(name) and isinstance(item, str) and item else redact(item)
            for name, item in ((str(key), item) for key, item in value.items())
        }
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


def redact_command(command: list[str]) -> list[str]:
    """A command line without secrets: values of options that are named like one are replaced too.

    Args:
        command: The arguments.

    Returns:
        As many arguments.
    """
    safe: list[str] = []
    hide = False
    for argument in command:
        name, equals, _value = argument.partition("=")
        secret = argument.startswith("-") and _SECRET.search(name.lstrip("-")) is not None
        if hide:
            safe.append(HIDDEN)
        elif secret and equals:
            safe.append(f"{name}={HIDDEN}")
        else:
            safe.append(without_secrets(argument))
        hide = not hide and secret and not equals
    return safe
