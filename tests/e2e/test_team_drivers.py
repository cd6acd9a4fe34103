"""Both drivers of a team give the same trees: a server whose answers come in any order, and batches of any kind."""

from __future__ import annotations

from typing import Any

import pytest
from driven_teams import Panel, Review, Rowed, served
from foreign import serving

import trunkline as tl
from trunkline.rollout.programs.replay import Journal
from trunkline.strategies.chain import Chain
from trunkline.types import Task

TEAMS = {team.__name__: team for team in (Review, Panel)}
TASKS = [Task.ask(f"what is {number}?", id=str(number)) for number in range(6)]
DRAWS = 2


def told(team: str, llm: object, workers: int = 0) -> dict[str, tuple[str, list[Any], list[Any]]]:
    """Digest, answers and rows of each tree: who was asked in a rollout, and what is noted of it."""
    result = tl.run(TEAMS[team](model="large"), TASKS, llm=llm, strategy=Chain(DRAWS), seed=3, workers=workers)
    found = {}
    for tree in result:
        rollouts = range(tree.core.rollouts)
        rows = [[(row.kind, row.key, row.data[2:]) for row in Journal(tree.core).of(rollout)] for rollout in rollouts]
        found[tree.task.id] = tree.digest(), [rollout.answer for rollout in tree.rollouts], rows
    return found


@pytest.fixture(scope="module")
def over_http() -> dict[str, Any]:
    with serving(served) as server:
        return {team: told(team, server.url) for team in TEAMS}


@pytest.mark.parametrize("team", TEAMS)
def test_worker_processes_give_the_trees_of_one_process(team: str, over_http: dict[str, Any]):
    with serving(served) as server:
        assert told(team, server.url, workers=2) == over_http[team]


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("size", [1, 5, 4096])
@pytest.mark.parametrize(("fuse", "regroup"), [(True, True), (True, False), (False, True), (False, False)])
def test_lock_step_gives_the_trees_of_the_server(
    team: str, size: int, fuse: bool, regroup: bool, over_http: dict[str, Any]
):
    engine = Rowed()
    llm = tl.BatchLLM(engine, max_batch=size, fuse_calls=fuse, regroup=regroup)
    assert told(team, llm) == over_http[team]
    assert all(len(models) == 1 and rows <= size for models, rows in engine.calls)


@pytest.mark.parametrize("team", TEAMS)
def test_arrays_in_python_give_the_same_trees(team: str, over_http: dict[str, Any]):
    assert told(team, tl.BatchLLM(Rowed(), core_masks=False)) == over_http[team]


def test_what_is_compared_takes_more_than_one_way(over_http: dict[str, Any]):
    for team in TEAMS:
        lengths = {len(rows) for _, _, rollouts in over_http[team].values() for rows in rollouts}
        assert len(lengths) > 1


def test_a_row_step_of_a_trainer_is_one_call():
    engine = Rowed()
    tl.run(Review(model="large"), [Task.ask(str(n)) for n in range(600)], llm=tl.BatchLLM(engine), seed=1)
    rows = [rows for _, rows in engine.calls]
    assert rows[:2] == [600, 600]
    assert len(rows) == 5
    assert rows == sorted(rows, reverse=True), "those that are approved ask no more"


def test_roles_that_share_a_model_are_called_together_unless_that_is_switched_off():
    sizes = {}
    for fuse in (True, False):
        engine = Rowed()
        llm = tl.BatchLLM(engine, fuse_calls=fuse)
        tl.run(Panel(roles={"left": {"model": ""}}, model="large"), TASKS, llm=llm, seed=1)
        sizes[fuse] = [rows for _, rows in engine.calls]
    assert sizes[True][0] == 2 * len(TASKS)
    assert sizes[False][:2] == [len(TASKS), len(TASKS)]
    assert sum(sizes[True]) == sum(sizes[False])
