"""Turns that the turn engine has a batch engine generate: whatever is given up, all others get theirs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from batching import Gated, turns
from draws_table import Table, open_table
from engine_table import soon

from trunkline.errors import LLMError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.request import Sampling
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.inflight import WeightGate

GREEDY = Sampling(temperature=0.0)


def ask(table: Table, number: int) -> asyncio.Task[Any]:
    """Let a rollout ask for its next turn."""
    return asyncio.create_task(table.rollouts[number].ask(table.compiled))


async def test_a_request_given_up_in_a_call_takes_no_later_one_along():
    engine = Gated(open=False)
    table = open_table(BatchLLM(engine, max_wait=0).open(), 3)
    first, second = ask(table, 0), ask(table, 1)
    await turns()
    assert len(engine.seeds) == 1
    first.cancel()
    await turns()
    third = ask(table, 2)  # the engine gives its request the number of the first
    await turns()
    engine.gate.set()
    assert (await soon(asyncio.wait_for(second, 3))).content
    assert (await soon(third)).content
    sender = table.draws.dispatcher.sender
    await turns()
    assert sender is not None
    assert (sender.in_flight, table.draws.engine.in_flight()) == (0, (0, None))


@pytest.mark.parametrize("sent", [True, False])
async def test_an_equal_request_goes_on_when_the_tree_that_asked_first_is_closed(sent: bool):
    engine = Gated(open=False)
    table = open_table(BatchLLM(engine, max_wait=0).open(), 1, sampling=GREEDY)
    other = open_table(table.draws.llm, 2, table.draws, sampling=GREEDY, task="other")
    first = ask(table, 0)
    if sent:
        await turns()
    follows = [ask(other, 0), ask(other, 1)]
    await turns(2)
    assert len(engine.seeds) == sent
    first.cancel()
    await turns(2)
    table.core.close(0, "cancelled")
    table.desk.close()
    engine.gate.set()
    assert [(await soon(one)).content for one in follows]
    assert len(engine.sent) == 1


async def test_nothing_new_is_generated_while_a_run_is_stopped():
    engine = Gated(open=False)
    table = open_table(BatchLLM(engine, max_wait=0).open(), 2)
    first = ask(table, 0)
    await turns()
    draining = asyncio.create_task(table.draws.turn_gate.drained(60.0))
    await turns(1)
    second = ask(table, 1)
    engine.gate.set()
    assert (await soon(first)).content
    await soon(draining)
    assert len(engine.sent) == 1
    second.cancel()
    await asyncio.wait([second])


async def test_weights_may_change_once_the_last_turn_in_a_call_is_given_up():
    weights, quiet = WeightGate("1"), asyncio.Event()
    llm = BatchLLM(Gated(open=False), max_wait=0).open()
    table = open_table(llm, 1, CompletionClient(llm, None, None, weights))
    asked = ask(table, 0)
    await turns()
    weights.hold(abort=False, quiet=quiet.set)
    assert not quiet.is_set()
    asked.cancel()
    await asyncio.wait([asked])
    assert quiet.is_set()


async def test_equal_greedy_requests_fail_together():
    calls = []

    async def broken(prompts: list[Any]) -> list[str]:
        calls.append(len(prompts))
        raise ValueError

    table = open_table(BatchLLM(broken, max_wait=0).open(), 3, sampling=GREEDY)
    found = await soon(asyncio.gather(*(ask(table, number) for number in range(3)), return_exceptions=True))
    assert [type(one) for one in found] == [LLMError] * 3
    assert calls == [1]
    assert [reply.attempts for reply in table.sink.replies] == [1]


async def test_a_batch_engine_is_asked_for_several_draws_whatever_it_counts():
    draws = []

    async def counts_too_few(prompts: list[Any]) -> list[Any]:
        draws.extend(prompt.n for prompt in prompts)
        usage = {"prompt_tokens": 9, "completion_tokens": 1}
        return [[{"text": "some words", "usage": usage} for _ in range(prompt.n)] for prompt in prompts]

    table = open_table(BatchLLM(counts_too_few, max_wait=0, supports_n=True).open(), 3)
    for _ in range(2):
        await soon(asyncio.gather(*(ask(table, number) for number in range(len(table.rollouts)))))
        table.fork(3)
        del table.rollouts[:3]
    assert draws == [3, 3]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
@pytest.mark.parametrize("supports_n", [True, False])
async def test_whatever_a_batch_engine_does_no_turn_is_lost(seed: int, sampling: Sampling, supports_n: bool):
    luck = random.Random(seed)

    async def moody(prompts: list[Any]) -> object:
        for _ in range(luck.randrange(6)):
            await asyncio.sleep(0)
        match luck.randrange(12):
            case 0:
                raise ValueError
            case 1:
                return ["too few"][: len(prompts) - 1]
            case 2:
                raise asyncio.CancelledError
        said = [[luck.choice(["yes", "no", 17, {"text": "\ud800"}]) for _ in range(prompt.n)] for prompt in prompts]
        return [choices if prompt.n > 1 else choices[0] for prompt, choices in zip(prompts, said, strict=True)]

    weights = WeightGate("0")
    llm = BatchLLM(moody, max_wait=0, supports_n=supports_n, max_batch=luck.choice([2, 64])).open()
    client = CompletionClient(llm, None, None, weights)
    for number in range(6):
        tables = [open_table(llm, 4, client, sampling=sampling, task=task) for task in "ab"]
        asked = [[ask(table, rollout) for rollout in range(4)] for table in tables]
        await turns(luck.randrange(25))
        quiet = asyncio.Event()
        weights.hold(abort=luck.random() < 0.5, quiet=quiet.set)
        for one in luck.sample(asked[1], 2):
            one.cancel()
        await soon(quiet.wait())
        weights.change(str(number))
        await turns(luck.randrange(5))
        for one in asked[0]:
            one.cancel()
        await soon(asyncio.wait(asked[0]))
        tables[0].desk.close()
        await soon(asyncio.wait(asked[1]))
        assert {type(one.exception()) for one in asked[1] if not one.cancelled()} <= {type(None), LLMError}
        await turns(100)
        assert client.engine.in_flight() == (0, None)
        assert client.turn_gate.idle
