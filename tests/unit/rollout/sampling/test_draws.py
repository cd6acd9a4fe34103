"""Draws of one state: together where the server takes that, one by one where it does not, equal ones once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from draws_table import ANSWER, Counted, Table, ask_all, completion, open_table

from trunkline.errors import BadRequest, ConfigError, EndpointError, LLMError
from trunkline.llm.cache import Cache
from trunkline.llm.request import Sampling
from trunkline.llm.types import Reply, Request
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.types import Usage


def every_draw(body: dict) -> bytes:
    return completion([f"draw {body['seed'] + i}" for i in range(body.get("n", 1))])


def usages(table: Table) -> list[Usage]:
    return [Usage(*table.core.rollout(number).usage) for number in range(table.core.rollouts)]


async def test_siblings_go_out_as_one_request_with_the_seed_of_the_first():
    llm = Counted(every_draw)
    table = open_table(llm, 4)
    turns = await ask_all(table)
    (body,) = llm.bodies
    assert body["n"] == 4
    assert [turn.choice.content for turn in turns] == [f"draw {body['seed'] + i}" for i in range(4)]
    assert [table.core.rollout(i).leaf for i in range(4)] == [turn.node for turn in turns]
    assert sum(usage.generated for usage in usages(table)) == 40
    assert [usage.prompt - usage.cached for usage in usages(table)] == [90, 0, 0, 0], "the prompt was computed once"
    assert len(table.sink.replies) == 1


async def test_a_later_round_goes_on_with_the_next_draws():
    llm = Counted(every_draw)
    whole, parted = open_table(llm, 4), open_table(llm, 1)
    together = [turn.choice.content for turn in await ask_all(whole)]
    first = [turn.choice.content for turn in await ask_all(parted)]
    parted.fork(3)
    later = [turn.choice.content for turn in await ask_all(parted, range(1, 4))]
    assert first + later == together
    assert [body.get("n", 1) for body in llm.bodies] == [4, 1, 3]


async def test_a_server_that_takes_no_notice_of_n_is_asked_one_by_one_from_then_on():
    llm = Counted(lambda body: completion([f"draw {body['seed']}"]))
    table = open_table(llm, 3)
    contents = [turn.choice.content for turn in await ask_all(table)]
    seed = llm.bodies[0]["seed"]
    assert contents == [f"draw {seed + i}" for i in range(3)]
    assert [body.get("n") for body in llm.bodies] == [3, None, None]
    assert [body["seed"] for body in llm.bodies] == [seed, seed + 1, seed + 2]
    await ask_all(open_table(llm, 2, table.draws))
    assert [body.get("n") for body in llm.bodies[3:]] == [None, None]
    assert len(table.sink.replies) == 3


def of_the_first(body: dict) -> bytes:
    """As llama.cpp answers: usage is that of the first choice, of one token a word."""
    seeds = range(body["seed"], body["seed"] + body.get("n", 1))
    contents = ["word " * (5 + seed % 7) for seed in seeds]
    answer = json.loads(completion(contents))
    answer["usage"]["completion_tokens"] = len(contents[0].split())
    return json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("finish", "ends"), [(None, ["length", ""]), ("halt", ["length", "halt"]), ("stop", ["stop"] * 2)]
)
async def test_a_reply_as_long_as_it_may_be_was_cut_unless_the_server_says_otherwise(finish: str | None, ends: list):
    def answer(body: dict) -> bytes:
        found = json.loads(completion(["some words"]))
        found["choices"][0]["finish_reason"] = finish
        return json.dumps(found).encode()

    for most, end in zip((10, 11), ends, strict=True):
        table = open_table(Counted(answer), 1, sampling=Sampling(max_tokens=most))
        (turn,) = await ask_all(table)
        assert (turn.choice.finish, table.core.node(turn.node).finish) == (end, end)


async def test_usage_of_the_first_draw_is_not_taken_for_that_of_all():
    llm = Counted(of_the_first)
    table = open_table(llm, 4)
    turns = await ask_all(table)
    words = [len(turn.choice.content.split()) for turn in turns]
    counted = [usage.generated for usage in usages(table)]
    assert counted[0] == words[0], "what is known"
    assert counted == words, "as many bytes a token"
    (reply,) = table.sink.replies
    assert (reply.generated, reply.estimated) == (sum(counted), sum(counted[1:]))
    later = open_table(llm, 3, table.draws, task="another")
    turns = await ask_all(later)
    assert [body.get("n") for body in llm.bodies] == [4, None, None, None], "one by one, whose usage is right"
    assert [usage.generated for usage in usages(later)] == [len(turn.choice.content.split()) for turn in turns]
    assert all(reply.estimated == 0 for reply in later.sink.replies)


async def test_usage_of_all_draws_stays_as_it_is():
    llm = Counted(every_draw)
    table = open_table(llm, 4)
    await ask_all(table)
    assert [reply.estimated for reply in table.sink.replies] == [0]
    await ask_all(open_table(llm, 2, table.draws))
    assert [body["n"] for body in llm.bodies] == [4, 2]


async def test_kept_answers_have_the_tokens_that_were_counted(tmp_path: Path):
    cache = Cache(tmp_path / "answers")
    table = open_table(Counted(of_the_first), 3, cache=cache)
    await ask_all(table)
    again = open_table(Counted(of_the_first), 3, cache=cache)
    await ask_all(again)
    assert [reply.attempts for reply in again.sink.replies] == [0, 0, 0]
    assert sum(usage.generated for usage in usages(again)) == sum(usage.generated for usage in usages(table))
    cache.close()


async def test_a_server_that_refuses_seeds_is_asked_without(tmp_path: Path):
    def answer(body: dict) -> bytes:
        if "seed" in body:
            raise BadRequest("seed is no parameter of mine")
        return completion([f"draw {i}" for i in range(body.get("n", 1))])

    llm, cache = Counted(answer), Cache(tmp_path / "answers")
    table = open_table(llm, 3, CompletionClient(llm, cache, send_seed=False))
    said = [turn.choice.content for turn in await ask_all(table)]
    assert [body.get("n", 1) for body in llm.bodies] == [3]
    again = open_table(llm, 3, CompletionClient(llm, cache, send_seed=False))
    assert [turn.choice.content for turn in await ask_all(again)] == said, "kept by their seeds all the same"
    assert len(llm.bodies) == 1
    cache.close()


async def test_a_server_that_refuses_n_is_asked_one_by_one():
    def answer(body: dict) -> bytes:
        if "n" in body:
            raise BadRequest("n must be 1")
        return completion([f"draw {body['seed']}"])

    llm = Counted(answer)
    turns = await ask_all(open_table(llm, 3))
    assert len({turn.choice.content for turn in turns}) == 3
    assert [body.get("n") for body in llm.bodies] == [3, None, None, None]


async def test_a_request_that_is_refused_alone_too_is_not_about_n():
    def answer(body: dict) -> bytes:
        raise BadRequest("no such tool")

    llm = Counted(answer)
    table = open_table(llm, 3)
    with pytest.raises(BaseExceptionGroup) as caught:
        await ask_all(table)
    assert {str(error) for error in caught.value.exceptions} == {"no such tool"}
    assert len({id(error) for error in caught.value.exceptions}) == 3, "each has a traceback of its own"
    assert [body.get("n") for body in llm.bodies] == [3, None]
    llm.answer = lambda body: completion(["x"] * body.get("n", 1))
    await ask_all(open_table(llm, 2, table.draws))
    assert llm.bodies[-1]["n"] == 2, "it is still asked for several at once"


async def test_one_draw_that_fails_leaves_its_siblings_alone():
    fails = LLMError("busy", retryable=True)

    def answer(body: dict) -> bytes:
        if body["seed"] % 2:
            raise fails
        return completion(["fine"])

    llm = Counted(answer, siblings=False)
    table = open_table(llm, 4)
    with pytest.raises(BaseExceptionGroup) as caught:
        await ask_all(table)
    assert len(caught.value.exceptions) == 2
    assert sorted(usage.calls for usage in usages(table)) == [0, 0, 1, 1]


async def test_an_endpoint_that_serves_nobody_stops_everybody():
    def answer(body: dict) -> bytes:
        raise EndpointError("wrong key")

    for siblings in (True, False):
        with pytest.raises(BaseExceptionGroup) as caught:
            await ask_all(open_table(Counted(answer, siblings=siblings), 3))
        assert {type(error) for error in caught.value.exceptions} == {EndpointError}


async def test_a_sibling_that_is_stopped_costs_the_others_nothing():
    release = asyncio.Event()
    llm = Counted(lambda body: completion(["one", "two", "three"]), gate=release)
    table = open_table(llm, 3)
    asked = [asyncio.create_task(rollout.ask(table.compiled)) for rollout in table.rollouts]
    await llm.asked.wait()
    asked[1].cancel()
    await asyncio.sleep(0)
    table.core.close(1, "cancelled")
    release.set()
    first, stopped, third = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(stopped, asyncio.CancelledError)
    assert [first.content, third.content] == ["one", "three"]
    assert [usage.calls for usage in usages(table)] == [1, 0, 1]
    assert table.sink.reserved == 2


async def test_a_request_nobody_waits_for_is_given_up():
    llm = Counted(lambda body: completion(["x", "y"]), gate=asyncio.Event())
    table = open_table(llm, 2)
    asked = [asyncio.create_task(rollout.ask(table.compiled)) for rollout in table.rollouts]
    await llm.asked.wait()
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert llm.cancelled == 1
    assert table.sink.reserved == 0


@pytest.mark.parametrize("siblings", [True, False])
async def test_at_temperature_0_equal_requests_in_flight_are_sent_once(siblings: bool):
    llm = Counted(lambda body: completion(["the same"] * body.get("n", 1)), siblings=siblings)
    greedy = Sampling(temperature=0.0)
    tables = [open_table(llm, 3, sampling=greedy)]
    tables += [open_table(llm, 2, tables[0].draws, sampling=greedy, task="q") for _ in range(2)]
    found = await asyncio.gather(*map(ask_all, tables))
    assert {turn.choice.content for turns in found for turn in turns} == {"the same"}
    assert len(llm.bodies) == 1
    assert [reply.attempts for table in tables for reply in table.sink.replies].count(1) == 1
    assert sum(usage.calls for table in tables for usage in usages(table)) == 7
    await ask_all(open_table(llm, 1, tables[0].draws, sampling=greedy))
    assert len(llm.bodies) == 2, "what is not in flight any more is sent again: this is no cache"


async def test_who_waits_for_an_equal_request_goes_on_when_its_sender_is_stopped():
    llm = Counted(lambda body: completion(["late"]), gate=asyncio.Event())
    first = open_table(llm, 1, sampling=Sampling(temperature=0.0))
    second = open_table(llm, 1, first.draws, sampling=Sampling(temperature=0.0))
    sender = asyncio.create_task(ask_all(first))
    await llm.asked.wait()
    waiter = asyncio.create_task(ask_all(second))
    await asyncio.sleep(0)
    sender.cancel()
    llm.gate.set()
    (turn,) = await waiter
    assert turn.choice.content == "late"
    assert len(llm.bodies) == 2


async def test_an_error_in_flight_is_everybodys():
    def answer(body: dict) -> bytes:
        raise LLMError("busy")

    llm = Counted(answer)
    table = open_table(llm, 3, sampling=Sampling(temperature=0.0))
    with pytest.raises(BaseExceptionGroup) as caught:
        await ask_all(table)
    assert len(caught.value.exceptions) == 3
    assert len(llm.bodies) == 1


async def test_a_foreign_reply_in_flight_is_shared_too():
    class Own:
        asked = 0

        async def complete(self, request: Request) -> Reply:
            self.asked += 1
            await asyncio.sleep(0)
            return Reply([ANSWER], 5, 0, 2, 1, 10)

        async def close(self) -> None: ...

    llm = Own()
    table = open_table(llm, 3, sampling=Sampling(temperature=0.0))
    turns = await ask_all(table)
    assert llm.asked == 1
    assert [turn.choice.content for turn in turns] == [ANSWER.content] * 3


def cached(path: Path, answer: Callable[[dict], bytes], **more: object) -> tuple[Counted, Cache]:
    return Counted(answer, **more), Cache(path)


async def test_a_draw_that_was_answered_is_not_asked_for_again(tmp_path: Path):
    llm, cache = cached(tmp_path / "c", every_draw)
    two = open_table(llm, 2, cache=cache)
    first = [turn.choice.content for turn in await ask_all(two)]
    five = open_table(llm, 5, cache=cache)
    again = [turn.choice.content for turn in await ask_all(five)]
    assert again[:2] == first
    assert len(set(again)) == 5, "repeats stay distinct"
    assert [body["n"] for body in llm.bodies] == [2, 3]
    told = sorted((reply.attempts, reply.endpoint) for reply in five.sink.replies)
    assert told == [(0, "cache"), (0, "cache"), (1, "")]
    assert sum(usage.generated for usage in usages(five)) == 50
    cache.close()
    reopened = Cache(tmp_path / "c")
    assert [turn.choice.content for turn in await ask_all(open_table(llm, 5, cache=reopened))] == again
    assert len(llm.bodies) == 2
    other = open_table(llm, 1, cache=reopened, sampling=Sampling(temperature=0.5))
    await ask_all(other)
    assert len(llm.bodies) == 3, "another sampling is another request"
    reopened.close()


async def test_what_was_kept_in_part_is_asked_for_in_runs(tmp_path: Path):
    llm, cache = cached(tmp_path / "c", every_draw)
    whole = open_table(llm, 6)
    expected = [turn.choice.content for turn in await ask_all(whole)]
    some = open_table(llm, 6, cache=cache)
    await ask_all(some, [2])
    llm.bodies.clear()
    found = [turn.choice.content for turn in await ask_all(open_table(llm, 6, cache=cache))]
    assert found == expected
    assert sorted(body.get("n", 1) for body in llm.bodies) == [2, 3]
    cache.close()


async def test_draws_that_are_equal_are_kept_each(tmp_path: Path):
    llm, cache = cached(tmp_path / "c", every_draw)
    greedy = Sampling(temperature=0.0)
    first = await ask_all(open_table(llm, 3, cache=cache, sampling=greedy))
    again = await ask_all(open_table(llm, 3, cache=cache, sampling=greedy))
    assert [turn.choice.content for turn in first] == [turn.choice.content for turn in again]
    assert len(llm.bodies) == 1
    cache.close()


async def test_failures_are_not_kept(tmp_path: Path):
    answers = iter([LLMError("busy")])

    def answer(body: dict) -> bytes:
        for error in answers:
            raise error
        return completion(["fine"])

    llm, cache = cached(tmp_path / "c", answer)
    with pytest.raises(BaseExceptionGroup):
        await ask_all(open_table(llm, 1, cache=cache))
    (turn,) = await ask_all(open_table(llm, 1, cache=cache))
    assert turn.choice.content == "fine"
    cache.close()


@pytest.mark.parametrize("content", [b"not a database, but long enough to be read as one" * 30, b"\0" * 4096])
def test_a_cache_that_is_something_else_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"notes\.txt.*give another path"):
        Cache(path)
    assert path.read_bytes() == content
    with pytest.raises(ConfigError, match="cannot be used"):
        Cache(tmp_path / "no" / "folder" / "c")


def test_an_answer_is_cut_by_its_draws_and_shares_its_usage(tmp_path: Path):
    body = json.loads(completion(["a", "bb", "ccc"]))
    body["choices"].reverse()
    cache = Cache(tmp_path / "c")
    key = cache.key(Request(b'{"model":"m"', 0, n=3, seed=7))
    cache.keep(key, 0, 0, 3, json.dumps(body).encode())
    found = [json.loads(cache.get(key, draw)) for draw in range(3)]
    assert [one["choices"][0]["message"]["content"] for one in found] == ["a", "bb", "ccc"]
    assert [one["choices"][0]["index"] for one in found] == [0, 0, 0]
    assert sum(one["usage"]["completion_tokens"] for one in found) == body["usage"]["completion_tokens"]
    assert cache.get(key, 3) is None
    cache.close()
