"""Teams: several agents and a program over one rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline._internal.registry import Registry

if TYPE_CHECKING:
    from trunkline.team.team import Team


__all__ = ["TEAMS"]

TEAMS: Final[Registry[type[Team]]] = Registry(
    "team",
    {
        "experts": "trunkline.team.builtin:ExpertsTeam",
        "math": "trunkline.team.builtin:MathTeam",
        "search": "trunkline.team.builtin:SearchTeam",
    },
)
