"""A run that is cancelled at any of its awaits (fault F33)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Generator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, serving
from trunkline_children import children

import trunkline as tl
from trunkline.backends.local import LocalBackend
from trunkline.llm.config import LLM
from trunkline.protocol.job import Job
from trunkline.protocol.messages import WorkerReady
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Kind
from trunkline.worker.engine import Engine
from trunkline.worker.outbox import IN_FLIGHT

CONCURRENCY = 4


def llm(url: str) -> LLM:
    return LLM(url, max_concurrency=CONCURRENCY, max_retries=0)


class CutAt:
    """Awaits something, and cancels the task that does at the nth time that it waits."""

    def __init__(self, inner: Awaitable[Any], nth: int) -> None:
        self._inner = inner
        self._nth = nth
        self.waits = 0

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._inner.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waiting = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration as done:
                return done.value
            self.waits += 1
            if self.waits == self._nth:
                asyncio.current_task().cancel()
            thrown = None
            try:
                yield waiting
            except BaseException as error:  # noqa: BLE001 - handed on to where it belongs
                thrown = error


async def cut(inner: Awaitable[Any], nth: int) -> bool:
    """Whether it was cancelled before it was through."""

    async def awaited() -> None:
        await CutAt(inner, nth)

    try:
        await asyncio.create_task(awaited())
    except asyncio.CancelledError:
        return True
    return False


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Every engine that is made in this process."""
    made: list[Engine] = []
    begin = Engine.__init__

    def noted(self: Engine, *given: Any) -> None:
        begin(self, *given)
        made.append(self)

    monkeypatch.setattr(Engine, "__init__", noted)
    return made


def whole(engine: Engine) -> bool:
    """Whether nothing is left of an engine: no task, no turn in flight, and all permits but those of unread batches."""
    unread = sum(engine._outbox._unacked.values()) + engine._outbox.turns
    permits = engine._outbox._free._free + unread
    return not engine._tasks and not engine._weights._turns and permits == CONCURRENCY + IN_FLIGHT


async def test_nothing_is_left_wherever_a_run_is_cancelled(engines: list[Engine], tmp_path: Path):
    with serving(capital_cities) as server:
        await tl.arun(agent(), tasks(), llm=llm(server.url), workers=0)
        open_before, nth, kept = descriptors(), 0, 0
        while True:
            nth += 1
            out = tmp_path / str(nth)
            if not await cut(tl.arun(agent(), tasks(), llm=llm(server.url), workers=0, seed=1, out=out), nth):
                break
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert all(whole(engine) for engine in engines)
            if out.exists():
                kept += 1
                with RunReader.open(out) as reader:
                    assert reader.check() == []
    assert nth > 2
    assert kept
    assert descriptors() <= open_before


async def test_a_partial_run_can_be_gone_on_from(tmp_path: Path):
    with serving(capital_cities, delay=0.002) as server:
        gone_on = 0
        for nth in (4, 6, 8):
            out = tmp_path / str(nth)
            await cut(tl.arun(agent(), tasks(), llm=llm(server.url), workers=0, seed=1, out=out), nth)
            if out.exists():
                gone_on += 1
                run = await tl.arun(agent(), continue_from=out, llm=llm(server.url), workers=0)
                assert {tree.rollouts[0].answer for tree in run} == set(CAPITALS.values())
                assert run.summary().failed == 0
        assert gone_on


async def starts(nth: int) -> bool:
    """Cancel the start of processes at the nth await, start them again, and say whether it was cancelled."""
    job = Job(agent=agent(), strategy=Chain(1), reward=None, llm=llm("http://127.0.0.1:9/v1"), seed=1)
    pool, inbox = LocalBackend(2), asyncio.Queue()
    cancelled = await cut(pool.start(job, asyncio.Queue()), nth)
    await pool.rest()
    worker_ids = await pool.start(job, inbox)
    async with asyncio.timeout(30):
        said = [await inbox.get() for _ in worker_ids]
    assert {worker_id for worker_id, _ in said} == set(worker_ids)
    assert all(isinstance(event, WorkerReady) for _, event in said), said
    await pool.close()
    return cancelled


def test_processes_serve_wherever_their_start_is_cancelled():
    nth = 1
    while uvloop.run(starts(nth)):
        assert not children()
        nth += 1
    assert nth > 1


async def test_a_pool_is_whole_wherever_its_caller_is_cancelled():
    with serving(capital_cities, delay=0.002) as server:
        async with tl.Pool(workers=1) as pool:
            await pool.arun(agent(), tasks(), llm=llm(server.url))
            here, open_before = children(), descriptors()
            for nth in range(1, 5):
                await cut(pool.arun(agent(), tasks(), llm=llm(server.url)), nth)
                trees = pool.stream(agent(), tasks(), llm=llm(server.url))

                async def reading(trees: Any = trees) -> None:
                    try:
                        async for _ in trees:
                            pass
                    finally:
                        await trees.aclose()

                await cut(reading(), nth)
                assert "at rest" in repr(pool)
                assert asyncio.all_tasks() == {asyncio.current_task()}
            assert children() == here
            assert descriptors() <= open_before
            run = await pool.arun(agent(), tasks(), llm=llm(server.url))
            assert {tree.task.id: tree.answer for tree in run} == CAPITALS


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_a_change_of_weights_that_is_cancelled_lets_the_run_go_on(nth: int):
    loaded: list[str] = []

    async def load() -> None:
        await asyncio.sleep(0.001)
        loaded.append("new")

    with serving(capital_cities, delay=0.002) as server:
        pool = tl.Pool("inline")
        running = asyncio.ensure_future(pool.arun(agent(), tasks(), llm=llm(server.url), policy_version="old"))
        while not server.bodies:
            await asyncio.sleep(0.001)
        await cut(pool.aupdate_weights("new", load, "drain"), nth)
        run = await running
    assert {tree.task.id: tree.answer for tree in run} == CAPITALS
    assert pool.weights == (loaded or ["old"])[0]
    assert {node.weights for tree in run for node in tree.nodes if node.kind is Kind.TURN} <= {"old", pool.weights}
