"""Tables of a run: a row for each task, rollout, model turn or request, read in batches."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import msgspec

from trunkline import _core
from trunkline._internal.registry import load_extra
from trunkline._internal.text import printable
from trunkline._internal.validation import check_choice, short_repr
from trunkline.errors import ConfigError
from trunkline.tree.views import Kind
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from trunkline.store.reader import RunReader
    from trunkline.tree.views import Node

Level = str
"""``task``, ``rollout``, ``turn`` or ``call``."""

_TEXT, _INT, _FLOAT, _TEXTS, _INTS = "string", "int64", "float64", "list of string", "list of int64"
_COUNTS: Final = {
    "calls": (_INT, "requests; of a rollout its own, so that a sum over rollouts counts none twice"),
    "prompt_tokens": (_INT, "prompt tokens of these, cached ones included"),
    "cached_tokens": (_INT, "cached prompt tokens"),
    "generated_tokens": (_INT, "completion tokens"),
    "unreported": (_INT, "calls whose tokens no server reported, and which are in none of the three figures"),
    "retries": (_INT, "attempts beyond the first"),
    "tool_calls": (_INT, "tool calls"),
    "tool_errors": (_INT, "tool calls that failed"),
}

LEVELS: Final[dict[Level, dict[str, tuple[str, str]]]] = {
    "task": {
        "task": (_TEXT, "the task's id"),
        "question": (_TEXT, "the text of its last user message"),
        "references": (_TEXTS, "the reference answers"),
        "metadata": (_TEXT, "what else its row carried, as JSON"),
        "ended": (_TEXT, "how its growth ended; null while it is not finished, and in all columns that follow"),
        "error": (_TEXT, "why the task as a whole broke"),
        "rollouts": (_INT, "its rollouts"),
        "scored": (_INT, "rollouts with a reward"),
        "reward": (_FLOAT, "their mean reward; null where there are none"),
        "nodes": (_INT, "nodes of its tree"),
        "flat_tokens": (_INT, "tokens if every rollout were a chain of its own"),
        "tree_tokens": (_INT, "tokens with shared parts counted once"),
        **_COUNTS,
    },
    "rollout": {
        "task": (_TEXT, "the task's id"),
        "rollout": (_INT, "the number of the rollout in its tree"),
        "path": (_INTS, "its fork path: turn, draw, turn, draw, ..."),
        "subgroup": (_INT, "the initial chain it was expanded for"),
        "termination": (_TEXT, "why it ended; null if it did not"),
        "answer": (_TEXT, "its final answer; null without one"),
        "reward": (_FLOAT, "its reward; null while unscored"),
        "error": (_TEXT, "what went wrong"),
        "note": (_TEXT, "its last note, such as verdicts of filters"),
        "turns": (_INT, "model turns on its path, shared ones included"),
        "path_tokens": (_INT, "generated tokens on its path, shared ones included; null where a turn reports none"),
        **_COUNTS,
        "llm_seconds": (_FLOAT, "seconds in model calls"),
        "tool_seconds": (_FLOAT, "seconds in tool calls"),
    },
    "turn": {
        "task": (_TEXT, "the task's id"),
        "node": (_INT, "the number of the turn's node in its tree"),
        "parent": (_INT, "the number of the node before it"),
        "turn": (_INT, "model turns from the prompt to it, itself included"),
        "agent": (_TEXT, "the agent or role that said it"),
        "rollouts": (_INT, "rollouts that pass through it; a turn that several share is one row"),
        "reward": (_FLOAT, "the mean reward of these; null where none is scored"),
        "finish": (_TEXT, "why the model stopped, in the server's word"),
        "prompt_tokens": (_INT, "prompt tokens; null where no server reported them"),
        "generated_tokens": (_INT, "generated tokens; null where unknown"),
        "text": (_TEXT, "what it said, without tool calls"),
        "reasoning": (_TEXT, "what was said with it and is not sent again; null where nothing was"),
        "tool_calls": (_TEXT, "its tool calls in the OpenAI form, as JSON; null where there are none"),
        "weights": (_TEXT, "the version of the weights it was asked under; null where unknown"),
    },
    "call": {
        "task": (_TEXT, "the task's id"),
        "agent": (_TEXT, "the role that asked; null for the run's agent"),
        "endpoint": (_TEXT, "the endpoint that answered, or was asked last"),
        "draws": (_INT, "completions it brought; 0 if it failed for good"),
        "prompt_tokens": (_INT, "prompt tokens, cached ones included; null where the server reported none"),
        "cached_tokens": (_INT, "cached prompt tokens, likewise"),
        "generated_tokens": (_INT, "completion tokens of all draws, likewise"),
        "attempts": (_INT, "requests that were sent; 0 for a reply from the cache"),
        "started": (_FLOAT, "when it began, in seconds since the file was made"),
        "seconds": (_FLOAT, "seconds of the whole call, waits and retries included"),
        "queue_seconds": (_FLOAT, "seconds it waited for a slot or a limit"),
        "first_byte_seconds": (_FLOAT, "seconds from the last attempt to its first byte; null where unknown"),
    },
}
"""The columns of each level: type and meaning. Every column may be null where its meaning says so."""

_MOST_ROWS: Final = 4_096
_MOST_TEXT: Final = 32 << 20
"""Rows, and characters of text, after which a batch is full; one row may be longer."""


def _reward(reward: float | None) -> float | None:
    return None if reward is None or math.isnan(reward) else reward


def _known(count: int) -> int | None:
    return None if count < 0 else count


def _counts(usage: Any) -> tuple[Any, ...]:
    return (
        usage.calls,
        usage.prompt,
        usage.cached,
        usage.generated,
        usage.unreported,
        usage.retries,
    )


def _tasks(reader: RunReader, _names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    # Of a run under way, tasks that are finished between the two reads have figures and no row yet.
    rows = dict(reader.rows())
    figures = {one.task: one for one in reader.by_task()}
    for number, task in reader.each_task():
        about = (task.id, task.question, task.reference, msgspec.json.encode(task.metadata).decode())
        if number not in rows:
            yield *about, *([None] * (len(LEVELS["task"]) - len(about)))
            continue
        row, one = rows[number], figures[task.id]
        yield (
            *about,
            row.ended,
            row.error,
            one.rollouts,
            one.scored,
            _reward(one.reward),
            row.nodes,
            row.flat,
            row.tree,
            *_counts(one.usage),
            one.usage.tools,
            one.usage.tool_errors,
        )


def _rollouts(reader: RunReader, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for number, row in reader.rollouts():
        yield (
            names[number],
            row.rollout,
            [int(part) for part in row.path.split(",") if part],
            row.subgroup,
            row.termination,
            row.answer,
            None if row.termination in UNSCORED else _reward(row.reward),
            row.error,
            row.note,
            row.turns,
            row.length,
            *_counts(row),
            row.tools,
            row.tool_errors,
            row.llm_micros / 1e6,
            row.tool_micros / 1e6,
        )


def _turn(node: Node, reward: float) -> tuple[Any, ...]:
    message = node.message
    calls = message.get("tool_calls")
    return (
        node.tree.task.id,
        node.id,
        None if node.parent is None else node.parent.id,
        node.turns,
        node.agent or None,
        node.visits,
        _reward(reward),
        node.finish,
        node.prompt_tokens,
        node.generated_tokens,
        node.text,
        node.aside,
        msgspec.json.encode(calls).decode() if calls else None,
        node.weights,
    )


def _turns(reader: RunReader, _names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for tree in reader.trees():
        means = tree.values().means
        yield from (_turn(node, means[node.id]) for node in tree.nodes if node.kind is Kind.TURN)


def _calls(reader: RunReader, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for number, call in reader.calls():
        yield (
            names[number],
            call.agent or None,
            call.endpoint,
            call.draws,
            _known(call.prompt),
            _known(call.cached),
            _known(call.generated),
            call.attempts,
            call.started / 1e6,
            call.micros / 1e6,
            call.queue / 1e6,
            None if call.first < 0 else call.first / 1e6,
        )


_ROWS: Final[dict[Level, Callable[[RunReader, Sequence[str]], Iterator[tuple[Any, ...]]]]] = {
    "task": _tasks,
    "rollout": _rollouts,
    "turn": _turns,
    "call": _calls,
}


def batches(reader: RunReader, level: Level, tasks: Collection[str] = ()) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a level, some at a time; of all tasks where none are named."""
    check_choice("level", level, *LEVELS)
    reader.require_one_reward()
    wanted = frozenset(tasks)
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in _ROWS[level](reader, reader.task_ids()):
        if wanted and row[0] not in wanted:
            continue
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str))
        if len(rows) >= _MOST_ROWS or size >= _MOST_TEXT:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def columns_of(level: Level, only: Collection[str] = ()) -> list[int]:
    """The positions of the wanted columns of a level, in its order; all where none are named."""
    check_choice("level", level, *LEVELS)
    names = list(LEVELS[level])
    for name in only:
        if name not in names:
            raise ConfigError(f"level {level} has no column {short_repr(name)}; there is {', '.join(names)}")
    return [at for at, name in enumerate(names) if not only or name in only]


class ArrowRows:
    """Makes Arrow record batches of a level's rows."""

    def __init__(self, level: Level, columns: Sequence[int], extra: str, what: str) -> None:
        self.arrow = pa = load_extra("pyarrow", extra, what)
        scalar = {_TEXT: pa.string(), _INT: pa.int64(), _FLOAT: pa.float64()}
        types = scalar | {_TEXTS: pa.list_(pa.string()), _INTS: pa.list_(pa.int64())}
        known = list(LEVELS[level].items())
        facts = {"trunkline": _core.__version__, "trunkline.table": f"{level} 1"}
        self.schema = pa.schema([(known[at][0], types[known[at][1][0]]) for at in columns], metadata=facts)
        self._columns = columns

    def batch(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """Make a record batch."""
        arrays = [
            self.arrow.array([row[at] for row in rows], field.type)
            for at, field in zip(self._columns, self.schema, strict=True)
        ]
        return self.arrow.RecordBatch.from_arrays(arrays, schema=self.schema)


def to_arrow(reader: RunReader, level: Level, extra: str, what: str) -> Any:
    """Read a level into one ``pyarrow.Table``."""
    rows = ArrowRows(level, columns_of(level), extra, what)
    return rows.arrow.Table.from_batches(map(rows.batch, batches(reader, level)), schema=rows.schema)


class ParquetRows:
    """Writes a level's rows as Parquet, a batch a row group."""

    def __init__(self, stream: BinaryIO, level: Level, columns: Sequence[int]) -> None:
        self._rows = ArrowRows(level, columns, "parquet", "writing Parquet")
        parquet = load_extra("pyarrow.parquet", "parquet", "writing Parquet")
        self._writer = parquet.ParquetWriter(stream, self._rows.schema, compression="zstd")

    def write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write a row group."""
        self._writer.write_batch(self._rows.batch(rows))

    def close(self) -> None:
        """Write the footer."""
        try:
            self._writer.close()
        finally:
            # Else it tries once more when it is collected.
            self._writer.is_open = False


_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def cell(value: object, *, terminal: bool = False) -> object:
    """A value as CSV holds it: null empty, lists as JSON, and an apostrophe before text that spreadsheets compute."""
    if isinstance(value, list | tuple):
        value = msgspec.json.encode(value).decode()
    if not isinstance(value, str):
        return value
    if value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        value = f"'{value}"
    return printable(value) if terminal else value


class CSVRows:
    """Writes a level's rows as CSV (RFC 4180) in UTF-8, names of columns first."""

    def __init__(self, stream: BinaryIO, level: Level, columns: Sequence[int], *, terminal: bool) -> None:
        self._text = io.TextIOWrapper(cast("Any", stream), "utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._text)
        self._columns, self._terminal = columns, terminal
        names = list(LEVELS[level])
        self._writer.writerow([names[at] for at in columns])

    def write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write lines."""
        terminal = self._terminal
        self._writer.writerows([cell(row[at], terminal=terminal) for at in self._columns] for row in rows)

    def close(self) -> None:
        """Leave the stream open for its owner."""
        self._text.flush()
        self._text.detach()


def write_table(
    reader: RunReader, level: Level, format: str, stream: BinaryIO, tasks: Collection[str], only: Collection[str]
) -> tuple[int, int]:
    """Write a level as ``csv`` or ``parquet``; returns the rows and the tasks that these are of."""
    columns = columns_of(level, only)
    for name in tasks:
        reader.number(name)
    terminal = stream is getattr(sys.stdout, "buffer", None) and sys.stdout.isatty()
    to = (
        ParquetRows(stream, level, columns)
        if format == "parquet"
        else CSVRows(stream, level, columns, terminal=terminal)
    )
    count, seen = 0, set[str]()
    try:
        for rows in batches(reader, level, tasks):
            to.write(rows)
            count += len(rows)
            seen.update(name for name, _ in itertools.groupby(row[0] for row in rows))
    finally:
        to.close()
    return count, len(seen)
