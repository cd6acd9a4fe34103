"""``trunkline check``: hold a run file's rows against its deltas."""

from __future__ import annotations

import click

from trunkline.cli.output import put
from trunkline.printable import printable
from trunkline.store.reader import RunReader

__all__ = ["check"]


@click.command()
@click.argument("run", type=click.Path())
@click.pass_context
def check(ctx: click.Context, run: str) -> None:
    """Re-derive every row of RUN from its deltas and walk every tree's invariants.

    Prints each problem found and exits with 1, or one line and exits with 0.
    """
    with RunReader.open(run) as reader:
        problems = reader.check()
        tasks = len(reader.tasks())
    for problem in problems:
        put(printable(problem))
    if problems:
        ctx.exit(1)
    put(f"{printable(run)}: {tasks} task{'' if tasks == 1 else 's'}, every row follows from the deltas")
