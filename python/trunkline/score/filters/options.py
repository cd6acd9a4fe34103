"""Options that filters share, checked."""

from __future__ import annotations

from trunkline.bounds import shown
from trunkline.errors import ConfigError

__all__ = ["choice", "flag", "treatment"]


def flag(name: str, value: object) -> None:
    """Check an option that is true or false.

    Raises:
        ConfigError: It is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {shown(value)}")


def choice(name: str, value: object, *words: str) -> None:
    """Check an option that is one of some words.

    Raises:
        ConfigError: It is none of them.
    """
    if value not in words:
        raise ConfigError(f"{name} must be one of {', '.join(words)}, not {shown(value)}")


def treatment(name: str, action: object, count_in_baseline: object) -> None:
    """Check what is done to a rollout that a filter finds.

    Raises:
        ConfigError: It can be masked or dropped, and nothing else.
    """
    choice(f"{name}: action", action, "mask", "drop")
    flag(f"{name}: count_in_baseline", count_in_baseline)
