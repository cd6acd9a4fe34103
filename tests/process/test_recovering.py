"""What is whole of a damaged run file, in a new one."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from commands import trunkline
from foreign import capital_cities, serving

import trunkline as tl
from trunkline.errors import DamagedRunFile, RunFileError
from trunkline.store.recover import recover

PAGE = 4096


@pytest.fixture
def made(tmp_path: Path) -> Path:
    with serving(capital_cities) as server:
        run = tl.run(
            agent(), tasks(), llm=server.url, strategy="chain:n=3", seed=7, workers=0, reward="exact_match",
            out=tmp_path / "made.run",
        )  # fmt: skip
    return run.path


def trees(path: Path) -> dict[str, str]:
    with tl.RunReader.open(path) as reader:
        assert reader.check() == []
        return {tree.task.id: tree.digest() for tree in reader.trees()}


def test_a_whole_file_is_recovered_as_it_was(made: Path, tmp_path: Path):
    before = made.read_bytes()
    found = recover(made, tmp_path / "out.run")
    assert (found.tasks, found.finished, found.begun, found.lost) == (len(CAPITALS), len(CAPITALS), 0, [])
    assert trees(tmp_path / "out.run") == trees(made)
    assert made.read_bytes() == before
    with tl.RunReader.open(made) as old, tl.RunReader.open(tmp_path / "out.run") as new:
        assert (new.settings, new.seed, new.meta["state"]) == (old.settings, old.seed, "done")
        assert list(new.rollouts()) == list(old.rollouts())
        of_old, of_new = ([(task, call.started, str(call)) for task, call in file.calls()] for file in (old, new))
        slip = min(call[1] for call in of_new) - min(call[1] for call in of_old)
        assert abs(slip) < 1_000, "times count from when the run was made"
        assert sorted(call[:2] for call in of_new) == sorted((task, at + slip) for task, at, _ in of_old)
        assert new.summary().accuracy == old.summary().accuracy
    with serving(capital_cities) as server:
        assert trunkline(tmp_path, "resume", "out.run", "--base-url", server.url, "-w", 0).returncode == 0


@pytest.mark.parametrize("seed", range(12))
def test_whatever_pages_are_lost_what_is_recovered_is_true_and_goes_on(seed: int, made: Path, tmp_path: Path):
    whole, draw = trees(made), random.Random(seed)
    data = bytearray(made.read_bytes())
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(1, len(data) // PAGE) * PAGE
        data[at : at + PAGE] = draw.randbytes(PAGE)
    damaged = tmp_path / "damaged.run"
    damaged.write_bytes(data[: len(data) - draw.choice([0, 0, PAGE, 5 * PAGE + 77])])
    before, out = damaged.read_bytes(), tmp_path / "out.run"
    try:
        found = recover(damaged, out)
    except DamagedRunFile as problem:
        assert "nothing can be salvaged" in str(problem)  # noqa: PT017 - either is right
        assert not out.exists()
        return
    assert damaged.read_bytes() == before
    kept = trees(out)
    assert len(kept) == found.finished
    assert kept.items() <= whole.items()
    assert found.lost or kept == whole
    with serving(capital_cities) as server, tl.RunReader.open(out) as reader:
        left = reader.tasks()
        options = {"strategy": "chain:n=3", "seed": 7, "workers": 0, "reward": "exact_match"}
        went_on = tl.run(agent(), left, llm=server.url, out=out, resume="force", **options)
    assert {name: digest for name, digest in trees(went_on.path).items() if name in whole} == {
        task.id: whole[task.id] for task in left
    }


@pytest.mark.breaks_rollouts
def test_the_command_says_what_is_lost(made: Path, tmp_path: Path):
    with sqlite3.connect(made) as connection:
        connection.execute("DELETE FROM deltas WHERE delta >> 32 = 2")
        connection.execute("INSERT INTO deltas SELECT max(delta) + 1, x'00' FROM deltas WHERE delta >> 32 = 3")
        connection.execute("UPDATE meta SET value = '1234.5' WHERE key = 'seconds'")
    connection.close()
    done = trunkline(tmp_path, "recover", made.name, "out.run")
    assert done.returncode == 0, done.stderr
    assert json.loads(trunkline(tmp_path, "show", "out.run", "--json").stdout)["summary"]["seconds"] >= 1234.5
    assert "lost: everything of 1 task: Japan\n" in done.stdout
    assert "out.run: 5 tasks, 4 finished" in done.stdout, "what follows a whole tree is no part of it"
    assert "trunkline resume out.run" in done.stderr


def test_what_cannot_be_recovered_is_refused(made: Path, tmp_path: Path):
    for place, content in (("text", b"no run" * 2000), ("empty", b""), ("half", made.read_bytes()[:900])):
        (tmp_path / place).write_bytes(content)
        with pytest.raises(DamagedRunFile, match="nothing can be salvaged"):
            recover(tmp_path / place, tmp_path / "out.run")
    shutil.copy(made, tmp_path / "there.run")
    with pytest.raises(RunFileError, match=r"there\.run"):
        recover(made, tmp_path / "there.run")
    with pytest.raises(RunFileError, match="no such run file"):
        recover(tmp_path / "absent", tmp_path / "out.run")
    assert not (tmp_path / "out.run").exists()


def test_a_log_that_is_missing_is_said(made: Path, tmp_path: Path):
    with sqlite3.connect(made) as connection:
        (text,) = connection.execute("SELECT value FROM meta WHERE key = 'sums'").fetchone()
        connection.execute(
            "UPDATE meta SET value = ? WHERE key = 'sums'", (text.replace('"follows":false', '"follows":true'),)
        )
    connection.close()
    found = recover(made, tmp_path / "out.run")
    assert ["the run's last commits: its log" in line for line in found.lost] == [True]
    assert found.finished == len(trees(tmp_path / "out.run"))


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        ("UPDATE tasks SET record = replace(CAST(record AS TEXT), 'Paris', 'Pbris') WHERE task = 0", "their checksum"),
        ("UPDATE tasks SET id = 'other' WHERE task = 0", "task 'other'"),
        ("UPDATE tasks SET task = 9223372036854775807 WHERE task = 0", "task 'France'"),
        ("UPDATE trees SET refused = 'x' WHERE task = 1", "the last part of 1 task: Brazil"),
        ("UPDATE trees SET ended = 'junk' WHERE task = 1", "the last part of 1 task: Brazil"),
        ("UPDATE calls SET started = 'x'", ""),
        ("UPDATE calls SET task = x'ff', seq = 1.5", ""),
    ],
)
def test_what_is_no_value_of_ours_is_left_out_and_said(damage: str, lost: str, made: Path, tmp_path: Path):
    with sqlite3.connect(made) as connection:
        connection.execute(damage)
    connection.close()
    found = recover(made, tmp_path / "out.run")
    assert any(lost in line for line in found.lost) == bool(lost)
    assert len(trees(tmp_path / "out.run")) == found.finished


def test_a_tree_with_kept_tails_is_whole_and_foreign_deltas_are_said_whatever_the_versions(made: Path, tmp_path: Path):
    with serving(capital_cities) as server:
        options = {"strategy": tl.Chain(4), "enough": 1, "cut_tail": "keep", "workers": 0, "seed": 7}
        llm = tl.LLM(server.url, siblings=False, max_concurrency=1)
        run = tl.run(agent(), tasks(), llm=llm, out=tmp_path / "kept.run", **options)
    found = recover(run.path, tmp_path / "kept.out")
    assert (found.finished, found.lost) == (len(CAPITALS), [])
    assert trees(tmp_path / "kept.out") == trees(run.path)
    for place, versions in enumerate(("DELETE FROM meta WHERE key = 'versions'", "", "[]", '{"digest":99}')):
        damaged, out = tmp_path / f"{place}.run", tmp_path / f"{place}.out"
        shutil.copy(made, damaged)
        with sqlite3.connect(damaged) as connection:
            connection.execute("DELETE FROM deltas WHERE delta >> 32 = 1")
            connection.execute("INSERT INTO deltas SELECT delta - (1 << 32), data FROM deltas WHERE delta >> 32 = 2")
            if versions.startswith("DELETE"):
                connection.execute(versions)
            elif versions:
                connection.execute("UPDATE meta SET value = ? WHERE key = 'versions'", (versions,))
        connection.close()
        assert "everything of 1 task: Brazil" in recover(damaged, out).lost
        assert {name: tree for name, tree in trees(made).items() if name != "Brazil"} == trees(out)
