"""Loading the tasks of a data set: local files, Parquet, Hugging Face."""

from __future__ import annotations

import contextlib
import gzip
import re
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trunkline._internal.registry import load_extra
from trunkline._internal.text import JSON, printable, quoted
from trunkline._internal.validation import check_int
from trunkline.errors import ConfigError, InputError
from trunkline.store.datasets.text import (
    LocatedRows,
    RowLocation,
    TaskColumns,
    open_input,
    read_fields,
    read_json,
    read_lines,
    read_separated,
    read_task,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from trunkline.types import Task


HUB = re.compile(
    r"(?:hf:)?(?P<name>[\w.-]+/[\w.-]+?)"
    r"(?::(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?(?:#(?P<split>[\w.-]+))?",
    re.ASCII,
)
"""``org/name``, then optionally ``:config``, ``@revision`` and ``#split``."""

_SPLITS = ("test", "validation", "train")


def _plain(row: JSON) -> JSON:
    # Dates, bytes and decimals become strings, NaN becomes null: what a task holds must be JSON.
    return msgspec.json.decode(msgspec.json.encode(row, enc_hook=str))


def read_parquet(path: str, limit: int | None = None) -> LocatedRows:
    """Rows of a Parquet file."""
    parquet = load_extra("pyarrow.parquet", "parquet", f"{path}: reading Parquet")
    item = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=min(limit or 1024, 1024)):
                for row in batch.to_pylist():
                    item += 1
                    yield RowLocation(path, item=item), _plain(row)
    except (OSError, ValueError) as problem:
        # pyarrow's own errors derive from these two; errors about a row are raised outside of this generator.
        raise InputError(f"not a readable Parquet file: {printable(str(problem), 120)}", path) from None


def _split(available: list[str], wanted: str | None, path: str) -> str:
    if wanted is not None:
        if wanted in available:
            return wanted
        raise ConfigError(f"{path}: no split {wanted}; there is {', '.join(available)}")
    if len(available) == 1:
        return available[0]
    for split in _SPLITS:
        if split in available:
            return split
    raise ConfigError(f"{path}: name a split by appending #split: {', '.join(available)}")


def read_hub(path: str) -> LocatedRows:
    """Rows of a Hugging Face data set, fetched as they are needed.

    Without ``#split`` the only split is read, else ``test``, ``validation`` or ``train``, whichever comes
    first.
    """
    found = HUB.fullmatch(path)
    if found is None:
        raise ConfigError(
            f"{printable(path, 120)}: not a data set path; the form is org/name[:config][@revision][#split]"
        )
    what = f"{path}: no such local file, and reading a Hugging Face data set"
    datasets = load_extra("datasets", "hf", what)
    try:
        splits = datasets.load_dataset(found["name"], found["config"], revision=found["revision"], streaming=True)
    except Exception as problem:  # noqa: BLE001 - the package has no common error class
        reason = printable(f"{type(problem).__name__}: {problem}", 300)
        raise InputError(f"cannot be loaded as a Hugging Face data set: {reason}", path) from None
    rows = iter(splits[_split(list(splits), found["split"], path)])
    item = 0
    while True:
        try:
            row = next(rows, None)
        except Exception as problem:  # noqa: BLE001 - as above
            raise InputError(f"row {item + 1} cannot be read: {printable(str(problem), 300)}", path) from None
        if row is None:
            return
        item += 1
        yield RowLocation(path, item=item), _plain(row)


_TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_SUFFIXES = (*_TEXTS, ".parquet")
_PACKED = (".gz", ".zst")


def _suffix(path: str) -> str:
    """The suffix of a file of questions, without that of a compression."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
        return suffixes[-1] if suffixes and suffixes[-1] in _TEXTS else _PACKED[0]
    return suffixes[-1] if suffixes else ""


def is_hub(path: str) -> bool:
    """Whether a path names a Hugging Face data set: written as one, where there is no such file."""
    named = _suffix(path) not in (*_SUFFIXES, *_PACKED) and HUB.fullmatch(path) is not None
    return path.startswith("hf:") or (named and not Path(path).exists())


def _rows(path: str, limit: int | None, columns: TaskColumns) -> Generator[tuple[RowLocation, JSON], None, None]:
    suffix = _suffix(path)
    if not path.strip():
        raise InputError("the path is empty: name a file of questions, or - for standard input")
    if path == "-":
        yield from read_lines(sys.stdin.buffer, "<stdin>")
    elif is_hub(path):
        yield from read_hub(path)
    elif suffix not in _SUFFIXES and Path(path).is_file():
        expected = f"{', '.join(_SUFFIXES)}; all but the last also with .gz"
        raise InputError(f"unknown kind of file; expected one of {expected}", path)
    elif suffix == ".parquet":
        with open_input(path):
            yield from read_parquet(path, limit)
    else:
        yield from _texts(path, suffix, columns)


def _texts(path: str, suffix: str, columns: TaskColumns) -> Generator[tuple[RowLocation, JSON], None, None]:
    with open_input(path) as stream:
        try:
            match suffix:
                case ".json":
                    yield from read_json(stream, path)
                case ".csv":
                    yield from read_separated(stream, path, ",", columns)
                case ".tsv":
                    yield from read_separated(stream, path, "\t", columns)
                case _:
                    yield from read_lines(stream, path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
            raise InputError(f"damaged, it cannot be unpacked: {problem}", path) from None
        except OSError as problem:
            raise InputError(f"cannot be read: {problem.strerror or problem}", path) from None


def _numbered(base: str, taken: dict[str, RowLocation], seen: Counter[str]) -> str:
    name = base
    while name in taken:
        seen[base] += 1
        name = f"{base}-{seen[base] + 1}"
    return name


def load_tasks(path: str | Path, limit: int | None = None, fields: Mapping[str, str] | str | None = None) -> list[Task]:
    """Load the tasks of a data set.

    A row has a question (``question``, ``input``, ``prompt`` or ``problem``: text or chat messages; or
    ``messages``), and may have an ``id``, a reference answer (``answer``, ``target``, ``label``, ``ideal``
    or ``reference``: text, a number, or a list of them) and ``metadata`` or ``info``. All its other fields
    are kept as metadata too. In a cell of a table, a JSON array that begins with a string, such as
    ``["Paris", "City of Light"]``, lists several reference answers. A row without an id is named by a hash of
    its content, so that it has the same id in every run.

    Args:
        path: A ``.jsonl``, ``.json``, ``.csv``, ``.tsv`` or ``.parquet`` file, of which all but the last may be
            compressed by gzip (``.jsonl.gz``); ``-`` for JSON lines on standard input; or
            ``org/name[:config][@revision][#split]`` for a Hugging Face data set (also with ``hf:`` before it).
        limit: Read at most so many rows.
        fields: The columns that hold the question, the answer and the id, where they have other names:
            ``{"question": "body", "answer": "gold"}``, or as a text, ``"question=body,answer=gold,id=key"``. Columns
            with the usual names of a part that is named here are metadata.

    Returns:
        The tasks in the order of the file; ids are unique.

    Raises:
        InputError: The file cannot be used; the message names the line and the field.
        ConfigError: An extra is missing, the limit is not positive, or ``fields`` names no part of a task.
    """
    if limit is not None:
        check_int("limit", limit, 1)
    name = str(path)
    tasks: list[Task] = []
    taken: dict[str, RowLocation] = {}
    seen: Counter[str] = Counter()
    chosen = read_fields(fields, "fields")
    columns = TaskColumns(**{part: (column,) for part, column in chosen.items()})
    missing = {column: part for part, column in chosen.items()}
    with contextlib.closing(_rows(name, limit, columns)) as rows:
        for place, row in rows:
            task, named = read_task(row, place, columns)
            for found in missing.keys() & row.keys() if missing else ():
                del missing[found]
            if task.id in taken:
                if named:
                    raise place.error(f"id {quoted(task.id)} is there already, in {taken[task.id]}: ids must be unique")
                task = msgspec.structs.replace(task, id=_numbered(task.id, taken, seen))
            taken[task.id] = place
            tasks.append(task)
            if len(tasks) == limit:
                break
    shown = "<stdin>" if name == "-" else name
    if not tasks:
        raise InputError("no questions in it: the file is empty", shown)
    for column, part in missing.items():
        raise InputError(f"no row has the column {quoted(column, 40)}, which is to hold the {part}", shown)
    return tasks
