"""Workers that are killed: whatever the strategy, their trees go on elsewhere to what they would have been."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from every_strategy import STRATEGIES
from trunkline_children import children

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.observability.observers import Progress
from trunkline.rollout.budget import Budget
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.scoring.filters import ZeroVariance
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.strategies.base import Strategy
from trunkline.types import Task


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Task]]:
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 200, 20), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CORPUS_VARIABLE, str(folder / "corpus.jsonl"))
        yield load_tasks(str(folder / "questions.jsonl"), limit=6)


SOME = ("tree-search", "partial", "mcts with a value", "under a budget")
"""Where every kind of decision is made; ``tests/property/test_any_delta.py`` has all strategies, in one process."""


class Killer:
    """Kills the oldest worker as soon as so many turns are in the file, and another one later."""

    def __init__(self, *after: float) -> None:
        self.after = list(after)

    def __call__(self, shot: Progress) -> None:
        if self.after and shot.calls >= self.after[0] and (found := children()):
            self.after.pop(0)
            os.kill(min(found), signal.SIGKILL)


def grow(url: str, tasks: list[Task], strategy: Strategy, workers: int, **options: object) -> Run:
    sampling = Sampling(logprobs=True, top_logprobs=2, max_tokens=2000)
    return run(
        Agent(model="sim-agent", tools=[search, visit], max_turns=8, sampling=sampling),
        tasks,
        llm=LLM(url, max_concurrency=4),
        strategy=strategy,
        reward=exact_match,
        filters=[ZeroVariance()],
        workers=workers,
        seed=5,
        **options,
    )


def looked_at(made: Run) -> dict[str, tuple]:
    return {
        tree.task.id: (tree.digest(), [(one.termination, str(one.reward), one.note) for one in tree.rollouts])
        for tree in made
    }


@pytest.mark.parametrize("name", SOME)
def test_trees_whose_workers_are_killed_are_those_of_an_undisturbed_run(
    url: str, tasks: list[Task], name: str, tmp_path: Path
):
    budget = None if name in STRATEGIES else Budget(calls=12, generated=2500)
    strategy = STRATEGIES.get(name, STRATEGIES["tree-grpo"])
    whole = grow(url, tasks, strategy, 0, task_budget=budget)
    calls = whole.summary().usage.calls
    killer = Killer(1, calls / 3)
    killed = grow(url, tasks, strategy, 2, task_budget=budget, watch=killer, out=tmp_path / "run")
    assert len(killer.after) < 2, "one was killed, or two"
    assert looked_at(killed) == looked_at(whole)
    assert (killed.state, killed.summary().usage.calls) == ("done", calls)
    with RunReader.open(killed.path) as reader:
        assert reader.check() == []
