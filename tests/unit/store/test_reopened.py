"""Run files that are opened again to go on in them."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from call_logs import delta_with

from trunkline import _core
from trunkline.errors import DamagedRunFile, InfrastructureError, RunFileError
from trunkline.store.amend import Amender
from trunkline.store.derive import rows, taken
from trunkline.store.lock import is_written
from trunkline.store.reader import RunReader
from trunkline.store.schema import CallRow, delta_key
from trunkline.store.state import resumptions
from trunkline.store.writer import RunWriter
from trunkline.types import Task

TASKS = [Task.ask(f"Who is {n}?", "Ada", id=f"q{n}") for n in range(6)]


def call(endpoint: str = "http://h/v1") -> CallRow:
    return CallRow(endpoint, 1, 10, 4, 3, 2, 0, 100, 250, time.monotonic_ns() // 1000)


def grow(writer: RunWriter, number: int, *, done: bool = True, endpoint: str = "http://h/v1", size: int = 10) -> None:
    """Write a tree of one turn; one that is not done ends in a rollout that still grows."""
    core = _core.CoreTree()
    point = core.append(0, 1, b'{"role":"user","content":"%s"}' % (b"x" * size))
    deltas = [core.delta()]
    rollout = core.open(point, [0, 0], 0)
    core.turn(rollout, b'{"role":"assistant","content":"Ada"}', 0, core.name("m"), core.name("stop"), 10, 4, 3, 1, 250)
    if done:
        core.close(rollout, "answer", "Ada")
    deltas.append(delta_with(core, [call(endpoint)]))
    writer.commit([(number, seq, delta) for seq, delta in enumerate(deltas)], [(number, *rows(core))] if done else [])


def grow_on(writer: RunWriter, number: int) -> None:
    """End a tree that was begun."""
    core = _core.CoreTree()
    for data in writer.deltas(number):
        core.apply(data)
    core.close(0, "answer", "Ada")
    writer.commit([(number, 2, core.delta())], [(number, *rows(core))])


def make(path: Path, *, size: int = 10) -> RunWriter:
    """A run with three finished tasks and one that was begun."""
    writer = RunWriter.create(path, {"model": "m", "seed": 7}, TASKS, command=[])
    for number in range(3):
        grow(writer, number, size=size)
    grow(writer, 3, done=False, size=size)
    return writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "run").finish("interrupted")
    return tmp_path / "run"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The files as a killed process leaves them: everything still is in the log."""
    writer = make(tmp_path / "whole", size=900)
    (tmp_path / "killed").mkdir()
    for end in ("", "-wal"):
        shutil.copyfile(tmp_path / f"whole{end}", tmp_path / "killed" / f"run{end}")
    writer.finish()
    return tmp_path / "killed" / "run"


def problems(path: Path) -> list[str]:
    with RunReader.open(path, partial=True) as reader:
        return reader.check()


def test_a_run_goes_on_where_it_was(path: Path) -> None:
    with RunReader.open(path) as reader:
        seconds = reader.summary().seconds
    with RunWriter.open(path) as writer:
        there = writer.progress
        assert (there.state, there.finished, there.begun) == ("interrupted", [0, 1, 2], [3])
        assert (there.rollouts, there.ended, there.failed, there.turns) == (3, 3, 0, 4)
        assert (there.prompt, there.generated, there.retries) == (40, 12, 4)
        with RunReader.open(path) as reader:
            assert reader.meta["state"] == "running"
            assert "finished" not in reader.meta
        time.sleep(0.05)
        for number, endpoint in ((4, "http://h/v1"), (5, "http://other/v1")):
            grow(writer, number, endpoint=endpoint)
        grow_on(writer, 3)
    assert problems(path) == []
    with RunReader.open(path) as reader:
        calls = [made for _, made in reader.calls()]
        assert [made.endpoint for made in calls] == ["http://h/v1"] * 5 + ["http://other/v1"]
        assert sorted(calls, key=lambda made: made.started) == calls
        assert reader.summary().seconds >= seconds + 0.05
        (resumption,) = resumptions(reader.meta)
        assert (resumption.state, resumption.finished) == ("interrupted", 3)
        assert reader.meta["state"] == "done"
    assert [entry.name for entry in path.parent.iterdir()] == ["run"]


def test_an_endpoint_with_a_secret_in_its_name_keeps_its_number(path: Path) -> None:
    for number in (4, 5):
        with RunWriter.open(path) as writer:
            grow(writer, number, endpoint="http://user:pass@h2/v1")
    with sqlite3.connect(path) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM endpoints ORDER BY endpoint")]
    connection.close()
    assert len(names) == 2
    assert "pass" not in names[1]


def test_time_between_two_sittings_does_not_count(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = value - 86400 WHERE key IN ('created', 'updated', 'finished')")
    connection.close()
    with RunWriter.open(path) as writer:
        grow(writer, 4)
    with RunReader.open(path) as reader:
        assert reader.summary().seconds < 60
        assert [made.started for _, made in reader.calls()][-1] > 86_000e6, "but calls are placed on the clock"


def test_a_clock_that_was_set_back_keeps_calls_in_their_order(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = value + 3600 WHERE key = 'created'")
    connection.close()
    with RunWriter.open(path) as writer:
        grow(writer, 4)
    with RunReader.open(path) as reader:
        started = [made.started for _, made in reader.calls()]
    assert started == sorted(started)


OTHER = "import sys; from trunkline.store.writer import RunWriter; RunWriter.open(sys.argv[1])"


def test_a_second_process_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    writer = make(tmp_path / "run")
    # Looking at the lock, as going on from this run would, must not drop the locks that SQLite has.
    assert is_written(tmp_path / "run")
    with pytest.raises(RunFileError, match=f"being written by process {os.getpid()} on "):
        RunWriter.open(tmp_path / "run")
    other = subprocess.run([sys.executable, "-c", OTHER, str(tmp_path / "run")], capture_output=True, text=True)
    assert f"being written by process {os.getpid()} on {os.uname().nodename}: wait for it" in other.stderr
    with sqlite3.connect(tmp_path / "run", timeout=0) as second, pytest.raises(sqlite3.OperationalError, match="lock"):
        second.execute("PRAGMA journal_mode = DELETE")
    second.close()
    writer.finish()
    assert not is_written(tmp_path / "run")


def test_the_lock_of_a_killed_process_is_gone_with_it(tmp_path: Path) -> None:
    program = OTHER + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    make(tmp_path / "run").finish("interrupted")
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")]).returncode == -9
    with RunWriter.open(tmp_path / "run") as writer:
        assert writer.progress.state == "running"


def test_a_lock_on_a_file_that_another_process_has_replaced_is_none(path: Path, monkeypatch) -> None:
    flock = fcntl.flock

    make(path.with_name("new")).finish("interrupted")
    held = path.with_name("new").read_bytes()

    def swap(descriptor: int, how: int) -> None:
        path.with_name("new").replace(path)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", swap)
    with pytest.raises(RunFileError, match="being written by"):
        RunWriter.open(path)
    assert path.read_bytes() == held
    assert not is_written(path)


def test_a_log_that_was_torn_at_any_byte_loses_its_tail_and_no_more(killed: Path, tmp_path: Path) -> None:
    log = killed.with_name("run-wal").read_bytes()
    found = []
    step = 1 if os.environ.get("TRUNKLINE_FULL_FAULTS") else 211
    for length in [*range(len(log) - 20_000, len(log), step), len(log)]:
        copy = tmp_path / "torn"
        shutil.copyfile(killed, copy)
        copy.with_name("torn-wal").write_bytes(log[:length])
        writer = RunWriter.open(copy)
        found.append((len(writer.progress.finished), len(writer.progress.begun)))
        writer.finish("interrupted")
        assert problems(copy) == []
        copy.unlink()
    assert found == sorted(found), "what is there is a beginning of what was written"
    assert found[0] < found[-1] == (3, 1)


def test_a_copy_without_its_log_is_named_as_that(killed: Path) -> None:
    killed.with_name("run-wal").unlink()
    for _ in range(2):  # looking at it may leave an empty log
        for attempt in (RunWriter.open, RunReader.open, Amender.open):
            with pytest.raises(
                DamagedRunFile, match=r"its log .*run-wal is not beside it, .* put it there; without it, "
            ):
                attempt(killed)
        with pytest.raises(RunFileError, match="is an unfinished Trunkline run of 6 tasks"):
            RunWriter.create(killed, {}, TASKS, over_stub=True)
    (problem,) = problems(killed)
    assert "is not beside it" in problem
    with RunWriter.open(killed, partial=True) as writer:
        assert writer.progress.finished == []
        grow(writer, 4)
    assert problems(killed)[1:] == []
    with RunReader.open(killed) as reader:
        (resumption,) = resumptions(reader.meta)
    assert "is not beside it" in resumption.changed[0]


def test_a_copy_with_its_log_goes_on_as_the_file_would(killed: Path) -> None:
    writer = RunWriter.open(killed)
    assert writer.progress.finished == [0, 1, 2]
    grow(writer, 4)
    writer.finish("interrupted")
    assert problems(killed) == []


def damage_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 : 2 * 4096] = bytes(4096)
    path.write_bytes(data)


def damage_delta(path: Path, task: int = 3) -> None:
    with sqlite3.connect(path) as connection:
        ((data,),) = connection.execute("SELECT data FROM deltas WHERE delta = ?", (delta_key(task, 0),))
        flipped = bytearray(data)
        flipped[len(flipped) // 2] ^= 4
        connection.execute("UPDATE deltas SET data = ? WHERE delta = ?", (bytes(flipped), delta_key(task, 0)))
    connection.close()


def damage_meta(path: Path, value: str = "x") -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'created'", (value,))
    connection.close()


def damage_text(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = CAST(x'22ff1b5b6d22' AS TEXT) WHERE key = 'versions'")
    connection.close()


def damage_rows(path: Path) -> None:
    """Zero the page that holds rows of rollouts, which no delta says anything of until it is checked."""
    with sqlite3.connect(path) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'calls'")
    connection.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096 + 8 : (page - 1) * 4096 + 40] = bytes(32)
    path.write_bytes(data)


def damage_time(path: Path) -> None:
    damage_meta(path, "inf")


DAMAGES = [damage_page, damage_delta, damage_meta, damage_text, damage_rows, damage_time]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_not_gone_on_with(path: Path, damage) -> None:
    damage(path)
    held = path.read_bytes()
    with pytest.raises(DamagedRunFile, match=r"is damaged: .*; `trunkline check ") as refused:
        RunWriter.open(path)
    assert refused.value.exit_code == 3
    assert str(refused.value).isprintable()
    assert path.read_bytes() == held
    assert not is_written(path)


def test_damage_in_a_finished_task_is_named_by_check_and_keeps_no_other_from_being_read(path: Path) -> None:
    damage_delta(path, 1)
    writer = RunWriter.open(path)
    grow(writer, 4)
    writer.finish("interrupted")
    (problem,) = problems(path)
    assert problem.startswith('task "q1": delta 0')
    with RunReader.open(path) as reader:
        assert reader.tree("q0").rollouts[0].answer == "Ada"
        with pytest.raises(DamagedRunFile, match="q1"):
            reader.tree("q1")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version = 3", "schema version 3"),
        ("PRAGMA application_id = 9", "is another SQLite file"),
        (
            """UPDATE meta SET value = '{"trunkline":"9","python":"","delta":99,"digest":1}' WHERE key = 'versions'""",
            "99",
        ),
    ],
)
def test_a_file_of_another_kind_or_version_is_refused_and_left_alone(path: Path, statement: str, words: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    held = path.read_bytes()
    with pytest.raises(RunFileError, match=words):
        RunWriter.open(path)
    assert path.read_bytes() == held


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunFileError, match="no such run file"):
            RunWriter.open(place)


def test_a_file_that_goes_away_is_noticed_after_a_resume_too(path: Path) -> None:
    writer = RunWriter.open(path)
    path.unlink()
    with pytest.raises(InfrastructureError, match="it was deleted or moved"):
        grow(writer, 4)
    writer.finish()


def test_settings_that_change_are_recorded_without_secrets(path: Path) -> None:
    settings = {"seed": 7, "llm": {"api_key": "sk-1234567890abcdef1234"}}
    with RunWriter.open(path, settings=settings, changed=["llm.x: sk-1234567890abcdef1234 there"], forced=True):
        pass
    with RunReader.open(path) as reader:
        meta = reader.meta
    assert "sk-1234567890" not in msgspec.json.encode(meta).decode()
    assert resumptions(meta)[0].forced


def test_what_finished_tasks_grew_is_not_read(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE deltas SET data = zeroblob(500000) WHERE delta >> 32 < 3")
    connection.close()
    data = bytearray(path.read_bytes())
    # Pages that go on with a large value begin with the number of the next: where that leads nowhere, reading fails.
    for page in range(0, len(data), 4096):
        if any(data[page : page + 4]) and not any(data[page + 4 : page + 4096]):
            data[page : page + 4] = b"\xff" * 4
    path.write_bytes(data)
    with RunWriter.open(path) as writer:
        assert writer.progress.finished == [0, 1, 2]
        assert len(writer.deltas(3)) == 2
        with pytest.raises(DamagedRunFile):
            writer.deltas(2)


def test_tasks_that_an_earlier_run_began_count_once_this_one_has_made_a_call(tmp_path: Path) -> None:
    cleared = _core.CoreTree()
    cleared.append(0, 1, b'{"role":"user","content":"x"}')
    first = cleared.delta()
    row = taken(cleared, 1)
    point = 1
    rollout = cleared.open(point, [0, 0], 0)
    cleared.turn(
        rollout, b'{"role":"assistant","content":"Ada"}', 0, cleared.name("m"), cleared.name("stop"), 10, 4, 3, 1, 250
    )
    second = delta_with(cleared, [call()])
    with RunWriter.create(tmp_path / "r", {"refill": {"groups": 1, "max_tasks": 6}}, TASKS, command=[]) as writer:
        # Two of the same deltas: one task where the second took verdicts off, one where it is this run's own.
        writer.take_over(0, [first, second], row)
        writer.take_over(1, [first], row)
        writer.take_over(2, [first], row)
        writer.commit([(1, 1, second)])
        grow(writer, 5)
    assert [line for line in problems(tmp_path / "r") if line.startswith("meta")] == [
        "meta: the run is done, but 5 of its tasks are not finished"
    ]
    with RunWriter.open(tmp_path / "r") as writer:
        assert writer.progress.begun == [1]
        core = _core.CoreTree()
        for data in writer.deltas(1):
            core.apply(data)
        core.close(0, "answer", "Ada")
        writer.commit([(1, 2, core.delta())], [(1, *rows(core))])
    assert [line for line in problems(tmp_path / "r") if line.startswith("meta")] == []
