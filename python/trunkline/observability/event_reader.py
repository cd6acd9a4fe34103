"""Events of a run, read from its file in steps."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from trunkline._internal.text import printable
from trunkline.errors import TreeError
from trunkline.observability.events import ErrorEvent, RunEnded, RunEvent, RunStarted
from trunkline.observability.tree_events import ToolUse, TreeEnd, TreeEvents
from trunkline.store.lock import is_written
from trunkline.store.reader import RunReader
from trunkline.store.schema import delta_key
from trunkline.store.sqlite import damaged, files_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_DELTAS: Final = 64  # deltas of a task that are read at once
_ALL: Final = 1 << 32  # more deltas than a task can have
_BLOCKS: Final = 16  # parts in which the rows of all tasks are read, so that not all of them are in memory
_LEAST_BLOCK: Final = 64  # tasks of such a part

# Their columns are converted, so that a damaged file is named as one.
_TOPS = "SELECT max(delta) FROM deltas WHERE delta BETWEEN ? AND ?"
_READ = "SELECT data FROM deltas WHERE delta BETWEEN ? AND ? ORDER BY delta"
_BEGUN = "SELECT DISTINCT delta >> 32 FROM deltas WHERE delta BETWEEN ? AND ? ORDER BY 1"
_CALLS = "SELECT task, seq, max(started + micros) FROM calls WHERE {} GROUP BY task, seq"
_USES = "SELECT use, task, seq, rollout, tool, failed, micros, started FROM uses WHERE {} ORDER BY use"
_ENDED = "SELECT task, ended, rollouts, nodes, digest, error FROM trees WHERE task BETWEEN ? AND ? ORDER BY task"
_DONE = "SELECT task FROM trees"
_UNFINISHED = "task NOT IN (SELECT task FROM trees)"
_EVENTS = "SELECT event, at, kind, task, data FROM events WHERE event > ? ORDER BY event"
_LAST = "SELECT coalesce((SELECT max(call) FROM calls), 0), coalesce((SELECT max(use) FROM uses), 0)"

T = TypeVar("T")


class EventReader:
    """Makes the events of a run file, in steps; the file is open only within a step.

    Args:
        path: The file.
        most: The most characters of a text; None for all.
        new: Whether what is in the file by now is left out.

    Raises:
        RunFileError: There is no such run, or it cannot be read.
        DamagedRunFile: It is damaged.
    """

    def __init__(self, path: Path, most: int | None, *, new: bool = False) -> None:
        self.path = path
        self._most = most
        self._trees: dict[int, TreeEvents] = {}
        self._done: set[int] = set()
        self._skip: dict[int, int] = {}  # deltas that are not told, by task
        self._ends: dict[int, int] = {}  # when the latest call of a delta ended, by its key
        # The tool calls of a delta, by its key and by their own.
        self._uses: defaultdict[int, dict[int, ToolUse]] = defaultdict(dict)
        self._calls = self._last_use = self._last_event = 0
        self._state: object = None
        with RunReader.open(path) as reader:
            self._names = reader.task_ids()
            meta = reader.meta
            self._began = _finite(meta.get("created", ""))
            agent = reader.settings.get("agent")
            named: Mapping[str, Any] = agent if isinstance(agent, dict) else {}
            self.started = RunStarted(
                time=self._began,
                run=path.name,
                tasks=len(self._names),
                agent=str(named.get("name") or ""),
                model=str(named.get("model") or ""),
                seed=reader.seed,
            )
            if new:
                self._leave_out(reader)

    def _leave_out(self, reader: RunReader) -> None:
        self._done = set(self._finished(reader))
        for number in self._begun(reader, 0, len(self._names) - 1):
            self._skip[number] = self._top(reader, number)
        # For the times of what follows.
        self._load(reader, _UNFINISHED, _UNFINISHED)
        ((self._calls, self._last_use),) = self._rows(reader, list[tuple[int, int]], _LAST)
        self._last_event = max([event for event, *_ in reader.query("SELECT event FROM events")], default=0)

    def all(self) -> Iterator[list[RunEvent]]:
        """Tell what is in the file, task by task; some events at a time."""
        size = max(_LEAST_BLOCK, -(-len(self._names) // _BLOCKS))
        with RunReader.open(self.path) as reader:
            ((self._calls, self._last_use),) = self._rows(reader, list[tuple[int, int]], _LAST)
            for first in range(0, len(self._names), size):
                last = min(first + size, len(self._names)) - 1
                ends = self._tree_ends(reader, first, last)
                tops = {number: self._top(reader, number) for number in self._begun(reader, first, last)}
                between = f"task BETWEEN {first:d} AND {last:d}"
                self._load(reader, between, between)
                for number in sorted({*tops, *ends} - self._done):
                    yield from self._advance(reader, number, tops.get(number, 0), ends.get(number))
            yield self._run_events(reader)

    def changed(self) -> bool:
        """Whether the file may have changed since the last call."""
        state = [_state_of(file) for file in files_of(self.path)[:2]]
        known, self._state = self._state, state
        return known != state

    def new(self, tasks: Mapping[int, int] | None = None) -> Iterator[list[RunEvent]]:
        """Tell what is new, some events at a time.

        Args:
            tasks: The tasks that are looked at, each with the most deltas of it that are told; all of all that are
                found to have changed when None.
        """
        with RunReader.open(self.path) as reader:
            if tasks is None:
                found = {key >> 32 for key in self._load_new(reader)}.union(self._trees, self._finished(reader))
                tasks = dict.fromkeys(found, _ALL)
            chosen = sorted(number for number in tasks if number not in self._done and 0 <= number < len(self._names))
            ends = {number: end for number in chosen for end in self._tree_ends(reader, number, number).values()}
            tops = {number: self._top(reader, number) for number in chosen}
            # Behind the look at deltas, so that the calls of each of these are found.
            self._load_new(reader)
            yield self._run_events(reader)
            for number in chosen:
                yield from self._advance(reader, number, tops[number], ends.get(number), tasks[number])

    def rest(self) -> Iterator[list[RunEvent]]:
        """Tell what is new, once nothing writes the file any more."""
        with RunReader.open(self.path) as reader:
            tasks = {*self._begun(reader, 0, len(self._names) - 1), *self._finished(reader)}
        yield from self.new(dict.fromkeys(tasks, _ALL))

    def ended(self, state: str | None = None) -> RunEnded:
        """The end of the run; how it ended is in the file unless it is said."""
        with RunReader.open(self.path) as reader:
            meta, finished = reader.meta, reader.finished
        state = state or meta.get("state", "")
        if state == "running" and not is_written(self.path):
            state = "killed"
        time = _finite(meta.get("finished") or meta.get("updated", ""))
        return RunEnded(time=time, state=state, tasks=len(self._names), finished=finished)

    def _advance(
        self, reader: RunReader, number: int, top: int, end: TreeEnd | None, most: int = _ALL
    ) -> Iterator[list[RunEvent]]:
        """Tell so many deltas of a task, of those before a number of them, and its end where these are all."""
        tree = self._trees.get(number)
        if tree is None:
            tree = self._trees[number] = TreeEvents(self._names[number], self._began, self._most)
        skip = self._skip.get(number, 0)
        until = min(top, max(tree.seq, skip) + most)
        while tree.seq < until:
            last = min(tree.seq + _DELTAS, until) - 1
            deltas = reader.query(_READ, delta_key(number, tree.seq), delta_key(number, last))
            told: list[RunEvent] = []
            for (data,) in deltas:
                key, known = delta_key(number, tree.seq), tree.seq < skip
                try:
                    events = list(tree.grow(data, self._ends.pop(key, 0), [*self._uses.pop(key, {}).values()]))
                except (TreeError, TypeError, msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
                    raise damaged(self.path, f"task number {number}: {printable(str(problem), 200)}") from None
                told += [] if known else events
            if not deltas:
                raise damaged(self.path, f"task number {number}: its delta {tree.seq} is missing")
            if told:
                yield told
        if end is not None and until == top:
            self._done.add(number)
            del self._trees[number]
            yield list(tree.finish(end))

    def _rows(self, reader: RunReader, type_: type[T], statement: str, *values: object) -> T:
        try:
            return msgspec.convert(reader.query(statement, *values), type_)
        except msgspec.ValidationError as problem:
            raise damaged(self.path, printable(str(problem), 200)) from None

    def _finished(self, reader: RunReader) -> list[int]:
        return [number for (number,) in self._rows(reader, list[tuple[int]], _DONE)]

    def _begun(self, reader: RunReader, first: int, last: int) -> list[int]:
        """Tasks that have deltas, of those with numbers up to a last one."""
        rows = self._rows(reader, list[tuple[int]], _BEGUN, delta_key(first, 0), delta_key(last + 1, 0) - 1)
        return [number for (number,) in rows]

    def _top(self, reader: RunReader, number: int) -> int:
        """How many deltas of a task are there."""
        ((key,),) = self._rows(
            reader, list[tuple[int | None]], _TOPS, delta_key(number, 0), delta_key(number + 1, 0) - 1
        )
        return 0 if key is None else key - delta_key(number, 0) + 1

    def _tree_ends(self, reader: RunReader, first: int, last: int) -> dict[int, TreeEnd]:
        rows = self._rows(reader, list[tuple[int, str, int, int, str, str | None]], _ENDED, first, last)
        return {row[0]: TreeEnd(*row[1:]) for row in rows}

    def _load_new(self, reader: RunReader) -> list[int]:
        """Read the rows of calls that were written since the last look; returns the keys of their deltas."""
        ((calls, uses),) = self._rows(reader, list[tuple[int, int]], _LAST)
        keys = self._load(
            reader, f"call > {self._calls:d} AND call <= {calls:d}", f"use > {self._last_use:d} AND use <= {uses:d}"
        )
        self._calls, self._last_use = calls, uses
        return keys

    def _load(self, reader: RunReader, calls: str, uses: str) -> list[int]:
        keys = []
        for task, seq, ended in self._rows(reader, list[tuple[int, int, int]], _CALLS.format(calls)):
            keys.append(delta_key(task, seq))
            self._note(task, seq, ended)
        rows = self._rows(reader, list[tuple[int, int, int, int, str, int, int, int]], _USES.format(uses))
        for use, task, seq, rollout, tool, failed, micros, started in rows:
            keys.append(delta_key(task, seq))
            if self._note(task, seq, started + micros):
                self._uses[keys[-1]][use] = ToolUse(rollout, tool, bool(failed), micros, started)
        return keys

    def _note(self, task: int, seq: int, ended: int) -> bool:
        """Keep when a call of a delta ended; False where that delta was told already."""
        tree = self._trees.get(task)
        if task in self._done or (tree is not None and seq < tree.seq):
            return False
        key = delta_key(task, seq)
        self._ends[key] = max(self._ends.get(key, 0), ended)
        return True

    def _run_events(self, reader: RunReader) -> list[RunEvent]:
        """What is new of workers."""
        found: list[RunEvent] = []
        for event, at, kind, task, data in self._rows(
            reader, list[tuple[int, float, str, int | None, str]], _EVENTS, self._last_event
        ):
            self._last_event = event
            name = self._names[task] if task is not None and 0 <= task < len(self._names) else None
            most = len(data) if self._most is None else self._most
            message = printable(data[:most])
            found.append(
                ErrorEvent(
                    time=at if math.isfinite(at) else 0.0,
                    source="run",
                    error=kind,
                    message=message,
                    task=name,
                    cut=max(0, len(data) - most),
                )
            )
        return found


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def _state_of(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
