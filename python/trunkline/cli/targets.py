"""LLMs, teams, agents and the run file that options of the command line name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import click
import msgspec

from trunkline._internal.registry import read_value
from trunkline._internal.text import printable
from trunkline._internal.validation import short_repr
from trunkline.cli.options import json_or_text, name_in_extra, run_path, safe_name
from trunkline.errors import ConfigError, DamagedRunFile, RunFileError
from trunkline.llm.config import LLM
from trunkline.llm.dialects.builtin import DIALECTS
from trunkline.llm.pricing import check_name, read_price, there_is
from trunkline.llm.request import Sampling
from trunkline.llm.types import Limits
from trunkline.runner.resume import ResumableRun
from trunkline.team import TEAMS
from trunkline.team.role import Role
from trunkline.team.team import GUIDE_NAMES, Team, change
from trunkline.tools.tool import load_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from trunkline.rollout.external.config import External
    from trunkline.rollout.external.verifiers import VerifiersEnvironment
    from trunkline.tools.tool import Tool


HELP: Final = (
    "One more LLM, which roles name by llm; repeatable. Options: api_key_env, max_concurrency, timeout, max_retries, "
    "rpm, tpm, tokens, and the price as prompt, generated, cached."
)

_RATES: Final = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
_PRICES: Final = ("prompt", "generated", "cached")
_FIELDS: Final = {"api_key_env": str, "max_concurrency": int, "timeout": float, "max_retries": int, "tokens": str}


def read_llms(given: Iterable[str], usual: Mapping[str, Any]) -> dict[str, LLM]:
    """Make the LLMs that ``--llm`` names."""
    made: dict[str, LLM] = {}
    for name, (urls, options) in _parts(given).items():
        try:
            fields, rates = _fields(options)
            made[name] = LLM(*urls, **{**usual, **fields}, limits=Limits(**rates))
        except ConfigError as problem:
            raise ConfigError(f"--llm {name}: {problem}") from None
    return made


def changed_llms(there: Mapping[str, LLM], given: Iterable[str]) -> dict[str, LLM]:
    """The LLMs of a run with the changes that ``--llm`` names; a URL replaces all earlier ones."""
    made = dict(there)
    for name, (urls, options) in _parts(given).items():
        if name not in there:
            raise ConfigError(f"--llm {name}: the run has no such LLM, but {there_is(there)}")
        try:
            fields, rates = _fields(options)
            if rates:
                fields["limits"] = msgspec.structs.replace(there[name].limits, **rates)
            if urls:
                fields["base_urls"] = urls
            made[name] = msgspec.structs.replace(there[name], **fields)
        except ConfigError as problem:
            raise ConfigError(f"--llm {name}: {problem}") from None
    return made


def _parts(given: Iterable[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for one in given:
        name, equals, rest = one.partition("=")
        if not equals or not name:
            raise ConfigError(f"--llm {short_repr(one)}: write NAME=URL, or NAME=URL,max_concurrency=8,...")
        check_name("--llm: NAME", name)
        url, *options = rest.split(",")
        urls, others = found.get(name, ((), ()))
        found[name] = (*urls, *([url] if url else [])), (*others, *options)
    return found


def _fields(options: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read options into fields of an LLM, and rates."""
    fields: dict[str, Any] = {}
    rates: dict[str, Any] = {}
    prices: list[str] = []
    for option in options:
        key, _, value = option.partition("=")
        if key in fields or _RATES.get(key) in rates:
            raise ConfigError(f"option {key} is given twice")
        if key in _PRICES:
            prices.append(option)
        elif key in _RATES:
            rates[_RATES[key]] = _number(key, value, float)
        elif key in _FIELDS:
            fields[key] = _number(key, value, _FIELDS[key])
        else:
            there = ", ".join((*_FIELDS, *_RATES, *_PRICES))
            raise ConfigError(f"{short_repr(option)} is no option=value that it knows; there is {there}")
    if prices:
        fields["price"] = read_price(",".join(prices))
    return fields, rates


def _number(key: str, value: str, kind: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{key} must be a number, not {short_repr(value)}") from None


_SAMPLING: Final = "sampling."
_OF_CODE: Final = ("name", "slots", "reads")
"""Fields of a role that belong to the team's code, or are objects that have no name."""

_NOT_HERE: Final = {
    "program": "a team is a program: leave --program out",
    "system": "--system is for one agent; the roles of a team have theirs: --role NAME.system=TEXT",
    "dialect": "--dialect is for one agent; the roles of a team have theirs: --role NAME.dialect=VALUE",
    "malformed": "--malformed is for one agent's own loop, which a team does not have",
    "on_void_turn": "--on-void-turn is for one agent's own loop, which a team does not have",
}
"""Options of one agent, and what to do about them where a team plays."""


def make_team(given: Mapping[str, Any], told: Collection[str], sampling: Sampling) -> Team:
    """Make the team that a command line describes."""
    for option, why in _NOT_HERE.items():
        if option in told:
            raise ConfigError(why)

    def beside(kind: type) -> dict[str, Any]:
        own: dict[str, Any] = {"model": given["model"]} | _tools(kind, given["tools"])
        for option in ("max_turns", "environment"):
            if option in told:
                own[option] = given[option]
        return own

    made = TEAMS.make(given["team"], "--team", lambda kind: {"roles": {}} | beside(kind), _guide_names)
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


def _guide_names(kind: type) -> dict[str, Any]:
    """Names of the guide to multi-agent rollouts, which a team takes too."""
    return {**dict.fromkeys(GUIDE_NAMES, bool), "performance": str} if issubclass(kind, Team) else {}


def _tools(kind: type, names: tuple[str, ...]) -> dict[str, Any]:
    """The setting of a team that takes the tools: ``tools``, or ``tool`` where it takes one."""
    if not names or not issubclass(kind, Team):
        return {}
    tools: Sequence[Tool[..., Any]] = load_tools(names, "--tools")
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
    """Add the command line's sampling to a role where the role sets nothing."""
    known = msgspec.convert(fields.get("sampling", role.sampling), Sampling, from_attributes=True)
    filled = {name: value for name, value in _sampling_fields(sampling).items() if getattr(known, name) is None}
    if sampling.extra:
        filled["extra"] = sampling.extra | known.extra
    if filled:
        fields["sampling"] = _sampling_fields(known) | filled


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(sampling).items() if value is not None}


def _refuse_twice(texts: Sequence[str]) -> None:
    seen: set[str] = set()
    for text in texts:
        field = text.partition("=")[0].strip()
        if field in seen:
            raise ConfigError(f"--role {text!r}: {field} is given twice")
        seen.add(field)


def _change(changes: dict[str, dict[str, Any]], roles: Mapping[str, Role], text: str) -> None:
    """Add ``NAME.FIELD=VALUE`` to the changes of roles."""
    where, equals, value = text.partition("=")
    name, dot, field = where.strip().partition(".")
    if not equals or not dot:
        raise ConfigError(f"--role {text!r}: write NAME.FIELD=VALUE, for example {next(iter(roles))}.model=NAME")
    if name not in roles:
        raise ConfigError(f"--role {text!r}: there is no role {name!r}; the roles are {', '.join(roles)}")
    fields = changes[name]
    if field.startswith(_SAMPLING):
        field = field.removeprefix(_SAMPLING)
        known = msgspec.to_builtins(fields.get("sampling", _sampling_fields(roles[name].sampling)))
        if (in_extra := name_in_extra(field)) is not None:
            read: Any = known.get("extra", {}) | {in_extra: json_or_text(value)}
            field = "extra"
        else:
            read = _value(text, field, value, get_type_hints(Sampling), _SAMPLING)
        fields["sampling"] = known | {field: read}
    else:
        hints = {hint: kind for hint, kind in get_type_hints(Role).items() if hint not in (*_OF_CODE, "sampling")}
        fields[field] = _value(text, field, value, hints)
    try:
        change(name, roles[name], fields)
    except ConfigError as problem:
        raise ConfigError(f"--role {text!r}: {problem}") from None


def _value(text: str, field: str, value: str, hints: Mapping[str, Any], prefix: str = "") -> Any:
    if field not in hints:
        fields = [f"{prefix}{name}" for name in hints] + ([] if prefix else [f"{_SAMPLING}temperature and the like"])
        raise ConfigError(f"--role {text!r}: a role has no such field; those that can be given are {', '.join(fields)}")
    if field == "tools":
        return load_tools(value.split("/"), f"--role {text!r}: tools")
    if field == "dialect" and value not in DIALECTS:
        raise ConfigError(f"--role {text!r}: dialects are {DIALECTS}")
    return read_value(value, f"--role {text!r}: {field}", hints[field])


_OVER = {"done", "exhausted"}
_MODEL = 50  # characters of a model's name in that of a file, which end before the fingerprint is cut off


def find_run(out: str | None, model: str, fingerprints: Callable[[], list[str]], *, fresh: bool) -> tuple[Path, bool]:
    """The path of the run file, and whether to resume it if it exists.

    Without a name, that is the newest run in ``runs`` that was asked to do the same and is not finished.
    """
    if out is not None:
        return run_path(out, model), not fresh
    labels = [f"{safe_name(model)[:_MODEL]}-{found}" for found in fingerprints()]
    return (None if fresh else _newest(labels)) or run_path(None, labels[0]), not fresh


def run_file_status(path: Path, *, resume: bool, forced: bool = False, again: str | None = None) -> str:
    """A line that says whether a run begins, resumes or is finished, and which tries it asks ``again``."""
    there = ResumableRun.at(path, partial=forced) if resume else None
    name = printable(str(path))
    if there is None:
        return f"begins {name}"
    done = f"{there.finished:,} of {there.size:,} tasks are finished"
    if again is not None:
        done += f"; asks again {again}" if again else "; there is no such try to ask again"
    return f"{'finished' if there.state in _OVER and not again else 'resumes'} {name}: {done}"


def _newest(labels: list[str]) -> Path | None:
    """The newest unfinished run with one of these labels."""
    for path in sorted((path for label in labels for path in Path("runs").glob(f"*-{label}.run")), reverse=True):
        try:
            there = ResumableRun.at(path)
        except DamagedRunFile as problem:
            raise DamagedRunFile(f"{problem}; --fresh begins anew without it") from None
        except RunFileError:
            continue
        if there is not None and there.state not in _OVER:
            return path
    return None


_BROUGHT: Final = {
    "continue_from": "--from",
    "field": "--field",
    "rewards": "--reward",
    "agent": "--agent",
    "program": "--program",
    "team": "--team",
}
"""Options beside which an environment of verifiers cannot stand."""


def make_verifiers(given: Mapping[str, Any], questions: str | None) -> VerifiersEnvironment | None:
    """Return the environment of verifiers that a command line names; None where it names none.

    Raises:
        click.UsageError: Something that it brings is given beside it.
        ConfigError: It cannot be made, or run.
    """
    if given["verifiers"] is None:
        return None
    beside = {"QUESTIONS": questions} | {option: given[name] for name, option in _BROUGHT.items()}
    beside |= {f"--agent-{name}": given[f"agent_{name}"] for name in (*_OF_PROCESS, "env")}
    for option, value in beside.items():
        if value:
            raise click.UsageError(f"--verifiers and {option}: an environment brings its own; leave {option} out")
    from trunkline.rollout.external.verifiers import from_verifiers

    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    effects = given["effects"] or "external"
    return from_verifiers(given["verifiers"], limit=given["limit"], effects=effects, masks=given["masks"])


_OF_PROCESS: Final = ("folder", "answer", "network", "seconds", "memory")
"""Options of the process, which are called ``--agent-NAME``."""


def make_external(given: Mapping[str, Any]) -> External | None:
    """Return the agent that a command line describes; None where it names none.

    Raises:
        click.UsageError: An option of the agent stands without it, or beside another program.
        ConfigError: An option has a value that it cannot have.
    """
    process = {name: given[f"agent_{name}"] for name in _OF_PROCESS if given[f"agent_{name}"] is not None}
    if given["agent_env"]:
        process["env"] = given["agent_env"]
    if given["agent"] is None:
        for option, value in (("--effects", given["effects"]), ("--mask", given["masks"])):
            if value:
                raise click.UsageError(f"{option} is of an agent of another framework: name it with --agent")
        if process:
            raise click.UsageError(f"--agent-{next(iter(process))} is of an agent: name it with --agent")
        return None
    for other in ("program", "team"):
        if given[other] is not None:
            raise click.UsageError(f"--agent and --{other}: a try is played by one of them")
    from trunkline.rollout.external.config import External

    return External(agent=given["agent"], effects=given["effects"] or "external", masks=given["masks"], process=process)
