"""The teams there are, by the names that command lines know them by."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trunkline.team.team import Team

__all__ = ["TEAMS", "find"]

TEAMS: Final = {
    "experts": "experts:ExpertsTeam",
    "math": "math:MathTeam",
    "search": "search:SearchTeam",
}
"""For each name its module here and its class."""


def find(name: str) -> type[Team]:
    """Return the class of a team.

    Raises:
        KeyError: There is none of that name.
    """
    module, _, kind = TEAMS[name].partition(":")
    found: type[Team] = getattr(importlib.import_module(f"trunkline.team.programs.{module}"), kind)
    return found
