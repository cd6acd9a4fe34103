"""Run files whose run is over, amended: what is said of their trees later, and every row that follows from it."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from resuming import environment

from trunkline import _core
from trunkline.errors import DamagedRunFile, InfrastructureError, RunFileError, UsageError
from trunkline.store.amend import Amender
from trunkline.store.derive import rows, taken
from trunkline.store.reader import RunReader
from trunkline.store.schema import TreeEnding
from trunkline.store.state import run_progress
from trunkline.store.writer import RunWriter
from trunkline.types import Task

TASKS = [Task.ask(f"Who is {n}?", "Ada", id=f"q{n}") for n in range(7)]


def tree(rollouts: int, *, ended: bool = True) -> tuple[_core.CoreTree, list[bytes]]:
    """A tree in which rollouts share a prompt, and its deltas."""
    core = _core.CoreTree()
    point = core.append(0, 1, b'{"role":"user","content":"who?"}')
    deltas = [core.delta()]
    for number in range(rollouts):
        rollout = core.open(point, [0, number], 0)
        if ended or number:
            core.close(rollout, "llm_error" if number == 2 else "answer", f"Ada {number}")
        if (ended or number) and number != 2:
            core.score(rollout, float(number))
    deltas.append(core.delta())
    return core, [delta for delta in deltas if delta is not None]


def commit(
    writer: RunWriter, number: int, core: _core.CoreTree, deltas: list[bytes], ending: TreeEnding | None
) -> None:
    done = [] if ending is None else [(number, *rows(core, None, ending))]
    writer.commit([(number, seq, data) for seq, data in enumerate(deltas)], done)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Four finished tasks, one begun, one that was taken over and not begun, and one that nothing is known of."""
    with RunWriter.create(tmp_path / "run", {"reward": "exact_match"}, TASKS, command=[]) as writer:
        core, deltas = tree(2)
        writer.take_over(5, deltas, taken(core, len(deltas)))
        for number in range(4):
            commit(writer, number, *tree(number + 1), TreeEnding("enough", "enough: 1 of 2", 3))
        commit(writer, 4, *tree(3, ended=False), None)
        writer.finish("interrupted")
    return tmp_path / "run"


def problems(path: Path) -> list[str]:
    with RunReader.open(path) as reader:
        return reader.check()


def kept(path: Path) -> list[str]:
    """What no amendment changes."""
    with RunReader.open(path) as reader:
        facts = reader.meta
    return [facts[key] for key in ("state", "created", "updated", "seconds", "finished", "settings", "versions")]


def rescore(path: Path) -> None:
    with Amender.open(path) as run:
        for name in run.task_ids():
            found = run.tree(name)
            for rollout in found.rollouts:
                if rollout.termination is not None:
                    found.core.score(rollout.id, math.nan if rollout.id else 0.25)
                    found.core.note(rollout.id, "again")
            assert run.commit(name, found, place=name)


def test_what_is_said_later_is_in_the_tree_and_in_every_row(path: Path):
    before = kept(path)
    rescore(path)
    assert problems(path) == []
    assert kept(path) == before
    with RunReader.open(path) as reader:
        for number in range(4):
            found = reader.tree(f"q{number}")
            assert found.ended == "enough"
            rewards = [rollout.reward for rollout in found.rollouts]
            assert rewards[0] == 0.25
            assert all(map(math.isnan, rewards[1:]))
            assert found.values().means[0] == 0.25
        assert [row.reward for _, row in reader.rollouts()] == [
            0.25,
            0.25,
            None,
            0.25,
            None,
            None,
            *[0.25, *[None] * 3],
        ]
        assert {row.note for _, row in reader.rollouts()} == {"again"}
        assert [(row.why, row.refused) for _, row in reader.rows()] == [("enough: 1 of 2", 3)] * 4
        assert math.isnan(reader.tree("q4").rollouts[0].reward), "it still grows"
        assert reader.meta["place"] == '"q5"'
    assert [entry.name for entry in path.parent.iterdir()] == ["run"]


def test_a_task_that_was_only_taken_over_is_not_begun_by_an_amendment(path: Path):
    rescore(path)
    rescore_again = Amender.open(path)
    with rescore_again as run:
        assert run.task_ids() == [f"q{n}" for n in range(6)]
        found = run.tree("q5")
        found.core.note(0, "once more")
        assert run.commit("q5", found)
    assert problems(path) == []
    connection = sqlite3.connect(path)
    try:
        there = run_progress(connection, dict(connection.execute("SELECT key, value FROM meta")))
    finally:
        connection.close()
    assert there.begun == [4]
    assert there.taken[5].deltas == 4


def test_nothing_to_say_writes_no_delta_but_its_facts(path: Path):
    with Amender.open(path) as run:
        count = len(run.reader.deltas(2))
        assert run.commit("q2", run.tree("q2"), seen=[1]) is False
        run.note(also={"api_key": "sk-" + "a" * 40})
        assert len(run.reader.deltas(2)) == count
        assert run.reader.meta["seen"] == "[1]"
        assert "sk-" not in run.reader.meta["also"]


def test_a_tree_is_committed_again_and_again(path: Path):
    with Amender.open(path) as run:
        found = run.tree("q1")
        for reward in (0.5, 0.75):
            found.core.score(0, reward)
            assert run.commit("q1", found)
        assert run.tree("q1").rollouts[0].reward == 0.75
    assert problems(path) == []


def test_what_does_not_follow_from_the_file_is_refused_and_leaves_it_alone(path: Path):
    with Amender.open(path) as run:
        first, second, other, grown = run.tree("q1"), run.tree("q1"), run.tree("q2"), run.tree("q3")
        for found in (first, second, other):
            found.core.score(0, 0.5)
        grown.core.open(1, [0, 9], 0)
        assert run.commit("q1", first)
        second.core.score(1, 0.125)
        with pytest.raises(UsageError, match=r"q1.*read it again with tree\(\).*another history"):
            run.commit("q1", second)
        with pytest.raises(UsageError, match=r"q3.*read it again"):
            run.commit("q3", other)
        with pytest.raises(UsageError, match=r"q3.*has grown; a run that is over takes no more"):
            run.commit("q3", grown)
        with pytest.raises(UsageError, match='no task "q9"'):
            run.commit("q9", grown)
        assert run.tree("q1").rollouts[1].reward == 1.0
    assert problems(path) == []


CHILD = """
import os, signal, sys
from trunkline.store.amend import Amender

at, count = int(sys.argv[2]), 0

def step(statement):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)

with Amender.open(sys.argv[1]) as run:
    run._connection.set_trace_callback(step)
    for name in run.task_ids():
        tree = run.tree(name)
        tree.core.score(1 if name == "q4" else 0, 0.25)
        run.commit(name, tree, place=name)
        print(name, flush=True)
    run._connection.set_trace_callback(None)
print(count)
"""


def amend(path: Path, at: int) -> tuple[int, list[str]]:
    """Amend a file in a process of its own that is killed before a statement; its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(at)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.split()


def test_killed_at_any_statement_the_file_is_whole(path: Path, tmp_path: Path):
    shutil.copyfile(path, tmp_path / "whole")
    code, said = amend(tmp_path / "whole", 0)
    assert (code, problems(tmp_path / "whole")) == (0, [])
    statements = int(said[-1])
    assert statements > 60
    # Every statement of a commit is met, each in another task's.
    for at in range(3, statements, 13):
        copy = tmp_path / f"killed{at}"
        shutil.copyfile(path, copy)
        code, said = amend(copy, at)
        assert code == -signal.SIGKILL
        assert problems(copy) == []
        with RunReader.open(copy) as reader:
            place = reader.meta.get("place", '""').strip('"')
            names = reader.task_ids()
            done = [name for name in names[:4] if reader.tree(name).rollouts[0].reward == 0.25]
        assert place in {said[-1] if said else "", names[len(said)]}, "what was acknowledged is there"
        assert done == [name for name in names[:4] if name <= place], "tasks and facts are written together"
        with Amender.open(copy) as run:
            assert run.task_ids(), "its lock died with it"


HOLDER = """
import sys
from trunkline.store.amend import Amender
with Amender.open(sys.argv[1]):
    print("held", flush=True)
    input()
"""


def test_a_file_that_is_written_is_refused_with_who_writes_it(path: Path):
    with RunWriter.open(path), pytest.raises(RunFileError, match=f"being written by process {os.getpid()} on"):
        Amender.open(path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunFileError, match=f"being written by process {holder.pid} on"):
            Amender.open(path)
        with pytest.raises(RunFileError, match=f"being written by process {holder.pid} on"):
            RunWriter.open(path)
        holder.communicate("\n")
    rescore(path)


def test_what_is_no_run_that_can_be_amended_is_refused(path: Path, tmp_path: Path):
    with pytest.raises(RunFileError, match="no such run file"):
        Amender.open(tmp_path / "none")
    with pytest.raises(RunFileError, match="is a directory"):
        Amender.open(tmp_path)
    RunWriter.create(tmp_path / "beginning", {}, TASKS, command=[], state="beginning").finish("beginning")
    with pytest.raises(RunFileError, match="stopped before it began"):
        Amender.open(tmp_path / "beginning")
    held = path.read_bytes()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE meta SET value = replace(value, '\"digest\":', '\"digest\":9') WHERE key = 'versions'"
        )
    connection.close()
    with pytest.raises(RunFileError, match=r"has digests of version 9.* can only be read"):
        Amender.open(path)
    path.write_bytes(held)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE trees SET digest = 'x' WHERE task = 2")
        connection.execute("UPDATE deltas SET data = x'00' WHERE delta = (3 << 32) + 1")
    connection.close()
    with Amender.open(path) as run:
        found = run.tree("q2")
        found.core.score(0, 0.5)
        with pytest.raises(DamagedRunFile, match=r"q2.*another tree than its deltas"):
            run.commit("q2", found)
        with pytest.raises(DamagedRunFile, match="q3"):
            run.tree("q3")


def test_a_file_that_may_not_be_written_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    def read_only(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)

    held = path.read_bytes()
    monkeypatch.setattr("trunkline.store.amend.connect_to_write", read_only)
    with pytest.raises(InfrastructureError, match=r"cannot be written .*readonly"):
        Amender.open(path)
    monkeypatch.undo()
    assert path.read_bytes() == held
    rescore(path)


def test_a_file_that_goes_away_is_noticed(path: Path):
    with Amender.open(path) as run:
        found = run.tree("q1")
        found.core.score(0, 0.5)
        path.unlink()
        with pytest.raises(InfrastructureError, match="deleted, moved or replaced"):
            run.commit("q1", found)


def test_a_full_disk_is_one_error_and_what_was_committed_stays(path: Path):
    with Amender.open(path) as run:
        first, second = run.tree("q1"), run.tree("q2")
        first.core.score(0, 0.5)
        assert run.commit("q1", first)
        second.core.note(0, "x" * 200_000)
        ((pages,),) = run._connection.execute("PRAGMA page_count")
        run._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(InfrastructureError, match=r"cannot be written .*free some space"):
            run.commit("q2", second)
    assert problems(path) == []
    with RunReader.open(path) as reader:
        assert reader.tree("q1").rollouts[0].reward == 0.5
        assert reader.tree("q2").rollouts[0].note is None
