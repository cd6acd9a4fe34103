"""Pages of the reference that are made from the code: the command line, the errors, the names of the API.

``python tests/support/generated_pages.py`` writes them; a test compares them with what is there.
"""

from __future__ import annotations

import html
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent))

import error_index
from places import ROOT

import trunkline as tl
from trunkline.cli.app import app
from trunkline.sim.server.options import option_parser

REFERENCE = ROOT / "docs" / "reference"
DECISIONS = ROOT / "docs" / "decisions"
_ADAPTERS = ("torch", "trl", "verl", "skyrl", "verifiers", "prime")
_MADE = "<!-- Made by tests/support/generated_pages.py. -->"

_DATES = re.compile(r"^\*(?:Decided|Measured) (\d{4}-\d\d-\d\d)(?:; last changed (\d{4}-\d\d-\d\d))?\b", re.MULTILINE)
_ABOUT_ERRORS = """\
Every error that reaches a caller is a class of `tl.errors`. `tl.runs.Interrupted` alone is a `KeyboardInterrupt`, and
an argument that does not exist, or whose type cannot be, is Python's own `TypeError`. A message says what is wrong, the
value, and what to do. In the lists below … stands for a value. What the core says is made of parts, such as what is
given and what is needed, and the parts are listed.
"""

_ADVICE = {
    "TrunklineError": "Catch it to catch all of them.",
    "UsageError": "Change the call; nothing was run.",
    "InputError": "Mend the line of the file that the message names.",
    "ConfigError": "Change the option or setting that the message names.",
    "CrossingError": "Define it at the top level of a module, or give `workers=0`.",
    "RunFileError": "Name another file, or the version that wrote it.",
    "DamagedRunFile": "`trunkline recover RUN OUT` salvages what is whole.",
    "InfrastructureError": "Mend the endpoint, disk or machine, then `trunkline resume RUN`.",
    "EndpointError": "Check key, model name, quota and address, then resume.",
    "WorkerError": "Read the worker's last lines of log, which the message has, then resume.",
    "StrategyError": "Mend the strategy: the message names its callback.",
    "RunFailed": "`error.run` has the run; raise `fail_on_error` or ask the broken tries again.",
    "RolloutError": "`trajectory.error` has it; `trunkline show RUN --errors` lists them.",
    "LLMError": "The attempts are in the failure; `trunkline resume RUN --retry broken` asks again.",
    "BadRequest": "Change what is sent: sampling parameters, tools, dialect.",
    "ContextTooLong": "Shorten prompts or tool results, or give the model more context.",
    "ContentFiltered": "Nothing to retry; filter such tasks.",
    "ToolError": "Raise it in a tool to tell the model what it did wrong.",
    "EnvironmentFailed": "Mend the method of the environment that the message names.",
    "BeforeToolFailed": "Mend the hook given as `before_tool`.",
    "ForkRefused": "Give the environment a snapshot, or use a strategy that forks elsewhere.",
    "ProgramError": "Mend the program: see [programs](../how-to/programs.md).",
    "ReplayDiverged": "Make the program do the same when it is run again over its record.",
    "CallFailed": "Mend the function that the program called through `rollout.call`.",
    "UnknownEffect": "Look at the outside world, then ask the try again with `--retry`.",
    "CoreError": "Raised by the native core; the subclasses say by what.",
    "TreeError": "An id or an operation that the tree does not allow.",
    "ArgumentError": "Change the number, option or column that the message names.",
    "ReplyError": "The bytes are no chat completion; the message says where.",
    "BrokenRolloutsWarning": "A warning; `trunkline show RUN --errors` says which and why.",
}


def makers() -> dict[Path, Callable[[], str]]:
    """What makes the text of each page, by its path."""
    groups = [name for name in tl.__all__ if isinstance(getattr(tl, name), ModuleType)]
    pages = {REFERENCE / "cli.md": _command_line, REFERENCE / "errors.md": _errors}
    pages[DECISIONS / "index.md"] = _decisions
    pages[REFERENCE / "api" / "trunkline.md"] = partial(_api_of_all, groups)
    pages[REFERENCE / "api" / "compat.md"] = _api_of_compat
    return pages | {REFERENCE / "api" / f"{group}.md": partial(_api_of, group) for group in groups}


def _api_of_all(groups: list[str]) -> str:
    intro = "What a first program needs. Groups of further names:\n\n"
    intro += "".join(f"* [`tl.{group}`]({group}.md): {_first_line(getattr(tl, group))}\n" for group in groups)
    names = [name for name in tl.__all__ if name not in groups and name != "__version__"]
    return _api("trunkline", intro, "trunkline", names)


def _api_of(group: str) -> str:
    module = getattr(tl, group)
    names = [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
    text = _api(f"tl.{group}", _first_line(module) + "\n", f"trunkline.{group}", names)
    return text + _adapters() if group == "train" else text


def _api_of_compat() -> str:
    module = importlib.import_module("trunkline.compat")
    return _api("trunkline.compat", _first_line(module) + "\n", "trunkline.compat", module.__all__)


def _adapters() -> str:
    """Public names of the modules for trainers, which are imported by their own names."""
    text = "\nModules for frameworks, each imported by its own name:\n"
    for adapter in _ADAPTERS:
        module = importlib.import_module(f"trunkline.train.{adapter}")
        for name, one in vars(module).items():
            if not name.startswith("_") and getattr(one, "__module__", "") == module.__name__:
                text += f"\n::: {module.__name__}.{name}\n    options:\n      show_root_full_path: true\n"
    return text


def public_names() -> Iterator[str]:
    """Each public name as its anchor on the site."""
    for page, maker in makers().items():
        if page.parent.name == "api":
            yield from re.findall(r"^::: (\S+)$", maker(), re.MULTILINE)


def _first_line(module: ModuleType) -> str:
    text = inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    return text.replace("``", "`")


def _api(title: str, intro: str, module: str, names: list[str]) -> str:
    head = f"# {title}\n\n{_MADE}\n\n{intro}"
    return head + "".join(f"\n::: {_where(module, name)}\n" for name in names)


def _where(module: str, name: str) -> str:
    """The path of a name, behind that of its module where this has the same name."""
    homonym = Path(tl.__file__).parent.joinpath(*module.split(".")[1:], f"{name}.py").exists()
    return f"{module}.{name}.{name}" if homonym else f"{module}.{name}"


def _errors() -> str:
    errors = importlib.import_module("trunkline.errors")
    tree = inspect.cleandoc(errors.__doc__ or "").partition("\n\n")[2]
    text = [
        "# Errors and exit codes\n",
        _MADE + "\n",
        _ABOUT_ERRORS,
        "## Exit codes of the command line\n",
        "```text\n" + inspect.cleandoc((app.epilog or "").replace("\b", "")).partition("\n")[2] + "\n```\n",
        "## Classes\n",
        "```text\n" + tree.rstrip() + "\n```\n",
        "| class | exit code | what to do |\n| --- | --- | --- |",
    ]
    for name, one in inspect.getmembers(errors, inspect.isclass):
        if name in errors.__all__:
            code = getattr(one, "exit_code", None)
            text.append(f"| `{name}` | {'' if code is None else code} | {_ADVICE[name]} |")
    text.append("\n## Messages\n")
    for name, found in groupby(error_index.messages(), lambda message: message.error):
        text.append(f"### {name}\n")
        for room, inside in groupby(found, lambda message: message.room):
            text.append(f"In `{room}`:\n")
            text.extend(f"* {_escaped(message.text)}" for message in inside)
            text.append("")
    return "\n".join(text).rstrip() + "\n"


def _escaped(text: str) -> str:
    """A message as code of one line."""
    line = re.sub(r"\s+", " ", text).strip()
    ticks = "``" if "`" in line else "`"
    return f"{ticks}{' ' if ticks == '``' else ''}{line}{' ' if ticks == '``' else ''}{ticks}"


def _decisions() -> str:
    text = [
        "# Decisions\n",
        _MADE + "\n",
        "What was decided, what was rejected and why, and the figures that were measured, a page each.\n",
        "| decision | decided | last changed |\n| --- | --- | --- |",
    ]
    for page in sorted(DECISIONS.glob("*.md")):
        if page.name != "index.md":
            title, _, rest = page.read_text("utf-8").partition("\n")
            dates = _DATES.search(rest)
            assert dates, f"{page}: the line under the title must be *Decided DATE; last changed DATE. ...*"
            text.append(f"| [{title.removeprefix('# ')}]({page.name}) | {dates[1]} | {dates[2] or dates[1]} |")
    return "\n".join(text) + "\n"


def _command_line() -> str:
    text = ["# Command line\n", _MADE + "\n", inspect.cleandoc(app.help or "").replace("\n\n", "\n\n") + "\n"]
    names = app.context_settings.get("help_option_names")
    context = click.Context(app, info_name="trunkline", terminal_width=100, help_option_names=names)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        text += _of_command(command, click.Context(command, parent=context, info_name=name), f"trunkline {name}")
    text.append("## Exit codes\n\nThey are with the [errors](errors.md).")
    return "\n".join(text) + "\n"


def _of_command(command: click.Command, context: click.Context, path: str) -> Iterator[str]:
    yield f"## {path}\n"
    if command.name == "serve":
        yield f"```text\n{option_parser('trunkline sim serve').format_help().rstrip()}\n```\n"
        return
    yield f"```text\n{command.get_usage(context)}\n```\n"
    formatter = _Tables()
    command._help_option = None  # click keeps that of the first context, which in tests may be one without -h
    command.format_help_text(context, formatter)
    command.format_options(context, formatter)
    command.format_epilog(context, formatter)
    yield formatter.text()
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _of_command(inner, click.Context(inner, parent=context, info_name=name), f"{path} {name}")


class _Tables(click.HelpFormatter):
    """Help as Markdown: paragraphs, and a table for each list of options."""

    def __init__(self) -> None:
        super().__init__(width=10_000, max_width=10_000)
        self._parts: list[str] = []

    def text(self) -> str:
        return "\n".join(self._parts)

    def write_text(self, text: str) -> None:
        for paragraph in inspect.cleandoc(text).split("\n\n"):
            kept = paragraph.startswith("\b")
            plain = paragraph.removeprefix("\b").strip("\n")
            self._parts.append(f"```text\n{plain}\n```\n" if kept else _prose(plain) + "\n")

    def write_heading(self, heading: str) -> None:
        self._parts.append(f"**{heading}**\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 0, col_spacing: int = 0) -> None:
        self._parts.append("| | |\n| --- | --- |")
        self._parts.extend(f"| {_cell(name)} | {_prose(text)} |" for name, text in rows)
        self._parts.append("")


def _cell(name: str) -> str:
    """An option as code in a table, whose cells end at a bar even there."""
    return f"<code>{_prose(name)}</code>"


def _prose(text: str) -> str:
    """A line of help as Markdown, in which nothing is markup."""
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"[\\`*_\[\]|]", lambda sign: f"&#{ord(sign[0])};", line)


def not_rendered(site: Path) -> list[str]:
    """Public names without an anchor of their own on the built site."""
    texts = "".join(page.read_text("utf-8") for page in (site / "reference" / "api").rglob("index.html"))
    return [name for name in public_names() if f'id="{name}"' not in texts]


def _named(name: str) -> Any:
    module, _, own = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), own)
    except ModuleNotFoundError:
        return getattr(getattr(tl, module.rpartition(".")[2]), own)


def strange_parameters(site: Path) -> list[str]:
    """Parameters on the built site that a class of fields does not have; those with a signature of their own apart."""
    texts = "".join(page.read_text("utf-8") for page in (site / "reference" / "api").rglob("index.html"))
    found = []
    for name in public_names():
        one = _named(name)
        if not hasattr(one, "__struct_fields__") or "def __init__" in inspect.getsource(one):
            continue
        shown = texts.partition(f'id="{name}"')[2].partition("</pre>")[0].rpartition("<pre>")[2]
        # On several lines where a formatter is installed.
        signature = " ".join(html.unescape(re.sub("<[^>]+>", "", shown)).split()).partition("(")[2].lstrip()
        # As a call, since what is wrong need not make a signature.
        names = re.findall(r"(?:^|, )(\w+)(?=[:=])", re.sub(r"\[.*?\](?=[,\s)|])|(?<==).\{.*?\}", "", signature))
        found += [f"{name}({word}=)" for word in sorted({*names} ^ {*inspect.signature(one).parameters})]
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rendered"]:
        if missing := not_rendered(Path(sys.argv[2])):
            sys.exit(f"these public names are not on the site: {', '.join(missing)}")
        if strange := strange_parameters(Path(sys.argv[2])):
            sys.exit(f"these parameters are only on the site, or only in the code: {', '.join(strange[:20])}")
    else:
        for path, maker in makers().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(maker(), "utf-8")
