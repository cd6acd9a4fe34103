from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import call_logs
import msgspec
import pytest
from call_logs import delta_with

from trunkline import _core
from trunkline.errors import InfrastructureError, RunFileError, UsageError, WorkerError
from trunkline.store import sqlite
from trunkline.store.derive import rows
from trunkline.store.reader import RunReader
from trunkline.store.schema import APPLICATION_ID, HERE, SCHEMA_VERSION, CallRow, delta_key
from trunkline.store.writer import RunWriter
from trunkline.types import Task, Usage

CALL = CallRow("http://h/v1", 1, 10, 4, 3, 2, 0, 100, 250, 0)
TASKS = [Task.ask(f"Who is {n}?", "Ada", id=f"q{n}") for n in range(3)]


def message(role: str, content: str) -> bytes:
    return json.dumps({"role": role, "content": content}).encode()


def grow(task: Task, answers: list[str | None]) -> tuple[_core.CoreTree, list[bytes]]:
    """A tree of one-turn rollouts, and its deltas as they came; None is a rollout that broke."""
    core = _core.CoreTree()
    point = core.append(0, 1, message("user", task.question))
    deltas = [core.delta()]
    for draw, answer in enumerate(answers):
        rollout = core.open(point, [0, draw], draw)
        if answer is None:
            core.close(rollout, "llm_error", None, "no reply")
        else:
            core.turn(rollout, message("assistant", answer), 0, core.name("m"), core.name("stop"), 10, 4, 3, 1, 250)
            core.close(rollout, "answer", answer)
            core.score(rollout, float(answer == "Ada"))
        deltas.append(delta_with(core, [] if answer is None else [CALL]))
    return core, [delta for delta in deltas if delta is not None]


def write(path: Path, *, finish: bool = True) -> RunWriter:
    """A run of three tasks: two finished, one cut after its first rollout."""
    writer = RunWriter.create(path, {"model": "m", "seed": 7}, TASKS, command=["trunkline", "run"])
    for number, answers in enumerate([["Ada", "Bob", None], ["Ada", "Ada"]]):
        core, deltas = grow(TASKS[number], answers)
        batch = [(number, seq, delta) for seq, delta in enumerate(deltas)]
        writer.commit(batch, [(number, *rows(core))])
    _, deltas = grow(TASKS[2], ["Eve"])
    writer.commit([(2, 0, deltas[0])])
    if finish:
        writer.finish("interrupted")
    return writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "er" / "a run.trunk"
    write(path)
    return path


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.close()


def edit(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def test_what_is_written_is_read(path: Path) -> None:
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with RunReader.open(path) as reader:
        assert reader.settings == {"model": "m", "seed": 7}
        assert reader.meta["state"] == "interrupted"
        assert reader.tasks() == TASKS
        assert [tree.task.id for tree in reader.trees()] == ["q0", "q1"]
        assert [tree.task.id for tree in reader] == [tree.task.id for tree in reader] == ["q0", "q1"]
        tree = reader.tree("q0")
        assert tree.digest() == grow(TASKS[0], ["Ada", "Bob", None])[0].digest()
        assert [rollout.answer for rollout in tree.rollouts] == ["Ada", "Bob", None]
        assert len(reader.tree("q2")) == 2
        found = [(task, row.rollout, row.path, row.answer, row.reward, row.turns) for task, row in reader.rollouts()]
        assert found == [
            (0, 0, "0,0", "Ada", 1.0, 1),
            (0, 1, "0,1", "Bob", 0.0, 1),
            (0, 2, "0,2", None, None, 0),
            (1, 0, "0,0", "Ada", 1.0, 1),
            (1, 1, "0,1", "Ada", 1.0, 1),
        ]
        assert reader.check() == []
        with pytest.raises(UsageError, match=r'no task "q\\x1b" in .*; it begins with "q0", "q1", "q2"'):
            reader.tree("q\x1b")


def test_the_summary_follows_from_the_rows(path: Path) -> None:
    with RunReader.open(path) as reader:
        summary = reader.summary()
        trees = list(reader.trees())
    assert (summary.tasks, summary.finished, summary.rollouts, summary.scored, summary.tries) == (
        3,
        2,
        5,
        4,
        3,
    )
    assert summary.accuracy is not None
    assert summary.accuracy.value == 0.75
    assert summary.best_of_n is not None
    assert summary.best_of_n.value == 1.0
    assert summary.majority is not None
    assert summary.majority.value == 0.75  # a tie in the first task
    assert summary.terminations == {"answer": 4, "llm_error": 1}
    assert (summary.failed, summary.state) == (1, "interrupted")
    assert summary.usage == sum((tree.usage for tree in trees), Usage())
    assert summary.tokens.flat == sum(tree.tokens.flat for tree in trees)
    assert summary.tokens.tree == sum(tree.tokens.tree for tree in trees)
    assert summary.tokens.longest == max(tree.tokens.longest for tree in trees) == 13
    assert all(tree.tokens.flat > tree.tokens.tree > tree.tokens.longest for tree in trees[:1])
    assert summary.tokens.flat >= summary.tokens.tree >= summary.tokens.longest
    assert summary.llm_seconds == pytest.approx(4 * 250e-6)
    assert summary.seconds >= 0
    assert math.isfinite(summary.rate)


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run"
    writer = write(path, finish=False)
    with RunReader.open(path) as reader:
        assert reader.meta["state"] == "running"
        assert reader.summary().finished == 2
        assert reader.check() == []
        core, deltas = grow(TASKS[2], ["Eve"])
        writer.commit([(2, seq, delta) for seq, delta in enumerate(deltas)], [(2, *rows(core))])
        assert reader.summary().finished == 3
        writer.finish()
        assert reader.summary().state == "done"
    assert writer.finish() is None  # a second time changes nothing
    assert stat.S_IMODE(path.stat().st_mode) & 0o111 == 0


def test_redelivered_deltas_count_once_and_different_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with write(path, finish=False) as writer:
        core, deltas = grow(TASKS[1], ["Ada", "Ada"])
        before = writer.deltas(1)
        assert before == deltas
        batch = [(1, seq, delta) for seq, delta in enumerate(deltas)]
        writer.commit(batch, [(1, *rows(core))])
        with pytest.raises(WorkerError, match="number 1 of task number 1"):
            writer.commit([(2, 1, b"new"), (1, 1, b"other")])
        assert writer.deltas(1) == before
        assert len(writer.deltas(2)) == 1  # the batch went as a whole
    with RunReader.open(path) as reader:
        assert reader.check() == ["meta: the run is done, but 1 of its tasks are not finished"]
        assert reader.summary().rollouts == 5


def test_notes_and_tree_errors(tmp_path: Path) -> None:
    path = tmp_path / "run"
    writer = write(path, finish=False)
    writer.note("served", ["m", "Bearer abc.def"])
    core, deltas = grow(TASKS[2], [])
    writer.commit([(2, 0, deltas[0])], [(2, *rows(core, "worker 1 died"))])
    writer.finish("interrupted")
    with RunReader.open(path) as reader:
        assert reader.meta["served"] == '["m","Bearer (not stored)"]'
        assert reader.summary().broken == 1
        assert reader.check() == []


def failed(path: Path, errors: list[str | None]) -> RunWriter:
    """A run of one finished task whose rollouts broke as told; None is one that answered."""
    writer = RunWriter.create(path, {}, TASKS[:1])
    core = _core.CoreTree()
    point = core.append(0, 1, message("user", "?"))
    for draw, error in enumerate(errors):
        rollout = core.open(point, [0, draw], draw)
        core.turn(rollout, message("assistant", "x"), 0, core.name("m"), core.name("stop"), 10, 4, 3, 1, 250)
        core.close(rollout, *(("answer", "x") if error is None else ("llm_error", None, error)))
    writer.commit([(0, 0, delta_with(core, [CALL] * len(errors)))], [(0, *rows(core))])
    writer.finish()
    return writer


def recorded(text: str, attempts: int) -> str:
    return json.dumps({"kind": "LLMError", "message": text, "attempts": attempts, "retryable": True})


def test_the_attempts_of_a_failed_call_are_retries(tmp_path: Path) -> None:
    path = tmp_path / "run"
    failed(path, [recorded("busy", 6), "plain text", None, recorded("hostile", 2**62)])
    with RunReader.open(path) as reader:
        own = [row.retries for _task, row in reader.rollouts()]
        assert reader.check() == []
        tree = reader.tree("q0")
        assert reader.summary().usage == tree.usage
    # The turn that each rollout had took one attempt more than it needed.
    assert own[:3] == [1 + 5, 1, 1]
    assert own == [rollout.usage.retries for rollout in tree.rollouts]
    edit(path, "UPDATE rollouts SET retries = 1 WHERE rollout = 0")
    with RunReader.open(path) as reader:
        assert reader.check() == ['task "q0": rollout 0: retries is 1 in the row and 6 in the deltas']


def test_the_most_frequent_failures_are_named(tmp_path: Path) -> None:
    errors = [*["503"] * 2, *[recorded("timeout", 1), recorded("timeout", 4)], recorded("reset", 2), "a", None]
    failed(tmp_path / "run", errors)
    with RunReader.open(tmp_path / "run") as reader:
        summary = reader.summary()
    assert summary.failures == [("503", 2), ("timeout", 2), ("a", 1)]
    assert (summary.failed, summary.rollouts, summary.broken) == (6, 7, 0)


def test_tasks_with_too_few_scored_rollouts_are_counted(path: Path) -> None:
    with RunReader.open(path) as reader:
        summary = reader.summary()
    assert summary.tries == 3
    assert summary.short == 2  # one has a broken rollout, the other only two


def test_ids_are_listed(path: Path) -> None:
    with RunReader.open(path) as reader:
        assert reader.task_ids() == ["q0", "q1", "q2"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool) -> None:
    monkeypatch.setattr("trunkline.store.writer._LOOK_EVERY", 0.0)
    path = tmp_path / "run"
    writer = write(path, finish=False)
    path.rename(tmp_path / "elsewhere")
    if replaced:
        path.write_text("mine")
    what = "another file stands in its place" if replaced else "it was deleted or moved"
    for _ in range(2):
        with pytest.raises(InfrastructureError, match=f"run is no longer the file this run writes: {what}"):
            writer.commit([(2, 1, b"x")])
    writer.finish("failed")  # it has been said
    writer.finish("failed")
    assert not replaced or path.read_text() == "mine"


def test_a_file_that_is_gone_at_the_end_is_said_once(tmp_path: Path) -> None:
    writer = write(tmp_path / "run", finish=False)
    (tmp_path / "run").unlink()
    with pytest.raises(InfrastructureError, match="it was deleted or moved"):
        writer.finish()
    writer.finish()


def test_a_file_is_looked_for_at_most_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = write(tmp_path / "run", finish=False)
    looks: list[int] = []
    there = writer._lock.is_there
    monkeypatch.setattr(writer._lock, "is_there", lambda: bool(looks.append(1)) or there())
    clock = [time.monotonic() + 100]
    monkeypatch.setattr("trunkline.store.writer.time.monotonic", lambda: clock[0])
    for _ in range(10):
        writer.commit([])
        clock[0] += 0.25
    assert len(looks) == 3
    writer.finish()


def test_discard_leaves_the_file_of_somebody_else_alone(tmp_path: Path) -> None:
    writer = write(tmp_path / "run", finish=False)
    (tmp_path / "run").unlink()
    (tmp_path / "run").write_text("mine")
    writer.discard()
    assert (tmp_path / "run").read_text() == "mine"


def test_a_program_that_changes_its_directory_does_not_lose_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    kept, dropped = write(Path("kept"), finish=False), write(Path("made/dropped"), finish=False)
    monkeypatch.chdir(tmp_path / "other")
    kept.commit([])
    kept.finish()
    dropped.discard()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["kept", "other"]
    with RunReader.open(tmp_path / "kept") as reader:
        assert reader.summary().state == "done"


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    writer = write(tmp_path / "run", finish=False)
    assert {entry.name for entry in tmp_path.iterdir()} >= {"run", "run-wal"}
    writer.discard()
    assert list(tmp_path.iterdir()) == []
    writer.discard()


def test_discard_takes_the_folders_along_that_were_made_for_the_run(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "today" / "run", finish=False).discard()
    assert list(tmp_path.iterdir()) == []
    first = write(tmp_path / "runs" / "one", finish=False)
    write(tmp_path / "runs" / "two")
    first.discard()
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == ["two"]


def bind(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (write, "is an unfinished Trunkline run of 3 tasks, which resume=True or `trunkline resume` continues"),
        (lambda path: RunWriter.create(path, {}, TASKS[:1]).finish(), "is a Trunkline run of 1 task:"),
        (
            foreign,
            "is another SQLite file",
        ),
        (lambda path: path.write_text("notes " * 200), "is a file, and not a database"),
        (lambda path: path.write_text(""), "is there and is empty"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.symlink_to("nowhere"), "is no regular file, but a link to nothing"),
        (os.mkfifo, "is no regular file, but a named pipe"),
        (bind, "is no regular file, but a socket"),
    ],
)
def test_an_existing_file_is_left_alone(tmp_path: Path, make: object, what: str) -> None:
    path = tmp_path / "run"
    make(path)  # type: ignore[operator]
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(RunFileError, match=f"{what}.*choose another --out, or remove it"):
        RunWriter.create(path, {}, TASKS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    assert before is None or path.read_bytes() == before


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFileError, match="file is not a directory"):
        RunWriter.create(tmp_path / "file" / "run", {}, TASKS)
    with pytest.raises(InfrastructureError, match="cannot be created: Not a directory"):
        RunWriter.create(tmp_path / "file" / "deep" / "run", {}, TASKS)


def test_tasks_that_cannot_be_stored_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError):
        RunWriter.create(tmp_path / "run", {}, [TASKS[0], TASKS[0]])
    assert list(tmp_path.iterdir()) == []


def test_the_writer_holds_the_lock(tmp_path: Path) -> None:
    writer = write(tmp_path / "run", finish=False)
    # In another process: closing the file here would drop SQLite's own locks on it.
    code = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", code, str(writer.path)]
    held = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in held.stderr
    writer.finish()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: None, "no such run file"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_text("notes " * 200), "is not a Trunkline run: file is not a database"),
        (lambda path: path.write_text(""), "is empty"),
        (os.mkfifo, "is no regular file, but a named pipe, expected a run file"),
        (bind, "is no regular file, but a socket"),
        (lambda path: path.symlink_to("/dev/null"), "is no regular file, but a"),
        (
            foreign,
            "is another SQLite file",
        ),
    ],
)
def test_what_is_no_run(tmp_path: Path, make: object, what: str) -> None:
    path = tmp_path / "run"
    make(path)  # type: ignore[operator]
    with pytest.raises(RunFileError, match=what):
        RunReader.open(path)


def test_a_reader_that_was_closed_says_so_and_not_that_the_file_is_damaged(path: Path) -> None:
    with RunReader.open(path) as reader:
        assert [tree.task.id for tree in reader] == [tree.task.id for tree in reader.trees()]
    with pytest.raises(RunFileError, match=r"run\.trunk: the reader was closed: open the run file again") as refused:
        list(reader)
    assert type(refused.value) is RunFileError


def test_another_schema_version_names_both(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(RunFileError, match=f"schema version 99, but {SCHEMA_VERSION} is read here"):
        RunReader.open(path)
    with pytest.raises(RunFileError, match=r"schema version 99.*choose another --out"):
        RunWriter.create(path, {}, TASKS)


def revise(path: Path, **changes: object) -> None:
    """Let a run file say that it was made by something else."""
    with RunReader.open(path) as reader:
        made = json.loads(reader.meta["versions"])
    assert made == msgspec.structs.asdict(HERE)
    edit(path, "UPDATE meta SET value = ? WHERE key = 'versions'", json.dumps(made | changes))


def test_another_delta_format_names_both_and_who_made_it(path: Path) -> None:
    old = _core.OLDEST_FORMAT - 1
    revise(path, trunkline="0.0.7\x1b", delta=old)
    what = rf"was made by trunkline 0\.0\.7\\x1b with delta format {old}, but format {_core.FORMAT} is read"
    with pytest.raises(RunFileError, match=what):
        RunReader.open(path)
    with pytest.raises(RunFileError, match=f"{what}.*choose another --out"):
        RunWriter.create(path, {}, TASKS)


def test_digests_of_another_version_are_not_compared(path: Path) -> None:
    revise(path, digest=99)
    edit(path, "UPDATE trees SET digest = 'beef', flat = flat + 1 WHERE task = 0")
    with RunReader.open(path) as reader:
        first, second = reader.check()
    assert first == f"meta: digests of version 99 cannot be compared, version {_core.DIGEST_VERSION} is computed here"
    assert second.startswith('task "q0": trees: flat is')


@pytest.mark.parametrize("versions", ["{", "{}", '{"trunkline":"1","python":"3","delta":"x","digest":1}'])
def test_versions_that_cannot_be_read_are_found(path: Path, versions: str) -> None:
    edit(path, "UPDATE meta SET value = ? WHERE key = 'versions'", versions)
    with RunReader.open(path) as reader:
        assert reader.check() == ["meta: no versions that can be read"]


def test_no_secret_is_stored(tmp_path: Path) -> None:
    secrets = ["hunter2hunter2", "sk-proj-aaaabbbbcccc", "user:pa55word", "tok-q-secret", "bear3r-t0ken"]
    settings = {
        "llm": {
            "api_key": secrets[0],
            "api_key_env": "OPENAI_API_KEY",
            "base_url": f"http://{secrets[2]}@host/v1?api-key={secrets[3]}",
        },
        "headers": [{"Authorization": f"Bearer {secrets[4]}"}, f"Bearer {secrets[4]}"],
        "note": f"key is {secrets[1]}",
        "max_tokens": 512,
    }
    command = [
        "run",
        "--api-key",
        secrets[0],
        f"--token={secrets[3]}",
        "--model",
        "m",
        f"http://{secrets[2]}@host",
    ]
    writer = RunWriter.create(tmp_path / "run", settings, TASKS, command=command)
    writer.finish()
    data = writer.path.read_bytes()
    for secret in secrets:
        assert secret.encode() not in data
    with RunReader.open(writer.path) as reader:
        assert reader.settings["max_tokens"] == 512
        assert reader.settings["llm"]["api_key_env"] == "OPENAI_API_KEY"
        assert reader.settings["llm"]["base_url"].startswith("http://host/v1")
        assert json.loads(reader.meta["command"])[4:6] == ["--model", "m"]


TAMPERED = [
    (
        "UPDATE rollouts SET answer = 'Eve' WHERE task = 0 AND rollout = 1",
        'task "q0": rollout 1: answer is "Eve" in the row and "Bob"',
    ),
    (
        "UPDATE rollouts SET reward = 1.0 WHERE task = 0 AND rollout = 1",
        "rollout 1: reward is 1.0 in the row and 0.0 in the deltas",
    ),
    (
        "UPDATE rollouts SET reward = 1.0 WHERE task = 0 AND rollout = 2",
        "rollout 2: reward is 1.0 in the row and nothing",
    ),
    ("UPDATE rollouts SET prompt = '10' WHERE task = 1 AND rollout = 0", None),
    (
        "UPDATE rollouts SET termination = 'lost' WHERE task = 1 AND rollout = 0",
        'task "q1": rollout 0: termination is "lost"',
    ),
    (
        "UPDATE rollouts SET tool_micros = 'x\x1b' WHERE task = 1 AND rollout = 0",
        r'tool_micros is "x\x1b" in the row',
    ),
    ("DELETE FROM rollouts WHERE task = 1 AND rollout = 1", "rollout 1: no row, but it is in the deltas"),
    ("UPDATE rollouts SET rollout = 9 WHERE task = 1 AND rollout = 1", "rollout 9: there is a row, but none"),
    ("UPDATE trees SET digest = 'beef' WHERE task = 0", 'task "q0": trees: digest is "beef"'),
    ("UPDATE trees SET flat = flat + 1 WHERE task = 1", 'task "q1": trees: flat is'),
    ("UPDATE trees SET longest = 0 WHERE task = 1", 'task "q1": trees: longest is 0 in the row and 13 in the deltas'),
    ("UPDATE rollouts SET turns = 2 WHERE task = 1 AND rollout = 0", "rollout 0: turns is 2 in the row and 1 in"),
    ("DELETE FROM meta WHERE key = 'versions'", "meta: no versions that can be read"),
    ("DELETE FROM trees WHERE task = 1", 'task "q1": trees: no row, but rollouts has some'),
    ("DELETE FROM deltas WHERE delta = 1", 'task "q0": delta 2:'),
    ("DELETE FROM deltas WHERE delta >> 32 = 0", 'task "q0": it is marked as finished, but has no deltas'),
    (
        "UPDATE deltas SET data = substr(data, 1, length(data) - 1) WHERE delta = (1 << 32) + 1",
        'task "q1": delta 1:',
    ),
    ("UPDATE deltas SET data = x'00' WHERE delta = (1 << 32) + 0", 'task "q1": delta 0:'),
    ("UPDATE deltas SET data = 'text' WHERE delta = (1 << 32) + 0", 'task "q1": delta 0:'),
    (
        "UPDATE deltas SET data = (SELECT d.data FROM deltas d WHERE d.delta = 1 << 32) WHERE delta = (1 << 32) + 1",
        "delta 1 repeats",
    ),
    (
        "UPDATE deltas SET delta = (77 << 32) + (delta & 0xFFFFFFFF) WHERE delta >> 32 = 2",
        "deltas: rows of task number 77",
    ),
    ("UPDATE tasks SET id = 'other' WHERE task = 2", 'task "other": id is "q2" in its record'),
    ("UPDATE tasks SET record = '{' WHERE task = 2", 'task "q2": record:'),
    ("UPDATE meta SET value = 'done' WHERE key = 'state'", "1 of its tasks are not finished"),
    ("DELETE FROM meta WHERE key = 'state'", "meta: no state"),
]


@pytest.mark.parametrize(("statement", "problem"), TAMPERED, ids=range(len(TAMPERED)))
def test_check_names_what_was_changed(path: Path, statement: str, problem: str | None) -> None:
    edit(path, statement)
    with RunReader.open(path) as reader:
        found = reader.check()
    if problem is None:  # the column's type turned the text back into the number: nothing changed
        assert found == []
        return
    assert problem in "\n".join(found)
    assert all(line.isprintable() for line in found)


@pytest.mark.parametrize("flip", range(0, 60, 7))
def test_any_flipped_byte_of_a_delta_is_found(path: Path, flip: int) -> None:
    with sqlite3.connect(path) as connection:
        ((data,),) = connection.execute("SELECT data FROM deltas WHERE delta = 1")
        broken = bytearray(data)
        broken[flip % len(broken)] ^= 0x10
        connection.execute("UPDATE deltas SET data = ? WHERE delta = 1", (bytes(broken),))
    connection.close()
    with RunReader.open(path) as reader:
        (line,) = reader.check()
        assert line.startswith('task "q0": delta ')
        with pytest.raises(RunFileError, match=r'task "q0": .*`trunkline check'):
            reader.tree("q0")
        assert len(reader.tree("q1").rollouts) == 2


def test_rows_of_the_wrong_type_are_a_clear_error(path: Path) -> None:
    edit(path, "UPDATE rollouts SET turns = 'many' WHERE task = 0 AND rollout = 0")
    with (
        RunReader.open(path) as reader,
        pytest.raises(RunFileError, match=r"a row of rollouts.*trunkline check"),
    ):
        reader.summary()


def test_a_cut_file_is_a_clear_error(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(RunFileError, match="cannot be read: database disk image is malformed"):
        RunReader.open(path)


def test_a_page_of_rubbish_is_found(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 200] = b"\xa5" * 200
    path.write_bytes(data)
    with RunReader.open(path) as reader:
        found = reader.check()
        assert found
        assert all(line.startswith("SQLite: ") for line in found)
        with pytest.raises(RunFileError, match=r"is damaged.*trunkline check"):
            reader.summary()


def test_a_copy_with_its_log_is_complete(tmp_path: Path) -> None:
    writer = write(tmp_path / "run", finish=False)
    (tmp_path / "copy").mkdir()
    for name in ("run", "run-wal"):
        shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    with RunReader.open(tmp_path / "copy" / "run") as reader:
        assert reader.summary().finished == 2
        assert reader.check() == []
    writer.discard()


READ = """
import os, sys
from trunkline.store.reader import RunReader
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    open(sys.argv[1], "r+b")
    raise SystemExit("the file can be written")
except PermissionError:
    pass
with RunReader.open(sys.argv[1]) as reader:
    print(reader.summary().finished, reader.check(), reader.tree("q0").answer)
"""


@pytest.mark.parametrize("state", ["finished", "log", "no log"])
def test_a_copy_that_may_not_be_written(tmp_path: Path, state: str) -> None:
    """A run on a read-only medium is read, with and without the log that a killed run leaves."""
    writer = write(tmp_path / "run", finish=state == "finished")
    folder = tmp_path / "medium"
    folder.mkdir()
    shutil.copy(writer.path, folder / "run")
    if state == "log":
        shutil.copy(tmp_path / "run-wal", folder / "run-wal")
    if state == "no log":
        writer.finish("interrupted")
        shutil.copy(writer.path, folder / "run")
        edit_header = sqlite3.connect(folder / "run")
        edit_header.execute("PRAGMA journal_mode = WAL")
        edit_header.close()
    for entry in folder.iterdir():
        entry.chmod(0o444)
    folder.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents):
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    folder.chmod(0o755)
    if state != "finished":
        writer.finish("interrupted")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 [] Ada\n"


IMPORTED = [str(Path(__file__).parent), str(Path(call_logs.__file__).parent)]
FULL = """
import resource, sys
from trunkline.errors import InfrastructureError
sys.path[:0] = sys.argv[2:]
import test_runfile
from pathlib import Path
path = Path(sys.argv[1])
writer = test_runfile.write(path, finish=False)
size = max(p.stat().st_size for p in path.parent.iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, size + 20_000))
try:
    for seq in range(1, 100):
        writer.commit([(2, seq, bytes(5000))])
except InfrastructureError as problem:
    print(problem)
    print(seq)
try:
    writer.finish("failed")
except InfrastructureError:
    pass
"""


def test_a_full_disk_is_said_and_what_was_committed_stays(tmp_path: Path) -> None:
    path = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path), *IMPORTED],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text, seq = done.stdout.splitlines()
    assert str(path) in text
    assert "cannot be written" in text
    assert "free some space" in text
    with RunReader.open(path) as reader:
        assert reader.summary().finished == 2
        assert [row.answer for _task, row in reader.rollouts()] == ["Ada", "Bob", None, "Ada", "Ada"]
        # What reported success is there, the batch that failed is not.
        assert reader._query("SELECT max(delta) FROM deltas") == [(delta_key(2, int(seq) - 1),)]


class Locker(logging.Handler):
    """Another program that has the file locked until the run says that it waits."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("BEGIN IMMEDIATE")

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.release()

    def release(self) -> None:
        self._connection.close()


def test_a_lock_of_another_program_is_waited_for_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_WAIT", 0.01)
    writer = write(tmp_path / "run", finish=False)
    other = Locker(writer.path)
    logging.getLogger("trunkline.store.sqlite").addHandler(other)
    try:
        writer.event("died", worker=1)
    finally:
        logging.getLogger("trunkline.store.sqlite").removeHandler(other)
    assert other.lines == [
        f"{writer.path} is locked by another program, such as a database browser: the run waits until it is closed",
        "the run file is no longer locked; the run continues",
    ]
    writer.finish()
    with RunReader.open(writer.path) as reader:
        assert [event.kind for event in reader.events()] == ["died"]


def test_a_run_that_ends_does_not_wait_for_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_WAIT", 0.01)
    writer = write(tmp_path / "run", finish=False)
    other = Locker(writer.path)
    with pytest.raises(InfrastructureError, match=r"another program has it locked .*; close that program"):
        writer.finish()
    other.release()
    with RunReader.open(writer.path) as reader:
        assert (reader.summary().finished, reader.check()) == (2, [])


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
import test_runfile
from pathlib import Path
test_runfile.write(Path(sys.argv[1]), finish=False)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_everything_it_committed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), *IMPORTED], check=False)
    assert done.returncode == -9
    with RunReader.open(path) as reader:
        assert reader.summary().state == "running"
        assert reader.summary().finished == 2
        assert reader.check() == []
