"""Data sets as text (JSONL, JSON, CSV, TSV), and making a task of a row."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, NamedTuple, cast

import msgspec

from trunkline._internal.text import JSON, printable, quoted
from trunkline._internal.validation import check_that, did_you_mean, short_repr, type_phrase
from trunkline.errors import ConfigError, InputError
from trunkline.llm.messages import check
from trunkline.types import Message, Task, accepted

DataRow = dict[str, JSON]

EXTRAS = ("metadata", "info")


class TaskColumns(NamedTuple):
    """Names of the columns that can hold each part of a task."""

    question: tuple[str, ...] = ("question", "input", "prompt", "messages", "problem")
    answer: tuple[str, ...] = ("answer", "target", "label", "ideal", "reference")
    id: tuple[str, ...] = ("id",)


_USUAL = TaskColumns()


def read_fields(given: Mapping[str, str] | str | Sequence[str] | None, what: str) -> dict[str, str]:
    """Read names of columns by part of a task: a mapping, or texts ``question=Q,answer=A``."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        texts = [given] if isinstance(given, str) else given or ()
        check_that(isinstance(texts, list | tuple), f"{what} must be names of columns, such as question=body", given)
        split = [part.partition("=") for text in texts for part in text.split(",")]
        pairs = [(part.strip(), name.strip()) for part, _, name in split]
    found: dict[str, str] = {}
    for part, name in pairs:
        if part not in TaskColumns._fields:
            near = did_you_mean(str(part), TaskColumns._fields)
            wanted = "question=COLUMN,answer=COLUMN,id=COLUMN"
            raise ConfigError(f"{what}: {short_repr(part)} is no part of a task{near}; write {wanted}")
        if part in found:
            raise ConfigError(f"{what}: {part} is given twice")
        check_that(isinstance(name, str) and name, f"{what}: {part} must be the name of a column", name)
        found[part] = name
    return found


def _present(row: DataRow, name: str) -> bool:
    value = row.get(name)
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _names(names: list[str]) -> str:
    shown = ", ".join(printable(name, 40) or '""' for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _one_of(row: DataRow, names: tuple[str, ...], what: str, place: RowLocation) -> str | None:
    found = [name for name in names if _present(row, name)]
    if len(found) > 1:
        raise place.error(f"two {what} fields, {found[0]} and {found[1]}: keep one and rename or remove the other")
    return found[0] if found else None


def _sendable(messages: list[Message], place: RowLocation, name: str) -> list[Message]:
    try:
        check(messages, name)
    except ConfigError as problem:
        raise place.error(printable(str(problem), 300)) from None
    return messages


def _messages(row: DataRow, place: RowLocation, names: tuple[str, ...]) -> list[Message]:
    name = _one_of(row, names, "question", place)
    if name is None:
        has = _names(list(row)) or "no fields"
        raise place.error(f"no question field: it has {has}; expected {_expected(names)}")
    value = row[name]
    if isinstance(value, list):
        if not value:
            raise place.error(f"{name} is an empty list, expected at least one message")
        return _sendable(value, place, name)
    if not isinstance(value, str) or name == "messages":
        expected = "a list of messages" if name == "messages" else "a string or a list of messages"
        raise place.error(f"{name} is {type_phrase(value)}, expected {expected}")
    if not value.strip():
        raise place.error(f"{name} is empty")
    return _sendable([{"role": "user", "content": value}], place, name)


def _expected(names: tuple[str, ...]) -> str:
    return ("one of " if len(names) > 1 else "") + printable(", ".join(names), 120)


def _references(row: DataRow, place: RowLocation, names: tuple[str, ...]) -> tuple[str, ...]:
    name = _one_of(row, names, "answer", place)
    if name is None:
        return ()
    try:
        return accepted(name, row[name])
    except ConfigError as problem:
        raise place.error(str(problem)) from None


def _metadata(row: DataRow, place: RowLocation, columns: TaskColumns) -> dict[str, JSON]:
    known = {*EXTRAS}.union(*columns)
    metadata = {name: value for name, value in row.items() if name not in known}
    for name in EXTRAS:
        if not _present(row, name) or any(name in names for names in columns):
            continue
        value = row[name]
        if not isinstance(value, dict):
            raise place.error(f"{name} is {type_phrase(value)}, expected an object")
        for key, item in value.items():
            if key in metadata and metadata[key] != item:
                raise place.error(f"{printable(key, 40)} stands in {name} and beside it with another value: keep one")
            metadata[key] = item
    return metadata


def _id(row: DataRow, place: RowLocation, name: str) -> str | None:
    if not _present(row, name):
        return None
    value = row[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a table with a gap in the column holds its ids as floats
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise place.error(f"{name} is {type_phrase(value)}, expected a string or a whole number")
    if not str(value).strip():
        raise place.error(f"{name} is empty: give it a value or leave the field out")
    return str(value)


def _content_id(*content: JSON) -> str:
    return blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=8).hexdigest()


def read_task(row: JSON, place: RowLocation, columns: TaskColumns = _USUAL) -> tuple[Task, bool]:
    """Make a task from a decoded row; also return whether the row names its id, else that is a content hash."""
    if not isinstance(row, dict):
        raise place.error(f"{type_phrase(row)}, expected an object with a question field")
    name = _id(row, place, columns.id[0])
    messages, reference = _messages(row, place, columns.question), _references(row, place, columns.answer)
    metadata = _metadata(row, place, columns)
    try:
        content = _content_id(messages, reference, metadata)
    except (TypeError, ValueError, RecursionError) as problem:
        raise place.error(f"cannot be stored as JSON: {printable(str(problem), 80)}") from None
    return Task(id=name or content, messages=messages, reference=reference, metadata=metadata), name is not None


class RowLocation(msgspec.Struct, frozen=True):
    """One row of an input file."""

    path: str  # the file, as the caller named it
    line: int | None = None  # one-based line in a text file with lines
    item: int | None = None  # one-based row where there are no lines: an array's item, a table's row

    def error(self, message: str) -> InputError:
        """An error about this row."""
        if self.line is None and self.item is not None:
            message = f"row {self.item}: {message}"
        return InputError(message, self.path, self.line)

    def __str__(self) -> str:
        return f"line {self.line}" if self.line is not None else f"row {self.item}"


LocatedRows = Iterator[tuple[RowLocation, JSON]]

_BYTE = re.compile(r" \(byte ([0-9]+)\)$")
_STRINGS = re.compile(r'\s*\[\s*"')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_JSON_CELLS = ("messages", *EXTRAS)


def _text(data: bytes, path: str, first_line: int = 1) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = first_line + data.count(b"\n", 0, problem.start)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            hint = "it looks like UTF-16: save it as UTF-8"
        elif data.startswith((_GZIP, _ZSTD)):
            hint = "it is compressed: unpack it first"
        else:
            hint = f"byte 0x{data[problem.start]:02x} cannot stand there: save the file as UTF-8"
        raise InputError(f"not UTF-8, {hint}", path, line) from None


def _decode(text: bytes, path: str, line: int) -> JSON:
    shown = _text(text, path, line)
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise InputError("nested too deeply to be read", path, line) from None
    except msgspec.MsgspecError as problem:
        message = str(problem)
        found = _BYTE.search(message)
        if found is not None:
            before = text[: int(found[1])].decode("utf-8", "ignore")
            reason = message[: found.start()].removeprefix("JSON is malformed: ")
        else:
            before = shown
            reason = message.partition(" - at ")[0][:1].lower() + message.partition(" - at ")[0][1:]
            if "truncated" in message:
                half = _SURROGATE.search(text) is not None
                reason = "it ends inside a value" + (", or holds half of a surrogate pair" if half else "")
    line += before.count("\n")
    column = len(before) - before.rfind("\n")
    near = shown[max(0, len(before) - 20) : len(before) + 20]
    raise InputError(f"invalid JSON in column {column}: {reason}, near {quoted(near, 60)}", path, line)


def read_lines(stream: IO[bytes], path: str) -> LocatedRows:
    """Rows of a JSON Lines file; blank lines are skipped."""
    begun = False
    for line, data in enumerate(stream, 1):
        text = data.removeprefix(codecs.BOM_UTF8) if line == 1 else data
        text = text.strip(b" \t\r\n")
        if text:
            if not begun and text.startswith(b"["):
                raise InputError(
                    "it begins with [, as a JSON array does, but one object per line is read here; "
                    "name a file that holds an array .json",
                    path,
                    line,
                )
            begun = True
            yield RowLocation(path, line), _decode(text, path, line)


def read_json(stream: IO[bytes], path: str) -> LocatedRows:
    """Rows of a file that holds one JSON array."""
    data = stream.read().removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        return
    rows = _decode(data, path, 1)
    if not isinstance(rows, list):
        raise InputError("expected an array of objects; for one object per line name the file .jsonl", path)
    for item, row in enumerate(rows, 1):
        yield RowLocation(path, item=item), row


def _header(cells: list[str], path: str, line: int) -> list[str]:
    names = [cell.strip() or f"column {position}" for position, cell in enumerate(cells, 1)]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise InputError(f"the header names {printable(name, 40)} twice", path, line)
    return names


def _cell(name: str, text: str, place: RowLocation, columns: TaskColumns) -> JSON:
    if not text:
        return None
    chat = name in ("prompt", "input") or columns.question == (name,)
    encoded = name in _JSON_CELLS or (chat and text.startswith('[{"'))
    # Of answers only an array that begins with a string: "[0, 1]" may be an answer itself, an interval.
    if not encoded and not (name in columns.answer and _STRINGS.match(text)):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        if encoded:
            raise place.error(f"{name} is not valid JSON: {quoted(text, 40)}") from None
        return text


def _records(text: str, path: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    while True:
        line = reader.line_num + 1
        # The limit belongs to the process: raised for one record and put back, so that no other reader sees
        # it.
        limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        try:
            cells = next(reader, None)
        except csv.Error as problem:
            raise InputError(f"cannot be read as a table: {printable(str(problem), 80)}", path, line) from None
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        if any(cells):
            yield line, cells


def read_separated(stream: IO[bytes], path: str, separator: str, columns: TaskColumns = _USUAL) -> LocatedRows:
    """Rows of a table with a header line; blank lines are skipped."""
    text = _text(stream.read().removeprefix(codecs.BOM_UTF8), path)
    names: list[str] | None = None
    place: RowLocation | None = None
    for line, cells in _records(text, path, separator):
        if names is None:
            names = _header(cells, path, line)
            continue
        if len(cells) != len(names):
            raise InputError(f"{len(cells)} cells, but the header has {len(names)}", path, line)
        place = RowLocation(path, line)
        yield place, {name: _cell(name, cell, place, columns) for name, cell in zip(names, cells, strict=True)}
    if names is not None and place is None:
        raise InputError(_only_header(names, columns.question), path)


def _only_header(names: list[str], questions: tuple[str, ...]) -> str:
    if any(name in questions for name in names):
        return "it has a header and no rows"
    found = printable(", ".join(names), 120)
    return (
        f"it has one line, which was read as a header with the columns {found}; "
        f"the first line must name the columns, one of them {', '.join(questions)}"
    )


class _Unpacked(gzip.GzipFile):
    """A gzip reader that closes the packed file with itself."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._packed = file

    def close(self) -> None:
        super().close()
        self._packed.close()


def open_input(path: str) -> IO[bytes]:
    """Open an input file for bytes, unpacked if gzip made it."""
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(Path(path).open("rb"))
            begin = file.peek(4)[:4]
            if path.lower().endswith(".zst") or begin.startswith(_ZSTD):
                raise InputError("compressed by Zstandard, which is not read: unpack it first, as with zstd -d", path)
            packed = begin.startswith(_GZIP)
            if begin and path.lower().endswith(".gz") and not packed:
                raise InputError("named .gz, but gzip did not make it: rename it or pack it again", path)
            stack.pop_all()
            return cast("IO[bytes]", _Unpacked(file)) if packed else file
    except FileNotFoundError:
        raise InputError("no such file", path) from None
    except IsADirectoryError:
        raise InputError("a directory, expected a file of questions", path) from None
    except OSError as problem:
        raise InputError(f"cannot be opened: {problem.strerror or problem}", path) from None
