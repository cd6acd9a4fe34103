"""Tasks from a file of questions."""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trunkline.bounds import whole
from trunkline.errors import InputError
from trunkline.printable import quoted
from trunkline.store.columnar import HUB, read_hub, read_parquet
from trunkline.store.fields import read_task
from trunkline.store.formats import open_input, read_json, read_lines, read_separated

if TYPE_CHECKING:
    from collections.abc import Generator

    from trunkline.store.place import Place
    from trunkline.types import JSON, Task

__all__ = ["load_tasks"]

_TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_SUFFIXES = (*_TEXTS, ".parquet")
_PACKED = (".gz", ".zst")


def _suffix(path: str) -> str:
    """What kind of file a name promises, whether compressed or not."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
        return suffixes[-1] if suffixes and suffixes[-1] in _TEXTS else _PACKED[0]
    return suffixes[-1] if suffixes else ""


def _rows(path: str, limit: int | None) -> Generator[tuple[Place, JSON], None, None]:
    suffix = _suffix(path)
    if not path.strip():
        raise InputError("the path is empty: name a file of questions, or - for standard input")
    if path == "-":
        yield from read_lines(sys.stdin.buffer, "<stdin>")
    elif path.startswith("hf:") or (
        suffix not in (*_SUFFIXES, *_PACKED) and not Path(path).exists() and HUB.fullmatch(path)
    ):
        yield from read_hub(path)
    elif suffix not in _SUFFIXES and Path(path).is_file():
        expected = f"{', '.join(_SUFFIXES)}; all but the last also with .gz"
        raise InputError(f"unknown kind of file; expected one of {expected}", path)
    elif suffix == ".parquet":
        with open_input(path):
            yield from read_parquet(path, limit)
    else:
        yield from _texts(path, suffix)


def _texts(path: str, suffix: str) -> Generator[tuple[Place, JSON], None, None]:
    with open_input(path) as stream:
        try:
            match suffix:
                case ".json":
                    yield from read_json(stream, path)
                case ".csv":
                    yield from read_separated(stream, path, ",")
                case ".tsv":
                    yield from read_separated(stream, path, "\t")
                case _:
                    yield from read_lines(stream, path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
            raise InputError(f"damaged, it cannot be unpacked: {problem}", path) from None
        except OSError as problem:
            raise InputError(f"cannot be read: {problem.strerror or problem}", path) from None


def _numbered(base: str, taken: dict[str, Place], seen: Counter[str]) -> str:
    name = base
    while name in taken:
        seen[base] += 1
        name = f"{base}-{seen[base] + 1}"
    return name


def load_tasks(path: str | Path, limit: int | None = None) -> list[Task]:
    """Load the tasks of a data set.

    A row has a question (``question``, ``input``, ``prompt`` or ``problem``: text or chat messages; or
    ``messages``), and may have an ``id``, an accepted answer (``answer``, ``target``, ``label``, ``ideal``
    or ``reference``: text, a number, or a list of them) and ``metadata`` or ``info``. All its other fields
    are kept as metadata too. In a cell of a table, a JSON array that begins with a string, such as
    ``["Paris", "City of Light"]``, lists several accepted answers. A row without an id is named by a hash of
    its content, so that it has the same id in every run.

    Args:
        path: A ``.jsonl``, ``.json``, ``.csv``, ``.tsv`` or ``.parquet`` file, of which all but the last may be
            compressed by gzip (``.jsonl.gz``); ``-`` for JSON lines on standard input; or
            ``org/name[:config][@revision][#split]`` for a Hugging Face data set (also with ``hf:`` before it).
        limit: Read at most so many rows.

    Returns:
        The tasks in the order of the file; ids are unique.

    Raises:
        InputError: The file cannot be used; the message names the line and the field.
        ConfigError: An extra is missing, or the limit is not positive.
    """
    if limit is not None:
        whole("limit", limit, 1)
    name = str(path)
    tasks: list[Task] = []
    taken: dict[str, Place] = {}
    seen: Counter[str] = Counter()
    with contextlib.closing(_rows(name, limit)) as rows:
        for place, row in rows:
            task, named = read_task(row, place)
            if task.id in taken:
                if named:
                    raise place.error(f"id {quoted(task.id)} is there already, in {taken[task.id]}: ids must be unique")
                task = msgspec.structs.replace(task, id=_numbered(task.id, taken, seen))
            taken[task.id] = place
            tasks.append(task)
            if len(tasks) == limit:
                break
    if not tasks:
        shown = "<stdin>" if name == "-" else name
        raise InputError("no questions in it: the file is empty", shown)
    return tasks
