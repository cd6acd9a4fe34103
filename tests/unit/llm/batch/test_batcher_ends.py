"""The batcher when somebody gives up: a request that is cancelled, a call that nobody waits for, the end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from batching import LONG, Gated, ask, echo, request, texts, turns

from trunkline.errors import LLMError
from trunkline.llm.batch.batcher import BatchLLM


async def test_a_cancelled_request_leaves_the_batch_it_was_to_join():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=LONG).open()
    lane = batcher.activity.open()
    one, two = ask(batcher, 1, 2)
    await turns()
    one.cancel()
    await turns()
    lane.end()
    assert (await two).choices[0].content == "s2"
    assert engine.seeds == [[2]]


async def test_the_result_of_a_cancelled_request_is_ignored():
    engine = Gated(open=False)
    one, two = ask(BatchLLM(engine).open(), 1, 2)
    await turns()
    one.cancel()
    await turns()
    engine.gate.set()
    assert (await two).choices[0].content == "s2"
    assert (engine.seeds, engine.stopped) == ([[1, 2]], 0)


async def test_a_call_that_nobody_waits_for_is_cancelled():
    engine = Gated(open=False)
    batcher = BatchLLM(engine).open()
    asked = ask(batcher, 1, 2)
    await turns()
    for task in asked:
        task.cancel()
    await turns()
    assert (engine.stopped, engine.now) == (1, 0)
    engine.gate.set()
    assert texts([await batcher.complete(request(3))]) == ["s3"]


async def test_a_thread_that_nobody_waits_for_still_keeps_the_next_batch_waiting():
    go, log = threading.Event(), []

    def generate(prompts):
        log.append("begins")
        go.wait(10)
        log.append("ends")
        return [echo(prompt) for prompt in prompts]

    llm = BatchLLM(generate)
    (left,) = ask(llm.open(), 1)
    while not log:
        await asyncio.sleep(0.001)
    left.cancel()
    await turns()
    (asked,) = ask(llm.open(), 2)
    await turns()
    assert log == ["begins"]
    go.set()
    assert (await asked).choices[0].content == "s2"
    assert log == ["begins", "ends", "begins", "ends"]


async def test_a_large_batch_is_given_up_in_linear_time():
    engine = Gated(open=False)
    asked = ask(BatchLLM(engine, max_batch=8000).open(), *range(8000))
    await turns()
    began = time.process_time()
    for task in asked:
        task.cancel()
    await turns()
    assert (engine.stopped, len(engine.seeds)) == (1, 1)
    assert time.process_time() - began < 1.0


async def test_closing_fails_what_waits_and_stops_the_engine():
    engine = Gated(open=False)
    batcher = BatchLLM(engine, max_batch=1).open()
    asked = ask(batcher, 1, 2)
    await turns()
    await batcher.close()
    await batcher.close()
    for task in asked:
        with pytest.raises(LLMError, match=r"closed|stopped"):
            await task
    assert (engine.stopped, engine.seeds) == (1, [[1]])
    with pytest.raises(LLMError, match="Gated is closed"):
        await batcher.complete(request(3))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_closing_does_not_wait_for_an_engine_that_ignores_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.llm.batch.batcher._LEAVE_WITHIN", 0.02)
    over = asyncio.Event()

    async def stubborn(prompts):
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        return [echo(prompt) for prompt in prompts]

    batcher = BatchLLM(stubborn).open()
    (asked,) = ask(batcher, 1)
    await turns()
    await batcher.close()
    over.set()
    assert (await asked).choices[0].content == "s1"
