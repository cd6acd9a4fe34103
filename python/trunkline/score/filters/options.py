"""Options that filters share, checked."""

from __future__ import annotations

from trunkline.bounds import choice, shown
from trunkline.errors import ConfigError
from trunkline.types import Termination

__all__ = ["OVERLONG", "flag", "treatment"]

OVERLONG = frozenset({Termination.MAX_TOKENS, Termination.MAX_CONTEXT})
"""How rollouts end that a limit of length cut off."""


def flag(name: str, value: object) -> None:
    """Check an option that is true or false.

    Raises:
        ConfigError: It is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {shown(value)}")


def treatment(name: str, action: object, count_in_baseline: object) -> None:
    """Check what is done to a rollout that a filter finds.

    Raises:
        ConfigError: It can be masked or dropped, and nothing else.
    """
    choice(f"{name}: action", action, "mask", "drop")
    flag(f"{name}: count_in_baseline", count_in_baseline)
