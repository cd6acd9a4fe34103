"""The run files in ``tests/fixtures/runs``: how they are unpacked, what they came to, and which code they name.

What a user would have in a module of their own is here, too. The files name it, so it keeps its name.
"""

from __future__ import annotations

import base64
import json
import lzma
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
from commands import trunkline

import trunkline as tl
from trunkline.sim.tools import search

FOLDER = Path(__file__).parent.parent / "fixtures" / "runs"
FIGURES = FOLDER / "figures.json"

_SUFFIX = ".run.xz"
_OWN = ("old_runs", "own_strategy", "pair_team")
_NAME = re.compile(rf"\btrunkline(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_][\w.]*)?|\b(?:{'|'.join(_OWN)}):[A-Za-z_]\w*")
_SUMMED = ("state", "tasks", "finished", "rollouts", "scored", "terminations", "ended")


class Desk(tl.Environment):
    """Counts what was searched for."""

    def __init__(self) -> None:
        self.asked = 0

    async def snapshot(self) -> int:
        return self.asked

    async def restore(self, snapshot: int) -> None:
        self.asked = snapshot


@tl.tool(name="search")
async def numbered(query: list[str], desk: Desk) -> str:
    """Search the corpus for documents.

    Args:
        query: Search queries.
    """
    desk.asked += 1
    return f"Search {desk.asked}\n{await search(query)}"


async def twice(rollout: tl.programs.ProgramContext) -> str:
    """A program: asks, is refused, has something worked out, and asks again; one try in some breaks."""
    first = await rollout.ask(messages=rollout.task.messages)
    try:
        await rollout.ask(temperature=9.0)
    except tl.errors.BadRequest:
        length = await rollout.call(len, first.text)
    if rollout.random.random() < 0.3:
        raise ValueError("not today")
    await rollout.observe(f"That was {length} characters. What is the final answer?", by="clerk")
    return (await rollout.ask()).text.rsplit("<answer>", 1)[-1].partition("</answer>")[0]


def names() -> list[str]:
    """The names of all files."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in FOLDER.glob(f"*{_SUFFIX}"))


def unpack(name: str, folder: Path) -> Path:
    """Write one of the files into a folder, and return where it is."""
    path = folder / f"{name}.run"
    path.write_bytes(lzma.decompress((FOLDER / f"{name}{_SUFFIX}").read_bytes()))
    return path


def write_questions(world: Path, folder: Path) -> None:
    """Write the shorter questions of a world into a folder, by their kind."""
    rows = [json.loads(line) for line in (world / "questions.jsonl").read_text("utf-8").splitlines()]
    short = [row for row in rows if row["metadata"]["kind"] == "lookup" and row["metadata"]["hops"] <= 2]
    sums = [row for row in rows if row["metadata"]["kind"] == "arithmetic"]
    for name, chosen in (("lookups", short), ("sums", sums)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen), "utf-8")


def figures(path: Path) -> dict[str, Any]:
    """Read what a run file came to, as the commands say it."""
    folder, name = path.absolute().parent, path.name
    said = json.loads(_said(folder, "show", name, "--json"))["summary"]
    decided = json.loads(_said(folder, "answers", name, "--json"))["answers"]
    return {
        **{field: said[field] for field in _SUMMED},
        "accuracy": said["accuracy"] and said["accuracy"]["value"],
        "tokens": [said["tokens"][field] for field in ("flat", "tree", "flat_generated", "tree_generated")],
        "usage": [said["usage"][field] for field in ("calls", "prompt", "cached", "generated", "tools")],
        "records": {form: _exported(path, form) for form in ("messages", "parallelmuse", "parquet")},
        "answers": {one["task"]: one["answer"] for one in decided},
        "digests": digests(path),
    }


def _exported(path: Path, format: str) -> int:
    """How many records an export has."""
    out = path.with_suffix(".parquet" if format == "parquet" else ".jsonl")
    _said(path.absolute().parent, "export", path.name, "--format", format, "--out", out.name, "--force")
    return pyarrow.parquet.read_metadata(out).num_rows if format == "parquet" else out.read_bytes().count(b"\n")


def digests(path: Path) -> dict[str, str]:
    """The digests of all trees that have begun."""
    with tl.RunReader.open(path) as reader:
        trees = [reader.tree(task.id) for task in reader.tasks()]
    return {tree.task.id: tree.digest() for tree in trees if len(tree.nodes) > 1}


def begun(path: Path) -> dict[int, bytes]:
    """What has grown in a run, by its numbers."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT delta, data FROM deltas"))


def _said(folder: Path, *arguments: str) -> str:
    done = trunkline(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def dotted(paths: Iterable[Path]) -> dict[str, list[str]]:
    """The names of code in modules of the library and of tests that stand in run files, by where they stand."""
    found: dict[str, set[str]] = {}
    for path in paths:
        for place, name in _everywhere(path):
            found.setdefault(place, set()).add(name)
    return {place: sorted(names) for place, names in sorted(found.items())}


def _everywhere(path: Path) -> Iterator[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (table,) in tables:
            rows = connection.execute(f"SELECT * FROM {table.decode()}")
            columns = [column for column, *_ in rows.description]
            for row in rows:
                key = row[0].decode() if table == b"meta" else None
                for column, value in zip(columns, row, strict=True):
                    if isinstance(value, bytes):
                        place = f"{table.decode()}.{key if key and column == 'value' else column}"
                        yield from _in(value.decode("utf-8", "replace"), place)


def _in(text: str, place: str) -> Iterator[tuple[str, str]]:
    """Names in a text, which may be JSON."""
    try:
        data = json.loads(text)
    except ValueError:
        data = text
    yield from _in_data(data, place)


def _in_data(data: Any, place: str) -> Iterator[tuple[str, str]]:
    match data:
        case {"module": str(module), "qualname": str(qualname), "fields": fields}:
            yield place, f"{module}:{qualname}"
            if fields:
                packed = base64.b64decode(fields) if isinstance(fields, str) else fields
                inner = msgspec.msgpack.decode(packed, ext_hook=lambda _code, data: msgspec.msgpack.decode(data))
                yield from _in_data(inner, f"{place}.fields")
        case dict():
            for name, value in data.items():
                yield from ((f"{place}, as a key", found) for found in _NAME.findall(name))
                yield from _in_data(value, f"{place}.{name}")
        case list():
            for value in data:
                yield from _in_data(value, f"{place}[]")
        case str():
            yield from ((place, found) for found in _NAME.findall(data))
