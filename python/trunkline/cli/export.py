"""``trunkline export``: a run's rollouts as files that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trunkline.cli.output import silence, tell
from trunkline.errors import ConfigError
from trunkline.store.export.export import FORMATS, guess
from trunkline.store.export.export import export as write
from trunkline.store.export.target import STDOUT

if TYPE_CHECKING:
    from trunkline.store.export.export import Exported

__all__ = ["export", "told"]

_EPILOG = """\b
Formats:
  messages      JSON lines of chat messages, for fine-tuning and for reading
  parallelmuse  JSON lines as ParallelMuse's scripts have them
  parquet       typed columns (extra: parquet)"""


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def told(found: Exported, where: str) -> str:
    """Say in one line what was written, and what was left out and why.

    Args:
        found: What the export came to.
        where: The file, as the caller named it.
    """
    place = "" if where == STDOUT else f" to {where}"
    line = f"wrote {_many(found.records, 'record')} of {_many(found.tasks, 'task')}{place} as {found.format}"
    if found.rollouts != found.records:
        line += f", which stand for {_many(found.rollouts, 'rollout')}"
    if found.left_out:
        total = sum(found.left_out.values())
        reasons = ", ".join(f"{number:,} {why}" for why, number in found.left_out.items())
        line += f"; left out {_many(total, 'rollout')}: {reasons}"
    return line


def _format(out: str, format: str | None) -> str:
    if format is None and out == STDOUT:
        raise ConfigError(f"name a file with --out, or a --format: {', '.join(FORMATS)}")
    return guess(out, format)


@click.command(epilog=_EPILOG)
@click.argument("run", type=click.Path())
@click.option(
    "--format",
    "-f",
    type=click.Choice(list(FORMATS)),
    help="What to write.  [default: what the name of the file says; messages for .jsonl]",
)
@click.option("--out", "-o", default=STDOUT, type=click.Path(), help="The file.  [default: -, standard output]")
@click.option("--task", "tasks", multiple=True, metavar="ID", help="Only this task; repeatable.")
@click.option("--ended", is_flag=True, help="Leave out rollouts that still grow.")
@click.option("--scored", is_flag=True, help="Leave out rollouts without a reward.")
@click.option("--min-reward", type=float, metavar="R", help="Leave out rollouts without a reward of at least R.")
@click.option("--only", multiple=True, metavar="FIELD", help="Only this field of each record; repeatable.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def export(
    run: str,
    format: str | None,
    out: str,
    tasks: tuple[str, ...],
    ended: bool,
    scored: bool,
    min_reward: float | None,
    only: tuple[str, ...],
    force: bool,
) -> None:
    """Write the rollouts of RUN for other programs: a record for each, with its weight where several are the same."""
    chosen = _format(out, format)
    try:
        found = write(
            run,
            out,
            format=chosen,
            tasks=tasks,
            ended=ended,
            scored=scored,
            min_reward=min_reward,
            only=only,
            force=force,
        )
    except BrokenPipeError:
        # Whoever read it has what they wanted, as `| head` does.
        silence()
        return
    tell(told(found, out))
