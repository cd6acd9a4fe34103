"""Teams (``trunkline.teams``): several agents and a program over one rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline._internal.exports import exports
from trunkline._internal.registry import Registry

if TYPE_CHECKING:
    from trunkline.team.builtin import ExpertsTeam, MathTeam, SearchTeam
    from trunkline.team.projection import Boxed, Reader, Reading, Tag, Whole
    from trunkline.team.role import Role
    from trunkline.team.team import RoleReply, Team, TeamPlay

__all__ = [
    "TEAMS",
    "Boxed",
    "ExpertsTeam",
    "MathTeam",
    "Reader",
    "Reading",
    "Role",
    "RoleReply",
    "SearchTeam",
    "Tag",
    "Team",
    "TeamPlay",
    "Whole",
]

__getattr__ = exports(
    __name__,
    """
team.builtin: ExpertsTeam MathTeam SearchTeam
team.projection: Boxed Reader Reading Tag Whole
team.role: Role
team.team: RoleReply Team TeamPlay
""",
)

TEAMS: Final[Registry[type[Team]]] = Registry(
    "team",
    {
        "experts": "trunkline.team.builtin:ExpertsTeam",
        "math": "trunkline.team.builtin:MathTeam",
        "search": "trunkline.team.builtin:SearchTeam",
    },
)
"""Teams by name: iterating gives the names of the command line, ``TEAMS.find(name)`` its class."""
