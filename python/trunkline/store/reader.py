"""Reading a run file."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import msgspec

from trunkline._core import add_sums, chain_sums, checksum
from trunkline._internal.old_names import old_method
from trunkline._internal.text import printable, quoted
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError, DamagedRunFile, RunFileError, TreeError, UsageError
from trunkline.llm.pricing import MAIN, Price, prices_named
from trunkline.scoring.notes import retried
from trunkline.store import schema
from trunkline.store.check import check
from trunkline.store.derive import rebuilt
from trunkline.store.lock import is_written
from trunkline.store.log import log_size, loss_in_log, missing_log, refuse
from trunkline.store.schema import CallRow, EventRow, RolloutRow, TakenRow, ToolRow, TreeRow, delta_keys
from trunkline.store.sqlite import READ_ERRORS, connect, damaged, fault, files_of, irregular, lacks_columns, versions_of
from trunkline.store.state import under_way
from trunkline.store.stats.calls import CallStats, Spending, spending
from trunkline.store.stats.profile import Profile, RoleRows, RowCounts, profile
from trunkline.store.stats.summary import Summary, first_try, summarise, wall_seconds
from trunkline.store.stats.tasks import TaskSummary, by_task
from trunkline.store.sums import SEALED, Seal, rows_sum
from trunkline.tree.views import Tree
from trunkline.types import Task, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trunkline._internal.text import JSON

_SILENT = "SELECT task FROM calls WHERE draws > 0 AND attempts > 0 AND prompt >= 0 GROUP BY task HAVING max(cached) < 0"
# The names in these statements are our own.
_FIGURES = ", ".join(schema.CALL_COLUMNS[1:-1])
_CALLS = (
    f"SELECT task, seq, calls.endpoint, {_FIGURES}, calls.agent, endpoints.name, agents.name "  # noqa: S608
    f"FROM {schema.CALLS_NAMED} ORDER BY call"
)
_FAILED_TOOLS = "SELECT tool, count(*) FROM uses WHERE failed GROUP BY tool ORDER BY count(*) DESC, tool"
_TOOLS = f"SELECT task, seq, {', '.join(schema.TOOL_COLUMNS)} FROM uses ORDER BY use"  # noqa: S608
_TREE_ROWS = f"SELECT task, {', '.join(schema.TREE_COLUMNS)} FROM trees ORDER BY task"  # noqa: S608
_TAKEN_ROWS = f"SELECT task, {', '.join(schema.TAKEN_COLUMNS)} FROM taken ORDER BY task"  # noqa: S608
_ROLLOUT_ROWS = f"SELECT task, {', '.join(schema.ROLLOUT_COLUMNS)} FROM rollouts ORDER BY task, rollout"  # noqa: S608

_TOGETHER = 64
"""Rows that are read at a time."""

_WRITTEN = "not those that were written"

_DIFFERING = """
SELECT id FROM tasks WHERE task = coalesce(
    (SELECT task FROM rollouts GROUP BY task HAVING min(reward) < max(reward) ORDER BY task LIMIT 1),
    (SELECT min(task) FROM trees)
)
"""


_Row = TypeVar("_Row")


class RunReader:
    """A run file, open for reading; make it with ``open``. The run may still be running.

    Attributes:
        path: The file.
        loss: What is missing of the file, as the end of a sentence; None where all is there.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, cleanup: Callable[[], None] | None = None) -> None:
        self.path = path
        self.loss: str | None = None
        self._connection = connection
        self._cleanup = cleanup

    @classmethod
    def open(cls, path: str | Path, *, partial: bool = False) -> Self:
        """Open a run file. Nothing is written, so a copy that may not be written will do.

        Args:
            path: The file.
            partial: Also one whose log is missing or damaged: what is whole of it is read.

        Raises:
            RunFileError: There is no file, it is not a run, its schema or its deltas have another version, or the log
                beside it is another run's.
            DamagedRunFile: Its log is missing or damaged.
        """
        path = Path(path)
        shown = printable(str(path))
        if not path.exists():
            raise RunFileError(f"{shown}: no such run file")
        if (found := irregular(path)) is not None:
            raise RunFileError(f"{shown} {found}, expected a run file")
        try:
            logged, loss = log_size(path) > 0, loss_in_log(path)
            connection, cleanup, found = _open(path)
        except READ_ERRORS as problem:
            foreign = getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
            what = "is not a Trunkline run" if foreign else "cannot be read"
            raise RunFileError(f"{shown} {what}: {printable(str(problem), 200)}") from None
        except OSError as problem:
            raise RunFileError(f"{shown} cannot be read: {problem.strerror or problem}") from None
        reader = cls(path, connection, cleanup)
        with contextlib.ExitStack() as stack:
            stack.callback(reader.close)
            if found is not None:
                raise RunFileError(f"{shown} {found}")
            reader.loss = loss if logged else missing_log(path, connection)
            if not logged and reader.loss is not None and is_written(path):
                reader.loss = None
            refuse(path, reader.loss, partial=partial)
            stack.pop_all()
        return reader

    def __iter__(self) -> Iterator[Tree]:
        """The trees of finished tasks, as ``trees`` gives them."""
        return self.trees()

    def close(self) -> None:
        """Close the file; trees that were read stay usable."""
        self._connection.close()
        if self._cleanup is not None:
            self._cleanup()
            self._cleanup = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.close()

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except READ_ERRORS as problem:
            raise self._unreadable(problem) from None

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement of SQLite over the file's tables; checksums are not compared.

        Args:
            statement: The statement; ``docs/reference/run-file.md`` has the tables.
            values: The values of its placeholders.

        Raises:
            UsageError: SQLite does not know such a statement, or it would write.
            RunFileError: The file is damaged, or the reader was closed.
        """
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as problem:
            # An error without a code comes from Python: a text cannot be decoded.
            known = getattr(problem, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY}
            if known and not lacks_columns(self._connection):
                raise UsageError(f"{short_repr(statement)}: {printable(str(problem), 200)}") from None
            raise self._unreadable(problem) from None
        except READ_ERRORS as problem:
            raise self._unreadable(problem) from None

    def _batches(self, statement: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows, some at a time, without reading all of them first."""
        try:
            cursor = self._connection.execute(statement)
            while batch := cursor.fetchmany(_TOGETHER):
                yield batch
        except READ_ERRORS as problem:
            raise self._unreadable(problem) from None

    def _checksum(self, table: str) -> int:
        """The checksum of the rows of a table that has one."""
        try:
            return checksum(self._connection.execute(SEALED[table]))
        except READ_ERRORS as problem:
            raise self._unreadable(problem) from None

    def _unreadable(self, problem: Exception) -> RunFileError:
        """The error that an error of SQLite means."""
        if isinstance(problem, sqlite3.ProgrammingError):
            return RunFileError(f"{printable(str(self.path))}: the reader was closed: open the run file again")
        return self._damaged(str(problem))

    def _damaged(self, what: str) -> DamagedRunFile:
        return damaged(self.path, printable(what, 300))

    @contextlib.contextmanager
    def _moment(self) -> Iterator[None]:
        """Read the file at one moment, though it may be written meanwhile."""
        if self._connection.in_transaction:
            yield
            return
        self._query("BEGIN")
        try:
            yield
        finally:
            self._query("COMMIT")

    @cached_property
    def _has_sums(self) -> bool:
        """Whether the file has checksums; earlier schemas have none."""
        return bool(self._query("PRAGMA user_version")[0][0] >= schema.SCHEMA_VERSION)

    def _seal(self, meta: Mapping[str, str] | None = None) -> Seal | None:
        """The checksums in ``meta``; None for a file of an earlier schema."""
        if not self._has_sums:
            return None
        try:
            found = Seal.stored(self.meta if meta is None else meta)
        except ValueError as problem:
            raise self._damaged(f"meta.sums: {printable(str(problem), 120)}") from None
        if found is None:
            raise self._damaged("meta: no sums")
        return found

    def _differ(self, seal: Seal | None, table: str, found: int) -> None:
        """Compare a table with its checksum, unless the checksum has changed since it was read."""
        if seal is not None and found != seal.tables.get(table, -1) and self._seal() == seal:
            raise self._damaged(f"{table}: its rows are {_WRITTEN}")

    def _check_meta(self) -> dict[str, str]:
        """The table ``meta``, compared with its checksum."""
        meta = self.meta
        seal = self._seal(meta)
        if seal is not None and not seal.holds(meta):
            raise self._damaged(f"meta: its rows are {_WRITTEN}")
        return meta

    @cached_property
    def _size(self) -> int:
        """How many tasks there are, numbered from 0 on; they are compared with their checksum, and never change."""
        ((count, least, most),) = self._query("SELECT count(*), min(task), max(task) FROM tasks")
        if count and (least, most) != (0, count - 1):
            raise self._damaged(f"tasks: {count} rows with numbers from {least} to {most}")
        if (seal := self._seal()) is not None:
            self._differ(seal, "tasks", self._checksum("tasks"))
        return int(count)

    def _known(self, table: str, number: object) -> int:
        """The number of a task in a row, checked."""
        if not isinstance(number, int) or not 0 <= number < self._size:
            raise self._damaged(f"{table}: rows of task number {short_repr(number)}, which is in no row of tasks")
        return number

    def _rows_sum(self, number: int) -> int:
        try:
            return rows_sum(self._connection, number)
        except READ_ERRORS as problem:
            raise self._damaged(str(problem)) from None

    def _sums_of(self, column: str, number: int | None = None) -> dict[int, int | None]:
        """A column of checksums by the finished task, of one or of all; None where a task has none."""
        if not self._has_sums:
            return {}
        query = f"SELECT task, {column} FROM trees"  # noqa: S608 - our own names
        found = dict(self._query(query) if number is None else self._query(f"{query} WHERE task = ?", number))
        for task, stored in found.items():
            if not isinstance(stored, int | None):
                raise self._damaged(f"trees: {column} of task number {short_repr(task)} is {short_repr(stored)}")
        return found

    def _fit(self, seal: Seal | None, table: str, sums: Mapping[int, int | None], found: Mapping[int, int]) -> None:
        """Compare the added checksums of tasks' calls or tool calls with those of finished tasks and of the others."""
        growing = sum(rows for task, rows in found.items() if task not in sums)
        for task, stored in sums.items():
            if stored is not None and (stored - found.get(task, 0)) & schema.SUM_MASK:
                raise self._damaged(f"{table}: the rows of task number {task} are {_WRITTEN}")
        self._differ(seal, table, growing & schema.SUM_MASK)

    @property
    def meta(self) -> dict[str, str]:
        """Facts about the run, as stored: settings, command, versions, state, times."""
        return {str(key): str(value) for key, value in self._query("SELECT key, value FROM meta ORDER BY key")}

    @cached_property
    def settings(self) -> dict[str, JSON]:
        """The settings of the run."""
        try:
            return msgspec.json.decode(self.meta.get("settings", ""), type=dict[str, Any])
        except msgspec.MsgspecError as problem:
            raise self._damaged(f"meta.settings: {problem}") from None

    @property
    def seed(self) -> int | None:
        """The run's seed; None where the settings hold none."""
        seed = self.settings.get("seed")
        return seed if type(seed) is int else None

    @cached_property
    def prices(self) -> dict[str, Price]:
        """The price of each endpoint by what it is called on record, or one of all; empty if the run was given none."""
        others = self.settings.get("llms")
        llms = {MAIN: self.settings.get("llm"), **(others if isinstance(others, dict) else {})}
        try:
            prices = {
                name: msgspec.convert(llm.get("price", {}), dict[str, Price])
                for name, llm in llms.items()
                if isinstance(llm, dict)
            }
            return {url: price for name, those in prices.items() for url, price in prices_named(name, those).items()}
        except (msgspec.ValidationError, ConfigError) as problem:
            raise self._damaged(f"meta.settings: price: {printable(str(problem), 120)}") from None

    def _task(self, number: int, record: object) -> Task:
        try:
            return msgspec.json.decode(cast("bytes", record), type=Task)
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, UsageError) as problem:
            raise self._damaged(f"task number {number}: {printable(str(problem), 120)}") from None

    def task(self, number: int) -> Task:
        """Return a task by its number, from 0 on in the order of the tasks.

        Raises:
            UsageError: There is no such task.
            DamagedRunFile: It cannot be read.
        """
        found = self._query("SELECT record FROM tasks WHERE task = ?", number)
        if not found:
            raise UsageError(f"{printable(str(self.path))} has no task number {number}")
        return self._task(number, found[0][0])

    def task_ids(self) -> list[str]:
        """The ids of all tasks, in their order, without reading the tasks themselves."""
        return [str(name) for (name,) in self._query("SELECT id FROM tasks ORDER BY task")][: self._size]

    def tasks(self) -> list[Task]:
        """All tasks of the run, finished or not, in their order."""
        rows = self._query("SELECT task, record FROM tasks ORDER BY task")
        return [self._task(*row) for row in rows[: self._size]]

    def each_task(self) -> Iterator[tuple[int, Task]]:
        """All tasks with their numbers, without reading all of them first."""
        for batch in self._batches("SELECT task, record FROM tasks ORDER BY task"):
            yield from ((self._known("tasks", number), self._task(number, record)) for number, record in batch)

    def records(self) -> list[tuple[str, bytes]]:
        """All tasks as they are stored, each with its id, in their order."""
        rows = self._query("SELECT id, record FROM tasks ORDER BY task")
        return [(str(name), record) for name, record in rows[: self._size]]

    @property
    def finished(self) -> int:
        """How many tasks are done."""
        return int(self._query("SELECT count(*) FROM trees")[0][0])

    def number(self, task_id: str) -> int:
        """Return the number of a task in the file.

        Args:
            task_id: The task's id.

        Raises:
            UsageError: There is no such task.
        """
        if not isinstance(task_id, str):
            raise UsageError(f"a task is named by its id, a text, not by {short_repr(task_id)}")
        found = self._query("SELECT task FROM tasks WHERE id = ?", task_id)
        if not found:
            some = ", ".join(quoted(name, 40) for name in self.task_ids()[:5])
            where = printable(str(self.path))
            raise UsageError(f"no task {quoted(task_id)} in {where}; it begins with {some or 'no task'}")
        return int(found[0][0])

    def deltas(self, number: int) -> list[bytes]:
        """The deltas of a task, in order.

        Args:
            number: The task's number.
        """
        return [data for (data,) in self._query(schema.DELTAS, *delta_keys(number))]

    def _tree(self, number: int) -> Tree:
        with self._moment():
            tree, stored = self.grown(number), self._sums_of("rows_sum", number).get(number)
            found = None if stored is None else self._rows_sum(number)
            digests = self._query("SELECT digest FROM trees WHERE task = ?", number)
        where = f"task {quoted(tree.task.id)}"
        if found != stored:
            raise self._damaged(f"{where}: its rows are {_WRITTEN}")
        if stored is not None and self._digests and tree.core.digest() != digests[0][0]:
            raise self._damaged(f"{where}: its row is of another tree than its deltas")
        return tree

    def grown(self, number: int) -> Tree:
        """Rebuild a tree from its deltas alone; its rows are not looked at.

        Args:
            number: The task's number.

        Raises:
            RunFileError: The deltas are damaged.
        """
        ((record,),) = self._query("SELECT record FROM tasks WHERE task = ?", number)
        task = self._task(number, record)
        try:
            core = rebuilt(self.deltas(number))
        except (TreeError, TypeError) as problem:
            raise self._damaged(f"task {quoted(task.id)}: {printable(str(problem), 200)}") from None
        ended = self._query("SELECT ended FROM trees WHERE task = ?", number)
        return Tree(task, core, str(ended[0][0]) if ended else "")

    @cached_property
    def _digests(self) -> bool:
        """Whether digests in the file are of the version that is computed here."""
        made = versions_of(self._connection)
        return made is not None and made.digest == schema.HERE.digest

    def tree(self, task_id: str) -> Tree:
        """Rebuild the tree of a task from its deltas, also of a task that is not finished.

        Args:
            task_id: The task's id.

        Raises:
            UsageError: There is no such task.
            RunFileError: The deltas are damaged.
        """
        return self._tree(self.number(task_id))

    def differing(self) -> str | None:
        """The id of the first task whose rollouts differ in reward, else of the first that is done, if any is."""
        found = self._query(_DIFFERING)
        return str(found[0][0]) if found else None

    def require_one_reward(self) -> None:
        """Refuse a run that is scored again in part: what is trained or measured on two rewards means nothing.

        Raises:
            UsageError: It is.
        """
        if (scoring := under_way(self.meta)) is not None:
            raise UsageError(
                f"{printable(str(self.path))} is scored by {printable(scoring.reward, 80)} in part, so its rewards are "
                "of two kinds: finish that first, with `trunkline score` (rescore)"
            )

    def trees(self, *, mixed: bool = False) -> Iterator[Tree]:
        """The trees of all finished tasks, one at a time, in the order of the tasks.

        Args:
            mixed: Also of a run that is scored again in part.

        Raises:
            UsageError: The run is scored again in part.
        """
        if not mixed:
            self.require_one_reward()
        self._check_meta()
        for number, _ in self.rows():
            yield self._tree(number)

    def _convert(self, table: str, values: tuple[Any, ...], type: type[Any]) -> Any:
        try:
            return msgspec.convert(values, type)
        except msgspec.ValidationError as problem:
            raise self._damaged(f"a row of {table}: {problem}") from None

    def _read(self, table: str, kind: type[_Row], batch: Sequence[tuple[Any, ...]]) -> Iterable[tuple[int, _Row]]:
        """Rows that begin with a task's number, each as the number and a struct of the other values."""
        numbers = [row[0] for row in batch]
        if all(map(range(self._size).__contains__, numbers)):
            with contextlib.suppress(msgspec.ValidationError):
                return zip(numbers, msgspec.convert([row[1:] for row in batch], list[kind]), strict=True)  # type: ignore[valid-type]
        # The rows before the damaged one are read.
        return ((self._known(table, row[0]), self._convert(table, row[1:], kind)) for row in batch)

    def rows(self) -> Iterator[tuple[int, TreeRow]]:
        """The rows of finished tasks, each with the task's number."""
        return chain.from_iterable(self._tree_rows())

    def _tree_rows(self, sums: dict[int, int] | None = None) -> Iterator[Iterable[tuple[int, TreeRow]]]:
        """The rows of finished tasks, some at a time; their checksums are put into ``sums``."""
        seal, count = self._seal(), 0
        for batch in self._batches(_TREE_ROWS):
            count += len(batch)
            if sums is not None:
                _begin_sums(batch, sums)
            yield self._read("trees", TreeRow, batch)
        if seal is not None and seal.finished != count and self._seal() == seal:
            raise self._damaged(f"trees: {count} rows of {seal.finished} finished tasks")

    def rollouts(self) -> Iterator[tuple[int, RolloutRow]]:
        """The rows of all rollouts of finished tasks, each with the task's number.

        Behind the last one, they are compared with the checksums of their tasks.
        """
        return chain.from_iterable(self._rollout_rows())

    def _rollout_rows(self, found: dict[int, int] | None = None) -> Iterator[Iterable[tuple[int, RolloutRow]]]:
        """The rows of all rollouts, some at a time; ``found`` are the checksums of the tasks' rows in ``trees``."""
        self._check_meta()
        sums = self._sums_of("rows_sum")
        if found is None:
            found = {}
            for batch in self._batches(_TREE_ROWS):
                _begin_sums(batch, found)
        for batch in self._batches(_TAKEN_ROWS):
            chain_sums(batch, found)
        undone: set[int] = set()
        for batch in self._batches(_ROLLOUT_ROWS):
            undone.update(chain_sums(batch, found))
            yield self._read("rollouts", RolloutRow, batch)
        # What does not fit may have been written meanwhile: it is looked at again, at one moment.
        changed = {number for number, stored in sums.items() if stored not in {None, found.get(number)}}
        for number in changed | undone:
            self._fitting(self._known("rollouts", number))

    def _fitting(self, number: int) -> None:
        """Refuse rows of a task that are not those that were written."""
        with self._moment():
            stored = self._query(f"SELECT {'rows_sum' if self._has_sums else 'NULL'} FROM trees WHERE task = ?", number)  # noqa: S608 - our own names
            found = self._rows_sum(number)
        if not stored:
            raise self._damaged(f"rollouts: rows of task number {number}, which is not finished")
        if stored[0][0] not in {None, found}:
            raise self._damaged(f"task number {number}: its rows are {_WRITTEN}")

    def taken(self) -> Iterator[tuple[int, TakenRow]]:
        """What was taken over of an earlier run, each task with its number; empty for a run that began anew."""
        return chain.from_iterable(self._read("taken", TakenRow, batch) for batch in self._batches(_TAKEN_ROWS))

    def calls(self) -> Iterator[tuple[int, CallRow]]:
        """The rows of all calls, each with the task's number, in the order in which they were written.

        They are read as they are asked for: a run may have made millions. Behind the last one, they are compared with
        the checksums of their tasks.
        """
        return chain.from_iterable(self._call_rows())

    def _call_rows(self) -> Iterator[Iterable[tuple[int, CallRow]]]:
        seal, sums = self._seal(), self._sums_of("calls_sum")
        found: dict[int, int] = {}
        for batch in self._batches(_CALLS):
            add_sums(batch, len(schema.CALL_COLUMNS) + 2, found)
            named = [(task, endpoint, *row, agent) for task, _, _, *row, _, endpoint, agent in batch]
            yield self._read("calls", CallRow, named)
        self._fit(seal, "calls", sums, found)
        for table in ("endpoints", "agents"):
            self._differ(seal, table, self._checksum(table))

    def tool_calls(self) -> Iterator[tuple[int, ToolRow]]:
        """The rows of all tool calls, each with the task's number, in the order in which they were written."""
        return chain.from_iterable(self._tool_rows())

    def _tool_rows(self) -> Iterator[Iterable[tuple[int, ToolRow]]]:
        seal, sums = self._seal(), self._sums_of("tools_sum")
        found: dict[int, int] = {}
        for batch in self._batches(_TOOLS):
            add_sums(batch, len(schema.TOOL_COLUMNS) + 2, found)
            rows = [(task, rollout, tool, bool(failed), *row) for task, _, rollout, tool, failed, *row in batch]
            yield self._read("uses", ToolRow, rows)
        self._fit(seal, "uses", sums, found)

    uses = old_method("uses", "tool_calls")

    def events(self) -> Iterator[EventRow]:
        """Events beside the trees, such as workers that died, in order."""
        seal, rows = self._seal(), self._query(SEALED["events"])
        self._differ(seal, "events", checksum(rows))
        for at, kind, worker, task, data in rows:
            try:
                found = msgspec.json.decode(data, type=dict[str, Any])
            except (msgspec.MsgspecError, TypeError) as problem:
                raise self._damaged(f"events: {problem}") from None
            yield self._convert("events", (at, kind, worker, task, found), EventRow)

    def costs(self) -> dict[str, Spending]:
        """The cost of each task that made a call, by its id; empty without a price."""
        if not self.prices:
            return {}
        asked: dict[int, defaultdict[str, CallStats]] = {}
        for number, call in self.calls():
            endpoints = asked.setdefault(number, defaultdict(CallStats))
            if call.attempts:
                endpoints[call.endpoint].add(call)
        names = enumerate(self.task_ids())
        return {name: spending(asked[number], self.prices) for number, name in names if number in asked}

    def agents(self) -> list[str]:
        """Names of those whose calls are on record: the agent of the run, those that a program asks, roles of a team.

        A call without an agent is of the run's agent, and has the empty name.
        """
        return [str(name) for (name,) in self._query("SELECT name FROM agents ORDER BY agent")]

    def profile(self) -> Profile:
        """Where the time went, computed from the rows, and of a team from its trees; also of a running run."""
        agent = self.settings.get("agent")
        name = agent.get("name") if isinstance(agent, dict) else None
        rows = self.role_rows() if self.settings.get("team") else None
        seconds = wall_seconds(self.meta)
        rollouts, names = self.rollouts(), self.task_ids()
        try:
            return profile(str(name or "agent"), seconds, self.calls(), self.tool_calls(), rollouts, names, rows)
        except OverflowError:
            raise self._damaged("a row of calls: a time that cannot be") from None

    def role_rows(self, tasks: Iterable[int] | None = None) -> dict[str, RoleRows]:
        """The rows of a team by role, of the tasks with these numbers or of all; one tree at a time is in memory."""
        counts = RowCounts()
        taken = {number: row.deltas for number, row in self.taken()}
        if tasks is None:
            tasks = (number for (number,) in self._query("SELECT task FROM tasks ORDER BY task"))
        for number in tasks:
            try:
                counts.add(self.deltas(number), taken.get(number, 0))
            except (TreeError, TypeError, msgspec.MsgspecError) as problem:
                raise self._damaged(f"task number {number}: {printable(str(problem), 200)}") from None
        return counts.by_role()

    def by_task(self) -> list[TaskSummary]:
        """The figures of each finished task, computed from its rows, in the order of the tasks."""
        silent = {task for (task,) in self._query(_SILENT)}
        return by_task(self.rows(), self.rollouts(), self.task_ids(), self.taken(), silent)

    def summary(self) -> Summary:
        """The run's totals, computed from its rows."""
        prices, meta, tasks = self.prices, self._check_meta(), self._size
        broken = {number for (number,) in self._query("SELECT task FROM trees WHERE error IS NOT NULL")}
        sums: dict[int, int] = {}
        rows = map(itemgetter(1), chain.from_iterable(self._tree_rows(sums)))
        rollouts = chain.from_iterable(self._rollout_rows(sums))
        taken = list(self.taken())
        events = [event.kind for event in self.events()]
        found = summarise(meta, tasks, rows, rollouts, self.calls(), prices, taken, broken, events)
        failed = {str(tool): int(times) for tool, times in self._query(_FAILED_TOOLS)}
        first = first_try(self.rollouts()) if found.chosen else None
        return msgspec.structs.replace(found, tool_failures=failed, first_try=first)

    def chosen(self) -> int:
        """How many tries were asked again because of their result."""
        notes = self._query("SELECT note FROM rollouts WHERE termination = ?", Termination.RETRIED)
        return sum((found := retried(note)) is not None and found.chosen for (note,) in notes)

    def check(self) -> list[str]:
        """Derive everything again from the deltas and compare.

        Returns:
            One printable line for each problem, naming task and field; empty if all is well.
        """
        return [*([] if self.loss is None else [self.loss]), *check(self._connection)]


def _begin_sums(trees: Sequence[tuple[Any, ...]], sums: dict[int, int]) -> None:
    """Begin the checksum of each task's rows with its row in ``trees``."""
    sums.update(dict.fromkeys(map(itemgetter(0), trees), 0))
    chain_sums(trees, sums)


def _open(path: Path) -> tuple[sqlite3.Connection, Callable[[], None] | None, str | None]:
    log = files_of(path)[1]
    connection = connect(path)
    try:
        return connection, None, _fault(connection)
    except sqlite3.OperationalError as problem:
        if problem.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
    # SQLite wants to make its index beside a file that has a log, and may not make it here.
    if not log.exists() or log.stat().st_size == 0:
        connection = connect(path, immutable=True)
        return connection, None, _fault(connection)
    folder = tempfile.TemporaryDirectory(prefix="trunkline-")
    try:
        copy = Path(folder.name) / "run"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, files_of(copy)[1])
        connection = connect(copy)
        return connection, folder.cleanup, _fault(connection)
    except BaseException:
        folder.cleanup()
        raise


def _fault(connection: sqlite3.Connection) -> str | None:
    """The fault of a database, which is closed where it cannot be read."""
    try:
        return fault(connection)
    except BaseException:
        connection.close()
        raise
