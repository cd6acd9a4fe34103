"""The ready set through its bindings: what is pushed starts once, in order, within all limits."""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import Ledger, Scheduler
from trunkline.errors import ArgumentError

STEP = st.one_of(
    st.tuples(st.just("draws"), st.integers(0, 2), st.integers(1, 5)),
    st.tuples(st.just("rows"), st.integers(0, 2), st.integers(1, 5)),
    st.tuples(st.just("next"), st.integers(0, 8), st.just(0)),
    st.tuples(st.just("done"), st.integers(0, 20), st.just(0)),
)


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 30), st.lists(STEP, max_size=50))
@settings(max_examples=80, deadline=None)
def test_work_starts_once_in_order_and_within_the_limits(limit: int, batch: int, calls: int, script: list) -> None:
    scheduler, ledger = Scheduler(limit, batch), Ledger({"calls": calls})
    tasks = [scheduler.add(weight, limit=4) for weight in (1, 2, 3)]
    ready = {(task, rows): deque[tuple[int, int]]() for task in tasks for rows in (False, True)}
    owners: dict[int, int] = {}
    started = 0
    for number, (what, which, n) in enumerate(script):
        if what == "draws":
            scheduler.draws(which, number, n, first=10, most={"calls": 1})
            ready[which, False] += [(number, 10 + draw) for draw in range(n)]
        elif what == "rows":
            scheduler.rows(which, number, n, most={"calls": 1})
            ready[which, True] += [(number, row) for row in range(n)]
        elif what == "done" and which in owners:
            scheduler.done(which)
            del owners[which]
        elif what == "done":
            with pytest.raises(ArgumentError):
                scheduler.done(which)
        else:
            starts, refused = scheduler.next(which, ledger)
            assert sum(start.n for start in starts) <= which
            for start in starts:
                queue = ready[start.task, start.rows]
                drawn = [queue.popleft() for _ in range(start.n)]
                assert drawn == [(start.point, start.first + draw) for draw in range(start.n)]
                assert (1 <= start.n <= batch, start.rollout is None) == (True, start.rows)
                if start.rollout is not None:
                    owners |= dict.fromkeys(range(start.rollout, start.rollout + start.n), start.task)
                started += start.n
            for event in refused:
                assert ready[event.task, event.rows][0] == (event.point, event.first)
                assert event.refusal.currency == "calls"
        live = Counter(owners.values())
        assert (scheduler.running, ledger.reserved["calls"]) == (len(owners), started)
        assert len(owners) <= limit
        assert all(live[task] <= 4 for task in tasks)
        assert started <= calls
        for task in tasks:
            assert scheduler.counts(task) == (len(ready[task, False]) + len(ready[task, True]), live[task])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 4))
@settings(deadline=None)
def test_two_tasks_of_one_weight_are_never_more_than_a_batch_apart(rounds: list[int], batch: int) -> None:
    scheduler, ledger = Scheduler(batch=batch), Ledger()
    for _ in range(2):
        scheduler.draws(scheduler.add(), 0, 10**6)
    served = [0, 0]
    for most in rounds:
        for start in scheduler.next(most, ledger)[0]:
            served[start.task] += start.n
            assert abs(served[0] - served[1]) <= batch


def test_a_refusal_is_told_once_and_its_work_waits() -> None:
    scheduler, ledger = Scheduler(), Ledger({"generated": 100})
    task = scheduler.add()
    scheduler.draws(task, 5, 4, most={"generated": 40})
    (start,), (refused,) = scheduler.next(9, ledger)
    assert repr(start) == "<Start: task 0, 2 draws of 5 from 0>"
    assert repr(refused) == "<Refused: task 0, 2 draws of 5 from 2>"
    assert str(refused.refusal) == "160 generated wanted, 100 left of 100"
    assert scheduler.next(9, ledger) == ([], [])
    ledger.settle(start.reservation, {"generated": 10})
    (rest,), _ = scheduler.next(9, ledger)
    assert (rest.first, rest.n, rest.rollout) == (2, 2, 2)


def test_threads_share_a_ready_set_and_a_ledger() -> None:
    scheduler, ledger = Scheduler(limit=8, batch=2), Ledger({"calls": 900})
    for weight in (1, 2, 3, 4):
        scheduler.draws(scheduler.add(weight), 0, 500, most={"calls": 1})

    def work() -> list[int]:
        mine: list[int] = []
        for _ in range(400):
            for start in scheduler.next(4, ledger)[0]:
                rollouts = range(start.rollout, start.rollout + start.n)
                mine += rollouts
                ledger.settle(start.reservation, {"calls": start.n})
                for rollout in rollouts:
                    scheduler.done(rollout)
            call = ledger.reserve({"calls": 1})
            if isinstance(call, int):
                ledger.release(call)
        return mine

    with ThreadPoolExecutor(4) as pool:
        done = [future.result(timeout=60) for future in [pool.submit(work) for _ in range(4)]]
    rollouts = sorted(rollout for mine in done for rollout in mine)
    assert rollouts == list(range(len(rollouts)))
    assert (ledger.spent["calls"], ledger.open, scheduler.running) == (len(rollouts), 0, 0)
    assert 0 < len(rollouts) <= 900


def test_a_cancelled_task_takes_no_more() -> None:
    scheduler = Scheduler()
    task = scheduler.add()
    scheduler.draws(task, 0, 3)
    scheduler.rows(task, 0, 2)
    assert (scheduler.cancel(task), scheduler.counts(task)) == (5, (0, 0))
    with pytest.raises(ArgumentError, match="task 0 was cancelled"):
        scheduler.draws(task, 0, 1)


def test_numbers_that_make_no_sense_are_refused() -> None:
    scheduler = Scheduler()
    for wrong, text in [
        (lambda: Scheduler(limit=0), "the limit of running rollouts is 0"),
        (lambda: Scheduler(batch=0), "the limit of draws a batch is 0"),
        (lambda: scheduler.add(weight=0), "the weight of a task is 0"),
        (lambda: scheduler.add(-1), "out of range"),
        (lambda: scheduler.draws(0, 0, 1), "task 0 does not exist; it must be one that was added"),
        (lambda: scheduler.cancel(0), "task 0 does not exist"),
        (lambda: scheduler.draws(scheduler.add(), 0, 0), "the number of draws or rows is 0"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            wrong()
