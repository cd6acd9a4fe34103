"""What becomes of turns that the turn engine sends is what becomes of those that are sent one by one in tasks."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest
from engine_table import Bench, answer, bench, choices, held, soon, until
from fault_client import Waits
from fault_server import OK, Answer, FaultServer, Peer, completion, http, problem

from trunkline.rollout.sampling.inflight import WeightGate


async def half_and_reset(peer: Peer) -> None:
    await peer.send(OK[: len(OK) // 2])
    peer.reset()


async def reset(peer: Peer) -> None:
    peer.reset()


async def hang_up(peer: Peer) -> None:
    peer.hang_up()


async def first_choice(peer: Peer) -> None:
    """Take no notice of n."""
    await peer.send(http(choices(peer.seen.body, "only")))


async def one_more(peer: Peer) -> None:
    """Answer with one choice more than was asked for."""
    n = json.loads(peer.seen.body).get("n", 1)
    await peer.send(http(choices(peer.seen.body, *map(str, range(n + 1)))))


async def squeezed(peer: Peer) -> None:
    data = gzip.compress(json.dumps(choices(peer.seen.body)).encode(), mtime=0)
    await peer.send(http(data, headers={"Content-Encoding": "gzip"}))


async def named_identity(peer: Peer) -> None:
    await peer.send(http(choices(peer.seen.body), headers={"Content-Encoding": "identity"}))


async def not_squeezed(peer: Peer) -> None:
    await peer.send(http(choices(peer.seen.body), headers={"Content-Encoding": "gzip"}))


async def of_the_first(peer: Peer) -> None:
    """Report the tokens of the first draw alone."""
    body = choices(peer.seen.body)
    await peer.send(http(body | {"usage": {"prompt_tokens": 90, "completion_tokens": 1}}))


async def silent(peer: Peer) -> None:
    await peer.silence()


async def refused_for_n(peer: Peer) -> None:
    """Refuse requests for several draws."""
    if "n" in json.loads(peer.seen.body):
        await peer.send(http(problem("n must be 1"), 400))
    else:
        await answer(peer)


def with_usage(usage: object) -> Answer:
    async def send(peer: Peer) -> None:
        await peer.send(http(choices(peer.seen.body) | {"usage": usage}))

    return send


ANSWERS: dict[str, Sequence[Answer]] = {
    "good": [answer],
    "lost in the middle of the answer": [half_and_reset, answer],
    "always lost": [half_and_reset],
    "reset before the answer": [reset, answer],
    "closed before the answer": [hang_up, answer],
    "429 with Retry-After": [http(problem("slow down"), 429, {"Retry-After": "2"}), answer],
    "429s": [http(problem("slow down"), 429)] * 4 + [answer],
    "500s and a success": [http(problem("boom"), 500)] * 2 + [answer],
    "always 500": [http(problem("boom"), 500)],
    "a bad request": [http(problem("too long", "context_length_exceeded"), 400)],
    "a wrong key": [http(problem("no such key"), 401)],
    "a wrong path": [http(problem("nothing here"), 404)],
    "a redirect": [http(b"", 307, {"Location": "/elsewhere"})],
    "no body": [http(b"")],
    "no JSON": [http(b"oops"), answer],
    "never JSON": [http(b'{"choices": [')],
    "a page": [http(b"<html>hello</html>", headers={"Content-Type": "text/html"})],
    "an error with status 200": [http(problem("overloaded", 503)), answer],
    "no choices": [http({"choices": []}), answer],
    "content is a number": [http(completion(7)), answer],
    "nothing was said": [http(completion(None)), answer],
    "the filter": [http(completion("x", "content_filter"))],
    "broken off by the server": [http(completion("x", "error"))],
    "cut off": [http(completion("x", "length"))],
    "no HTTP": [b"SSH-2.0-x\r\n\r\n", answer],
    "a head without end": [b"HTTP/1.1 200 x\r\n" + b"a: b\r\n" * 40_000, answer],
    "a body that is too large": [http(b" " * 70_000), answer],
    "gzip": [squeezed],
    "identity": [named_identity],
    "gzip that is none": [not_squeezed, answer],
    "n is ignored": [first_choice],
    "n is refused": [refused_for_n],
    "a choice more": [one_more],
    "tokens of the first draw": [of_the_first],
    "no usage": [with_usage(None)],
    "usage below zero": [with_usage({"prompt_tokens": -1, "completion_tokens": -5})],
    "usage in words": [with_usage({"prompt_tokens": "many", "completion_tokens": [1]})],
    "huge usage": [with_usage({"prompt_tokens": 10**30, "completion_tokens": 1e300})],
    "more cached than there are": [
        with_usage({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 99}})
    ],
    "no answer in time": [silent, answer],
}


def told(made: Bench, found: Sequence[Any], server: FaultServer) -> dict[str, object]:
    """All that can be seen of what came of some rollouts."""
    for reply in made.table.sink.replies:
        assert reply.micros > 0
        assert 0 <= reply.queue <= reply.micros
        assert reply.first <= reply.micros
        assert reply.ended > 0
    rows = [
        (
            len(one.choices),
            one.attempts,
            one.endpoint,
            one.prompt,
            one.cached,
            one.generated,
            one.served,
            one.agent,
            one.llm,
            one.estimated,
            one.first >= 0,
        )
        for one in made.table.sink.replies
    ]
    errors = [(type(one), str(one), vars(one).get("attempts")) for one in found if isinstance(one, BaseException)]
    text = repr((rows, errors)).replace(str(server.port), "PORT")
    asked = sorted((one.head.partition(b"Host")[0], one.body) for one in server.seen)
    return {"rows": text, "turns": made.turns(), "asked": asked, "digest": made.table.core.digest()}


@pytest.mark.parametrize(("n", "siblings"), [(1, False), (3, True)], ids=["one", "siblings"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_outcomes_are_those_of_requests_that_are_sent_in_tasks(name: str, n: int, siblings: bool):
    seen = []
    for engine in (True, False):
        timeout = 0.3 if name == "no answer in time" else 5.0
        async with (
            FaultServer(*ANSWERS[name]) as server,
            bench(
                server.url, n=n, siblings=siblings, timeout=timeout, largest=60_000, attempts=4, engine=engine
            ) as made,
        ):
            found = await soon(made.ask_all())
            for _ in range(2):
                if not any(isinstance(one, BaseException) for one in found):
                    found = await soon(made.ask_all())
            seen.append(told(made, found, server))
    assert seen[0] == seen[1]


async def test_draws_are_asked_for_alone_where_n_is_ignored():
    async with FaultServer(first_choice) as server, bench(server.url, n=3, siblings=True) as made:
        await soon(made.ask_all())
        await soon(made.ask_all())
    asked = [json.loads(one.body) for one in server.seen]
    base = asked[0]["seed"]
    assert [(one.get("n", 1), one["seed"] - base) for one in asked[:3]] == [(3, 0), (1, 1), (1, 2)]
    assert [one.get("n", 1) for one in asked[3:]] == [1] * 3


async def test_requests_have_no_seed_where_none_is_sent():
    async with FaultServer(answer) as server, bench(server.url, n=2, siblings=True, send_seed=False) as made:
        await soon(made.ask_all())
    assert [json.loads(one.body).keys() & {"n", "seed"} for one in server.seen] == [{"n"}]


async def test_the_headers_of_a_tree_are_those_of_requests_in_tasks():
    heads = []
    for engine in (True, False):
        async with FaultServer(answer) as server, bench(server.url, engine=engine) as made:
            await soon(made.ask_all())
        heads.append(server.seen[0].head.replace(str(server.port).encode(), b"PORT"))
    assert heads[0] == heads[1]
    assert b"X-Session-ID: " in heads[0]


async def test_rate_limits_that_are_told_late_are_kept():
    limited = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1s",
    }

    async def limits(peer: Peer) -> None:
        await peer.send(http(choices(peer.seen.body), headers=limited))

    waits = Waits()
    async with FaultServer(answer, answer, limits) as server, bench(server.url, waits=waits) as made:
        for _ in range(3):
            assert not waits
            await soon(made.ask_all())
        await soon(made.ask_all())
        assert made.llm.endpoints[0].queue.rate_limits.known
        assert waits
        assert len(made.calls()) == 4


async def test_a_tree_stays_at_its_endpoint_and_leaves_it_when_it_dies():
    async with (
        FaultServer(answer) as first,
        FaultServer(answer) as second,
        bench(first.url, second.url, n=2, attempts=8) as made,
    ):
        for _ in range(3):
            await soon(made.ask_all())
        home, other = (first, second) if first.seen else (second, first)
        assert (len(home.seen), len(other.seen)) == (6, 0)
        await home.stop()
        found = await soon(made.ask_all())
        assert not any(isinstance(one, Exception) for one in found)
        assert len(other.seen) == 2


async def test_those_that_wait_leave_an_endpoint_that_fails():
    async with (
        FaultServer(http(problem("down"), 503)) as dead,
        FaultServer(answer) as live,
        bench(dead.url, live.url, n=12, slots=4, attempts=12) as made,
    ):
        found = await soon(made.ask_all())
        assert not any(isinstance(one, Exception) for one in found)


@pytest.mark.parametrize("slots", [1, 3, 7])
async def test_never_more_are_in_flight_than_there_are_slots_and_all_are_served(slots: int):
    flying, most = 0, 0

    async def counted(peer: Peer) -> None:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1
        await peer.send(http(problem("boom"), 500) if len(server.seen) % 5 == 4 else http(choices(peer.seen.body)))

    async with FaultServer(counted) as server, bench(server.url, n=20, slots=slots, attempts=12) as made:
        for _ in range(2):
            found = await soon(made.ask_all())
            assert not any(isinstance(one, Exception) for one in found)
        assert most <= slots


async def test_one_of_several_draws_is_given_up_and_the_others_get_theirs():
    gate = asyncio.Event()
    async with FaultServer(held(gate)) as server, bench(server.url, n=3, siblings=True) as made:
        asked = list(map(made.ask, range(3)))
        await until(lambda: server.seen)
        asked[1].cancel()
        await asyncio.wait([asked[1]])
        made.table.core.close(1, "censored", None, None)
        gate.set()
        await soon(asyncio.wait(asked))
        assert len(server.seen) == 1
        assert made.turns()[1] == "user"
        assert asked[1].cancelled()
        base = json.loads(server.seen[0].body)["seed"]
        assert [made.turns()[0], made.turns()[2]] == [f"s{base}", f"s{base + 2}"]


async def test_all_draws_of_a_request_are_given_up_and_its_connection_is_closed():
    left = asyncio.Event()

    async def watched(peer: Peer) -> None:
        try:
            await peer.silence()
        finally:
            left.set()

    async with FaultServer(watched, answer) as server, bench(server.url, n=3, siblings=True) as made:
        asked = list(map(made.ask, range(3)))
        await until(lambda: server.seen)
        for one in asked:
            one.cancel()
        await soon(asyncio.wait(asked))
        await soon(left.wait())
        made.assert_at_rest()
        assert made.calls() == []
        await soon(made.ask_all())
        assert server.connections == 2


@pytest.mark.parametrize("abort", [False, True])
async def test_weights_change_once_nothing_flies(abort: bool):
    seen = []
    for engine in (True, False):
        weights, quiet, gate = WeightGate("1"), asyncio.Event(), asyncio.Event()
        async with (
            FaultServer(held(gate)) as server,
            bench(server.url, n=3, weights=weights, engine=engine) as made,
        ):
            asked = list(map(made.ask, range(3)))
            await until(lambda server=server: len(server.seen) == 3)
            weights.hold(abort=abort, quiet=quiet.set)
            if abort:
                await soon(quiet.wait())
                server.answers[:] = [answer]
            else:
                assert not quiet.is_set()
                gate.set()
                await soon(quiet.wait())
            assert made.sender_in_flight == 0
            weights.change("2")
            await soon(asyncio.wait(asked))
            core = made.table.core
            under = {core.node(core.rollout(number).leaf).namespace for number in range(3)}
            assert under == {made.table.compiled.under("2" if abort else "1").namespace}
            rows = [(one.attempts, len(one.choices), one.prompt) for one in made.table.sink.replies]
            seen.append((sorted(rows), len(server.seen), core.digest()))
    assert seen[0] == seen[1]


async def test_weights_change_when_the_last_one_in_flight_is_given_up():
    weights, quiet = WeightGate("1"), asyncio.Event()
    async with FaultServer(silent, answer) as server, bench(server.url, weights=weights) as made:
        asked = made.ask(0)
        await until(lambda: server.seen)
        weights.hold(abort=False, quiet=quiet.set)
        asked.cancel()
        await soon(quiet.wait())
        weights.change("2")
        found = await soon(made.ask_all())
        assert not any(isinstance(one, BaseException) for one in found), found


@pytest.mark.parametrize("failure", [http(problem("boom"), 500), squeezed, half_and_reset])
async def test_a_turn_that_is_repeated_is_in_flight_until_it_ends(failure: Answer):
    weights, quiet, first, second = WeightGate("1"), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def fail(peer: Peer) -> None:
        await (peer.send(failure) if isinstance(failure, bytes) else failure(peer))

    answers = [held(first, fail), held(second)]
    async with FaultServer(*answers) as server, bench(server.url, weights=weights) as made:
        asked = made.ask(0)
        await until(lambda: server.seen)
        weights.hold(abort=False, quiet=quiet.set)
        first.set()
        await until(lambda: len(server.seen) == 2 or asked.done())
        assert quiet.is_set() == asked.done()
        second.set()
        await soon(asyncio.wait([asked]))
        assert quiet.is_set()
        core = made.table.core
        assert core.node(core.rollout(0).leaf).namespace == made.table.compiled.under("1").namespace
        weights.change("2")


async def test_a_drain_waits_for_what_is_in_flight_and_sends_nothing_more():
    gate = asyncio.Event()
    async with FaultServer(held(gate)) as server, bench(server.url, n=4, slots=2) as made:
        asked = list(map(made.ask, range(4)))
        await until(lambda: len(server.seen) == 2)
        made.llm.hold()
        draining = asyncio.create_task(made.table.draws.turn_gate.drained(60.0, lambda: made.llm.waiting))
        await asyncio.sleep(0)
        assert not draining.done()
        gate.set()
        await soon(draining)
        assert [one.done() for one in asked] == [True, True, False, False]
        assert len(server.seen) == 2
        for one in asked:
            one.cancel()
        await soon(asyncio.wait(asked))
