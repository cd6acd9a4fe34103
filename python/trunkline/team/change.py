"""Changes of a role: what whoever uses a team may set of it, without a class of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.bounds import shown
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from trunkline.team.role import Role

__all__ = ["change", "check_changes"]

_OF_CODE: Final = ("name", "slots", "reads")
"""Fields that belong to the team's code: its program knows them."""


def check_changes(team: str, changes: object, roles: Mapping[str, Role]) -> None:
    """Refuse what is no changes of a team's roles.

    Args:
        team: What the team is called, for the message.
        changes: What was given.
        roles: The roles it has.

    Raises:
        ConfigError: It is no mapping of roles to fields, or names a role that is none.
    """
    if not isinstance(changes, Mapping):
        raise ConfigError(f"roles must be fields by roles, such as {{'{next(iter(roles))}': {{'model': 'large'}}}}")
    for name, fields in changes.items():
        if name not in roles:
            raise ConfigError(f"roles has {shown(name)}; the roles of {team} are {', '.join(roles)}")
        if not isinstance(fields, Mapping):
            raise ConfigError(f"roles: {name} must be fields, such as {{'model': 'large'}}, not {shown(fields)}")


def change(name: str, role: Role, fields: Mapping[str, Any]) -> Role:
    """Return a role with some of its fields changed.

    Args:
        name: Its name, for messages.
        role: The role.
        fields: New values by their fields; ``sampling`` may be fields of :class:`trunkline.Sampling`.

    Raises:
        ConfigError: A field is none, cannot be changed, or cannot have that value.
    """
    known = role.__struct_fields__
    for field in fields:
        if field in _OF_CODE:
            raise ConfigError(f"roles: {name}: {field} belongs to the team's code: give it in a team of your own")
        if field not in known:
            there = ", ".join(one for one in known if one not in _OF_CODE)
            raise ConfigError(f"roles: {name} has {shown(field)}, which is none of {there}")
    if not isinstance(fields.get("dialect", ""), str):
        raise ConfigError(f"roles: {name}: dialect must be a name here: give an object in a team of your own")
    given = dict(fields)
    try:
        if isinstance(sampling := given.get("sampling"), Mapping):
            given["sampling"] = msgspec.convert(sampling, type(role.sampling))
        return msgspec.structs.replace(role, **given)
    except (ConfigError, msgspec.ValidationError) as problem:
        raise ConfigError(f"roles: {name}: {problem}") from None
