"""A run as one self-contained file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline._internal.text import printable
from trunkline.errors import InfrastructureError, TrunklineError, UsageError
from trunkline.store.stats.compare import compare
from trunkline.view.data import RunData, TaskQuery
from trunkline.view.server import static

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT: Final = 20_000  # characters of a text of a tree
_PAGE: Final = 500


class Written(NamedTuple):
    """What a page holds."""

    tasks: int  # tasks of the first run in it
    all: int  # tasks of the first run
    size: int  # bytes


def write_page(paths: Sequence[Path], out: Path, most: int) -> Written:
    """Write one or two runs as a page that needs no server and loads nothing.

    Args:
        paths: The run files; of two, the tasks that changed most come first.
        out: The file to write; one that is there is replaced.
        most: How many tasks of each run it holds.

    Raises:
        RunFileError: A file is no readable run.
        UsageError: ``out`` is one of the runs.
        InfrastructureError: ``out`` cannot be written.
    """
    if out.exists() and any(out.samefile(path) for path in paths if path.exists()):
        raise UsageError(f"--html {printable(str(out))} is the run itself: choose another file")
    compared: Any = None
    with ExitStack() as opened:
        runs = [opened.enter_context(closing(RunData(path))) for path in paths]
        wanted: list[str] = []
        if len(paths) == 2:
            try:
                compared = compare(paths[0], paths[1], common=True)
                wanted = [one.task for one in compared.changed[:most]]
            except TrunklineError as problem:
                compared = {"error": printable(str(problem))}
        held = [_run(run, most, wanted) for run in runs]
    text = _page({"runs": held, "compare": msgspec.to_builtins(compared)})
    _write(out, text)
    return Written(len(held[0]["rows"]), held[0]["overview"]["tasks"], len(text))


def _run(run: RunData, most: int, wanted: Sequence[str]) -> dict[str, Any]:
    overview = run.overview() | {"live": False, "controls": False}
    rows: list[Any] = []
    first = set(wanted)
    while len(rows) < most + len(first):
        page: Any = run.tasks(TaskQuery(page=len(rows) // _PAGE, size=_PAGE))["rows"]
        rows += page
        if len(page) < _PAGE:
            break
    rows = sorted(rows, key=lambda row: row["id"] not in first)[:most]
    rows.sort(key=lambda row: row["task"])
    trees = {row["id"]: run.task(row["id"], _TEXT) for row in rows}
    summary, categories = run.summary(), run.categories()
    return {"overview": overview, "summary": summary, "categories": categories, "rows": rows, "trees": trees}


def _page(data: dict[str, Any]) -> bytes:
    """The page with its script, its style and its data; nothing else may run or be loaded."""
    script, style = static("app.js"), static("style.css")
    # Nothing in the data can end its element, begin a comment or be read as markup.
    held = json.dumps(msgspec.json.decode(msgspec.json.encode(data)), separators=(",", ":")).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    page = static("index.html")
    for before, after in (
        (
            '<meta charset="utf-8">',
            f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        ),
        ('<link rel="stylesheet" href="/style.css">', f"<style>{style}</style>"),
        (
            '<script type="module" src="/app.js"></script>',
            f'<script type="application/json" id="data">{held}</script>\n<script type="module">{script}</script>',
        ),
    ):
        page = page.replace(before, after, 1)
    return page.encode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _write(out: Path, text: bytes) -> None:
    """Write a file as a whole, or not at all."""
    try:
        descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=out.name, suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            Path(name).replace(out)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise InfrastructureError(f"{printable(str(out))} cannot be written: {problem.strerror or problem}") from None
