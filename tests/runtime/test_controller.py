"""The controller over engines that do what a test says: no process, no socket, no chance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from atlas import agent, tasks

import trunkline.runtime.controller as controller
from trunkline._core import Tree as Core
from trunkline._core import __version__
from trunkline.errors import WorkerError
from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.opening import begin
from trunkline.rollout.strategies.chain import Chain
from trunkline.runtime.backend import Gone
from trunkline.runtime.controller import Controller
from trunkline.runtime.job import Job, settings
from trunkline.runtime.wire import PROTOCOL, Batch, Delta, Done, EngineState, Ping, Pong, Ready, Work
from trunkline.store.derive import rows
from trunkline.store.reader import RunReader
from trunkline.store.writer import RunWriter
from trunkline.tree.tree import Tree


class Scripted:
    """Hosts engines that do what a test says: ``act(backend, seat, message)`` for each message that one gets."""

    workers = 2

    def __init__(self, act: Callable[[Scripted, int, object], None]) -> None:
        self.act = act
        self.started: list[int] = []
        self.killed: list[tuple[int, str]] = []

    async def start(self, job: Job, inbox: asyncio.Queue) -> list[int]:
        self.inbox = inbox
        return [self.begin(), self.begin()]

    def begin(self) -> int:
        self.started.append(len(self.started))
        self.say(self.started[-1], Ready(PROTOCOL, __version__, 1, 2))
        return self.started[-1]

    async def replace(self, seat: int) -> int:
        return self.begin()

    def say(self, seat: int, message: object) -> None:
        self.inbox.put_nowait((seat, message))

    def send(self, seat: int, message: object) -> None:
        self.act(self, seat, message)

    def kill(self, seat: int, why: str) -> None:
        self.killed.append((seat, why))
        self.say(seat, Gone(why))

    async def close(self) -> None:
        pass


async def played(folder: Path, backend: Scripted) -> Controller:
    """Run two tasks over such engines, and return what ran them once it is over."""
    job = Job(
        agent=agent(),
        strategy=Chain(1),
        reward=None,
        llm=EndpointSpec("http://127.0.0.1:9/v1", max_concurrency=2),
        seed=1,
    )
    writer = RunWriter.create(folder / "r", settings(job), tasks()[:2])
    made = Controller(job, tasks()[:2], writer, backend)
    try:
        async with asyncio.timeout(10):
            await made.run()
    finally:
        writer.finish()
    return made


def growth(index: int, answer: str) -> tuple[Delta, Done]:
    """All that there is of a task: its only delta, and its rows."""
    core = Core()
    tree = Tree(tasks()[index], core)
    begin(tree, agent(), Chain(1), 1)
    core.close(0, "answer", answer, None)
    return Delta(index, 0, core.delta(), 1, 1, []), Done(index, *rows(core, None))


async def test_what_an_engine_sends_after_its_end_is_dropped_and_noted(tmp_path: Path):
    late: list[tuple[int, list[int]]] = []

    def act(backend: Scripted, seat: int, message: object) -> None:
        if not isinstance(message, Work):
            return
        indices = [index for index, _task in message.tasks]
        if not late:
            late.append((seat, indices))
            backend.say(seat, Gone("it is said to be dead"))
            return
        for index in indices:
            delta, done = growth(index, "in time")
            if index in late[0][1]:
                backend.say(late[0][0], Batch(1, [growth(index, "too late")[0]], [], []))
            backend.say(seat, Batch(1, [delta], [done], []))

    finished = await played(tmp_path, Scripted(act))
    assert finished.snapshot.tasks_done == 2
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []
        assert {tree.answer for tree in reader.trees()} == {"in time"}
        (stale,) = [event for event in reader.events() if event.kind == "stale"]
    assert (stale.worker, stale.data["tasks"]) == late[0]


async def test_an_engine_that_says_nothing_is_ended_and_one_that_answers_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(controller, "BEAT", 0.01)
    pings: list[int] = []

    def act(backend: Scripted, seat: int, message: object) -> None:
        if isinstance(message, Ping) and seat == 1:
            pings.append(seat)
            backend.say(1, Pong(EngineState(0.0, 1 << 20, 1, 0, 0.0, 0, "", 0.0)))
        elif isinstance(message, Work) and seat != 0:
            for index, _task in message.tasks:
                delta, done = growth(index, "x")
                backend.say(seat, Batch(1, [delta], [done], []))

    backend = Scripted(act)
    finished = await played(tmp_path, backend)
    assert [seat for seat, _why in backend.killed] == [0]
    assert "its event loop did not answer for 30 s" in backend.killed[0][1]
    assert len(pings) >= 30
    assert finished.snapshot.engines[1].memory == 1 << 20


async def test_places_in_which_nothing_is_made_are_given_up_and_the_run_says_why(tmp_path: Path):
    def act(backend: Scripted, seat: int, message: object) -> None:
        pass

    class Doomed(Scripted):
        def begin(self) -> int:
            seat = super().begin()
            self.say(seat, Gone(f"worker {seat} died"))
            return seat

    backend = Doomed(act)
    with pytest.raises(WorkerError, match=r"worker \d+ died, and no worker is left; 2 tasks were not finished"):
        await played(tmp_path, backend)
    assert len(backend.started) == 10, "five in each of two places"
    with RunReader.open(tmp_path / "r") as reader:
        assert list(reader.rows()) == [], "the tasks are not lost"
        assert [event.kind for event in reader.events()].count("given up") == 2
