"""The ready set through its bindings: what is pushed starts once, in order, within all limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import Ledger, Scheduler
from trunkline.errors import ArgumentError

MOST = st.dictionaries(st.sampled_from(["calls", "generated"]), st.sampled_from([0, 1, 2, 5, None]))
STEP = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 3), st.booleans(), st.integers(1, 9), MOST),
    st.tuples(st.just("next"), st.sampled_from([0, 1, 3, 9, 99])),
    st.tuples(st.just("done"), st.integers(0, 30)),
    st.tuples(st.just("settle"), st.integers(0, 30), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
)


@dataclass
class Piece:
    """Work as the model keeps it."""

    rows: bool
    point: int
    first: int
    n: int
    most: dict[str, int | None]
    told: bool = False


class Model:
    """Start-time fair queueing over lists: every task is asked every time, and start tags are fractions."""

    def __init__(self, limit: int, batch: int, own: int, weights: list[int], budget: dict[str, int]) -> None:
        self.limit, self.batch, self.own, self.weights = limit, batch, own, weights
        self.left, self.held = dict(budget), list[dict[str, int]]()
        self.work: list[list[Piece]] = [[] for _ in weights]
        self.tags, self.inside, self.clock = [Fraction()] * len(weights), [False] * len(weights), Fraction()
        self.owners, self.started = dict[int, int](), 0

    def live(self, task: int) -> int:
        return sum(owner == task for owner in self.owners.values())

    def front(self, task: int) -> Piece | None:
        ready = sorted(self.work[task], key=lambda piece: not piece.rows)
        return ready[0] if ready and (ready[0].rows or self.live(task) < self.own) else None

    def place(self, task: int) -> None:
        if not self.inside[task]:
            self.tags[task] = max(self.tags[task], self.clock)
        self.inside[task] = self.front(task) is not None

    def fits(self, most: dict[str, int | None], n: int) -> bool:
        need = {currency: most.get(currency, 0) for currency in self.left}
        return all(each is not None and each * n <= self.left[currency] for currency, each in need.items())

    def next(self, room: int) -> tuple[list[tuple], list[tuple]]:
        starts, refused, asked = [], [], set()
        while room:
            fronts = {task: self.front(task) for task in range(len(self.work)) if task not in asked}
            full = len(self.owners) == self.limit
            turns = [(self.tags[task], task) for task, piece in fronts.items() if piece and (piece.rows or not full)]
            if not turns:
                break
            _, task = min(turns)
            piece = fronts[task]
            lanes = 99 if piece.rows else min(self.limit - len(self.owners), self.own - self.live(task))
            wanted = min(piece.n, room, self.batch, lanes)
            n = max(n for n in range(wanted + 1) if n == 0 or self.fits(piece.most, n))
            if n:
                if piece.told:
                    self.tags[task] = max(self.tags[task], self.clock)
                self.clock = max(self.clock, self.tags[task])
                rollout = None if piece.rows else self.started
                starts.append((task, piece.rows, piece.point, piece.first, n, rollout))
                if not piece.rows:
                    self.owners |= dict.fromkeys(range(self.started, self.started + n), task)
                    self.started += n
                self.held.append({currency: (piece.most.get(currency) or 0) * n for currency in self.left})
                self.left = {currency: left - self.held[-1][currency] for currency, left in self.left.items()}
                self.tags[task] += Fraction(n, self.weights[task])
                piece.first, piece.n, piece.told, room = piece.first + n, piece.n - n, False, room - n
            if n < wanted:
                if not piece.told:
                    refused.append((task, piece.rows, piece.point, piece.first, piece.n))
                piece.told = True
                asked.add(task)
            self.work[task] = [piece for piece in self.work[task] if piece.n]
            self.inside[task] = self.front(task) is not None
        return starts, refused


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 6),
    st.lists(st.sampled_from([1, 2, 4]), min_size=4, max_size=4),
    st.dictionaries(st.sampled_from(["calls", "generated"]), st.integers(0, 60)),
    st.lists(STEP, max_size=60),
)
@settings(max_examples=150)
def test_a_scheduler_does_what_lists_and_fractions_do(limit, batch, own, weights, budget, script) -> None:
    scheduler, ledger, model = Scheduler(limit, batch), Ledger(budget), Model(limit, batch, own, weights, budget)
    tasks = [scheduler.add(weight, own) for weight in weights]
    held, cancelled = [], set()
    for point, (what, which, *more) in enumerate(script):
        if what == "push" and which not in cancelled:
            rows, n, most = more
            scheduler.rows(which, point, n, most) if rows else scheduler.draws(which, point, n, 10, most)
            model.work[which].append(Piece(rows, point, 0 if rows else 10, n, most))
            model.place(which)
        elif what == "next":
            starts, refused = scheduler.next(which, ledger)
            expected, told = model.next(which)
            held += [start.reservation for start in starts]
            assert [(s.task, s.rows, s.point, s.first, s.n, s.rollout) for s in starts] == expected
            assert [(r.task, r.rows, r.point, r.first, r.n) for r in refused] == told
        elif what == "done" and model.owners:
            rollout = sorted(model.owners)[which % len(model.owners)]
            scheduler.done(rollout)
            full, task = model.live(model.owners[rollout]) == own, model.owners.pop(rollout)
            if full:
                model.place(task)
        elif what == "done":
            with pytest.raises(ArgumentError, match=f"rollout {which} does not run"):
                scheduler.done(which)
        elif what == "settle" and held:
            most = model.held.pop(which % len(held))
            actual = {currency: min(more[0], amount) for currency, amount in most.items()}
            ledger.settle(held.pop(which % len(held)), actual)
            for currency, amount in most.items():
                model.left[currency] += amount - actual[currency]
        elif what == "cancel":
            assert scheduler.cancel(which) == sum(piece.n for piece in model.work[which])
            model.work[which], model.inside[which] = [], False
            cancelled.add(which)
        assert (scheduler.running, ledger.left) == (len(model.owners), model.left)
        for task in tasks:
            assert scheduler.counts(task) == (sum(piece.n for piece in model.work[task]), model.live(task))


def test_a_task_that_is_always_refused_holds_up_nobody() -> None:
    scheduler, ledger = Scheduler(), Ledger({"calls": 1000, "generated": 10})
    large, small = scheduler.add(weight=9), scheduler.add()
    scheduler.draws(large, 0, 5, most={"generated": 11})
    scheduler.draws(small, 0, 1000, most={"calls": 1})
    served = [scheduler.next(10, ledger) for _ in range(100)]
    assert [len(refused) for _, refused in served] == [1] + [0] * 99
    assert sum(start.n for starts, _ in served for start in starts if start.task == small) == 1000


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 4))
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
    assert repr(refused) == "<RefusedStart: task 0, 2 draws of 5 from 2>"
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
