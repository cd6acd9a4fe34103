"""``trunkline compare`` on runs that the simulator made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import trunkline

import trunkline as tl
from trunkline.cli.demo import simulator
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.reader import RunReader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three runs of one file of questions: two of 12 questions, with and without tools, and one of the first 8."""
    folder = tmp_path_factory.mktemp("compare")
    write_world(make_world(3, 200, 20), folder)
    with pytest.MonkeyPatch.context() as patch, simulator("default", False) as url:
        patch.setenv(CORPUS_VARIABLE, str(folder / "corpus.jsonl"))
        common = ("run", "questions.jsonl", "-m", "sim-agent", "--base-url", url, "-w", "0", "-r", "4")
        tools = ("--tools", "trunkline.sim.tools")
        for name, more in {
            "tools": (*tools, "-n", "12", "--seed", "1"),
            "short": (*tools, "-n", "12", "--seed", "1", "--max-turns", "2"),
            "few": (*tools, "-n", "8", "--seed", "2"),
        }.items():
            done = trunkline(folder, *common, *more, "-o", f"{name}.run")
            assert done.returncode == 0, done.stderr
        yield folder


def test_two_runs_of_the_same_questions(folder: Path) -> None:
    done = trunkline(folder, "compare", "tools.run", "short.run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    with RunReader.open(folder / "tools.run") as first, RunReader.open(folder / "short.run") as second:
        wanted = [{task.task: task.reward for task in reader.by_task()} for reader in (first, second)]
        summaries = first.summary(), second.summary()
    moved = {name: wanted[1][name] - wanted[0][name] for name in wanted[0]}
    assert found["paired"]["difference"] == pytest.approx(sum(moved.values()) / 12)
    assert {one["task"]: one["difference"] for one in found["changed"]} == pytest.approx(
        {name: value for name, value in moved.items() if value}
    )
    assert found["paired"]["worse"] == sum(value < 0 for value in moved.values()) > 0
    assert found["paired"]["low"] <= found["paired"]["difference"] <= found["paired"]["high"]
    for side, summary in zip(("a", "b"), summaries, strict=True):
        assert summary.accuracy is not None
        assert found[side]["estimate"]["value"] == pytest.approx(summary.accuracy.value)
        assert found[side]["estimate"]["low"] == pytest.approx(summary.accuracy.low)
        assert (found[side]["usage"]["prompt"], found[side]["usage"]["generated"]) == (
            summary.usage.prompt, summary.usage.generated,
        )  # fmt: skip


def test_tasks_of_one_run_only_are_counted_and_named(folder: Path) -> None:
    done = trunkline(folder, "compare", "tools.run", "few.run", "--metric", "pass@2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("only in A") and "4: q0009, q0010" in line for line in lines)
    assert any(line.startswith("tasks compared") and " 8: " in line for line in lines)
    assert any(line.startswith("pass@2 of A") and line.endswith("32 rollouts") for line in lines)


def test_the_library_says_the_same(folder: Path) -> None:
    found = tl.compare(folder / "few.run", folder / "tools.run", "majority@3")
    back = tl.compare(folder / "tools.run", folder / "few.run", "majority@3")
    assert found.paired.difference == pytest.approx(-back.paired.difference)
    assert found.paired.p == pytest.approx(back.paired.p)
    assert len(found.only_b) == len(back.only_a) == 4
    assert tl.metrics.metric(found.metric) == tl.metrics.Metric("majority@", 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tools.run",), "Missing argument 'B'"),
        (("tools.run", "none.run"), "none.run: no such run file"),
        (("tools.run", "questions.jsonl"), "is not a Trunkline run"),
        (("tools.run", "few.run", "--metric", "pass"), 'there is no metric "pass": it is one of accuracy'),
        (("tools.run", "few.run", "--metric", "pass^5"), "pass^5 needs 5 scored tries"),
        (("tools.run", "few.run", "--tasks", "-1"), "Invalid value for '--tasks'"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    done = trunkline(folder, "compare", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""
