"""Draws of servers and LLMs that do odd things: each rollout gets one turn or one error, its own, and soon."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import msgspec
import pytest
from draws_table import ANSWER, Counted, Table, ask_all, completion, open_table

import trunkline as tl
from trunkline._core import base_seed
from trunkline.errors import BadRequest, ConfigError, EndpointError, LLMError
from trunkline.llm.cache import Cache
from trunkline.llm.dialects.base import MOST_CALLS
from trunkline.llm.request import Sampling
from trunkline.llm.types import Reply, ReplyChoice, Request, ToolCall
from trunkline.rollout.sampling.completions import SingleFlight
from trunkline.types import Task, Usage
from trunkline.worker.outbox import settle

FIRST = base_seed(3, "q", (), 0)
"""Seed of the first draw at a table."""


class Own:
    """Somebody's LLM: an async function."""

    def __init__(self, complete, *, siblings: bool = False) -> None:
        self.complete = complete
        self.siblings = siblings

    async def close(self) -> None: ...


def calls(table: Table) -> list[int]:
    return [table.core.rollout(number).usage[0] for number in range(table.core.rollouts)]


def four(body: dict) -> bytes:
    return completion([f"draw {body['seed']}", "extra", "more", "still more"])


@pytest.mark.parametrize("siblings", [True, False])
@pytest.mark.parametrize("temperature", [None, 0.0])
async def test_choices_nobody_asked_for_are_left_alone(siblings: bool, temperature: float | None):
    table = open_table(Counted(four, siblings=siblings), 3, sampling=Sampling(temperature=temperature))
    turns = await ask_all(table)
    assert calls(table) == [1, 1, 1]
    assert [table.core.rollout(i).leaf for i in range(3)] == [turn.node for turn in turns]
    if not siblings and temperature is None:
        assert all(turn.choice.content.startswith("draw") for turn in turns)


async def test_choices_of_somebodys_own_llm_that_nobody_asked_for_are_left_alone():
    async def complete(request: Request) -> Reply:
        return Reply([ReplyChoice(f"draw {request.seed}", None, [], "stop"), ANSWER], 5, 0, 2, 1, 10)

    table = open_table(Own(complete), 3)
    assert len({turn.choice.content for turn in await ask_all(table)}) == 3
    assert calls(table) == [1, 1, 1]


async def test_choices_nobody_asked_for_are_not_kept(tmp_path: Path):
    cache = Cache(tmp_path / "c")
    llm = Counted(four, siblings=False)
    first = [turn.choice.content for turn in await ask_all(open_table(llm, 3, cache=cache))]
    table = open_table(llm, 4, cache=cache)
    again = [turn.choice.content for turn in await ask_all(table)]
    assert again[:3] == first
    assert len(llm.bodies) == 4, "the fourth draw was asked for"
    assert calls(table) == [1, 1, 1, 1]
    cache.close()


async def test_each_draw_fails_for_its_own_reason():
    def answer(body: dict) -> bytes:
        raise LLMError(f"busy {body['seed']}", attempts=body["seed"] % 7)

    llm = Counted(answer, siblings=False)
    table = open_table(llm, 3)
    found = await asyncio.gather(*(rollout.ask(table.compiled) for rollout in table.rollouts), return_exceptions=True)
    seeds = [body["seed"] for body in llm.bodies]
    assert [str(error) for error in found] == [f"busy {seed}" for seed in seeds]
    assert [error.attempts for error in found] == [seed % 7 for seed in seeds]


@pytest.mark.parametrize("base", [EndpointError, LLMError])
@pytest.mark.parametrize("n", [1, 3])
async def test_an_exception_that_cannot_be_copied_ends_everybody_as_it_is(base: type, n: int):
    class Mine(base):
        def __init__(self, code: int, what: str) -> None:
            super().__init__(f"{code}: {what}")

    async def complete(request: Request) -> Reply:
        raise Mine(5, "broken")

    async with asyncio.timeout(5):
        with pytest.raises(BaseExceptionGroup) as caught:
            await ask_all(open_table(Own(complete, siblings=True), n))
    assert [(type(error), str(error)) for error in caught.value.exceptions] == [(Mine, "5: broken")] * n


@pytest.mark.parametrize("n", [1, 2])
async def test_an_llm_that_is_cancelled_from_within_ends_its_rollouts(n: int):
    async def complete(request: Request) -> Reply:
        raise asyncio.CancelledError

    async with asyncio.timeout(5):
        with pytest.raises(BaseExceptionGroup) as caught:
            await ask_all(open_table(Own(complete, siblings=True), n))
    assert [type(error) for error in caught.value.exceptions] == [LLMError] * n


async def test_siblings_may_ask_in_any_order_and_be_stopped_before_they_are_sent():
    llm = Counted(lambda body: completion([f"draw {body['seed'] + i}" for i in range(body.get("n", 1))]))
    table = open_table(llm, 4)
    asked = {place: asyncio.create_task(table.rollouts[place].ask(table.compiled)) for place in (3, 1, 0, 2)}
    # The siblings ask in this pass of the loop, and what they ask is sent at its end.
    asyncio.get_running_loop().call_soon(asked[0].cancel)
    await asyncio.wait(asked.values())
    base = llm.bodies[0]["seed"]
    assert [asked[place].result().content for place in (1, 2, 3)] == [f"draw {base + i}" for i in range(3)]
    assert asked[0].cancelled()
    assert [body["n"] for body in llm.bodies] == [3]
    assert calls(table) == [0, 1, 1, 1]


async def test_a_sibling_does_not_wait_for_a_slow_one():
    slow = asyncio.Event()

    async def complete(request: Request) -> Reply:
        if json.loads(request.body)["seed"] == late:
            await slow.wait()
        return request.take(completion(["x"]), 0, 1, 5)

    table = open_table(Own(complete), 3)
    late = FIRST + 1
    asked = [asyncio.create_task(rollout.ask(table.compiled)) for rollout in table.rollouts]
    _, waiting = await asyncio.wait(asked, timeout=0.2)
    assert waiting == {asked[1]}
    slow.set()
    await asyncio.gather(*asked)
    assert calls(table) == [1, 1, 1]


async def test_a_kept_draw_does_not_wait_for_one_that_is_asked_for(tmp_path: Path):
    cache = Cache(tmp_path / "c")
    await ask_all(open_table(Counted(lambda _: completion(["x"])), 1, cache=cache))
    llm = Counted(lambda _: completion(["y"]), gate=asyncio.Event())
    table = open_table(llm, 2, cache=cache)
    asked = [asyncio.create_task(rollout.ask(table.compiled)) for rollout in table.rollouts]
    done, _ = await asyncio.wait(asked, timeout=0.2)
    assert done == {asked[0]}
    llm.gate.set()
    await asked[1]
    cache.close()


async def test_what_is_left_is_given_up_when_its_rollout_is_stopped():
    stopped = []

    async def complete(request: Request) -> Reply:
        if request.seed == late:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append(request.seed)
                raise
        return request.take(completion(["x"]), 0, 1, 5)

    table = open_table(Own(complete), 3)
    late = FIRST
    asked = [asyncio.create_task(rollout.ask(table.compiled)) for rollout in table.rollouts]
    await asyncio.wait(asked, timeout=0.1)
    asked[0].cancel()
    await asyncio.wait(asked)
    await asyncio.sleep(0.01)
    assert stopped == [late]


async def test_a_failure_that_says_nothing_about_n_is_one_draws():
    answers = iter([BadRequest("no n"), LLMError("busy")])

    def answer(body: dict) -> bytes:
        for error in answers:
            raise error
        return completion([f"draw {body['seed'] + i}" for i in range(body.get("n", 1))])

    llm = Counted(answer)
    table = open_table(llm, 3)
    found = await asyncio.gather(*(rollout.ask(table.compiled) for rollout in table.rollouts), return_exceptions=True)
    assert [type(one) for one in found] == [LLMError, ReplyChoice, ReplyChoice]
    await ask_all(open_table(llm, 2, table.draws))
    assert llm.bodies[-1]["n"] == 2, "it is still asked for several at once"


async def test_a_draw_that_the_server_fails_at_takes_no_sibling_along():
    def answer(body: dict) -> bytes:
        draws = range(body["seed"], body["seed"] + body.get("n", 1))
        if bad in draws:
            failure = LLMError("answered 500 (boom)", attempts=2)
            failure.separable = True
            raise failure
        return completion([f"draw {seed}" for seed in draws])

    llm = Counted(answer)
    table = open_table(llm, 4)
    bad = FIRST + 2
    found = await asyncio.gather(*(rollout.ask(table.compiled) for rollout in table.rollouts), return_exceptions=True)
    assert [type(one) for one in found] == [ReplyChoice, ReplyChoice, LLMError, ReplyChoice]
    assert [body.get("n") for body in llm.bodies] == [4, None, None, None, None]
    await ask_all(open_table(llm, 2, table.draws))
    assert llm.bodies[-1]["n"] == 2, "it is still asked for several at once"


async def test_a_refusal_of_some_draws_does_not_ask_for_the_others_again():
    async def complete(request: Request) -> Reply:
        request.take(completion(["x"]), 0, 1, 5)
        raise BadRequest("the second was refused")

    table = open_table(Own(complete, siblings=True), 2)
    found = await asyncio.gather(*(rollout.ask(table.compiled) for rollout in table.rollouts), return_exceptions=True)
    assert [type(one) for one in found] == [ReplyChoice, BadRequest]
    assert calls(table) == [1, 0]


@pytest.mark.parametrize("n", [1, 2])
async def test_an_answer_that_is_taken_twice_is_an_error_and_no_second_turn(n: int):
    inner = Counted(lambda body: completion(["x"] * body.get("n", 1)))

    async def complete(request: Request) -> Reply:
        await inner.complete(request)
        return await inner.complete(request)

    table = open_table(Own(complete, siblings=True), n)
    with pytest.raises(BaseExceptionGroup) as caught:
        await ask_all(table)
    assert all("take=None" in str(error) and type(error) is LLMError for error in caught.value.exceptions)
    assert len(caught.value.exceptions) == n
    assert calls(table) == [1] * n


async def test_an_llm_may_look_at_a_reply_before_it_counts():
    inner = Counted(lambda body: completion([f"try {len(inner.bodies)}"]))

    async def complete(request: Request) -> Reply:
        plain = msgspec.structs.replace(request, take=None)
        await inner.complete(plain)
        return await inner.complete(plain)

    table = open_table(Own(complete), 1)
    (turn,) = await ask_all(table)
    assert turn.choice.content == "try 2"
    assert calls(table) == [1]


async def test_an_llm_that_returns_more_than_it_took_costs_nobody_a_turn():
    async def complete(request: Request) -> Reply:
        request.take(completion(["x"]), 0, 1, 5)
        return Reply([ANSWER] * request.n, 5, 0, 2, 1, 10)

    async with asyncio.timeout(5):
        table = open_table(Own(complete, siblings=True), 3)
        await ask_all(table)
    assert calls(table) == [1, 1, 1]


async def test_a_reply_that_an_llm_made_itself_lands_like_one_that_was_read():
    call = {"id": "7", "function": {"name": "f", "arguments": '{"x":1}'}}
    message = {"content": "a \ufffd", "reasoning": "hm", "tool_calls": [call]}
    body = {
        "choices": [{"message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 7, "prompt_cache_hit_tokens": 2, "completion_tokens": 3},
    }

    async def made(request: Request) -> Reply:
        choice = ReplyChoice("a \ud800", "hm", [ToolCall("7", "f", '{"x":1}')], "tool_calls")
        return Reply([choice], 7, 2, 3, 2, 10)

    async def received(request: Request) -> Reply:
        return request.take(json.dumps(body).encode(), 0, 2, 10)

    tables = [open_table(Own(complete), 1) for complete in (made, received)]
    first, second = [await ask_all(table) for table in tables]
    assert first == second
    assert tables[0].core.delta() == tables[1].core.delta()


ODD = [
    Reply([ReplyChoice("x", None, [ToolCall("", "\ud800", "{\ud800}")], "stop")], 5, 0, 2, 1, 10),
    Reply([ReplyChoice("\ud800", "\ud800", [], "\ud800")], 5, 0, 2, 1, 10, "\ud800"),
    Reply([ANSWER], 5, 0, 2, 10**30, 10**30, "", "", 10**30, 10**30),
    Reply([ANSWER], 5, 0, 2, -1, -1, "", "", -5, -5),
]


async def test_the_prompt_of_a_reply_is_counted_though_its_first_choice_is_no_turn():
    many = [ToolCall("", "f", "{}")] * (MOST_CALLS + 1)

    async def complete(request: Request) -> Reply:
        if request.n == 3:
            return Reply([ReplyChoice("", None, many, "stop"), ANSWER, ANSWER], 40, 5, 9, 3, 10)
        calls = [{"function": {"name": "f", "arguments": "{}"}}] * (MOST_CALLS + 1)
        body = json.loads(completion(["x", "y"]))
        body["choices"][0]["message"]["tool_calls"] = calls
        return request.take(json.dumps(body).encode(), 0, 3, 5)

    for n, prompt, cached in ((3, 40, 5), (2, 90, 0)):
        table = open_table(Own(complete, siblings=True), n)
        with pytest.raises(BaseExceptionGroup, match="asking"):
            await ask_all(table)
        usages = [Usage(*table.core.rollout(number).usage) for number in range(n)]
        assert [usage.retries for usage in usages] == [0, 2, 0][:n]
        assert [(usage.prompt, usage.cached) for usage in usages] == [(0, 0), (prompt, cached), (prompt, prompt)][:n]


@pytest.mark.parametrize("reply", ODD)
async def test_figures_and_texts_of_somebodys_own_llm_are_made_fit(reply: Reply):
    async def complete(request: Request) -> Reply:
        return reply

    table = open_table(Own(complete), 1)
    await ask_all(table)
    assert calls(table) == [1]
    (noted,) = table.sink.replies
    msgspec.json.encode([settle(noted), noted.served])
    assert 0 <= noted.attempts < 2**31


ODD_JSON = [
    b'{"choices":[{"message":{"content":"x"},"logprobs":{"content":[{"token":"a","logprob":NaN}]}}%s]}',
    b'{"choices":[{"index":null,"message":{"content":"x"}}%s]}',
    b'{"choices":[{"message":{"content":"x"}}%s],"usage":{"completion_tokens":1e400}}',
]


@pytest.mark.parametrize("data", ODD_JSON)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("temperature", [None, 0.0])
async def test_an_answer_that_is_no_strict_json_is_used_whether_it_can_be_kept_or_not(
    tmp_path: Path, data: bytes, n: int, temperature: float | None
):
    cache = Cache(tmp_path / "c")
    llm = Counted(lambda body: data % (b"" if body.get("n", 1) == 1 else b',{"message":{"content":"y"}}'))
    table = open_table(llm, n, cache=cache, sampling=Sampling(temperature=temperature))
    await ask_all(table)
    assert calls(table) == [1] * n
    assert sum(reply.attempts for reply in table.sink.replies) == 1
    cache.close()


async def test_draws_may_be_read_in_any_order():
    async def complete(request: Request) -> Reply:
        replies = [request.take(completion([f"draw {draw}", "extra"]), draw, 1, 5) for draw in (2, 1, 0)]
        return Reply([reply.choices[0] for reply in replies], 1, 0, 1, 1, 1)

    table = open_table(Own(complete, siblings=True), 3)
    assert [turn.choice.content for turn in await ask_all(table)] == ["draw 0", "draw 1", "draw 2"]
    assert calls(table) == [1, 1, 1]


async def test_of_a_reply_made_beside_bytes_each_other_draw_gets_its_choice_and_an_even_share():
    async def complete(request: Request) -> Reply:
        request.take(completion(["by bytes"]), 1, 1, 5, 1)
        return Reply([ReplyChoice("word " * (9 * i + 1), None, [], "stop") for i in range(3)], 40, 5, 6, 1, 10)

    table = open_table(Own(complete, siblings=True), 3)
    turns = await ask_all(table)
    assert [len(turn.choice.content.split()) for turn in turns] == [1, 2, 19]
    assert calls(table) == [1, 1, 1]
    assert [table.core.rollout(number).usage[1:4] for number in (0, 2)] == [(40, 5, 2), (40, 40, 2)]
    assert [reply.estimated for reply in table.sink.replies] == [0, 0]


@pytest.mark.parametrize("damage", ["gone", "locked"])
async def test_a_cache_that_breaks_in_the_middle_is_left_out(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("trunkline._internal.key_value._WAIT", 0.05)
    cache, other = Cache(tmp_path / "c"), sqlite3.connect(tmp_path / "c", isolation_level=None)
    other.execute("DROP TABLE answers" if damage == "gone" else "BEGIN IMMEDIATE")
    for draws in (2, 1):
        table = open_table(Counted(lambda body: completion(["x"] * body.get("n", 1))), draws, cache=cache)
        await ask_all(table)
        assert calls(table) == [1] * draws
    assert len([record for record in caplog.records if "left out" in record.message]) == 1
    other.close()
    cache.close()


def test_the_same_body_on_another_route_is_another_request(tmp_path: Path):
    cache, single_flight = Cache(tmp_path / "c"), SingleFlight()
    chat = Request(b'{"x":1}', 0, seed=7, constant=6)
    generate = msgspec.structs.replace(chat, route="//generate")
    assert cache.key(chat) != cache.key(generate)
    with single_flight.lead(chat) as flight:
        assert single_flight.find(chat) is flight
        assert single_flight.find(generate) is None
    assert single_flight.find(chat) is None
    cache.close()


@pytest.mark.parametrize("path", [5, b"x", "", "a\0b", "\udc80", True])
def test_a_cache_that_is_no_path_is_said_before_anything_is_sent(path: object):
    with pytest.raises(ConfigError, match=r"^cache"):
        tl.run(tl.Agent(model="m"), [Task.ask("?")], llm=tl.LLM("http://127.0.0.1:9/v1"), cache=path)


def test_only_an_equal_body_is_a_flights():
    single_flight, long = SingleFlight(), b"x" * 9000
    asked = Request(b"a" + long + b"b}", 0, constant=9002)
    with single_flight.lead(asked) as flight:
        assert single_flight.find(msgspec.structs.replace(asked, content=b"a" + long + b"b,1}")) is flight
        for body in (b"b" + long + b"b}", b"a" + long + b"c}"):
            assert single_flight.find(msgspec.structs.replace(asked, content=body)) is None
