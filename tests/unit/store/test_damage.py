"""Run files under attack: what is shown is right, or one line says what is wrong and the exit code is not 0."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from call_logs import delta_with
from commands import trunkline
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import trunkline as tl
from trunkline import _core
from trunkline.errors import DamagedRunFile, RunFileError, UsageError
from trunkline.store.derive import rows
from trunkline.store.log import scan
from trunkline.store.reader import RunReader
from trunkline.store.schema import CallRow, ToolRow
from trunkline.store.writer import RunWriter
from trunkline.types import Task
from trunkline.view.data import RunData, TaskQuery

TASKS = [Task.ask(f"Who is {n}?", "Ada", id=f"q{n}") for n in range(4)]
PRICE = {"http://h/v1": {"prompt": 1.0, "generated": 2.0}}
SHOW = ("show", "run", "--tasks", "--calls", "--time", "--metrics", "--json")
COMMANDS = (SHOW, ("show", "run"), ("answers", "run", "--json"), ("compare", "run", "whole", "--json"))


def message(role: str, content: str) -> bytes:
    return json.dumps({"role": role, "content": content}).encode()


def grow(writer: RunWriter, number: int, *, done: bool = True) -> None:
    """Commit a task of two tries, with its calls and a tool call, a delta for each."""
    core = _core.CoreTree()
    point = core.append(0, 1, message("user", f"Who is {number}?"))
    for draw, answer in enumerate(["Ada", "Bob"]):
        rollout = core.open(point, [0, draw], draw)
        core.turn(rollout, message("assistant", answer), core.name(""), 0, core.name("stop"), 10, 4, 3, 1, 250)
        core.close(rollout, "answer", answer)
        core.score(rollout, float(answer == "Ada"))
        over = done and draw == 1
        call = CallRow("http://h/v1", 1, 10, 4, 3, 2, 0, 100, 250, number * 1000 + draw)
        delta = delta_with(core, [call], [ToolRow(draw, "search", False, 70 + draw, number)])
        writer.commit([(number, draw, delta)], [(number, *rows(core))] if over else [])


def make(path: Path) -> RunWriter:
    """Three finished tasks, and one that was begun."""
    writer = RunWriter.create(
        path, {"model": "m", "seed": 7, "llm": {"price": PRICE}, "reward": "f"}, TASKS, command=[]
    )
    for number in range(3):
        grow(writer, number)
    writer.event("died", worker=1, task=2)
    grow(writer, 3, done=False)
    return writer


def said(folder: Path) -> list[str]:
    """What each command prints, which must succeed."""
    found = [trunkline(folder, *command) for command in COMMANDS]
    assert [done.returncode for done in found] == [0] * len(found), [done.stderr for done in found]
    return [done.stdout for done in found]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that are ended and killed, and what the commands say of either."""
    folder = tmp_path_factory.mktemp("files")
    killed = make(folder / "killed")
    for state in ("killed", "ended"):
        (folder / state[0]).mkdir()
        for end in ("", "-wal") if state == "killed" else ("",):
            shutil.copy(folder / f"killed{end}", folder / state[0] / f"run{end}")
        if state == "killed":
            killed.finish("interrupted")
    for state in "ke":
        shutil.copy(folder / "killed", folder / state / "whole")
        (folder / state / "said").write_text(json.dumps(said(folder / state)))
    return folder


def attacked(files: Path, state: str, attack: Callable[[Path], None]) -> bool:
    """Attack a copy of a run, and look at it: whether anything was said. Of a problem one line is, and no traceback."""
    folder = files / "attacked"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(files / state, folder)
    known = json.loads((folder / "said").read_text())
    attack(folder)
    for command, before in zip(COMMANDS, known, strict=True):
        done = trunkline(folder, *command)
        if done.returncode == 0:
            assert done.stdout == before, command
        else:
            assert (done.returncode in {1, 2, 3}, done.stderr.count("error: ")) == (True, 1)
    done = trunkline(folder, "check", "run")
    assert (done.returncode == 0) == (done.stdout.count("every row follows") == 1)
    return done.returncode != 0


def flip(name: str, at: float, mask: int) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[int(at * len(data))] ^= mask
        (folder / name).write_bytes(data)

    return attack


ATTACKS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
places = st.floats(0, 1, exclude_max=True)


@ATTACKS
@given(places, st.integers(1, 255))
def test_any_flipped_byte_of_a_file(files: Path, at: float, mask: int) -> None:
    attacked(files, "e", flip("run", at, mask))


@ATTACKS
@example(0.07300232623712133, 65)
@given(places, st.integers(1, 255))
def test_any_flipped_byte_of_a_log_or_its_file(files: Path, at: float, mask: int) -> None:
    attacked(files, "k", flip("run-wal", at, mask))
    attacked(files, "k", flip("run", at, mask))


@ATTACKS
@given(st.booleans(), st.integers(0, 40), st.integers(0, 4096))
def test_any_truncated_or_emptied_page_of_a_file(files: Path, cut: bool, page: int, kept: int) -> None:
    def attack(folder: Path) -> None:
        data = (folder / "run").read_bytes()
        at = page * 4096 % len(data) + kept
        (folder / "run").write_bytes(data[:at] if cut else data[:at] + bytes(4096 - kept) + data[at + 4096 - kept :])

    attacked(files, "e", attack)


TABLES = ("meta", "tasks", "deltas", "endpoints", "agents", "calls", "uses", "rollouts", "trees", "events")
values = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-2, 9), st.text(max_size=9), st.binary(max_size=9),
    st.floats(allow_nan=False), st.sampled_from(["x\x1b[2J", "0.5", '{"of":"0123456789abcdef"}', "[]", "done"]),
)  # fmt: skip


@settings(ATTACKS, max_examples=150)
@given(st.data(), st.sampled_from(TABLES), values)
def test_any_edited_or_deleted_row(files: Path, data: st.DataObject, table: str, value: object) -> None:
    changed = []

    def attack(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / "run", isolation_level=None)) as file:
            columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
            held = file.execute(f"SELECT * FROM {table}").fetchall()
            row = data.draw(st.sampled_from(held))
            column = data.draw(st.sampled_from([*columns, None]))
            where, key = " AND ".join(f"{name} IS ?" for name in columns), row
            try:
                if column is None:
                    file.execute(f"DELETE FROM {table} WHERE {where}", key)
                else:
                    file.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *key))
            except (sqlite3.IntegrityError, UnicodeEncodeError):
                assume(False)
            now = file.execute(f"SELECT * FROM {table}").fetchall()
        # Without its checksum a task's rows are read as those of earlier schemas are; a key says the order alone.
        unseen = (str(column).endswith("_sum") and value is None) or column in {"event", "call", "use"}
        changed.append((repr(now) != repr(held), unseen))

    found = attacked(files, "e", attack)
    differs, unseen = changed[0]
    assert unseen or found == differs


@pytest.mark.parametrize("table", [*TABLES, "taken"])
@pytest.mark.parametrize("how", ["DROP TABLE {0}", "ALTER TABLE {0} RENAME TO x; CREATE VIEW {0} AS SELECT * FROM x"])
def test_tables_that_are_dropped_or_are_views_now(files: Path, table: str, how: str) -> None:
    def attack(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / "run")) as file:
            file.executescript(how.format(table))

    assert attacked(files, "e", attack)


def test_a_column_that_has_another_name_is_damage_to_all_who_read(files: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copy(files / "e" / "run", run)
    query = "SELECT made.name, here.name FROM sqlite_schema made, pragma_table_info(made.name) here"
    with RunReader.open(run) as reader, pytest.raises(UsageError, match="no such column: nope"):
        reader.query("SELECT nope FROM tasks")
    with contextlib.closing(sqlite3.connect(run)) as file:
        columns = file.execute(f"{query} WHERE made.type = 'table'").fetchall()
    refused = 0
    for table, column in columns:
        shutil.copy(files / "e" / "run", run)
        with contextlib.closing(sqlite3.connect(run)) as file:
            file.execute("PRAGMA writable_schema = 1")
            file.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, 'other') WHERE name = ?", (column, table))
            file.commit()
        for look in (
            lambda: [*tl.events(run)],
            lambda: RunData(run).overview(),
            lambda: RunData(run).tasks(TaskQuery()),
        ):
            try:
                look()
            except RunFileError:
                refused += 1
    assert refused > len(columns) / 2


def test_a_trigger_is_named(files: Path) -> None:
    def attack(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / "run")) as file:
            file.execute("CREATE TRIGGER x AFTER INSERT ON rollouts BEGIN UPDATE rollouts SET reward = 1; END")

    assert attacked(files, "e", attack)


@pytest.mark.parametrize("table", ["rollouts", "trees", "calls", "uses", "events", "taken", "deltas"])
def test_rows_of_a_task_that_is_not_there(files: Path, table: str) -> None:
    def attack(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / "run")) as file, file:
            if table == "taken":
                file.execute(f"INSERT INTO taken VALUES (77{', 0' * 20})")
            elif table == "deltas":
                file.execute("INSERT INTO deltas VALUES ((77 << 32) + 1, x'00')")
            else:
                key = {"calls": "call", "uses": "use", "events": "event"}.get(table)
                last = f"(SELECT max({key}) FROM {table})" if key else "(SELECT max(task) FROM trees)"
                file.execute(f"UPDATE {table} SET task = 77 WHERE {key or 'task'} = {last}")

    assert attacked(files, "e", attack)


def test_a_log_with_a_flipped_bit_says_how_much_it_loses(files: Path, tmp_path: Path) -> None:
    whole = scan(files / "k" / "run-wal")
    assert (whole.lost, whole.end) == (0, (files / "k" / "run-wal").stat().st_size)
    shutil.copytree(files / "k", tmp_path / "k")
    flip("run-wal", 0.5, 1)(tmp_path / "k")
    damaged = scan(tmp_path / "k" / "run-wal")
    assert damaged.commits + damaged.lost == whole.commits
    line = f"run-wal cannot be read from byte {damaged.end:,} on, "
    line += f"which loses the last {damaged.lost} commits of {whole.commits}"
    held = (tmp_path / "k" / "run-wal").read_bytes()
    for _ in range(2):
        for command, code in ((SHOW, 3), (("check", "run"), 1), (("answers", "run"), 3), (("resume", "run"), 3)):
            done = trunkline(tmp_path / "k", *command)
            assert done.returncode == code
            assert f"{line} in it" in done.stdout + done.stderr
        with pytest.raises(DamagedRunFile):
            RunWriter.open(tmp_path / "k" / "run")
    assert (tmp_path / "k" / "run-wal").read_bytes() == held, "nobody has done away with it"
    with RunWriter.open(tmp_path / "k" / "run", partial=True) as writer:
        assert len(writer.progress.finished) < 3
        for number in set(range(4)) - set(writer.progress.finished) - set(writer.progress.begun):
            grow(writer, number)
    done = trunkline(tmp_path / "k", "check", "run")
    assert "are not finished" in done.stdout or done.returncode == 0, done.stdout
    assert trunkline(tmp_path / "k", *SHOW).returncode == 0


def test_the_log_of_another_run_is_not_read(files: Path, tmp_path: Path) -> None:
    make(tmp_path / "run").finish("interrupted")
    held = (tmp_path / "run").read_bytes()
    shutil.copy(files / "k" / "run-wal", tmp_path / "run-wal")
    for attempt in (RunReader.open, RunWriter.open):
        with pytest.raises(RunFileError, match=r"has the log of another run beside it: move .*run-wal away"):
            attempt(tmp_path / "run")
    assert trunkline(tmp_path, "check", "run").returncode == 2
    assert (tmp_path / "run").read_bytes() == held
    (tmp_path / "run-wal").unlink()
    assert trunkline(tmp_path, "check", "run").returncode == 0


def test_a_file_whose_log_another_program_wrote_back_is_whole(files: Path, tmp_path: Path) -> None:
    shutil.copytree(files / "k", tmp_path / "k")
    with contextlib.closing(sqlite3.connect(tmp_path / "k" / "run")) as other:
        other.execute("SELECT count(*) FROM meta").fetchone()
    assert not (tmp_path / "k" / "run-wal").exists()
    assert said(tmp_path / "k") == json.loads((tmp_path / "k" / "said").read_text())
    assert trunkline(tmp_path / "k", "check", "run").returncode == 0
