"""``trunkline sim``: the embedded world on disk, and its models behind a server."""

from __future__ import annotations

from pathlib import Path

import click

from trunkline.cli.output import put
from trunkline.printable import printable

__all__ = ["sim"]


@click.group()
def sim() -> None:
    """The embedded world: write its files, serve its models."""


@sim.command()
@click.option(
    "--out", "-o", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for the files."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the world.")
@click.option("--documents", type=click.IntRange(60), default=2000, show_default=True, help="About how many documents.")
@click.option("--questions", type=click.IntRange(1), default=500, show_default=True, help="How many questions.")
def world(out: Path, seed: int, documents: int, questions: int) -> None:
    """Write corpus.jsonl and questions.jsonl of a seeded world."""
    from trunkline.sim.world.files import write_world
    from trunkline.sim.world.generator import make_world

    made = make_world(seed, documents, questions)
    write_world(made, out)
    put(printable(f"{out / 'corpus.jsonl'}: {len(made.documents)} documents"))
    put(printable(f"{out / 'questions.jsonl'}: {len(made.questions)} questions"))


@sim.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve the simulated models over an OpenAI-compatible API (see serve --help)."""
    from trunkline.sim.server.__main__ import main

    raise SystemExit(main(arguments, prog="trunkline sim serve"))
