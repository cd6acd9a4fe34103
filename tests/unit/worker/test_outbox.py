"""What waits to leave a worker, and how much of it may."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from trunkline.errors import InfrastructureError
from trunkline.llm.types import Reply
from trunkline.protocol.messages import Batch
from trunkline.tree.views import Tree
from trunkline.types import Task
from trunkline.worker.outbox import IN_FLIGHT, Outbox, TreeSink


def outbox_of(sent: list[Batch], concurrency: int = 8) -> Outbox:
    return Outbox(concurrency, sent.append, lambda problem: pytest.fail(str(problem)))


async def test_batches_are_cut_by_size_and_lose_nothing():
    sent: list[Batch] = []
    outbox = outbox_of(sent)
    growths = [TreeSink(outbox, i, Tree(Task.ask(str(i)))) for i in range(5)]
    for growth in growths:
        node = growth.tree.core.append(0, 1, b'{"role":"user","content":"' + b"x" * 3_000_000 + b'"}')
        growth.tree.core.open(node, (0, 0))
        growth.done = True
        outbox.note(growth)
    outbox.flush()
    assert len(sent) > 1
    assert [delta.task for batch in sent for delta in batch.deltas] == [0, 1, 2, 3, 4]
    for batch in sent:
        assert [done.task for done in batch.done] == [delta.task for delta in batch.deltas]


async def test_a_batch_that_cannot_be_sent_is_an_error_not_a_gap():
    problems: list[Exception] = []

    def refuse(_batch: Batch) -> None:
        raise RuntimeError("no")

    outbox = Outbox(8, refuse, problems.append)
    growth = TreeSink(outbox, 0, Tree(Task.ask("q")))
    growth.tree.core.append(0, 1, b'{"a":1}')
    outbox.note(growth)
    outbox.flush()
    assert [str(problem) for problem in problems] == ["no"]
    with pytest.raises(InfrastructureError, match="cannot be sent"):
        await asyncio.wait_for(growth.durable(), 1)


async def reserved(outlet: TreeSink | Outbox) -> None:
    """One more turn may be in flight."""
    if (waits := outlet.reserve()) is not None:
        await waits


async def test_so_many_turns_are_in_flight_and_no_more():
    sent: list[Batch] = []
    outbox = outbox_of(sent, concurrency=3)
    growth = TreeSink(outbox, 0, Tree(Task.ask("q")))
    core = growth.tree.core
    rollout = core.open(core.append(0, 1, b'{"a":1}'), (0, 0))
    reply = Reply([], 1, 0, 1, 1, 1)
    for i in range(IN_FLIGHT + 3):
        async with asyncio.timeout(1):
            await reserved(growth)
        if i < IN_FLIGHT:
            core.turn(rollout, b'{"t":%d}' % i, 0, 0, 0, 1, 0, 1, 0, 1)
            growth.called(reply)
            growth.grew(turns=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reserved(growth)
    assert sum(delta.turns for batch in sent for delta in batch.deltas) == IN_FLIGHT
    growth.release()
    async with asyncio.timeout(1):
        await reserved(growth)
    for batch in sent:
        outbox.acknowledge(batch.batch)
    for _ in range(IN_FLIGHT):
        async with asyncio.timeout(1):
            await reserved(growth)


async def test_who_waited_longest_asks_next():
    outbox = outbox_of([], concurrency=1)
    order: list[int] = []

    async def ask(number: int) -> None:
        await reserved(outbox)
        order.append(number)

    for _ in range(IN_FLIGHT + 1):
        await reserved(outbox)
    waiting = [asyncio.ensure_future(ask(number)) for number in range(5)]
    await asyncio.sleep(0)
    for _ in range(5):
        outbox.release(1)
        late = asyncio.ensure_future(ask(9))
        await asyncio.sleep(0)
        assert 9 not in order, "who came later overtook"
        late.cancel()
    async with asyncio.timeout(1):
        await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]


async def test_a_finished_task_takes_along_what_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.worker.outbox._FLUSH_AFTER", 600.0)
    sent: list[Batch] = []
    outbox = outbox_of(sent)
    growing, done = (TreeSink(outbox, number, Tree(Task.ask(str(number)))) for number in range(2))
    for growth in (growing, done):
        growth.tree.core.append(0, 1, b'{"a":1}')
    growing.grew(1)
    done.done = True
    outbox.note(done)
    growing.grew(1)
    async with asyncio.timeout(10):
        while not sent:
            await asyncio.sleep(0.001)
    assert [delta.task for delta in sent[0].deltas] == [0, 1]


async def test_what_opens_a_tree_leaves_with_its_first_turn_or_its_end():
    sent: list[Batch] = []
    outbox = outbox_of(sent)
    growths = [TreeSink(outbox, number, Tree(Task.ask(str(number)))) for number in range(4)]
    for growth in growths:
        growth.tree.core.append(0, 1, b'{"a":1}')
        growth.grew()
    outbox.flush()
    assert not sent, "nothing was paid for"
    growths[0].grew(turns=1)
    growths[1].done = True
    outbox.note(growths[1])
    growths[2].called(Reply([], 0, 0, 0, 1, 0))
    growths[2].grew()
    outbox.flush()
    assert [[delta.task for delta in batch.deltas] for batch in sent] == [[0, 1, 2]]
    growths[0].tree.core.append(1, 1, b'{"a":2}')
    growths[0].grew()
    outbox.flush()
    assert [delta.task for delta in sent[1].deltas] == [0], "what comes later leaves by itself"


async def test_turns_that_are_enough_leave_together_with_what_the_same_pass_brings():
    sent: list[Batch] = []
    outbox = outbox_of(sent)
    growths = [TreeSink(outbox, number, Tree(Task.ask(str(number)))) for number in range(IN_FLIGHT + 2)]
    for growth in growths:
        growth.tree.core.append(0, 1, b'{"a":1}')
        growth.grew(turns=1)
    assert not sent
    while not sent:
        await asyncio.sleep(0)
    assert [len(batch.deltas) for batch in sent] == [IN_FLIGHT + 2]


async def test_durable_sends_at_once_and_waits_for_what_was_noted_before_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.worker.outbox._FLUSH_AFTER", 600.0)
    sent: list[Batch] = []
    outbox = outbox_of(sent)
    first, second = (TreeSink(outbox, number, Tree(Task.ask(str(number)))) for number in range(2))
    first.tree.core.append(0, 1, b'{"a":1}')
    first.grew(1)
    outbox.flush()
    second.tree.core.mark('{"intent":[0,0,0]}')
    second.grew(20)
    waiting = asyncio.ensure_future(second.durable())
    await asyncio.sleep(0)
    assert [delta.task for batch in sent for delta in batch.deltas] == [0, 1]
    first.tree.core.append(1, 1, b'{"a":2}')
    first.grew(1)
    outbox.flush()
    for batch in reversed(sent[:2]):
        await asyncio.sleep(0.01)
        assert not waiting.done()
        outbox.acknowledge(batch.batch)
    async with asyncio.timeout(1):
        await waiting
    outbox.acknowledge(sent[2].batch)
    async with asyncio.timeout(1):
        await second.durable()


def test_what_is_due_at_once_leaves_on_a_loop_that_makes_no_timer_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.worker.outbox._DONE_AFTER", 0.0)
    sent: list[Batch] = []

    async def finish_two() -> None:
        outbox = outbox_of(sent)
        for index in range(2):
            growth = TreeSink(outbox, index, Tree(Task.ask(str(index))))
            growth.tree.core.open(growth.tree.core.append(0, 1, b'{"a":1}'), (0, 0))
            growth.done = True
            outbox.note(growth)
        async with asyncio.timeout(5):
            while not sent:
                await asyncio.sleep(0)

    uvloop.run(finish_two())
    assert [done.task for batch in sent for done in batch.done] == [0, 1]


async def test_finished_tasks_wait_for_each_other_unless_they_are_enough_or_the_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.worker.outbox._FLUSH_AFTER", 600.0)
    sent: list[Batch] = []
    outbox = Outbox(8, sent.append, lambda problem: pytest.fail(str(problem)), together=3)
    growths = [TreeSink(outbox, number, Tree(Task.ask(str(number)))) for number in range(5)]

    async def done(*tasks: int, last: bool = False) -> list[int]:
        for task in tasks:
            growths[task].tree.core.append(0, 1, b'{"a":1}')
            growths[task].done = True
            outbox.note(growths[task], last=last)
        await asyncio.sleep(0.05)
        return [over.task for batch in sent for over in batch.done]

    assert not await done(0, 1)
    assert await done(2) == [0, 1, 2]
    assert await done(3) == [0, 1, 2], "they are counted anew"
    assert await done(4, last=True) == [0, 1, 2, 3, 4]
