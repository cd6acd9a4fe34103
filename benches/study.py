"""Strategies and aggregators compared on the embedded simulator: ``python benches/study.py``; no key, no network."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from studies.study import FIRST_WORLD
from trunkline._internal.text import printable
from trunkline.cli.app import run_app
from trunkline.cli.output import put
from trunkline.errors import ConfigError, InputError
from trunkline.sim.model.choices import PRESETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from studies.answers.cell import Asked
    from studies.cell import Group

_COMMA = re.compile(r",(?![^(]*\))")
"""A comma that does not stand between the parentheses of a strategy's name."""

_Of = TypeVar("_Of", "Group", "Asked")

_CUT = "**This study was stopped before its end.**\n\n"

_LENGTHS = 24
"""Questions of each length by which it is measured what sharing saves."""

_PRESETS = click.option(
    "--presets", default=",".join(PRESETS), show_default=True, help="How the model errs: some, by comma."
)
_STRATEGIES = click.option(
    "--strategies", default="", help="Strategies by how their names begin, by comma.  [default: all]"
)
_FIRST = click.option(
    "--first-world", type=click.IntRange(0, 1_000_000), help=f"Seed of the first world.  [default: {FIRST_WORLD}]"
)
_WORLDS = click.option("--worlds", type=click.IntRange(2, 1000), help="How many worlds.  [default: 16]")
_OUT = click.option("--out", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables here, too.")


@click.group()
def app() -> None:
    """Compare strategies, and ways to one answer, on the embedded simulator."""


@app.command()
@_PRESETS
@_STRATEGIES
@_FIRST
@_WORLDS
@click.option("--questions", type=click.IntRange(1, 300), help="Questions of each world.  [default: 40]")
@click.option("--judged", type=click.IntRange(0, 300), help="Of them, judge the steps of so many.  [default: 1]")
@click.option(
    "--sharing", "lengths", type=click.IntRange(0, 300), help="Questions a length of `sharing`.  [default: 24]"
)
@click.option("--quick", is_flag=True, help="A small study, in seconds; what is not named is small.")
@click.option("--workers", "-w", type=click.IntRange(0, 256), help="Processes.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print what was measured as JSON, one group a line.")
@_OUT
@click.pass_context
def strategies(
    ctx: click.Context,
    presets: str,
    strategies: str,
    first_world: int | None,
    worlds: int | None,
    questions: int | None,
    judged: int | None,
    lengths: int | None,
    quick: bool,
    workers: int | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Compare strategies with chains of equal cost, question by question, and estimators with the truth.

    The last table is that of `sharing`. The exit code is 1 where a strategy does not show what theory says in
    the preset null.
    """
    from studies.arms import find_arms
    from studies.study import Plan, run_study
    from studies.tables import checks_of, markdown

    arms = find_arms([name for name in _COMMA.split(strategies) if name.strip()])
    size = Plan(_presets(presets), tuple(arms), processes=os.cpu_count() or 1)
    if quick:
        size = size._replace(worlds=2, questions=6, judged=1, continuations=32)
    given: dict[str, Any] = {"first": first_world, "worlds": worlds, "questions": questions}
    given |= {"judged": judged, "processes": workers}
    plan = size._replace(**{name: value for name, value in given.items() if value is not None})
    if plan.judged > plan.questions:
        raise ConfigError(f"--judged: of {plan.questions} questions, {plan.judged} cannot be judged")
    if lengths == 1:
        raise ConfigError("--sharing: one question of a length is too few; give 2 or more, or 0 for no such table")
    _writable(out)
    groups = _gather(run_study(plan, _tell), lambda found: _deliver(found, _CUT + markdown(found, arms), out, as_json))
    report = markdown(groups, arms)
    if lengths is None:
        lengths = 2 if quick else _LENGTHS
    if lengths and not (as_json and out is None):
        report += "\n" + _shared(lengths)
    _deliver(groups, report, out, as_json)
    failed = [check for check in checks_of(groups, arms) if not check.passed]
    for check in failed:
        _tell(f"null: {check.arm}: {check.figure} is {check.found.value:.4f} where theory says {check.theory:.4f}")
    ctx.exit(bool(failed))


@app.command()
@click.option(
    "--questions", type=click.IntRange(2, 300), default=_LENGTHS, show_default=True, help="Questions of each length."
)
@_OUT
def sharing(questions: int, out: Path | None) -> None:
    """Measure how many rollouts a token budget buys as chains and as Tree-GRPO trees, beside the prediction."""
    _writable(out)
    report = _shared(questions)
    _write(out, report)
    put(report)


@app.command()
@_PRESETS
@_STRATEGIES
@_FIRST
@_WORLDS
@click.option("--questions", type=click.IntRange(2, 300), help="Questions of each world.  [default: 40]")
@click.option("--quick", is_flag=True, help="A small one, in seconds; what is not named is small.")
@click.option("--workers", "-w", type=click.IntRange(0, 256), help="Processes.  [default: one a core]")
@_OUT
def saved(
    presets: str,
    strategies: str,
    first_world: int | None,
    worlds: int | None,
    questions: int | None,
    quick: bool,
    workers: int | None,
    out: Path | None,
) -> None:
    """Measure what a rollout of each strategy costs, as a share of a chain's generated tokens and tool calls."""
    from studies.arms import find_arms
    from studies.study import Plan, run_study
    from studies.tables import saved_markdown

    arms = find_arms([name for name in _COMMA.split(strategies) if name.strip()])
    size = Plan(_presets(presets), tuple(arms), judged=0, processes=os.cpu_count() or 1)
    if quick:
        size = size._replace(worlds=2, questions=6)
    given: dict[str, Any] = {"first": first_world, "worlds": worlds, "questions": questions, "processes": workers}
    plan = size._replace(**{name: value for name, value in given.items() if value is not None})
    _writable(out)
    groups = _gather(run_study(plan, _tell), lambda found: _write(out, _CUT + saved_markdown(found, arms)))
    report = saved_markdown(groups, arms)
    _write(out, report)
    put(report)


@app.command()
@_PRESETS
@_FIRST
@_WORLDS
@click.option("--questions", type=click.IntRange(1, 300), help="Questions of each world.  [default: 40]")
@click.option("--quick", is_flag=True, help="A small study, in seconds; what is not named is small.")
@click.option("--workers", "-w", type=click.IntRange(0, 256), help="Processes.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print what was measured as JSON, one question a line.")
@_OUT
@click.pass_context
def answers(
    ctx: click.Context,
    presets: str,
    first_world: int | None,
    worlds: int | None,
    questions: int | None,
    quick: bool,
    workers: int | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Compare aggregators at the cost of 8 chains, question by question, with one try and with the majority.

    The exit code is 1 where an aggregator is above what theory allows in the preset null, or where a vote gains much
    in shared-misbelief.
    """
    from studies.answers.study import Plan, run_study
    from studies.answers.tables import checks_of, markdown

    size = Plan(_presets(presets), processes=os.cpu_count() or 1)
    if quick:
        size = size._replace(worlds=2, questions=6)
    given: dict[str, Any] = {"first": first_world, "worlds": worlds, "questions": questions, "processes": workers}
    plan = size._replace(**{name: value for name, value in given.items() if value is not None})
    _writable(out)
    asked = _gather(run_study(plan, _tell), lambda found: _deliver(found, _CUT + markdown(found), out, as_json))
    _deliver(asked, markdown(asked), out, as_json)
    failed = [check for check in checks_of(asked) if not check.passed]
    for check in failed:
        _tell(check.what)
    ctx.exit(bool(failed))


def _gather(cells: Iterator[list[_Of]], keep: Callable[[list[_Of]], None]) -> list[_Of]:
    """All that a study finds; where it is stopped, or a process is killed, the cells that are done are kept first."""
    found: list[_Of] = []
    try:
        for cell in cells:
            found += cell
    except BaseException:
        if found:
            keep(found)
        raise
    return found


def _deliver(found: Sequence[Group | Asked], report: str, out: Path | None, as_json: bool) -> None:
    """Write the tables, and print them or what they were made of."""
    _write(out, report)
    put("\n".join(msgspec.json.encode(one._asdict()).decode() for one in found) if as_json else report)


def _shared(questions: int) -> str:
    """The table of what sharing saves."""
    from studies.sharing import LENGTHS, run_sharing
    from studies.tables import sharing_markdown

    found = []
    for length in LENGTHS:
        found.append(run_sharing(length, questions))
        _tell(f"{length.steps} steps")
    return sharing_markdown(found)


def _presets(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in PRESETS]
    if unknown or not names:
        raise ConfigError(f"--presets: there is no {', '.join(unknown) or 'name'}; there are {', '.join(PRESETS)}")
    return names


def _tell(line: str) -> None:
    click.echo(printable(line), err=True)


def _writable(out: Path | None) -> None:
    """Find out before the work is done whether its tables can be kept."""
    if out is not None:
        _attempt(out, lambda: out.open("a").close())


def _write(out: Path | None, report: str) -> None:
    if out is not None:
        _attempt(out, lambda: out.write_text(report, "utf-8"))


def _attempt(out: Path, work: Callable[[], object]) -> None:
    try:
        work()
    except OSError as error:
        raise InputError(f"cannot write the tables here: {error.strerror or error}", str(out)) from error


if __name__ == "__main__":
    run_app(app)
