"""Teams: several agents and a program over one rollout."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trunkline.team.team import Team


__all__ = ["TEAMS", "find"]


TEAMS: Final = {
    "experts": "builtin:ExpertsTeam",
    "math": "builtin:MathTeam",
    "search": "builtin:SearchTeam",
}
"""For each name its module here and its class."""


def find(name: str) -> type[Team]:
    """Return the class of a team.

    Raises:
        KeyError: There is none of that name.
    """
    module, _, kind = TEAMS[name].partition(":")
    found: type[Team] = getattr(importlib.import_module(f"trunkline.team.{module}"), kind)
    return found
