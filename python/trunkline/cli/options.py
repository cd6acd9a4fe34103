"""Options that commands share, and values written as ``NAME:OPTION=VALUE,...``."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

import click
import msgspec

from trunkline._internal.registry import read_value
from trunkline._internal.text import describe_error, printable
from trunkline._internal.validation import did_you_mean, short_repr
from trunkline.errors import ConfigError
from trunkline.llm.pricing import Price, read_price
from trunkline.llm.request import Sampling
from trunkline.rollout.budget import Budget, read_budget
from trunkline.scoring.confidence import CONFIDENCES
from trunkline.scoring.rewards import REWARDS
from trunkline.scoring.rewards.reading import NONE
from trunkline.store.datasets.loader import is_hub
from trunkline.strategies.stopping import ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from trunkline.tree.views import Trajectory


_F = TypeVar("_F", bound="Callable[..., object]")


class FileCommand(click.Command):
    """A command that reads options from ``@FILE.toml``; those of the command line and the environment go first."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Say where the file stands."""
        return ["[@FILE.toml]", *super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the files that stand where arguments do, the later over the earlier."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        found, rest, _ = self.make_parser(ctx).parse_args(list(args))
        places = [found.get(param.name) for param in self.params if isinstance(param, click.Argument)]
        for text in (*places, *rest):
            if isinstance(text, str) and text.startswith("@"):
                args.remove(text)
                ctx.default_map = {**(ctx.default_map or {}), **_read_file(self, ctx, text)}
        return super().parse_args(ctx, args)


_CODE: Final = frozenset(
    ("tools", "environment", "before_tool", "rewards", "program", "team", "strategy", "dialect", "filters")
)
"""Options whose values may name a file of Python."""

_TABLES: Final = frozenset(("budget", "task_budget", "price", "field", "llms", "role", "set"))
"""Options whose values are ``NAME=VALUE``."""


def _read_file(command: click.Command, ctx: click.Context, text: str) -> dict[str, Any]:
    """The options that a file of TOML has, by the names of the command's parameters."""
    shown, file = printable(text), Path(text[1:])
    try:
        data = tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as problem:
        raise ConfigError(f"{shown} cannot be read: {problem.strerror or problem}") from None
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{shown} is no TOML: {printable(str(problem), 200)}") from None
    known = {
        name.lstrip("-"): param
        for param in command.params
        for name in ([str(param.name)] if isinstance(param, click.Argument) else param.opts)
        if isinstance(param, click.Argument) or name.startswith("--")
    }
    found: dict[str, Any] = {}
    for key, value in data.items():
        where = f"{shown}: {printable(key, 60)}"
        param = known.get(key.replace("_", "-"))
        if param is None:
            near = did_you_mean(key.replace("_", "-"), known)
            raise ConfigError(f"{where} is no option of {ctx.info_name}{near}; its names are those of --help")
        name = str(param.name)
        if name in found:
            raise ConfigError(f"{where} is a second name of an option that is there already: keep one")
        try:
            found[name] = _values_of(param, value, file.parent)
            param.type_cast_value(ctx, found[name])
        except (click.BadParameter, ConfigError, ValueError) as problem:  # the last: a number of thousands of digits
            raise ConfigError(f"{where}: {getattr(problem, 'message', problem)}") from None
    return found


def _values_of(param: click.Parameter, value: Any, folder: Path) -> Any:
    """A value of TOML as the command line has it; paths are relative to the folder."""
    if getattr(param, "is_flag", False):
        if not isinstance(value, bool):
            raise ConfigError("it takes true or false")
        return value
    if isinstance(value, dict):
        if param.name not in _TABLES:
            raise ConfigError("it takes no table; write its value as on the command line")
        listed = list(_pairs_of(value, "", as_json=param.name == "set"))
        split = not param.multiple or param.name == "field"
        if split and (held := next((pair for pair in listed if "," in pair), None)) is not None:
            raise ConfigError(f"{short_repr(held)} holds a comma, which stands between settings on the command line")
        return listed if param.multiple else ",".join(listed)
    if isinstance(value, list):
        if not param.multiple:
            raise ConfigError("it takes one value, and no list")
        return [_text_of(param, one, folder) for one in value]
    text = _text_of(param, value, folder)
    return [text] if param.multiple else text


def _pairs_of(table: Mapping[str, Any], before: str, *, as_json: bool) -> Iterator[str]:
    """Write a table as ``NAME=VALUE``; names of tables in it stand before a dot. As JSON, values may be any."""
    for key, value in table.items():
        name = before + key
        if isinstance(value, dict) and (not as_json or name in {"sampling", "sampling.extra"}):
            yield from _pairs_of(value, f"{name}.", as_json=as_json)
        elif as_json:
            try:
                yield f"{name}={json.dumps(value, allow_nan=False)}"
            except (TypeError, ValueError):
                raise ConfigError(f"{name} is {short_repr(value)}, which JSON cannot hold") from None
        else:
            yield f"{name}={_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{short_repr(value)} is neither text nor a number; write it as on the command line")
    return str(value)


def _text_of(param: click.Parameter, value: Any, folder: Path) -> str:
    """A value as text, with the folder before a relative path."""
    if isinstance(value, bool):
        raise ConfigError("it takes a value, and not true or false")
    text = _scalar(value)
    if isinstance(param.type, click.Path) and text not in {"", "-"}:
        path = folder / text
        return text if param.name == "questions" and not path.exists() and is_hub(text) else str(path)
    if param.name in _CODE and (code := re.match(r"[^:@]+\.py(?=[:@]|\Z)", text)):
        return str(folder / code[0]) + text[code.end() :]
    return text


class GroupedCommand(FileCommand):
    """A command whose help lists its options under titles: ``groups`` has the flags of each, in order."""

    def __init__(self, *given: Any, groups: Mapping[str, str], **options: Any) -> None:
        super().__init__(*given, **options)
        self._groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group; those of no group come last."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        left = {flag: option for option in options for flag in option.opts}
        for title, flags in (*self._groups.items(), ("Other options", " ".join(left))):
            chosen = [option for flag in flags.split() if (option := left.get(flag)) is not None]
            left = {flag: option for flag, option in left.items() if option not in chosen}
            rows = [row for option in dict.fromkeys(chosen) if (row := option.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


BASE_URL: Final = click.option(
    "--base-url", multiple=True, metavar="URL", help="Endpoint, up to /v1; repeatable.  [default: $OPENAI_BASE_URL]"
)
API_KEY_ENV: Final = click.option(
    "--api-key-env", default="OPENAI_API_KEY", show_default=True, metavar="NAME", help="Variable that holds the key."
)
TIMEOUT: Final = click.option(
    "--timeout", default=600.0, show_default=True, help="Seconds one attempt of a model call may take."
)
MAX_RETRIES: Final = click.option("--max-retries", default=5, show_default=True, help="Retries of a model call.")


class Threshold(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """How many rollouts may break: a count, or a share below 1."""

    name = "threshold"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a count nor a share", param, ctx)
        if not 0 <= number < math.inf or (number > 1 and number != int(number)):
            self.fail(f"{value!r} must be a share below 1, or a whole number", param, ctx)
        return number


class StopWhen(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """The condition on which a task stops: its answer is decided, or a reward is reached."""

    name = "stop-when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        """Read ``answer``, or a reward."""
        if value == ANSWER:
            return ANSWER
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither answer nor a reward", param, ctx)


class _Amounts(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A struct that is written ``NAME=NUMBER,...``."""

    def __init__(self, name: str, kind: type, read: Callable[[str], Any]) -> None:
        self.name = name
        self._kind = kind
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the numbers."""
        try:
            return value if isinstance(value, self._kind) else self._read(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


BUDGET: Final = _Amounts("budget", Budget, read_budget)
PRICE: Final = _Amounts("price", Price, read_price)

FAIL_ON_ERROR: Final = click.option(
    "--fail-on-error",
    type=Threshold(),
    metavar="N|0.x",
    default=0.0,
    help="Broken rollouts allowed: a count, or a share.  [default: 0]",
)


def run_path(out: str | None, label: str) -> Path:
    """The path of a run file: as given, or ``runs/TIME-LABEL.run``."""
    if out is not None:
        if not out:
            raise ConfigError("--out is empty; name a file")
        return Path(out)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    # Names sort by time, also those of one second.
    names = (f"{stamp}{'' if number == 1 else f'.{number}'}-{safe_name(label)}.run" for number in count(1))
    return next(path for name in names if not os.path.lexists(path := Path("runs") / name))


def safe_name(label: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")[:60] or "run"


def reward_option(*, default: str, required: bool = False) -> Callable[[Any], Any]:
    """The option of rewards; ``default`` is for the help."""
    return click.option(
        "--reward",
        "rewards",
        multiple=True,
        required=required,
        metavar="NAME[:OPTION=VALUE,...][@WEIGHT]",
        help=f"{REWARDS}, {NONE}, or your own as MODULE:ATTR; repeatable, for a weighted sum: "
        f"--reward f1@0.5 --reward exact_match@0.5{default and f'.  [default: {default}]'}",
    )


_SAMPLING: Final = {name: hint for name, hint in get_type_hints(Sampling).items() if name != "extra"}
_OF_SERVERS: Final = """
    bad_words chat_template_kwargs dry_multiplier grammar guided_choice guided_json guided_regex ignore_eos
    include_stop_str_in_output json_schema length_penalty logit_bias max_completion_tokens min_p min_tokens mirostat
    no_stop_trim parallel_tool_calls priority reasoning_effort regex repeat_penalty repetition_penalty response_format
    separate_reasoning service_tier skip_special_tokens spaces_between_special_tokens stop_token_ids structured_outputs
    tool_choice top_k typical_p verbosity xtc_probability
"""
_EXTRA: Final = frozenset(_OF_SERVERS.split())
"""Fields of a request's body that servers know beside those of ``Sampling``."""


def name_in_extra(name: str) -> str | None:
    """The name that a parameter, ``top_k`` or ``extra.any_name``, has in ``Sampling.extra``; None for all others."""
    return name if name in _EXTRA else name.removeprefix("extra.") if name.startswith("extra.") else None


def read_sampling(given: Iterable[str]) -> dict[str, Any]:
    """Read fields of ``Sampling`` written as ``sampling.NAME=VALUE``."""
    found: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for text in given:
        full, equals, value = text.partition("=")
        area, _, name = full.strip().partition(".")
        what = f"--set {short_repr(text)}"
        if not equals or not name or area != "sampling":
            raise ConfigError(f"{what}: write sampling.NAME=VALUE, for example --set sampling.top_k=20")
        if name.replace("-", "_") in _EXTRA.union(_SAMPLING):
            name = name.replace("-", "_")
        in_extra = name_in_extra(name)
        if name not in _SAMPLING and in_extra is None:
            near = did_you_mean(name, [*_SAMPLING, *sorted(_EXTRA)])
            raise ConfigError(
                f"{what}: {short_repr(name)} is no sampling parameter{near}; "
                f"a field of the request's body with another name is written sampling.extra.{printable(name, 40)}=VALUE"
            )
        if name in found or in_extra in extra:
            raise ConfigError(f"{what}: sampling.{name} is given twice")
        if in_extra is not None:
            extra[in_extra] = json_or_text(value)
        elif name == "stop":
            several = json_or_text(value)
            found[name] = (
                tuple(several) if isinstance(several, list) else (several if isinstance(several, str) else value,)
            )
        else:
            found[name] = read_value(value, f"--set sampling.{name}", _SAMPLING[name])
    return found | ({"extra": extra} if extra else {})


def json_or_text(text: str) -> Any:
    """The value that a text holds as JSON, else the text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def read_confidence(given: str) -> Callable[[Trajectory], float]:
    """Make the function that says how sure a rollout is: a name of ``CONFIDENCES``, or ``MODULE:FUNCTION``.

    Raises:
        ConfigError: The function does not exist or cannot be called; later, if it fails or returns no number.
    """
    found: Any = CONFIDENCES.make(given, "--confidence")
    if not callable(found):
        raise ConfigError(f"--confidence {given!r}: it is no function of a rollout")

    def sure(rollout: Trajectory) -> float:
        try:
            return float(found(rollout))
        except Exception as problem:
            raise ConfigError(f"--confidence {given}: {describe_error(problem)}") from problem

    return sure


_AGENT_OPTIONS: Final = (
    click.option(
        "--agent",
        metavar="COMMAND",
        help="An agent of any framework, started for each try: its model calls come to OPENAI_BASE_URL or "
        "ANTHROPIC_BASE_URL, the question on standard input, or for {question} in COMMAND. Or python:MODULE:FUNCTION.",
    ),
    click.option(
        "--effects",
        type=click.Choice(["none", "folder", "external"]),
        help="What the tools of an agent, or of MCP servers, change: none or its own folder, so that it may be started "
        "again for forks and after a kill; or external.  [default: external]",
    ),
    click.option(
        "--mask",
        "masks",
        multiple=True,
        metavar="REGEX",
        help="What may differ in the agent's requests when it is started again; repeatable.",
    ),
    click.option(
        "--on-divergence",
        type=click.Choice(["fail", "branch", "count"]),
        help="A try whose agent, started again, asks something else fails, or is continued from there as a new try, "
        "which is not scored (branch) or counts as others do (count).  [default: fail]",
    ),
    click.option(
        "--agent-env", multiple=True, metavar="NAME[=VALUE]", help="A variable that the agent gets; repeatable."
    ),
    click.option("--agent-folder", type=click.Path(), help="A folder that is copied into the agent's own each time."),
    click.option(
        "--agent-answer",
        metavar="stdout|last|file:NAME",
        help="Where the agent's answer is: its output, its last reply, or a file in its folder.  [default: stdout]",
    ),
    click.option(
        "--agent-network",
        type=click.Choice(["all", "none"]),
        help="What the agent reaches: all, or the model endpoint alone.  [default: all]",
    ),
    click.option("--agent-seconds", type=float, help="Seconds that a start may take.  [default: 600]"),
    click.option("--agent-memory", type=int, metavar="BYTES", help="Memory of its processes.  [default: 4 GiB]"),
)

AGENT_OPTION_NAMES: Final = (
    "--agent --effects --mask --on-divergence --agent-env --agent-folder --agent-answer --agent-network "
    "--agent-seconds --agent-memory"
)


def agent_options(command: _F) -> _F:
    """Add the options of an agent of another framework."""
    for option in reversed(_AGENT_OPTIONS):
        command = option(command)
    return command
