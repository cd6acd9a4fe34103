"""Strategies through whole runs: worker processes, run files and the command line, on the simulator."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from own_strategy import Recheck, brevity
from places import python_path

import trunkline as tl
from trunkline.scoring.notes import read
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 400, 30), folder)
    return folder


@pytest.fixture(autouse=True)
def corpus(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))


def grown(url: str, world: Path, strategy: object, workers: int) -> list[tl.Tree]:
    result = tl.run(
        tl.Agent(
            model="sim-agent",
            tools=[search, visit],
            max_turns=8,
            sampling=tl.Sampling(logprobs=True, top_logprobs=5),
        ),
        tl.load_tasks(str(world / "questions.jsonl"), limit=6),
        llm=tl.LLM(url, max_concurrency=16),
        strategy=strategy,
        reward=tl.exact_match,
        workers=workers,
        seed=5,
    )
    return sorted(result, key=lambda tree: tree.task.id)


def rechecked(tree: tl.Tree) -> None:
    """Forks are made only where answers differ, and then they are."""
    agreed = len({rollout.answer for rollout in tree.rollouts[:2]}) == 1
    assert (len(tree.rollouts) == 2) == agreed


def begun_apart(tree: tl.Tree) -> None:
    """All but the first chain are told how the others began."""
    told = [rollout.messages[1]["role"] == "user" for rollout in tree.rollouts]
    assert told == [False, True, True]


def pruned(tree: tl.Tree) -> None:
    """Who was stopped says why, and is scored by nobody."""
    for rollout in tree.rollouts:
        if rollout.termination is tl.Termination.CENSORED:
            assert rollout.error.message.startswith("pruned after turn ")
            assert math.isnan(rollout.reward)


def kept(tree: tl.Tree) -> None:
    """Of three rollouts of each tree one is noted as dropped."""
    dropped = [rollout.subgroup for rollout in tree.rollouts if read(rollout.note)]
    assert sorted(dropped) == [0, 1]


@pytest.mark.parametrize(
    ("strategy", "check"),
    [
        (Recheck(most=4), rechecked),
        (tl.Chain(3, temperatures=(0.5, 1.0), avoid=True), begun_apart),
        (tl.strategies.TreeSearch(width=3, keep=2, depth=3), pruned),
        (tl.strategies.TreeSearch(width=2, keep=1, depth=2, value=brevity), pruned),
        (tl.TreeGRPO(keep=2), kept),
    ],
    ids=["a user's own", "diverse chains", "by confidence", "by a value", "tree-grpo"],
)
def test_trees_are_the_same_with_and_without_workers(
    url: str, world: Path, strategy: tl.strategies.Strategy, check: Callable[[tl.Tree], None]
):
    alone, apart = (grown(url, world, strategy, workers) for workers in (0, 2))
    assert [tree.digest() for tree in alone] == [tree.digest() for tree in apart]
    assert [[rollout.note for rollout in tree.rollouts] for tree in alone] == [
        [rollout.note for rollout in tree.rollouts] for tree in apart
    ]
    sizes = [len(tree.rollouts) for tree in apart]
    assert 2 <= min(sizes) <= max(sizes) <= strategy.rollouts()
    assert max(sizes) > 2
    for tree in apart:
        tree.core.check()
        assert all(rollout.termination is not None for rollout in tree.rollouts)
        check(tree)


def test_the_same_strategies_from_the_command_line(url: str, world: Path, tmp_path: Path):
    common = ["-m", "sim-agent", "--base-url", url, "--tools", "trunkline.sim.tools", "-n", "3", "--seed", "5"]
    common += ["--strategy", "own_strategy:Recheck:most=3", "-o", "own.run", "--json"]
    done = command(tmp_path, "run", str(world / "questions.jsonl"), *common)
    assert done.returncode == 0, done.stderr
    assert 6 <= json.loads(done.stdout)["rollouts"] <= 9
    with tl.RunReader.open(tmp_path / "own.run") as reader:
        assert reader.settings["strategy"] == {"kind": "Recheck", "options": {"most": 3}}


def test_a_dry_run_sends_nothing_makes_no_file_and_says_what_would_be_done(world: Path, tmp_path: Path):
    common = ["run", str(world / "questions.jsonl"), "-m", "m", "--base-url", "http://127.0.0.1:9/v1", "--dry-run"]
    common += ["--tools", "trunkline.sim.tools", "--max-turns", "5", "-n", "3"]
    shown = command(tmp_path, *common, "--strategy", "tree-grpo:trees=2,forks=2,rounds=1,keep=3", "-o", "deep/x.run",
                    "--budget", "calls=60", "--task-budget", "rollouts=6", "--enough", "5")  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    rows = dict(line.split("  ", 1) for line in shown.stdout.splitlines())
    said = {label: value.strip() for label, value in rows.items()}
    assert said["strategy"] == "TreeGRPO (trees=2, forks=2, rounds=1, keep=3)"
    assert said["rollouts per task"] == "M (1 + N L) = 2 (1 + 2 x 1) = 6, of which M K = 2 x 3 = 6 are kept"
    assert said["rollouts"] == "18 at most"
    assert said["model turns"] == "90 at most  (5 per rollout)"
    assert said["tools"] == "search, visit"
    assert (said["budget of the run"], said["budget of a task"]) == ("calls 60", "rollouts 6")
    assert said["enough"] == "5 of 6, the others: censor"
    assert "no bound" in said["generated tokens"]
    assert list(tmp_path.iterdir()) == []
    counted = command(tmp_path, *common, "-r", "4", "--max-tokens", "100", "--cache", "answers", "--json")
    assert counted.returncode == 0, counted.stderr
    found = json.loads(counted.stdout)
    assert (found["tasks"], found["rollouts"], found["calls"], found["generated"]) == (3, 4, 60, 6000)
    assert (found["formula"], found["settings"]["seed"]) == ("n = 4", None)
    assert list(tmp_path.iterdir()) == []


def command(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = python_path()
    return subprocess.run(
        [sys.executable, "-m", "trunkline.cli", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=90,
    )
