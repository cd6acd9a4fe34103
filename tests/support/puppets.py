"""Engines that do what a test says: no process, no socket, no chance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from atlas import agent, tasks

from trunkline._core import CoreTree, __version__
from trunkline.controller.controller import Controller
from trunkline.llm.config import LLM
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.job import Job, Refill, settings
from trunkline.protocol.messages import PROTOCOL, AssignTasks, Batch, Delta, Done, WorkerReady, read_task
from trunkline.rollout.moves import begin
from trunkline.store.derive import rows
from trunkline.store.writer import RunWriter
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Tree
from trunkline.types import Task


class Puppets:
    """Hosts engines that do what a test says: ``act(backend, worker_id, message)`` for each message that one gets."""

    def __init__(self, act: Callable[[Puppets, int, object], None], slots: int = 2, workers: int = 2) -> None:
        self.act = act
        self.workers = workers
        self.slots = slots
        self.closed = False
        self.started: list[int] = []
        self.killed: list[tuple[int, str]] = []

    async def start(self, job: Job, inbox: asyncio.Queue) -> list[int]:
        self.inbox = inbox
        return [self.begin() for _ in range(self.workers)]

    def begin(self) -> int:
        self.started.append(len(self.started))
        self.say(self.started[-1], WorkerReady(PROTOCOL, __version__, 1, self.slots))
        return self.started[-1]

    async def replace(self, worker_id: int) -> int:
        return self.begin()

    def say(self, worker_id: int, message: object) -> None:
        self.inbox.put_nowait((worker_id, message))

    def send(self, worker_id: int, message: object) -> None:
        self.act(self, worker_id, message)

    def kill(self, worker_id: int, why: str) -> None:
        self.killed.append((worker_id, why))
        self.say(worker_id, WorkerExited(why))

    async def close(self) -> None:
        self.closed = True


async def played(
    folder: Path, backend: Puppets, given: int | Sequence[Task] = 2, refill: Refill | None = None, **more: object
) -> Controller:
    """Run tasks over such engines, and return what ran them once it is over."""
    some = tasks()[:given] if isinstance(given, int) else given
    job = Job(
        agent=agent(),
        strategy=Chain(1),
        reward=None,
        llm=LLM("http://127.0.0.1:9/v1", max_concurrency=2),
        seed=1,
        **more,
    )
    writer = RunWriter.create(folder / "r", settings(job), some)
    made = Controller(job, some, writer, backend, refill=refill)
    try:
        async with asyncio.timeout(10):
            await made.run()
    finally:
        writer.finish()
    return made


def growth(index: int, answer: str, task: Task | None = None) -> tuple[Delta, Done]:
    """All that there is of a task: its only delta, and its rows."""
    core = CoreTree()
    tree = Tree(tasks()[index] if task is None else task, core)
    begin(tree, agent(), Chain(1), 1)
    core.close(0, "answer", answer, None)
    return Delta(index, 0, core.delta(), 1, 1), Done(index, *rows(core, None))


def poisoned(*poison: int) -> Callable[[Puppets, int, object], None]:
    """Engines that die of some tasks, and do all others at once."""

    def act(backend: Puppets, worker_id: int, message: object) -> None:
        if not isinstance(message, AssignTasks):
            return
        if any(index in poison for index, _task in message.tasks):
            backend.say(worker_id, WorkerExited(f"worker {worker_id} died"))
            return
        grown = [growth(index, "x", read_task(task)) for index, task in message.tasks]
        backend.say(worker_id, Batch(1, [delta for delta, _ in grown], [done for _, done in grown], []))

    return act
