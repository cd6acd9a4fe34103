"""Tasks from a file of questions."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import ConfigError, InputError
from trunkline.printable import quoted
from trunkline.store.columnar import HUB, read_hub, read_parquet
from trunkline.store.fields import read_task
from trunkline.store.formats import open_input, read_json, read_lines, read_separated

if TYPE_CHECKING:
    from collections.abc import Generator

    from trunkline.store.place import Place
    from trunkline.types import JSON, Task

__all__ = ["load_tasks"]

_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


def _rows(path: str, limit: int | None) -> Generator[tuple[Place, JSON], None, None]:
    suffix = Path(path).suffix.lower()
    if path == "-":
        yield from read_lines(sys.stdin.buffer, "<stdin>")
    elif path.startswith("hf:") or (suffix not in _SUFFIXES and not Path(path).exists() and HUB.fullmatch(path)):
        yield from read_hub(path)
    elif suffix not in _SUFFIXES and Path(path).is_file():
        raise InputError(f"unknown kind of file; expected one of {', '.join(_SUFFIXES)}", path)
    else:
        with open_input(path) as stream:
            match suffix:
                case ".json":
                    yield from read_json(stream, path)
                case ".csv":
                    yield from read_separated(stream, path, ",")
                case ".tsv":
                    yield from read_separated(stream, path, "\t")
                case ".parquet":
                    yield from read_parquet(path, limit)
                case _:
                    yield from read_lines(stream, path)


def _content_id(task: Task) -> str:
    content = msgspec.json.encode((task.messages, task.reference, task.metadata), order="deterministic")
    return blake2b(content, digest_size=8).hexdigest()


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
    are kept as metadata too. A row without an id is named by a hash of its content, so that it has the same
    id in every run.

    Args:
        path: A ``.jsonl``, ``.json``, ``.csv``, ``.tsv`` or ``.parquet`` file, ``-`` for JSON lines on
            standard input, or ``org/name[:config][@revision][#split]`` for a Hugging Face data set (also
            with ``hf:`` before it).
        limit: Read at most so many rows.

    Returns:
        The tasks in the order of the file; ids are unique.

    Raises:
        InputError: The file cannot be used; the message names the line and the field.
        ConfigError: An extra is missing, or the limit is not positive.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}, expected at least 1")
    name = str(path)
    tasks: list[Task] = []
    taken: dict[str, Place] = {}
    seen: Counter[str] = Counter()
    with contextlib.closing(_rows(name, limit)) as rows:
        for place, row in rows:
            task = read_task(row, place)
            if task.id in taken:
                raise place.error(f"id {quoted(task.id)} is there already, in {taken[task.id]}: ids must be unique")
            if not task.id:
                task = msgspec.structs.replace(task, id=_numbered(_content_id(task), taken, seen))
            taken[task.id] = place
            tasks.append(task)
            if len(tasks) == limit:
                break
    if not tasks:
        shown = "<stdin>" if name == "-" else name
        raise InputError("no questions in it: the file is empty", shown)
    return tasks
