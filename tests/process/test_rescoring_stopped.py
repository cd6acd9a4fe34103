"""Scorings that were killed or stopped: copies that are gone on with, and what refuses rewards of two kinds."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import trunkline
from scored_runs import RIGHT, WRONG, write

import trunkline as tl
from trunkline.errors import RunFileError, UsageError
from trunkline.runner.amend import arescore, rescore
from trunkline.runner.result import Run
from trunkline.scoring.rewards import contains
from trunkline.store.export.export import export
from trunkline.store.reader import RunReader
from trunkline.store.state import Scoring, rescorings, reward_of, under_way
from trunkline.store.stats.compare import compare
from trunkline.tree.views import Trajectory

KILLED = """
import os, signal, sys
from trunkline.runner import amend as rescoring
from trunkline.scoring.rewards import contains

run, out, point = sys.argv[1:]
die = lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL)
replace = os.replace

def placed(*given):
    replace(*given)
    die()

if point == "copied":
    rescoring._Scoring.__init__ = die
elif point == "begun":
    os.replace = die
else:
    os.replace = placed
rescoring.rescore(run, contains, out=out)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of three tasks."""
    return write(tmp_path / "a.run", {"one": [RIGHT, WRONG], "two": [WRONG, WRONG], "three": [RIGHT, RIGHT]})


async def half(path: Path) -> None:
    """Score a run by a reward that is stopped when it comes to the second task."""
    reached = asyncio.Event()

    async def halting(rollout: Trajectory) -> float:
        if rollout.task.id != "one":
            reached.set()
            await asyncio.Event().wait()
        return 0.5

    scoring = asyncio.create_task(arescore(path, halting))
    await reached.wait()
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring


@pytest.mark.parametrize("point", ["copied", "begun", "placed"])
def test_a_copy_is_gone_on_with_wherever_it_was_killed(path: Path, tmp_path: Path, point: str):
    held, out = path.read_bytes(), tmp_path / "new" / "b.run"
    ended = subprocess.run([sys.executable, "-c", KILLED, path, out, point], capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert (out.stat().st_size > 0) == (point == "placed"), "a copy takes its place whole, and says what it is for"
    found = rescore(path, contains, out=out)
    assert (found.before, found.rollouts, path.read_bytes()) == ("exact", 6, held)
    assert [file.name for file in out.parent.iterdir()] == ["b.run"]
    with RunReader.open(out) as reader:
        assert reader.check() == []
        assert [(one.reward, one.finished) for one in rescorings(reader.meta)] == [("contains", True)]


def test_a_copy_that_was_begun_anew_is_begun_once(path: Path, tmp_path: Path):
    rescore(path, contains, out=tmp_path / "b.run", anew=True)
    with RunReader.open(tmp_path / "b.run") as reader:
        assert len(rescorings(reader.meta)) == 1


def test_a_copy_made_by_hand_is_not_taken_for_ones_own(path: Path, tmp_path: Path):
    (tmp_path / "b.run").write_bytes(path.read_bytes())
    with pytest.raises(RunFileError, match="choose another --out"):
        rescore(path, contains, out=tmp_path / "b.run")


def test_what_is_scored_in_part_is_neither_measured_nor_trained_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("trunkline.runner.amend._RESCORED_TOGETHER", 1)
    other = write(tmp_path / "b.run", {"one": [RIGHT], "two": [WRONG], "three": [RIGHT]})
    asyncio.run(half(path))
    mixed = r"a\.run is scored by .*halting in part, so its rewards are of two kinds: finish that first"
    with RunReader.open(path) as reader:
        assert under_way(reader.meta) is not None
        assert len(list(reader.trees(mixed=True))) == 3
        with pytest.raises(UsageError, match=mixed):
            next(reader.trees())
    for pair in ((path, other), (other, path)):
        with pytest.raises(UsageError, match=mixed):
            compare(*pair)
    with pytest.raises(UsageError, match=mixed):
        export(path, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(UsageError, match=mixed):
        list(Run(path, "done"))
    said = trunkline(tmp_path, "answers", path)
    assert said.returncode == 2
    assert "in part" in said.stderr
    shown = trunkline(tmp_path, "show", path, "--confidence", "value")
    assert shown.returncode == 0, shown.stderr
    assert "in part: trunkline score continues it" in shown.stdout
    # By any reward, once there is one only, all is as it was.
    tl.rescore(path, contains)
    assert export(path, tmp_path / "out.jsonl").records
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {record["reward"] for record in written} == {0.0}
    assert len(list(Run(path, "done"))) == 3


def test_which_reward_a_task_has_is_known_of_every_place():
    done = Scoring(reward="b", before="a", accuracy=None, at=0.0, trunkline="1", done=5, finished=True)
    first = Scoring(reward="c", before="b", accuracy=None, at=0.0, trunkline="1", done=3)
    second = Scoring(reward="d", before="c", accuracy=None, at=0.0, trunkline="1", done=1)
    assert [reward_of([done], "b", place) for place in range(5)] == ["b"] * 5
    assert [reward_of([done, first], "c", place) for place in range(5)] == ["c", "c", "c", "b", "b"]
    assert [reward_of([done, first, second], "d", place) for place in range(5)] == ["d", "c", "c", "b", "b"]
