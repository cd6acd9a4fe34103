"""Environments of Gymnasium in real runs: agents, programs and teams, with worker processes and with copies."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from foreign import serving
from gym_runs import check, played, reply

import trunkline as tl
from trunkline._core import base_seed

THERE = importlib.util.find_spec("gymnasium") is not None
real = pytest.mark.skipif(not THERE, reason="gymnasium is not installed")


@pytest.mark.parametrize("how", ["agent", "program", "team"])
@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("mazes:make", {}),
        ("mazes:Drawn", {}),
        pytest.param("word_world:Guess", {}, marks=real),
        pytest.param("FrozenLake-v1", {"render_mode": "ansi"}, marks=real),
        pytest.param("Taxi-v4", {"max_episode_steps": 5}, marks=real),
    ],
)
def test_forks_and_workers_change_nothing(given: str, options: dict[str, Any], how: str, tmp_path: Path):
    kind, copied = tl.from_gym(given, **options), tl.from_gym(given, snapshot=True, **options)
    with serving(reply) as server:
        here = played(server.url, kind, how, 0, tmp_path / "0")
        digests = {tree.task.id: tree.digest() for tree in here}
        assert here.summary().replayed > 0, "forks ran steps again"
        for number, (other, workers, size) in enumerate([(copied, 0, 0), (kind, 2, 0), (kind, 0, 2)]):
            run = played(server.url, other, how, workers, tmp_path / f"other {number}", size)
            assert {tree.task.id: tree.digest() for tree in run} == digests
    for tree in here:
        assert {rollout.error for rollout in tree.rollouts} == {None}
        for rollout in tree.rollouts:
            check(rollout, kind, base_seed(5, tree.task.id, (), 2**32 - 1))
    assert any(len(rollout.path) > 2 and rollout.turns > 2 for tree in here for rollout in tree.rollouts)
