"""Who is to blame for a death: tasks are found out, and innocents are not, in any order of events."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import PROMPT, CoreTree
from trunkline.controller.poison_tasks import PoisonTaskDetector, Quarantine
from trunkline.types import Task


class Floor:
    """Workers, tasks and chance: a model of a run that hands tasks out as the dispatch does."""

    def __init__(self, tasks: int, poison: set[int], workers: int, slots: int, chance: random.Random) -> None:
        self.blame = PoisonTaskDetector()
        self.poison = poison
        self.slots = slots
        self.chance = chance
        self.free = list(range(tasks))
        self.seats: dict[int, set[int]] = {seat: set() for seat in range(workers)}
        self.next_seat = workers
        self.guilty: set[int] = set()
        self.done: set[int] = set()
        self.deaths = 0

    def feed(self) -> None:
        ward = None
        while (task := self.blame.next) is not None:
            seats = [s for s in self.seats if self.takes(s, task)]
            if not seats:
                ward = min(self.seats, key=lambda seat: len(self.seats[seat]))
                break
            self.give(seats[0], task)
        for seat in self.seats:
            while seat != ward and self.free and self.takes(seat, self.free[0]):
                self.give(seat, self.free.pop(0))

    def takes(self, seat: int, task: int) -> bool:
        return len(self.seats[seat]) < self.slots and self.blame.admits(seat, self.slots, task)

    def give(self, seat: int, task: int) -> None:
        assert all(task not in tasks for tasks in self.seats.values()), "a tree has one owner"
        self.blame.take(seat, task)
        self.seats[seat].add(task)

    def kill(self, seat: int) -> None:
        self.deaths += 1
        tasks = self.seats.pop(seat)
        self.seats[self.next_seat] = set()
        self.next_seat += 1
        toll = self.blame.died(seat, f"worker {seat}")
        assert set(toll.free) | set(toll.guilty) <= tasks
        self.guilty |= set(toll.guilty)
        self.free = toll.free + self.free

    def step(self) -> None:
        """Something happens to one task: it kills its worker, gets on, or is done."""
        seat = self.chance.choice([seat for seat, tasks in self.seats.items() if tasks])
        task = self.chance.choice(sorted(self.seats[seat]))
        if task in self.poison:
            self.kill(seat)
        elif self.chance.random() < 0.5:
            self.blame.passed(seat, task)
        else:
            self.blame.done(seat, task)
            self.seats[seat].discard(task)
            self.done.add(task)


@settings(max_examples=150, deadline=None)
@given(
    tasks=st.integers(1, 60),
    poison=st.sets(st.integers(0, 59), max_size=4),
    workers=st.integers(1, 4),
    slots=st.sampled_from([1, 2, 5, 16, 80]),
    seed=st.integers(0, 2**32),
    outside=st.integers(0, 8),
)
def test_exactly_those_who_kill_are_found_guilty_and_all_others_get_done(
    tasks: int, poison: set[int], workers: int, slots: int, seed: int, outside: int
):
    chance = random.Random(seed)
    poison &= set(range(tasks))
    floor = Floor(tasks, poison, workers, slots, chance)
    struck: set[int] = set()
    for _ in range(20_000):
        floor.feed()
        if len(floor.done) + len(floor.guilty) == tasks:
            break
        crowded = [seat for seat, held in floor.seats.items() if len(held) != 1 or not held & struck]
        if outside and crowded and chance.random() < 0.1:
            # Killed from outside; nobody is hit twice while it is by itself.
            outside -= 1
            seat = chance.choice(crowded)
            struck |= floor.seats[seat] if len(floor.seats[seat]) == 1 else set()
            floor.kill(seat)
        else:
            floor.step()
    assert floor.guilty == poison
    assert floor.done == set(range(tasks)) - poison
    # Each killer is narrowed down anew: at most log4(slots) + 1 deaths in company and two alone.
    assert floor.deaths <= 8 + len(poison) * 8


def test_a_turn_clears_a_suspect_of_everything():
    blame = PoisonTaskDetector()
    for seat in (0, 1):
        blame.take(seat, 7)
        blame.passed(seat, 7)
        assert blame.died(seat, "killed from outside").guilty == {}
    blame.take(2, 7)
    assert blame.died(2, "first").guilty == {}
    blame.take(3, 7)
    assert blame.died(3, "second").guilty == {7: ["first", "second"]}


def test_suspects_are_tried_in_ever_smaller_company():
    blame, slots = PoisonTaskDetector(), 16
    for task in range(16):
        blame.take(0, task)
    assert blame.died(0, "x").free == []
    admitted = []
    for seat in (1, 2):
        group = []
        while (task := blame.next) is not None and blame.admits(seat, slots, task):
            blame.take(seat, task)
            group.append(task)
        admitted.append(group)
    assert [len(group) for group in admitted] == [4, 4]
    assert not any(two - one == 1 for group in admitted for one, two in pairwise(sorted(group))), "no neighbours"
    assert blame.died(1, "x").known, "those of a death that was expected are not the place's fault"
    worst = blame.next
    assert worst in admitted[0], "whoever is suspected most comes first"
    blame.take(3, worst)
    assert not blame.admits(3, slots, admitted[1][0])
    assert not blame.admits(3, slots, 99), "nor does anybody else join"
    blame.passed(3, worst)
    for innocent in (98, 99):
        assert blame.admits(3, slots, innocent)
        blame.take(3, innocent)


def test_the_last_task_of_a_busy_worker_did_not_have_it_for_itself():
    blame = PoisonTaskDetector()
    for seat in (0, 1):
        blame.take(seat, 1)
        blame.take(seat, 2)
        blame.done(seat, 2)
        assert blame.died(seat, "x").guilty == {}


def test_who_had_a_call_in_doubt_is_not_recorded_as_lost_when_its_task_is_quarantined():
    core = CoreTree()
    prompt = core.append(0, PROMPT, b'{"role":"user","content":"?"}')
    for draw in range(2):
        core.open(prompt, (0, draw))
    core.mark('{"intent":[1,0,0],"tool":"pay","id":"x"}')
    written = core.delta()
    commits: list[tuple] = []
    writer = SimpleNamespace(
        deltas=lambda index: [written], commit=lambda *rows: commits.append(rows), event=lambda *_, **__: None
    )
    kept = Quarantine(SimpleNamespace(filters=()), [Task.ask("?", id="q")], writer)
    kept.add(0, ["killed by SIGKILL"] * 2)
    (done,) = kept.settle()
    assert [row.termination for row in done.rollouts] == ["lost", "unknown_effect"]
    ((_, _, delta),) = commits[0][0]
    assert core.apply(delta) is not False


def test_ten_thousand_tasks_are_handed_out_without_looking_at_all_of_them_each_time():
    blame, slots = PoisonTaskDetector(), 10_000
    began = time.process_time()
    for task in range(slots):
        assert blame.admits(0, slots, task)
        blame.take(0, task)
    blame.died(0, "x")
    tried = 0
    while (task := blame.next) is not None and blame.admits(1, slots, task):
        blame.take(1, task)
        tried += 1
    assert tried == slots // 4
    assert time.process_time() - began < 5  # 0.1 s; 20 s where it grows with the square
