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
from trunkline.protocol.messages import Done
from trunkline.types import Task


class Floor:
    """Workers, tasks and chance: a model of a run that hands tasks out as the dispatch does."""

    def __init__(self, tasks: int, poison: set[int], workers: int, slots: int, chance: random.Random) -> None:
        self.blame = PoisonTaskDetector()
        self.poison = poison
        self.slots = slots
        self.chance = chance
        self.free = list(range(tasks))
        self.worker_ids: dict[int, set[int]] = {worker_id: set() for worker_id in range(workers)}
        self.next_worker_id = workers
        self.guilty: set[int] = set()
        self.done: set[int] = set()
        self.deaths = 0

    def feed(self) -> None:
        ward = None
        while (task := self.blame.next) is not None:
            worker_ids = [s for s in self.worker_ids if self.takes(s, task)]
            if not worker_ids:
                ward = min(self.worker_ids, key=lambda worker_id: len(self.worker_ids[worker_id]))
                break
            self.give(worker_ids[0], task)
        for worker_id in self.worker_ids:
            while worker_id != ward and self.free and self.takes(worker_id, self.free[0]):
                self.give(worker_id, self.free.pop(0))

    def takes(self, worker_id: int, task: int) -> bool:
        return len(self.worker_ids[worker_id]) < self.slots and self.blame.admits(worker_id, self.slots, task)

    def give(self, worker_id: int, task: int) -> None:
        assert all(task not in tasks for tasks in self.worker_ids.values()), "a tree has one owner"
        self.blame.take(worker_id, [task])
        self.worker_ids[worker_id].add(task)

    def kill(self, worker_id: int) -> None:
        self.deaths += 1
        tasks = self.worker_ids.pop(worker_id)
        self.worker_ids[self.next_worker_id] = set()
        self.next_worker_id += 1
        report = self.blame.died(worker_id, f"worker {worker_id}")
        assert set(report.free) | set(report.guilty) <= tasks
        self.guilty |= set(report.guilty)
        self.free = report.free + self.free

    def step(self) -> None:
        """Something happens to one task: it kills its worker, gets on, or is done."""
        worker_id = self.chance.choice([worker_id for worker_id, tasks in self.worker_ids.items() if tasks])
        task = self.chance.choice(sorted(self.worker_ids[worker_id]))
        if task in self.poison:
            self.kill(worker_id)
        elif self.chance.random() < 0.5:
            self.blame.passed(worker_id, [task])
        else:
            self.blame.done(worker_id, [task])
            self.worker_ids[worker_id].discard(task)
            self.done.add(task)


@settings(max_examples=150)
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
        crowded = [worker_id for worker_id, held in floor.worker_ids.items() if len(held) != 1 or not held & struck]
        if outside and crowded and chance.random() < 0.1:
            # Killed from outside; nobody is hit twice while it is by itself.
            outside -= 1
            worker_id = chance.choice(crowded)
            struck |= floor.worker_ids[worker_id] if len(floor.worker_ids[worker_id]) == 1 else set()
            floor.kill(worker_id)
        else:
            floor.step()
    assert floor.guilty == poison
    assert floor.done == set(range(tasks)) - poison
    # Each killer is narrowed down anew: at most log4(slots) + 1 deaths in company and two alone.
    assert floor.deaths <= 8 + len(poison) * 8


def test_a_turn_clears_a_suspect_of_everything():
    blame = PoisonTaskDetector()
    for worker_id in (0, 1):
        blame.take(worker_id, [7])
        blame.passed(worker_id, [7])
        assert blame.died(worker_id, "killed from outside").guilty == {}
    blame.take(2, [7])
    assert blame.died(2, "first").guilty == {}
    blame.take(3, [7])
    assert blame.died(3, "second").guilty == {7: ["first", "second"]}


def test_suspects_are_tried_in_ever_smaller_company():
    blame, slots = PoisonTaskDetector(), 16
    for task in range(16):
        blame.take(0, [task])
    assert blame.died(0, "x").free == []
    admitted = []
    for worker_id in (1, 2):
        group = []
        while (task := blame.next) is not None and blame.admits(worker_id, slots, task):
            blame.take(worker_id, [task])
            group.append(task)
        admitted.append(group)
    assert [len(group) for group in admitted] == [4, 4]
    assert not any(two - one == 1 for group in admitted for one, two in pairwise(sorted(group))), "no neighbours"
    assert blame.died(1, "x").known, "those of a death that was expected are not the place's fault"
    worst = blame.next
    assert worst in admitted[0], "whoever is suspected most comes first"
    blame.take(3, [worst])
    assert not blame.admits(3, slots, admitted[1][0])
    assert not blame.admits(3, slots, 99), "nor does anybody else join"
    blame.passed(3, [worst])
    for innocent in (98, 99):
        assert blame.admits(3, slots, innocent)
        blame.take(3, [innocent])


def test_the_last_task_of_a_busy_worker_did_not_have_it_for_itself():
    blame = PoisonTaskDetector()
    for worker_id in (0, 1):
        blame.take(worker_id, [1])
        blame.take(worker_id, [2])
        blame.done(worker_id, [2])
        assert blame.died(worker_id, "x").guilty == {}


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
    ended: list[Done] = []
    kept = Quarantine(SimpleNamespace(filters=()), [Task.ask("?", id="q")], writer, ended.append)
    kept.add(0, ["killed by SIGKILL"] * 2)
    kept.settle()
    (done,) = ended
    assert [row.termination for row in done.rollouts] == ["lost", "unknown_effect"]
    ((_, _, delta),) = commits[0][0]
    assert core.apply(delta) is not False


def test_ten_thousand_tasks_are_handed_out_without_looking_at_all_of_them_each_time():
    blame, slots = PoisonTaskDetector(), 10_000
    began = time.process_time()
    for task in range(slots):
        assert blame.admits(0, slots, task)
        blame.take(0, [task])
    blame.died(0, "x")
    tried = 0
    while (task := blame.next) is not None and blame.admits(1, slots, task):
        blame.take(1, [task])
        tried += 1
    assert tried == slots // 4
    assert time.process_time() - began < 5  # 0.1 s; 20 s where it grows with the square
