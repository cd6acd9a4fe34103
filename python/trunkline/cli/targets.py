"""A team on the command line: ``--team NAME:OPTION=VALUE,...`` and ``--role NAME.FIELD=VALUE``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_type_hints

import msgspec

from trunkline.cli.named import make_named, read_value
from trunkline.cli.options import load_tools
from trunkline.errors import ConfigError
from trunkline.llm.dialects.catalog import DIALECTS
from trunkline.llm.request import Sampling
from trunkline.team.change import change
from trunkline.team.programs.catalog import TEAMS, find
from trunkline.team.role import Role
from trunkline.team.team import Team

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trunkline.tools.tool import Tool

__all__ = ["make_team"]

_SAMPLING: Final = "sampling."
_OF_CODE: Final = ("name", "slots", "reads")
"""Fields of a role that belong to the team's code, or are objects that have no name."""

_NOT_HERE: Final = {
    "program": "a team is a program: leave --program out",
    "system": "--system is for one agent; the roles of a team have theirs: --role NAME.system=TEXT",
    "dialect": "--dialect is for one agent; the roles of a team have theirs: --role NAME.dialect=VALUE",
    "malformed": "--malformed is for one agent's own loop, which a team does not have",
    "void": "--void is for one agent's own loop, which a team does not have",
    "environment": "--environment is for one agent's own loop, which a team does not have",
}
"""Options of one agent, and what to do about them where a team plays."""


def make_team(given: Mapping[str, Any], told: Collection[str], sampling: Sampling) -> Team:
    """Make the team that a command line describes.

    Args:
        given: Every option of the command and its value.
        told: Those that somebody wrote, so that their values are not just defaults.
        sampling: What the command line says of sampling: it holds for every role that says nothing else.

    Raises:
        ConfigError: Naming the option at fault, and what it can be.
    """
    for option, why in _NOT_HERE.items():
        if option in told:
            raise ConfigError(why)

    def beside(kind: type) -> dict[str, Any]:
        own: dict[str, Any] = {"model": given["model"]} | _tools(kind, given["tools"])
        return own | ({"max_turns": given["max_turns"]} if "max_turns" in told else {})

    made = make_named(given["team"], "--team", TEAMS, find, beside=lambda kind: {"roles": {}} | beside(kind))
    if not isinstance(made, Team):
        raise ConfigError(f"--team {given['team']!r}: {type(made).__name__} is no team; derive it from trunkline.Team")
    changes = {name: dict(fields) for name, fields in made.roles.items()}
    roles = type(made).own_roles()
    for name, role in roles.items():
        _fill(changes.setdefault(name, {}), role, sampling)
    _refuse_twice(given["role"])
    for text in given["role"]:
        _change(changes, roles, text)
    changed = {name: fields for name, fields in changes.items() if fields}
    return msgspec.structs.replace(made, **beside(type(made)), roles=changed)


def _tools(kind: type, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the setting of a team that its tools are: ``tools``, or ``tool`` where it takes one."""
    if not names or not issubclass(kind, Team):
        return {}
    tools: Sequence[Tool[..., Any]] = load_tools(names)
    takes = {field.name for field in msgspec.structs.fields(kind)}
    if "tools" in takes:
        return {"tools": tools}
    if "tool" not in takes:
        raise ConfigError(f"--tools: {kind.__name__} takes none; a role's own are --role NAME.tools=MODULE:ATTR")
    if len(tools) != 1:
        there = ", ".join(tool.name for tool in tools)
        raise ConfigError(f"--tools: {kind.__name__} takes one tool, as module:attribute, and not {there}")
    return {"tool": tools[0]}


def _fill(fields: dict[str, Any], role: Role, sampling: Sampling) -> None:
    """Add to the changes of a role what is said of sampling, where the role says nothing."""
    known = msgspec.convert(fields.get("sampling", role.sampling), Sampling, from_attributes=True)
    filled = {name: value for name, value in _said(sampling).items() if getattr(known, name) is None}
    if filled:
        fields["sampling"] = _said(known) | filled


def _said(sampling: Sampling) -> dict[str, Any]:
    """What sampling parameters say, as data."""
    return {name: value for name, value in msgspec.to_builtins(sampling).items() if value is not None}


def _refuse_twice(texts: Sequence[str]) -> None:
    """Refuse a field that is given two values."""
    seen: set[str] = set()
    for text in texts:
        field = text.partition("=")[0].strip()
        if field in seen:
            raise ConfigError(f"--role {text!r}: {field} is given twice")
        seen.add(field)


def _change(changes: dict[str, dict[str, Any]], roles: Mapping[str, Role], text: str) -> None:
    """Add ``NAME.FIELD=VALUE`` to the changes of roles.

    Raises:
        ConfigError: There is no such role or field, or the field cannot have the value.
    """
    where, equals, value = text.partition("=")
    name, dot, field = where.strip().partition(".")
    if not equals or not dot:
        raise ConfigError(f"--role {text!r}: write NAME.FIELD=VALUE, for example {next(iter(roles))}.model=NAME")
    if name not in roles:
        raise ConfigError(f"--role {text!r}: there is no role {name!r}; the roles are {', '.join(roles)}")
    fields = changes[name]
    if field.startswith(_SAMPLING):
        field = field.removeprefix(_SAMPLING)
        read = _value(text, field, value, get_type_hints(Sampling), _SAMPLING)
        known = fields.get("sampling", _said(roles[name].sampling))
        fields["sampling"] = msgspec.to_builtins(known) | {field: read}
    else:
        hints = {hint: kind for hint, kind in get_type_hints(Role).items() if hint not in (*_OF_CODE, "sampling")}
        fields[field] = _value(text, field, value, hints)
    _check(text, name, roles[name], fields)


def _value(text: str, field: str, value: str, hints: Mapping[str, Any], prefix: str = "") -> Any:
    """Read the value of a field."""
    if field not in hints:
        fields = [f"{prefix}{name}" for name in hints] + ([] if prefix else [f"{_SAMPLING}temperature and the like"])
        raise ConfigError(f"--role {text!r}: a role has no such field; those that can be given are {', '.join(fields)}")
    if field == "tools":
        return load_tools(tuple(value.split("/")), f"--role {text!r}: tools")
    if field == "dialect" and value not in DIALECTS:
        raise ConfigError(f"--role {text!r}: dialects are {', '.join(DIALECTS)}")
    return read_value(value, f"--role {text!r}: {field}", hints[field])


def _check(text: str, name: str, role: Role, fields: Mapping[str, Any]) -> None:
    """Refuse a value that a role cannot have."""
    try:
        change(name, role, fields)
    except ConfigError as problem:
        raise ConfigError(f"--role {text!r}: {problem}") from None
