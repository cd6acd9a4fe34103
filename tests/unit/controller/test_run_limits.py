"""Runs that close before their tasks are done: at every moment, and whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from atlas import agent, tasks
from spending import Clerk

from trunkline._core import __version__
from trunkline.controller.budget import RunBudget, RunLimits, RunSpending, spent_in
from trunkline.controller.controller import Controller
from trunkline.controller.leases import LeaseServer
from trunkline.llm.request import Sampling
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.job import Job, settings
from trunkline.protocol.messages import (
    PROTOCOL,
    RUN_BUDGET,
    AssignTasks,
    Batch,
    CutTasks,
    LeaseDrawn,
    LeaseGrant,
    LeaseRequest,
    LeaseReturn,
    LeaseRevoke,
    WorkerReady,
    write_task,
)
from trunkline.rollout.budget import Budget
from trunkline.runner.run import arun, stream
from trunkline.store.writer import RunWriter
from trunkline.strategies.chain import Chain
from trunkline.worker.engine import Engine


def job(**changes: object) -> Job:
    given = {"agent": agent(), "strategy": Chain(2), "reward": None, "llm": Clerk(ticks=lambda seed: None), "seed": 1}
    return Job(**(given | changes))


async def test_a_cut_that_comes_right_behind_a_task_reaches_it():
    sent: asyncio.Queue[object] = asyncio.Queue()
    engine = Engine(job(), sent.put_nowait)
    engine.receive(AssignTasks([(0, write_task(tasks()[0]))]))
    engine.receive(CutTasks("deadline", "deadline: now"))
    async with asyncio.timeout(5):
        batch = await sent.get()
    assert isinstance(batch, Batch)
    (done,) = batch.done
    assert (done.tree.ended, done.tree.why, done.tree.rollouts) == ("deadline", "deadline: now", 0)
    await engine.close()


def test_leases_that_never_came_back_are_counted_as_what_was_drawn_of_them():
    sent: list[LeaseGrant] = []
    run_budget = RunBudget(Budget(calls=80), {}, lambda worker_id, message: sent.append(message))
    for worker_id in (0, 1):
        run_budget.join(worker_id)
        run_budget.request(worker_id, {"calls": 1}, {})
    run_budget.drawn(sent[0].lease, {"calls": 5})
    run_budget.returned(1, LeaseReturn(RUN_BUDGET, used={"calls": 3}, lease=sent[1].lease))
    report = run_budget.report()
    assert (report.spent, report.estimated) == ({"calls": 8}, {"calls": 5})
    assert not run_budget.leases_out


def test_a_dead_engine_has_no_part_of_what_is_left():
    sent: list[LeaseGrant] = []
    run_budget = RunBudget(Budget(calls=80), {}, lambda worker_id, message: sent.append(message))
    for worker_id in (0, 1):
        run_budget.join(worker_id)
    run_budget.leave(1)
    run_budget.request(0, {"calls": 1}, {})
    assert sent[0].amounts == {"calls": 40}


def test_who_is_to_give_a_lease_back_is_told_once():
    sent: list[object] = []
    run_budget = RunBudget(Budget(calls=8), {}, lambda worker_id, message: sent.append(message))
    run_budget.join(0)
    run_budget.join(1)
    run_budget.request(0, {"calls": 1}, {})
    run_budget.request(1, {"calls": 8}, {})
    run_budget.request(1, {"calls": 8}, {})
    assert [type(message) for message in sent] == [LeaseGrant, LeaseRevoke]


class Lost:
    """Hosts one engine, which is denied something and then dies with its tasks; no other can be had."""

    workers = 1

    def __init__(self) -> None:
        self.closed = False

    async def start(self, job: Job, inbox: asyncio.Queue) -> list[int]:
        self.inbox = inbox
        inbox.put_nowait((0, WorkerReady(PROTOCOL, __version__, 1, 2)))
        return [0]

    async def replace(self, worker_id: int) -> None:
        return None

    def send(self, worker_id: int, message: object) -> None:
        if isinstance(message, AssignTasks):
            self.inbox.put_nowait((0, LeaseRequest(RUN_BUDGET, {"calls": 9})))
            self.inbox.put_nowait((0, WorkerExited("worker 0 died")))

    async def close(self) -> None:
        self.closed = True


async def test_a_run_whose_budget_is_spent_needs_no_worker_any_more(tmp_path: Path):
    pool, spent = Lost(), job(budget=Budget(calls=2))
    writer = RunWriter.create(tmp_path / "r", settings(spent), tasks())
    controller = Controller(spent, tasks(), writer, pool)
    async with asyncio.timeout(5):
        await controller.run()
    writer.finish(controller.ended)
    assert (controller.ended, controller.progress.tasks_done, pool.closed) == ("budget", 0, True)


async def test_a_report_that_cannot_be_written_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: RunLimits, writer: RunWriter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunLimits, "report", full)
    given = {"llm": Clerk(answer=lambda seed: (0, "yes")), "workers": 0}
    with pytest.raises(OSError, match="No space left"):
        await arun(agent(), tasks(), **given, out=tmp_path / "r")
    async with asyncio.timeout(5):
        with pytest.raises(OSError, match="No space left"):
            assert len([tree async for tree in stream(agent(), tasks(), **given, out=tmp_path / "s")]) == 5
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_budget_closes_a_run_that_wants_groups_and_says_so(tmp_path: Path):
    who = agent(sampling=Sampling(max_tokens=50))
    given = {"llm": Clerk(answer=lambda seed: (0, "yes")), "workers": 0, "budget": Budget(calls=3)}
    short = await arun(who, tasks(), groups=4, **given, out=tmp_path / "short")
    assert (short.state, short.summary().groups_kept) == ("budget", 3)
    enough = await arun(who, tasks(), groups=3, **given, out=tmp_path / "enough")
    assert (enough.state, enough.summary().groups_kept) == ("done", 3)


@pytest.mark.parametrize("worker_id", [0, 7])
def test_messages_of_a_lease_that_is_not_out_change_nothing(worker_id: int):
    budget = RunBudget(Budget(calls=4), {}, lambda *_: None)
    limits, server = RunLimits(None, budget, lambda _: None), LeaseServer({RUN_BUDGET: budget})
    server.on_ready(0, 1)
    for message in (LeaseDrawn(RUN_BUDGET, 3, {"calls": 4}), LeaseReturn(RUN_BUDGET, used={"calls": 4}, lease=3)):
        server.on_message(worker_id, message)
    assert (limits.word, limits.leases_out) == (None, False)
    assert budget.report().spent == {"calls": 0}


def test_a_request_for_what_is_not_leased_changes_nothing():
    sent: list[object] = []
    server = LeaseServer({})
    server.on_ready(0, 1)
    server.on_message(0, LeaseRequest(RUN_BUDGET, {"calls": 1}))
    budget = RunBudget(Budget(calls=4), {}, lambda worker_id, message: sent.append(message))
    LeaseServer({RUN_BUDGET: budget}).on_message(0, LeaseRequest(RUN_BUDGET, {"calls": 1}))
    assert (sent, budget.leases_out) == ([], False), "a worker that is not up holds nothing"
    unlimited = RunLimits(None, None, lambda _: None)
    assert (unlimited.word, unlimited.leases_out) == (None, False)


def test_what_dead_workers_may_have_spent_is_known_to_whoever_goes_on_after_the_controller_was_killed(tmp_path: Path):
    sent: list[LeaseGrant] = []
    path = tmp_path / "r"
    writer = RunWriter.create(path, {}, tasks())
    spent = RunSpending({"calls": 9}, {"calls": 2})
    budget = RunBudget(Budget(calls=80), {}, lambda _, message: sent.append(message), spent)
    limits, server = RunLimits(None, budget, lambda _: None), LeaseServer({RUN_BUDGET: budget})
    limits.note(writer)
    server.on_ready(0, 1)
    server.on_message(0, LeaseRequest(RUN_BUDGET, {"calls": 1}))
    server.on_message(0, LeaseDrawn(RUN_BUDGET, sent[0].lease, {"calls": 5}))
    server.on_lost(0, None)
    limits.note(writer)
    writer._close()  # As a kill leaves it.
    with RunWriter.open(path) as again:
        assert spent_in(path, {}, again.progress) == RunSpending({"calls": 7}, {"calls": 7})


async def test_a_run_that_has_begun_all_its_tasks_says_that_its_budget_cut_tries(tmp_path: Path):
    given = {"llm": Clerk(answer=lambda seed: (0, "yes")), "workers": 0, "budget": Budget(calls=4)}
    result = await arun(agent(sampling=Sampling(max_tokens=50)), tasks(), **given, out=tmp_path / "r")
    assert (result.state, result.summary().ended) == ("budget", {"budget": 1, "finished": 4})
