"""The teams that come with the library: the simulator's server and batches of any kind give the same trees and rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sim_engine import SimEngine

import trunkline as tl
from trunkline.cli.demo import simulator
from trunkline.rollout.programs.replay import Journal
from trunkline.runner.pool import Pool
from trunkline.sim.tools import CORPUS_VARIABLE, search
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.chain import Chain
from trunkline.types import Task

DRAWS = 2
TEAMS: dict[str, Callable[[], tl.Team]] = {
    "search": lambda: tl.teams.SearchTeam(model="sim-team", tool=search, history=4),
    "math": lambda: tl.teams.MathTeam(model="sim-team"),
    "experts": lambda: tl.teams.ExpertsTeam(model="sim-team"),
}
LATENCY = "overhead=0.005,token=0,tail=1.5"
Told = dict[str, tuple[str, list[Any], list[Any]]]


@pytest.fixture(scope="module")
def tasks(world: Path) -> Iterator[list[Task]]:
    """Questions of both kinds: some that need a search, and some that do not."""
    kinds: dict[str, list[str]] = {}
    for row in (world / "questions.jsonl").read_text().splitlines():
        kinds.setdefault(json.loads(row)["metadata"]["kind"], []).append(row)
    path = world / "both_kinds.jsonl"
    path.write_text("\n".join(kinds["lookup"][:3] + kinds["arithmetic"][:3]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
        yield load_tasks(str(path))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The simulator, whose answers come in no order that is known before."""
    with simulator("default", False, "--latency", LATENCY) as found:
        yield found


def told(team: str, tasks: list[Task], llm: object, **where: Any) -> Told:
    """Digest, answers and rows of each tree: who was asked in a rollout, what is noted of it, what is trained of it."""
    found = {}
    options: dict[str, Any] = {"strategy": Chain(DRAWS), "reward": tl.exact_match, "seed": 3}
    for tree in tl.run(TEAMS[team](), tasks, llm=llm, **options, **where):
        noted = [row for rollout in range(tree.core.rollouts) for row in Journal(tree.core).of(rollout)]
        # What a tool took is on record with what it said.
        rows: list[Any] = [[row.rollout, row.kind, row.key, row.data[2:]] for row in noted if row.kind != "tool"]
        # Nodes are numbered as they came.
        calls = tl.train.rows([tree], shared="repeat", only_active=False)
        rows += [msgspec.json.encode(msgspec.structs.replace(row, node=0)) for row in calls]
        found[tree.task.id] = tree.digest(), [rollout.answer for rollout in tree.rollouts], rows
    return found


@pytest.fixture(scope="module")
def over_http(tasks: list[Task], url: str) -> dict[str, Told]:
    """What each team does barrier-free, in this process."""
    return {team: told(team, tasks, url, workers=0) for team in TEAMS}


def test_worker_processes_give_the_trees_of_one_process(tasks: list[Task], url: str, over_http: dict[str, Told]):
    with Pool("local", workers=2) as pool:
        for team in TEAMS:
            assert told(team, tasks, url, pool=pool) == over_http[team]


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"max_batch": 5}, {"fuse_calls": False, "regroup": False}, {"core_masks": False, "regroup": False}],
    ids=["default", "small", "apart", "arrays"],
)
def test_lock_step_gives_the_trees_of_the_server(
    team: str, settings: dict[str, Any], tasks: list[Task], over_http: dict[str, Told]
):
    engine = SimEngine()
    assert told(team, tasks, tl.BatchLLM(engine, **settings)) == over_http[team]
    assert len(engine.batches[0]) >= min(len(tasks) * DRAWS, settings.get("max_batch", 4096))


def test_what_is_compared_takes_more_than_one_way(over_http: dict[str, Told]):
    for team in ("search", "math"):
        assert len({len(rows) for _, _, rows in over_http[team].values()}) > 1
    assert all(answer for _, answers, _ in over_http["experts"].values() for answer in answers)
