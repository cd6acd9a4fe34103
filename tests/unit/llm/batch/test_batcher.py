"""The batcher: who waits for whom, and each prompt in exactly one batch."""

from __future__ import annotations

import asyncio
import functools
import threading
import time

import pytest
from batching import LONG, Gated, ask, echo, request, texts, turns
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import BatchLLM


async def test_requests_of_one_moment_leave_together_and_get_their_own_replies():
    engine = Gated()
    batcher = BatchLLM(engine).open()
    replies = await asyncio.gather(*ask(batcher, 5, 3, 9))
    assert engine.seeds == [[5, 3, 9]]
    assert texts(replies) == ["s5", "s3", "s9"]
    assert [reply.endpoint for reply in replies] == ["BatchLLM"] * 3
    assert all(0 <= reply.queue <= reply.micros for reply in replies)


async def test_no_batch_has_more_than_max_batch_and_the_longest_waiting_go_first():
    engine = Gated()
    await asyncio.gather(*ask(BatchLLM(engine, max_batch=7).open(), *range(20)))
    assert [len(seeds) for seeds in engine.seeds] == [7, 7, 6]
    assert engine.sent == list(range(20))


@pytest.mark.parametrize("last", ["end", "ask"])
async def test_a_rollout_that_runs_is_waited_for_until_it_asks_or_ends(last: str):
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=LONG).open()
    waiting, running = batcher.activity.open(), batcher.activity.open()
    waiting.ask()
    first = ask(batcher, 1)
    await turns()
    assert engine.seeds == []
    getattr(running, last)()
    second = ask(batcher, 2) if last == "ask" else []
    await asyncio.gather(*first, *second)
    assert engine.seeds == [[1, 2] if last == "ask" else [1]]


async def test_after_max_wait_a_batch_leaves_without_those_that_still_run():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=0.02).open()
    batcher.activity.open()
    start = time.perf_counter()
    await asyncio.gather(*ask(batcher, 1))
    assert time.perf_counter() - start >= 0.019


async def test_a_full_batch_waits_for_nobody():
    engine = Gated()
    batcher = BatchLLM(engine, max_batch=2, max_wait=LONG).open()
    batcher.activity.open()
    await asyncio.gather(*ask(batcher, 1, 2))
    assert engine.seeds == [[1, 2]]


async def test_a_rollout_in_a_tool_is_waited_for_a_little():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=LONG, tool_wait=0.02).open()
    busy = batcher.activity.open()
    busy.leave()
    start = time.perf_counter()
    await asyncio.gather(*ask(batcher, 1))
    assert time.perf_counter() - start >= 0.019


async def test_a_rollout_that_comes_back_from_a_tool_in_time_joins_the_batch():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=LONG, tool_wait=LONG).open()
    busy = batcher.activity.open()
    busy.leave()
    first = ask(batcher, 1)
    await turns()
    assert engine.seeds == []
    busy.run()
    await turns()
    busy.ask()
    await asyncio.gather(*first, *ask(batcher, 2))
    assert engine.seeds == [[1, 2]]


async def test_a_tool_is_waited_for_no_longer_than_anybody():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=0.02, tool_wait=LONG).open()
    batcher.activity.open().leave()
    async with asyncio.timeout(10):
        await asyncio.gather(*ask(batcher, 1))
    assert engine.seeds == [[1]]


async def test_a_rollout_that_ends_in_its_tool_is_waited_for_no_more():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=LONG, tool_wait=LONG).open()
    busy = batcher.activity.open()
    busy.leave()
    first = ask(batcher, 1)
    await turns()
    assert engine.seeds == []
    busy.end()
    async with asyncio.timeout(10):
        await asyncio.gather(*first)


async def test_with_a_tool_wait_of_0_nobody_waits_for_tools():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=LONG, tool_wait=0).open()
    batcher.activity.open().leave()
    await asyncio.gather(*ask(batcher, 1))
    assert engine.seeds == [[1]]


async def test_what_comes_while_the_engine_is_busy_leaves_together_and_waits_for_those_it_woke():
    engine = Gated(open=False)
    batcher = BatchLLM(engine, max_wait=LONG).open()
    first = ask(batcher, 1)
    await turns()
    later = [*ask(batcher, 2), *ask(batcher, 3)]
    await turns()
    lane = batcher.activity.open()  # the rollout that the first reply wakes
    engine.gate.set()
    await asyncio.gather(*first)
    await turns()
    assert engine.seeds == [[1]]
    lane.ask()
    await asyncio.gather(*later, *ask(batcher, 4))
    assert engine.seeds == [[1], [2, 3, 4]]


async def test_time_in_which_the_engine_is_busy_does_not_count_as_a_wait(monkeypatch: pytest.MonkeyPatch):
    loop, passed = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    engine = Gated(open=False)
    batcher = BatchLLM(engine, max_wait=LONG).open()
    first = ask(batcher, 1)
    await turns()
    later = ask(batcher, 2)
    lane = batcher.activity.open()
    await turns()
    passed = 2 * LONG
    engine.gate.set()
    await asyncio.gather(*first)
    await turns()
    assert engine.seeds == [[1]], "who was woken may still ask"
    lane.end()
    await asyncio.gather(*later)


async def test_a_request_that_comes_by_way_of_other_tasks_still_joins():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=LONG).open()

    async def by_way_of(tasks: int, seed: int):
        if tasks:
            return await asyncio.ensure_future(by_way_of(tasks - 1, seed))
        return await batcher.complete(request(seed))

    lane = batcher.activity.open()
    first = ask(batcher, 1)
    await turns()
    lane.ask()
    await asyncio.gather(*first, by_way_of(6, 2))
    assert engine.seeds == [[1, 2]]


async def test_each_request_that_comes_lets_the_next_one_join():
    engine = Gated()
    batcher, asked = BatchLLM(engine).open(), []
    for seed in range(4):
        asked += ask(batcher, seed)
        await turns(6)
    await asyncio.gather(*asked)
    assert engine.seeds == [[0, 1, 2, 3]]


@pytest.mark.parametrize("calls", [1, 2])
async def test_an_engine_has_no_more_calls_at_once_than_it_may(calls: int):
    engine = Gated(open=False)
    asked = ask(BatchLLM(engine, max_batch=1, calls=calls).open(), *range(5))
    await turns()
    assert engine.now == calls
    engine.gate.set()
    await asyncio.gather(*asked)
    assert engine.most == calls
    assert sorted(engine.sent) == list(range(5))


async def test_a_sync_engine_is_called_in_one_thread_that_is_not_the_loops():
    threads = set()

    def generate(prompts):
        threads.add(threading.get_ident())
        return [echo(prompt) for prompt in prompts]

    batcher = BatchLLM(generate, max_batch=1).open()
    assert texts(await asyncio.gather(*ask(batcher, *range(6)))) == [f"s{seed}" for seed in range(6)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


class Called:
    async def __call__(self, prompts):
        return [echo(prompt) for prompt in prompts]


def handle(prompts):
    """As a remote actor does: something to await, at once."""
    return Called()(prompts)


@pytest.mark.parametrize("engine", [Called(), handle, functools.partial(Called().__call__)], ids=type)
async def test_an_engine_may_be_an_object_a_partial_or_give_something_to_await(engine: object):
    assert texts(await asyncio.gather(*ask(BatchLLM(engine).open(), 1, 2))) == ["s1", "s2"]


async def test_runs_of_one_loop_share_the_calls_that_an_engine_may_have_at_once():
    engine = Gated(open=False)
    llm = BatchLLM(engine)
    asked = ask(llm.open(), 1) + ask(llm.open(), 2)
    await turns()
    assert engine.seeds == [[1]]
    asked[0].cancel()
    await turns()
    assert engine.seeds == [[1], [2]]
    engine.gate.set()
    assert texts([await asked[1]]) == ["s2"]


def test_one_engine_serves_one_loop_after_the_other():
    llm = BatchLLM(lambda prompts: [echo(prompt) for prompt in prompts])

    async def once(seed):
        return (await llm.open().complete(request(seed))).choices[0].content

    assert [asyncio.run(once(seed)) for seed in range(3)] == ["s0", "s1", "s2"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"engine": 5}, "engine must be a function"),
        ({"engine": Gated}, "engine must be a function"),
        ({"max_batch": 0}, "max_batch must be a whole number"),
        ({"max_wait": -1}, "max_wait must be a number of seconds"),
        ({"tool_wait": float("nan")}, "tool_wait must be a number of seconds"),
        ({"supports_n": 1}, "supports_n must be true or false"),
        ({"calls": 0}, "calls must be a whole number"),
        ({"max_concurrency": 0.5}, "max_concurrency must be a whole number"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(settings: dict, names: str):
    with pytest.raises(ConfigError, match=f"BatchLLM: {names}"):
        BatchLLM(**{"engine": echo} | settings)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("turn"), st.integers(1, 12)),
        st.tuples(st.just("lane"), st.sampled_from(["open", "run", "ask", "leave", "end"])),
        st.tuples(st.just("gate"), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(EVENTS, st.integers(1, 5), st.booleans(), st.integers(1, 2))
def test_whatever_happens_each_prompt_is_sent_once_and_each_reply_is_its_own(events, max_batch, supports_n, calls):
    async def play():
        engine = Gated(open=False)
        llm = BatchLLM(engine, max_batch=max_batch, supports_n=supports_n, calls=calls, max_wait=0, tool_wait=0)
        batcher, lanes, asked = llm.open(), [], []
        for what, value in events:
            if what == "ask":
                asked.append((100 * len(asked), value, *ask(batcher, 100 * len(asked), n=value)))
            elif what == "cancel" and value < len(asked):
                asked[value][2].cancel()
            elif what == "turn":
                await turns(value)
            elif what == "lane" and value == "open":
                lanes.append(batcher.activity.open())
            elif what == "lane" and lanes:
                getattr(lanes[-1], value)()
            elif what == "gate":
                (engine.gate.set if value else engine.gate.clear)()
        engine.gate.set()
        replies = await asyncio.gather(*(task for _, _, task in asked), return_exceptions=True)
        for (seed, n, task), reply in zip(asked, replies, strict=True):
            if not task.cancelled():
                assert texts([reply]) == [f"s{seed + draw}" for draw in range(n)]
        sent = engine.sent
        assert len(sent) == len(set(sent))
        assert all(len(seeds) <= max_batch for seeds in engine.seeds)
        assert engine.most <= calls
        await batcher.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())
