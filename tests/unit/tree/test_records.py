"""Records of programs as the marks of a tree have them: what a fork begins with, and marks that cannot be."""

from __future__ import annotations

import json

import pytest

from trunkline._core import CoreTree
from trunkline.errors import TreeError
from trunkline.tree.records import Records


def marked(*marks: object) -> CoreTree:
    core = CoreTree()
    for mark in marks:
        core.mark(json.dumps(mark))
    return core


def record(rollout: int, nth: int) -> dict[str, object]:
    return {"record": [rollout, nth, "ask", f"{rollout}.{nth}", [], [], ""]}


def keys(core: CoreTree, rollout: int) -> list[str]:
    return [one.key for one in Records(core).of(rollout)]


def test_a_fork_begins_with_as_many_records_as_its_mark_says_and_so_does_its_own():
    core = marked(
        *(record(0, nth) for nth in range(3)),
        {"forked": [1, 0, 2]},
        *(record(1, nth) for nth in (2, 3)),
        {"stop": "something else"},
        {"forked": [2, 1, 1]},
        record(2, 3),
    )
    assert keys(core, 0) == ["0.0", "0.1", "0.2"]
    assert keys(core, 1) == ["0.0", "0.1", "1.2", "1.3"]
    assert keys(core, 2) == ["0.0", "0.1", "1.2", "2.3"]
    assert [one.key for one in Records(core).own(2)] == ["2.3"]
    assert keys(core, 3) == []


def test_forks_of_forks_may_be_as_deep_as_there_are_rollouts():
    deep = 3_000
    core = marked(record(0, 0), *({"forked": [number, number - 1, 1]} for number in range(1, deep)))
    assert keys(core, deep - 1) == ["0.0"]


@pytest.mark.parametrize("forked", [[0, 0, 1], [0, 1, 1], [1, -1, 1], [1, 0, -1]])
def test_a_fork_that_cannot_be_is_damage(forked: list[int]):
    with pytest.raises(TreeError, match=f"rollout {forked[0]} cannot begin with {forked[2]} records of"):
        Records(marked(record(0, 0), {"forked": forked}))
