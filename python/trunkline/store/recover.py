"""What is whole of a damaged run file, written into a new one."""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from trunkline._core import PROMPT, ROOT, CoreTree, checksum
from trunkline._internal.text import counted, printable
from trunkline.errors import ConfigError, DamagedRunFile, RunFileError, TreeError
from trunkline.llm import messages
from trunkline.store import schema
from trunkline.store.derive import calls_of, rows
from trunkline.store.lock import is_written, taken_by
from trunkline.store.log import log_size, loss_in_log, missing_log
from trunkline.store.schema import TakenRow, TreeEnding, delta_key, delta_keys
from trunkline.store.sqlite import READ_ERRORS, files_of, irregular
from trunkline.store.stats.summary import wall_seconds
from trunkline.store.sums import Seal
from trunkline.store.writer import RunWriter
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline._internal.text import JSON

# The names in these statements are our own.
_TREE: Final = "SELECT digest, error, ended, why, refused FROM trees WHERE task = ?"
_TAKEN: Final = f"SELECT {', '.join(schema.TAKEN_COLUMNS)} FROM taken WHERE task = ?"  # noqa: S608
_OWN: Final = frozenset(
    {"settings", "command", "versions", "holder", "state", "created", "updated", "seconds", "sums", "finished"}
)
"""Keys of ``meta`` that the new file has values of its own for."""

_Word = Literal["finished", "settled", "enough", "deadline", "budget", "broken"]
_NAMED: Final = 5  # tasks that a line names


class _Role(msgspec.Struct):
    role: str


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What was salvaged of a damaged run file.

    Attributes:
        path: The new run file, which holds what is whole.
        tasks: Tasks in it.
        finished: Of these, tasks that are finished.
        begun: Of these, tasks that have begun and go on when the run is resumed.
        lost: What is not in it, a line each, safe to print; empty if all was whole.
    """

    path: Path
    tasks: int
    finished: int
    begun: int
    lost: list[str]


class _Source:
    """A copy of the damaged file, of which every query may fail."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, copy = path, folder / "run"
        shutil.copyfile(path, copy)
        if (log := files_of(path)[1]).exists():
            shutil.copyfile(log, files_of(copy)[1])
        self._connection = sqlite3.connect(copy, isolation_level=None)
        loss = loss_in_log(path) if log_size(path) else missing_log(path, self._connection)
        self.loss = None if loss is None else loss.split(";")[0]
        with contextlib.suppress(sqlite3.Error):
            # A file that was cut short is read as far as it goes.
            self._connection.execute("PRAGMA writable_schema = ON")
        self.failed = False

    def close(self) -> None:
        self._connection.close()

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query, as many as can be read; ``failed`` says whether that is all."""
        self.failed, found = False, []
        try:
            for row in self._connection.execute(statement, values):
                found.append(row)  # noqa: PERF402 - those before a failure are kept
        except READ_ERRORS:
            self.failed = True
        return found

    def table(self, table: str, columns: str, key: str) -> tuple[list[tuple[Any, ...]], bool]:
        """The rows of a table from both ends to where it cannot be read, and whether some may be missing."""
        up = self.ask(f"SELECT {columns} FROM {table} ORDER BY {key}")  # noqa: S608
        if not self.failed:
            return up, False
        down = self.ask(f"SELECT {columns} FROM {table} ORDER BY {key} DESC")  # noqa: S608
        known = {row[0] for row in up}
        return [*up, *(row for row in reversed(down) if row[0] not in known)], True

    def deltas(self, task: int) -> Iterator[bytes]:
        """The deltas of a task, up to the first that cannot be read."""
        seq = 0
        while found := self.ask("SELECT data FROM deltas WHERE delta = ?", delta_key(task, seq)):
            yield found[0][0]
            seq += 1

    def last(self, task: int) -> int:
        """How many deltas of a task the file is known to have had."""
        found = self.ask("SELECT max(delta) FROM deltas WHERE delta BETWEEN ? AND ?", *delta_keys(task))
        return (int(found[0][0]) & 0xFFFFFFFF) + 1 if found and found[0][0] is not None else 0


def recover(path: str | Path, out: str | Path) -> Recovered:
    """Write what is whole of a damaged run file into a new one; the damaged file is not changed.

    A task whose deltas are all whole is as it was; one that lost its last deltas goes on from what is left when the new
    run is resumed. Rows are derived anew.

    Args:
        path: The run file.
        out: The new run file, which must not exist.

    Returns:
        What was salvaged, and what was lost.

    Raises:
        RunFileError: There is no such file, a process is writing it, or there is something at ``out``.
        DamagedRunFile: Nothing can be salvaged: no table can be read, or the run's settings or tasks are lost.
    """
    path, out = Path(path), Path(out)
    shown = printable(str(path))
    if not path.exists():
        raise RunFileError(f"{shown}: no such run file")
    if (found := irregular(path)) is not None:
        raise RunFileError(f"{shown} {found}, expected a run file")
    if is_written(path):
        raise taken_by(path)
    with (
        tempfile.TemporaryDirectory(prefix="trunkline-") as folder,
        contextlib.closing(_Source(path, Path(folder))) as source,
    ):
        return _Salvage(source, shown).write(out)


class _Salvage:
    """Reads a source and writes what is whole."""

    def __init__(self, source: _Source, shown: str) -> None:
        self._source = source
        self._lost = [] if source.loss is None else [f"the run's last commits: {source.loss}"]
        meta, torn = source.table("meta", "key, value", "key")
        self._facts: dict[str, JSON] = {}
        self._state, self._sealed, self._unproved = "", None, False
        with contextlib.suppress(msgspec.MsgspecError, TypeError, UnicodeError):
            self._sealed = Seal.stored({str(key): str(value) for key, value in meta})
        self._seconds = wall_seconds({str(key): str(value) for key, value in meta})
        for key, value in meta:
            if key == "state":
                self._state = str(value)
            if key in _OWN - {"settings", "command", "versions"}:
                continue
            try:
                self._facts[str(key)] = msgspec.json.decode(value)
            except (msgspec.MsgspecError, TypeError, UnicodeError):
                self._lost.append(f"what the run says of {printable(repr(key), 40)}")
        if torn:
            self._lost.append("some of what the run says of itself")
        settings = self._facts.get("settings")
        if not isinstance(settings, dict):
            raise DamagedRunFile(f"nothing can be salvaged of {shown}: its settings are lost")
        self._settings = settings
        self._numbers: list[int] = []
        self._tasks = self._read_tasks()
        if not self._tasks:
            raise DamagedRunFile(f"nothing can be salvaged of {shown}: its tasks are lost")

    def _read_tasks(self) -> list[Task]:
        found, torn = self._source.table("tasks", "task, id, record", "task")
        tasks: list[Task] = []
        for number, name, record in found:
            try:
                task = msgspec.json.decode(record, type=Task)
            except (msgspec.MsgspecError, TypeError, UnicodeError, ValueError):
                self._lost.append(f"task {printable(repr(name), 80)}")
                continue
            if task.id != name or not isinstance(number, int) or not 0 <= number < 1 << 31:
                self._lost.append(f"task {printable(repr(name), 80)}")
                continue
            tasks.append(task)
            self._numbers.append(number)
        if torn:
            self._lost.append("tasks in the middle of the list, how many is not known")
        elif self._sealed is not None and checksum(found) != self._sealed.tables.get("tasks"):
            self._lost.append("the certainty that the tasks are as they were: their checksum is of other text")
        return tasks

    def write(self, out: Path) -> Recovered:
        """Write the new file."""
        facts = {key: value for key, value in self._facts.items() if key not in _OWN}
        command, state = self._facts.get("command"), self._state
        words = [str(word) for word in command] if isinstance(command, list) else []
        finished = begun = 0
        gone: list[str] = []
        cut: list[str] = []
        began = self._began()
        with RunWriter.create(out, self._settings, self._tasks, command=words, facts=facts, began=began) as writer:
            for place, number in enumerate(self._numbers):
                core, deltas, torn = self._grown(number)
                stored = self._source.ask(_TREE, number)
                ending = self._ending(stored, core)
                if (ending is None or self._unproved) and _of_another(core, self._tasks[place]):
                    deltas, ending, torn = [], None, True
                if ending is None and (torn or stored or state == "done"):
                    (gone if not deltas else cut).append(self._tasks[place].id)
                if not deltas:
                    continue
                self._put(writer, place, number, deltas)
                if ending is None:
                    begun += 1
                else:
                    finished += 1
                    writer.commit([], [(place, *rows(core, ending[0], TreeEnding(*ending[1:])))])
            self._events(writer)
            over = finished == len(self._tasks) and state in {"done", "exhausted"}
            # The time that recovering took is not the run's.
            writer.took(self._seconds if self._seconds < math.inf else 0.0)
            writer.finish(state if over else "interrupted")
        if self._unproved:
            self._lost.append("the certainty that trees are as they were: their digests are of another version")
        for names, what in ((gone, "everything of"), (cut, "the last part of")):
            if names:
                more = ", ..." if len(names) > _NAMED else ""
                shown = ", ".join(printable(name, 80) for name in names[:_NAMED])
                self._lost.append(f"{what} {counted(len(names), 'task')}: {shown}{more}")
        return Recovered(path=out, tasks=len(self._tasks), finished=finished, begun=begun, lost=self._lost)

    def _grown(self, number: int) -> tuple[CoreTree, list[bytes], bool]:
        """The tree of a task, the deltas that it follows from, and whether the file had more of them."""
        core, deltas = CoreTree(), []
        try:
            for data in self._source.deltas(number):
                core.apply(data)
                deltas.append(data)
        except (TreeError, TypeError, ValueError):
            core = CoreTree()  # as it was before the damaged one
            for data in deltas:
                core.apply(data)
        return core, deltas, self._source.failed or self._source.last(number) > len(deltas)

    def _ending(self, found: list[tuple[Any, ...]], core: CoreTree) -> tuple[Any, ...] | None:
        """The error and the ending of a finished task; None of one that is not, or whose tree is not whole."""
        try:
            msgspec.convert(found[0][1:] if found else (), tuple[str | None, _Word, str | None, int])
        except (msgspec.ValidationError, UnicodeError):
            return None
        if found[0][0] != core.digest():
            if self._same_digests or core.growing:
                return None
            self._unproved = True
        return found[0][1:]

    @property
    def _same_digests(self) -> bool:
        versions = self._facts.get("versions")
        return not isinstance(versions, dict) or versions.get("digest", schema.HERE.digest) == schema.HERE.digest

    def _put(self, writer: RunWriter, place: int, number: int, deltas: list[bytes]) -> None:
        """Write the deltas of a task, those that an earlier run had paid for apart."""
        before = 0
        if taken := self._source.ask(_TAKEN, number):
            row = TakenRow(*taken[0])
            before = min(row.deltas, len(deltas))
            writer.take_over(place, deltas[:before], row)
        writer.commit([(place, seq, data) for seq, data in enumerate(deltas) if seq >= before])

    def _began(self) -> int | None:
        """When the run's calls count from, on the clock of its deltas; None where no call tells."""
        for task, seq, started in self._source.ask("SELECT task, seq, min(started) FROM calls GROUP BY task, seq"):
            if (
                not isinstance(task, int)
                or not isinstance(seq, int)
                or not 0 <= task < 1 << 31
                or not 0 <= seq < 1 << 32
            ):
                continue
            for data in self._source.ask("SELECT data FROM deltas WHERE delta = ?", delta_key(task, seq)):
                with contextlib.suppress(TreeError, TypeError, ValueError, OverflowError):
                    if (found := calls_of(data[0])) is not None and found[0]:
                        return min(call.started for call in found[0]) - int(started)
        return None

    def _events(self, writer: RunWriter) -> None:
        """Copy what happened beside the trees."""
        places = {number: place for place, number in enumerate(self._numbers)}
        found, torn = self._source.table("events", "event, at, kind, worker, task, data", "event")
        for _, at, kind, worker, task, data in found:
            with contextlib.suppress(msgspec.MsgspecError, TypeError, UnicodeError):
                said = msgspec.json.decode(data, type=dict[str, Any])
                writer.event(str(kind), worker, places.get(task), float(at), **said)
        if torn:
            self._lost.append("some events")


def _of_another(core: CoreTree, task: Task) -> bool:
    """Whether the prompt of a tree asks what its task does not; a dialect may have changed the system prompt."""
    node, asked = ROOT, []
    while below := [child for child in core.children(node) if core.node(child).kind == PROMPT]:
        node = below[0]
        asked.append(core.message(node))
    try:
        meant = [messages.encode(message) for message in task.messages if message.get("role") != "system"]
        said = [message for message in asked if msgspec.json.decode(message, type=_Role).role != "system"]
    except (ConfigError, msgspec.MsgspecError, UnicodeError):
        return True
    return bool(asked) and said != meant
