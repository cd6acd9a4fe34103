"""Rewards by name, as the command line knows them; each is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

from trunkline.errors import ConfigError

__all__ = ["REWARDS", "Home", "find"]


class Home(NamedTuple):
    """Where a reward is found.

    Attributes:
        module: Its module.
        plain: The reward, or its class.
        options: The class that takes options, where the plain one is a function.
    """

    module: str
    plain: str
    options: str = ""


_AT: Final = "trunkline.score.rewards."

REWARDS: Final[dict[str, Home]] = {
    "exact_match": Home(_AT + "matching", "exact_match"),
    "contains": Home(_AT + "matching", "contains"),
    "numeric_match": Home(_AT + "matching", "numeric_match", "Numeric"),
    "f1": Home(_AT + "f1", "F1"),
    "choice": Home(_AT + "choice", "Choice"),
    "maths": Home(_AT + "maths", "Maths"),
    "judge": Home(_AT + "judge", "Judge"),
    "code": Home(_AT + "code", "Code"),
}
"""Where rewards are found, by what they are called."""


def find(name: str, *, options: bool = False) -> Any:
    """Return the reward of a name, or its class.

    Args:
        name: One of ``REWARDS``.
        options: Whether it is to take options, so that a function's class is wanted.

    Raises:
        ConfigError: It cannot be imported.
    """
    home = REWARDS[name]
    try:
        return getattr(importlib.import_module(home.module), (options and home.options) or home.plain)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"reward {name} cannot be imported: {problem}") from problem
