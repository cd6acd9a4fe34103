"""Versions of a model's weights: what they are called, and where a turn keeps the one that it was asked under."""

from __future__ import annotations

import json
import re

from trunkline.bounds import shown, text
from trunkline.errors import ConfigError

__all__ = ["check_version", "number_of", "version_in", "versioned"]

_LONGEST = 100
_MARK = re.compile(r' weights:("(?:[^"\\]|\\.)*")\Z')
_DIGITS = re.compile(r"[0-9]{1,10}\Z")
_MOST = 2**31


def check_version(name: str, version: object) -> str | None:
    """Check a version.

    Args:
        name: What it is called, for the message.
        version: What was given; None for none.

    Raises:
        ConfigError: It is no short, printable text.
    """
    if version is None:
        return None
    text(name, version)
    if not isinstance(version, str) or not version.isprintable() or not 0 < len(version.strip()) <= _LONGEST:
        raise ConfigError(
            f"{name} must be a printable text of up to {_LONGEST} characters such as 'step-12', not {shown(version)}"
        )
    return version


def versioned(namespace: str, version: str | None) -> str:
    """A merge namespace under a version: turns of two versions are never one node."""
    return namespace if version is None else f"{namespace} weights:{json.dumps(version)}"


def version_in(namespace: str) -> str | None:
    """The version in what :func:`versioned` made; None where there is none."""
    found = _MARK.search(namespace)
    return None if found is None else str(json.loads(found[1]))


def number_of(version: str | None) -> int:
    """The number at the end of a version, which columns of tokens hold: 12 for ``step-12``; -1 where there is none."""
    found = _DIGITS.search(version or "")
    return -1 if found is None or int(found[0]) >= _MOST else int(found[0])
