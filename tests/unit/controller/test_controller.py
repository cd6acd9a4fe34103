"""The controller over engines that do what a test says: no process, no socket, no chance."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from puppets import Puppets, growth, played, poisoned

import trunkline.controller.controller as controller
from trunkline.controller.component import Component, Components
from trunkline.controller.weights import WeightCoordinator
from trunkline.errors import WorkerError
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.job import Refill
from trunkline.protocol.messages import (
    Ack,
    AssignTasks,
    Batch,
    CutTasks,
    Ping,
    Pong,
    TurnsHeld,
    WeightsSet,
    WorkerState,
)
from trunkline.rollout.budget import Budget
from trunkline.store.reader import RunReader
from trunkline.types import Task


async def test_what_an_engine_sends_after_its_end_is_dropped_and_noted(tmp_path: Path):
    late: list[tuple[int, list[int]]] = []

    def act(backend: Puppets, worker_id: int, message: object) -> None:
        if not isinstance(message, AssignTasks):
            return
        indices = [index for index, _task in message.tasks]
        if not late:
            late.append((worker_id, indices))
            backend.say(worker_id, WorkerExited("it is said to be dead"))
            return
        for index in indices:
            delta, done = growth(index, "in time")
            if index in late[0][1]:
                backend.say(late[0][0], Batch(1, [growth(index, "too late")[0]], [], []))
            backend.say(worker_id, Batch(1, [delta], [done], []))

    finished = await played(tmp_path, Puppets(act))
    assert finished.progress.tasks_done == 2
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []
        assert {tree.answer for tree in reader.trees()} == {"in time"}
        (stale,) = [event for event in reader.events() if event.kind == "stale"]
    assert (stale.worker, stale.data["tasks"]) == late[0]


async def test_a_batch_is_in_the_run_file_when_it_is_acknowledged(tmp_path: Path):
    sent: dict[tuple[int, int], list[int]] = {}
    found: list[bool] = []

    def act(backend: Puppets, worker_id: int, message: object) -> None:
        if isinstance(message, AssignTasks):
            indices = [index for index, _task in message.tasks]
            sent[worker_id, 1] = indices
            grown = [growth(index, "x") for index in indices]
            backend.say(worker_id, Batch(1, [delta for delta, _ in grown], [done for _, done in grown], []))
        elif isinstance(message, Ack):
            with RunReader.open(tmp_path / "r") as reader:
                found.extend(bool(list(reader.deltas(index))) for index in sent.pop((worker_id, message.batch)))

    await played(tmp_path, Puppets(act))
    assert found == [True, True]
    assert not sent


async def test_weights_are_held_and_changed_when_every_worker_has_answered():
    coordinator = WeightCoordinator("a", lambda worker_id, message: None, lambda versions: None)
    for worker_id in (0, 1, 2):
        coordinator.on_ready(worker_id, 1)
    for step, answer in ((coordinator.hold(abort=False), TurnsHeld()), (coordinator.change("b"), WeightsSet("b"))):
        under_way = asyncio.ensure_future(step)
        for worker_id in (0, 1, 2):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not under_way.done()
            coordinator.on_message(worker_id, answer)
        await asyncio.wait_for(under_way, 10)


def test_components_are_told_of_the_events_they_override_alone_and_in_their_order():
    told: list[tuple[str, object]] = []

    class Reader(Component):
        handles = (Ping, Pong)

        def on_message(self, worker_id: int, message: object) -> None:
            told.append(("message", message))

        def on_end(self) -> None:
            told.append(("reader", None))

    class Counter(Component):
        def on_ready(self, worker_id: int, slots: int) -> None:
            told.append(("ready", slots))

        def on_end(self) -> None:
            told.append(("counter", None))

    components = Components([Reader(), Counter()])
    components.ready(0, 3)
    components.lost(0, None)
    components.handlers[Ping](0, Ping())
    components.end()
    assert told == [("ready", 3), ("message", Ping()), ("reader", None), ("counter", None)]
    assert set(components.handlers) == {Ping, Pong}
    with pytest.raises(AssertionError, match="two components handle Ping"):
        Components([Reader(), Reader()])


async def test_an_engine_that_says_nothing_is_ended_and_one_that_answers_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(controller, "BEAT", 0.01)
    pings: list[int] = []

    def act(backend: Puppets, worker_id: int, message: object) -> None:
        if isinstance(message, Ping) and worker_id == 1:
            pings.append(worker_id)
            backend.say(1, Pong(WorkerState(0.0, 1 << 20, 1, 0, 0.0, 0, "", 0.0)))
        elif isinstance(message, AssignTasks) and worker_id != 0:
            for index, _task in message.tasks:
                delta, done = growth(index, "x")
                backend.say(worker_id, Batch(1, [delta], [done], []))

    backend = Puppets(act)
    finished = await played(tmp_path, backend)
    assert [worker_id for worker_id, _why in backend.killed] == [0]
    assert "its event loop did not answer for 30 s" in backend.killed[0][1]
    assert len(pings) >= 30
    assert finished.progress.engines[1].memory == 1 << 20


async def test_an_engine_that_cannot_be_ended_yet_hangs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller, "BEAT", 0.01)

    class Remote(Puppets):
        def kill(self, worker_id: int, why: str) -> None:
            self.killed.append((worker_id, why))
            if len(self.killed) == 5:
                self.say(worker_id, WorkerExited(why))

    def act(backend: Puppets, worker_id: int, message: object) -> None:
        if worker_id:
            poisoned()(backend, worker_id, message)

    backend = Remote(act, workers=1)
    await played(tmp_path, backend)
    assert len(backend.killed) == 5
    with RunReader.open(tmp_path / "r") as reader:
        assert [event.kind for event in reader.events()] == ["hung", "died"]


async def test_places_in_which_nothing_is_made_are_given_up_and_the_run_says_why(tmp_path: Path):
    def act(backend: Puppets, worker_id: int, message: object) -> None:
        pass

    class Doomed(Puppets):
        def begin(self) -> int:
            worker_id = super().begin()
            self.say(worker_id, WorkerExited(f"worker {worker_id} died"))
            return worker_id

    backend = Doomed(act)
    with pytest.raises(WorkerError, match=r"worker \d+ died, and no worker is left; 2 tasks were not finished"):
        await played(tmp_path, backend)
    assert len(backend.started) == 10, "five in each of two places"
    with RunReader.open(tmp_path / "r") as reader:
        assert list(reader.rows()) == [], "the tasks are not lost"
        assert [event.kind for event in reader.events()].count("given up") == 2


async def test_a_guilty_task_does_not_keep_the_next_from_making_its_group(tmp_path: Path):
    finished = await played(tmp_path, Puppets(poisoned(0)), refill=Refill(1, 2))
    assert (finished.progress.lost, finished.task_queue.kept) == (1, 1)


async def test_what_is_over_in_time_does_not_fail_because_its_idle_engines_end(tmp_path: Path):
    work: dict[int, list[int]] = {}

    def act(backend: Puppets, worker_id: int, message: object) -> None:
        if isinstance(message, AssignTasks):
            work[worker_id] = [index for index, _task in message.tasks]
        elif isinstance(message, CutTasks):
            grown = [growth(index, "x") for index in work[worker_id]]
            backend.say(worker_id, Batch(1, [delta for delta, _ in grown], [done for _, done in grown], []))
            backend.say(worker_id, WorkerExited("it had nothing to do"))

    finished = await played(tmp_path, Puppets(act), 5, budget=Budget(seconds=0.01))
    assert (finished.ended, finished.progress.tasks_done) == ("deadline", 4)


def questions(count: int) -> list[Task]:
    return [Task.ask("Capital of Japan?", "Tokyo", id=str(number)) for number in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 5])
async def test_many_bad_tasks_in_a_row_are_found_out_one_by_one(workers: int, tmp_path: Path):
    bad = range(7)
    backend = Puppets(poisoned(*bad), slots=20, workers=workers)
    finished = await played(tmp_path, backend, questions(60))
    assert finished.progress.tasks_done == 60
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []
        events = list(reader.events())
    assert sorted(event.task for event in events if event.kind == "quarantined") == list(bad)
    assert len(backend.started) <= 50


async def test_what_kills_every_engine_condemns_no_task(tmp_path: Path):
    backend = Puppets(poisoned(*range(20)), slots=4)
    with pytest.raises(WorkerError, match=r"the last 5 tasks .* something that they all use is broken"):
        await played(tmp_path, backend, questions(20))
    with RunReader.open(tmp_path / "r") as reader:
        assert list(reader.rows()) == [], "every task can be resumed"
        assert "quarantined" not in [event.kind for event in reader.events()]
    assert len(backend.started) < 20


async def test_an_engine_that_is_gone_before_it_is_known_is_replaced(tmp_path: Path):
    class Hasty(Puppets):
        async def replace(self, worker_id: int) -> int:
            new = self.begin()
            if new < 4:
                self.say(new, WorkerExited(f"worker {new} died at once"))
                await asyncio.sleep(0.01)
            return new

    finished = await played(tmp_path, Hasty(poisoned(0), workers=1))
    assert finished.progress.tasks_done == 2


async def test_who_is_killed_before_the_run_has_begun_is_replaced_and_who_ends_by_itself_fails_it(tmp_path: Path):
    class Early(Puppets):
        killed_first = True

        def begin(self) -> int:
            if self.started:
                return super().begin()
            self.started.append(0)
            self.say(0, WorkerExited("worker 0 ended", killed=self.killed_first))
            return 0

    finished = await played(tmp_path, Early(poisoned(), workers=1))
    assert finished.progress.tasks_done == 2
    broken = Early(poisoned(), workers=1)
    broken.killed_first = False
    (tmp_path / "b").mkdir()
    with pytest.raises(WorkerError, match="worker 0 ended before it was ready"):
        await played(tmp_path / "b", broken)


async def test_nothing_is_left_of_a_run_that_is_cancelled(tmp_path: Path):
    backend = Puppets(lambda backend, worker_id, message: None)
    running = asyncio.create_task(played(tmp_path, backend))
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert backend.closed
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_second_cancel_leaves_no_engine_either(tmp_path: Path):
    starting = asyncio.Event()

    class Slow(Puppets):
        async def replace(self, worker_id: int) -> int:
            starting.set()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
            return self.begin()

    backend = Slow(poisoned(0, 1))
    running = asyncio.create_task(played(tmp_path, backend))
    await starting.wait()
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0.01)
    await asyncio.gather(running, return_exceptions=True)
    assert backend.closed
