"""Queues of the batcher: who shares a call, and that nothing waits while everybody waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest
from batching import LONG, Gated, request, texts, turns
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import Batcher, BatchLLM


def ask(batcher: Batcher, seed: int, model: str = "m", role: str = "r", step: int = 0, before: int = 0) -> asyncio.Task:
    asked = msgspec.structs.replace(request(seed), model=model, role=role, step=step, asked=before)
    return asyncio.ensure_future(batcher.complete(asked))


FIVE = [
    ("m", "solver", 0),
    ("m", "verifier", 0),
    ("n", "solver", 0),
    ("m", "solver", 1),
    ("m", "solver", 0, 1),
]


@pytest.mark.parametrize(
    ("fuse", "regroup", "calls"),
    [
        (True, True, [[0, 1, 3, 4], [2]]),
        (False, True, [[0, 3, 4], [1], [2]]),
        (True, False, [[0, 1], [2], [3], [4]]),
        (False, False, [[0], [1], [2], [3], [4]]),
    ],
)
async def test_a_call_holds_one_model_and_what_the_settings_let_share_it(fuse: bool, regroup: bool, calls: list):
    engine = Gated()
    batcher = BatchLLM(engine, fuse_calls=fuse, regroup=regroup).open()
    await asyncio.gather(*(ask(batcher, seed, *who) for seed, who in enumerate(FIVE)))
    assert engine.seeds == calls


async def test_queues_that_are_due_together_follow_each_other_though_somebody_runs_by_then():
    engine = Gated()
    batcher = BatchLLM(engine, max_wait=LONG).open()
    lanes = [batcher.activity.open() for _ in range(2)]
    for lane in lanes:
        lane.ask()
    first, second = ask(batcher, 1, "m"), ask(batcher, 2, "n")
    first.add_done_callback(lambda _: lanes[0].run())
    async with asyncio.timeout(10):
        await asyncio.gather(first, second)
    assert engine.seeds == [[1], [2]]


async def test_what_is_left_of_a_queue_that_was_too_long_waits_for_those_who_were_woken():
    engine = Gated()
    batcher = BatchLLM(engine, max_batch=2, max_wait=LONG).open()
    lanes = [batcher.activity.open() for _ in range(3)]
    for lane in lanes:
        lane.ask()
    asked = [ask(batcher, seed) for seed in range(3)]
    asked[0].add_done_callback(lambda _: lanes[0].run())
    await asyncio.gather(*asked[:2])
    await turns()
    assert engine.seeds == [[0, 1]]
    lanes[0].ask()
    await asyncio.gather(asked[2], ask(batcher, 3))
    assert engine.seeds == [[0, 1], [2, 3]]


@pytest.mark.parametrize("passes", range(12))
async def test_rollouts_that_a_call_wakes_are_waited_for_whenever_it_ends(passes: int):
    engine = Gated(open=False)
    batcher = BatchLLM(engine, max_wait=LONG, tool_wait=0).open()
    lanes = [batcher.activity.open() for _ in range(2)]
    lanes[0].ask()
    lanes[1].leave()
    first = ask(batcher, 1)
    first.add_done_callback(lambda _: lanes[0].run())
    await turns()
    assert engine.seeds == [[1]]
    lanes[1].ask()
    second = ask(batcher, 2)
    await turns(passes)  # the batcher lets the loop turn, and sees the call end at any of its passes
    engine.gate.set()
    await first
    await turns()
    assert engine.seeds == [[1]]
    lanes[0].ask()
    await asyncio.gather(second, ask(batcher, 3))
    assert engine.seeds == [[1], [2, 3]]


async def test_all_that_is_due_goes_at_once_where_the_engine_takes_several_calls():
    engine = Gated(open=False)
    batcher = BatchLLM(engine, calls=2).open()
    asked = [ask(batcher, 1, "m"), ask(batcher, 2, "n"), ask(batcher, 3, "m")]
    await turns()
    assert engine.seeds == [[1, 3], [2]]
    engine.gate.set()
    assert texts(await asyncio.gather(*asked)) == ["s1", "s2", "s3"]


async def test_a_queue_whose_requests_were_given_up_is_called_no_more():
    engine = Gated(open=False)
    batcher = BatchLLM(engine, max_wait=LONG).open()
    lanes = [batcher.activity.open() for _ in range(3)]
    for lane in lanes:
        lane.ask()
    first, second = ask(batcher, 1, "m"), ask(batcher, 2, "n")
    await turns()
    second.cancel()
    await turns()
    lanes[0].run()
    engine.gate.set()
    await first
    third = ask(batcher, 3, "n")
    await turns()
    assert engine.seeds == [[1]], "a rollout runs, that may join the third"
    lanes[0].ask()
    await third
    assert engine.seeds == [[1], [3]]


@pytest.mark.parametrize("name", ["fuse_calls", "regroup", "core_masks"])
def test_a_switch_is_true_or_false(name: str):
    with pytest.raises(ConfigError, match=f"BatchLLM: {name} must be true or false"):
        BatchLLM(Gated(), **{name: 1})


@dataclass
class Row:
    """A rollout of the model: what it asks for, one thing after the other."""

    asks: list[tuple[str, str]]
    said: list[str] = field(default_factory=list)


ROWS = st.lists(
    st.lists(st.tuples(st.sampled_from("mn"), st.sampled_from("abc")), max_size=4), min_size=1, max_size=8
).map(lambda rows: [Row(asks) for asks in rows])


@settings(max_examples=80)
@given(ROWS, st.integers(1, 9), st.booleans(), st.booleans(), st.integers(1, 2))
def test_rows_in_lock_step_are_answered_once_each_and_none_is_kept_while_all_wait(rows, most, fuse, regroup, calls):
    async def play():
        engine = Gated()
        llm = BatchLLM(engine, max_batch=most, fuse_calls=fuse, regroup=regroup, calls=calls, max_wait=LONG)
        batcher = llm.open()
        lanes = [batcher.activity.open() for _ in rows]
        known: dict[int, tuple] = {}

        async def row(number: int) -> None:
            for step, (model, role) in enumerate(rows[number].asks):
                seed = 100 * number + step
                known[seed] = model, None if fuse else role, None if regroup else step
                lanes[number].ask()
                reply = await ask(batcher, seed, model, role, step)
                lanes[number].run()
                rows[number].said += texts([reply])
            lanes[number].end()

        # Whoever is kept while nobody runs would be kept for an hour.
        async with asyncio.timeout(20):
            await asyncio.gather(*(row(number) for number in range(len(rows))))
        for number, one in enumerate(rows):
            assert one.said == [f"s{100 * number + step}" for step in range(len(one.asks))]
        assert sorted(engine.sent) == sorted(known)
        assert engine.most <= calls
        for seeds in engine.seeds:
            assert len(seeds) <= most
            assert len({known[seed] for seed in seeds}) == 1, "a call mixes what must not share one"
        if (
            calls == 1
            and fuse
            and regroup
            and most >= len(rows)
            and len({ask[0] for one in rows for ask in one.asks}) == 1
        ):
            assert engine.seeds == naive(rows), "a row-step is one call"

    asyncio.run(play())


def naive(rows: list[Row]) -> list[list[int]]:
    """The calls of one model, one for each step: every row that has not ended is in each."""
    longest = max(len(row.asks) for row in rows)
    steps = [[100 * n + step for n, row in enumerate(rows) if step < len(row.asks)] for step in range(longest)]
    return [sorted(step) for step in steps if step]
