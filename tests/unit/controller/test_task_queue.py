"""Handing tasks out until enough groups were kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.controller.scheduler import TaskQueue
from trunkline.errors import ConfigError
from trunkline.protocol.job import Refill


def play(keeps: list[bool], refill: Refill | None, choose: list[int], slots: int) -> tuple[list[int], TaskQueue]:
    """Hand tasks out to so many slots; ``choose`` says which of those that grow ends next."""
    task_queue, growing, handed = TaskQueue(len(keeps), refill), [], []
    for turn in range(10 * len(keeps) + 10):
        while len(growing) < slots and (index := task_queue.take()) is not None:
            growing.append(index)
            handed.append(index)
        if refill is not None:
            assert task_queue.kept + len(growing) <= refill.groups, "never more than can be needed"
        if not growing:
            break
        done = growing.pop(choose[turn % len(choose)] % len(growing))
        task_queue.done(1, kept=keeps[done])
    assert not task_queue.open
    return handed, task_queue


@given(
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.integers(1, 30),
    st.lists(st.integers(0, 100), min_size=1, max_size=20),
    st.integers(1, 8),
)
def test_the_shortest_beginning_with_enough_kept_groups_is_handed_out_in_any_order_of_arrival(
    keeps: list[bool], groups: int, choose: list[int], slots: int
):
    groups = min(groups, len(keeps))
    handed, task_queue = play(keeps, Refill(groups, len(keeps)), choose, slots)
    # The naive rule: one after the other, until there are enough.
    expected = next((end for end in range(len(keeps) + 1) if sum(keeps[:end]) >= groups), len(keeps))
    assert handed == list(range(expected))
    assert task_queue.full is (sum(keeps) >= groups)
    assert task_queue.short is (sum(keeps) < groups)


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 8))
def test_without_a_refill_every_task_is_handed_out(keeps: list[bool], slots: int):
    handed, task_queue = play(keeps, None, [0], slots)
    assert handed == list(range(len(keeps)))
    assert not task_queue.short


def test_no_more_tasks_than_the_setting_allows_are_handed_out():
    handed, task_queue = play([False] * 10, Refill(2, 5), [0], 3)
    assert handed == [0, 1, 2, 3, 4]
    assert task_queue.short


def test_tasks_that_come_back_are_handed_out_in_their_order_before_all_others():
    task_queue = TaskQueue(6)
    assert [task_queue.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    task_queue.put_back([3, 4])
    task_queue.put_back([1])
    assert [task_queue.take() for _ in range(4)] == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((0, None, 5), "groups must be a whole number of at least 1"),
        ((6, None, 5), "groups is 6, and there are 5 tasks"),
        ((3, 2, 5), "groups is 3, and there are 2 tasks"),
        ((3, 0, 5), "max_tasks must be a whole number"),
        ((None, 4, 5), "max_tasks says how many tasks groups may take"),
    ],
)
def test_what_cannot_be_had_is_refused(given: tuple, says: str):
    with pytest.raises(ConfigError, match=says):
        Refill.of(*given)


def test_nothing_said_is_no_refill():
    assert Refill.of(None, None, 5) is None
    assert Refill.of(2, None, 5) == Refill(2, 5)
    assert Refill.of(2, 9, 5) == Refill(2, 5)
