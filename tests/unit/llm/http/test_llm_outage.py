"""Whole calls against servers that fail for a while, by a clock that the test turns."""

import asyncio
import math
import random

import pytest
from virtual_time import VirtualServers, VirtualTime, refused

from trunkline.errors import EndpointError, LLMError
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.http.outcome import Backoff
from trunkline.llm.types import Limits, Request, Routing

# With what it may generate it is taken for 100 tokens, which a reply here takes.
BODY = b'{"model":"m","messages":[],"max_tokens":50}'.ljust(200)


def make(servers, urls=("http://a/v1",), concurrency=16, seed=1, **options):
    llm = HttpLLM(
        urls,
        None,
        max_concurrency=concurrency,
        transport=servers,
        sleep=servers.time.sleep,
        clock=servers.time,
        draw=random.Random(seed).random,
        **options,
    )
    llm.limiter._later = servers.time.later
    return llm


async def rollouts(llm, count, turns):
    async def rollout(key):
        return [await llm.complete(Request(BODY, key)) for _ in range(turns)]

    return await llm._clock.run(*(rollout(key) for key in range(count)))


def idle(llm, concurrency=16):
    return llm.limiter.free == concurrency and all(
        each.load == 0 and each.queue.tokens == 0 and not each.queue.turn.locked() for each in llm.endpoints
    )


OUTAGES = [503, refused()]


@pytest.mark.parametrize("trouble", OUTAGES, ids=["503", "refused"])
@pytest.mark.parametrize(("count", "urls"), [(1, 1), (60, 1), (60, 3)])
async def test_a_minute_without_any_endpoint_costs_no_rollout(trouble, count, urls):
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: trouble if 5 <= time.now < 65 else 200)
    llm = make(servers, [f"http://{name}/v1" for name in "abc"[:urls]])
    results = await rollouts(llm, count, 10)
    assert not [each for each in results if isinstance(each, BaseException)]
    assert len(servers.seen) <= 2 * count * 10 if count > 1 else len(servers.seen) <= 2 * 10
    assert servers.peak == min(count, 16)
    during = [moment for moment in servers.times() if 8 <= moment < 65]
    assert len(during) <= 10 * urls, "closed endpoints are probed, not asked"
    after = sorted(moment for moment in servers.times() if moment >= 65)
    assert sum(moment == after[0] for moment in after) == 1, "one probe, and then the others"
    if urls == 1:
        assert sum(after[0] < moment < after[0] + 1.5 for moment in after) <= 2, "the others come little by little"
    assert idle(llm)


async def test_half_of_all_answers_may_be_429_at_any_time():
    time, dice = VirtualTime(), random.Random(3)
    servers = VirtualServers(time, lambda host, number: 429 if dice.random() < 0.5 else 200)
    llm = make(servers)
    results = await rollouts(llm, 40, 5)
    assert all(isinstance(each, list) for each in results)
    assert idle(llm)


async def test_a_third_of_all_answers_may_be_500_at_any_time():
    time, dice = VirtualTime(), random.Random(4)
    servers = VirtualServers(time, lambda host, number: 500 if dice.random() < 0.3 else 200)
    results = await rollouts(make(servers), 40, 5)
    assert sum(isinstance(each, LLMError) for each in results) <= 1
    assert len(servers.seen) <= 2 * 40 * 5


async def test_a_burst_of_429s_shrinks_the_window_once_and_it_comes_back_within_a_minute():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 429 if 10 <= time.now < 11.5 else 200)
    llm = make(servers, concurrency=50)
    window, sizes = llm.endpoints[0].queue.window, {}

    async def watch():
        for second in range(75):
            sizes[second] = window.size
            await time.sleep(1.0)

    results = (await time.run(watch(), *(endless(llm, time, 80) for _ in range(60))))[1:]
    assert all(result is None for result in results)
    assert sizes[9] == 50
    assert sizes[14] == pytest.approx(35)
    assert sizes[72] >= 45
    assert 40 <= servers.most["a"] <= 50


async def test_requests_a_minute_are_kept():
    time = VirtualTime()
    servers = VirtualServers(time, latency=0.01)
    llm = make(servers, concurrency=64, limits=Limits(requests_per_minute=1200))
    replies = [reply for (reply,) in await rollouts(llm, 40, 1)]
    assert 0.9 <= time.now < 2, "a tenth of a minute's requests may go at once, the others at 20 a second"
    assert max(reply.queue for reply in replies) >= 900_000
    assert len(servers.seen) == 40


async def test_an_outage_of_every_server_at_the_start_is_survived():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 503 if time.now < 0.8 else 200, latency=0.01)
    llm = make(servers, ["http://a/v1", "http://b/v1"], concurrency=8)
    results = await rollouts(llm, 40, 1)
    assert all(isinstance(each, list) for each in results)
    assert len(servers.seen) <= 2 * 40
    assert all(endpoint.load == 0 for endpoint in llm.endpoints)


async def test_retry_after_pauses_a_server_for_everybody():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 200 if number else (429, {"retry-after-ms": "400"}), 0.01)
    await rollouts(make(servers), 6, 1)
    told = 0.01
    late = [moment for moment in servers.times() if moment >= told]
    assert len(servers.seen) == 7
    assert len(late) >= 3, "the first request again, and those that were not sent before the server asked for a pause"
    assert 0.4 <= min(late) - told < 1


async def test_a_server_that_goes_away_is_left_alone_and_comes_back():
    time, up = VirtualTime(), True
    servers = VirtualServers(time, lambda host, number: 200 if up or host == "b" else refused(), latency=0.01)
    llm = make(servers, ["http://a/v1", "http://b/v1"])
    await rollouts(llm, 6, 1)
    before = len(servers.times("a"))
    assert before == 3
    up = False
    for _ in range(10):
        await rollouts(llm, 6, 1)
    lost = len(servers.times("a")) - before
    assert 3 <= lost <= 6
    assert llm.endpoints[0].ejected
    up = True
    await time.until(time.now + 60)
    await rollouts(llm, 6, 1)
    assert not llm.endpoints[0].ejected
    await rollouts(llm, 12, 1)
    assert len(servers.times("a")) >= before + lost + 4


async def endless(llm, time, end):
    key = random.randrange(2**32)
    while time.now < end:
        await llm.complete(Request(BODY, key))


async def test_retry_after_stops_everybody_at_that_endpoint():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: (429, {"Retry-After": "20"}) if number == 40 else 200)
    llm = make(servers)
    assert all(isinstance(each, list) for each in await rollouts(llm, 40, 4))
    told = servers.times()[40] + 1.0
    assert not [moment for moment in servers.times() if told < moment < told + 20]
    assert len(servers.seen) == 161


async def test_a_paused_endpoints_trees_go_to_another_one():
    time = VirtualTime()
    servers = VirtualServers(
        time, lambda host, number: (503, {"Retry-After": "50"}) if host == "a" and time.now < 50 else 200
    )
    llm = make(servers, ["http://a/v1", "http://b/v1"])
    assert all(isinstance(each, list) for each in await rollouts(llm, 8, 6))
    assert time.now < 20
    assert len(servers.times("a")) == 4


async def test_one_dead_endpoint_of_three_costs_a_few_attempts():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: refused() if host == "a" else 200, latency=0.1)
    llm = make(servers, ["http://a/v1", "http://b/v1", "http://c/v1"])
    results = await rollouts(llm, 30, 30)
    assert all(isinstance(each, list) for each in results)
    assert len(servers.times("a")) <= 12
    assert min(len(servers.times(host)) for host in "bc") >= 300


async def test_an_endpoint_that_returns_is_used_again():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: refused() if host == "a" and time.now < 30 else 200)
    llm = make(servers, ["http://a/v1", "http://b/v1"], routing=Routing(margin=2))
    assert all(isinstance(each, list) for each in await rollouts(llm, 16, 120))
    late = [moment for moment in servers.times("a") if moment > 60]
    assert len(late) >= 0.3 * sum(moment > 60 for moment in servers.times())


async def test_a_wrong_key_at_one_of_two_takes_that_one_out_and_says_so(caplog):
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 401 if host == "a" else 200)
    llm = make(servers, ["http://a/v1", "http://b/v1"], backoff=Backoff(attempts=1))
    assert all(isinstance(each, list) for each in await rollouts(llm, 20, 5))
    assert len(servers.times("a")) <= 10
    said = [record.message for record in caplog.records if "without this endpoint" in record.message]
    assert len(said) == 1
    assert "http://a/v1/chat/completions answered 401" in said[0]


async def test_when_the_last_endpoint_refuses_the_run_ends():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: {"a": 401, "b": 403}[host])
    llm = make(servers, ["http://a/v1", "http://b/v1"])
    for key in (0, 1, 2):
        with pytest.raises(EndpointError, match=r"answered 40[13]"):
            await resolve(time, llm.complete(Request(BODY, key)))
    assert len(servers.seen) <= 5


@pytest.mark.parametrize(("status", "urls"), [(401, 1), (403, 1), (404, 2)])
async def test_a_crowd_at_endpoints_that_serve_nobody_is_told_without_being_sent(status, urls):
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: status, latency=0.2)
    llm = make(servers, [f"http://{name}/v1" for name in "ab"[:urls]])
    results = await rollouts(llm, 500, 1)
    assert {type(each) for each in results} == {EndpointError}
    assert all(f"answered {status}" in str(each) for each in results)
    assert len(servers.seen) <= 5 * urls
    assert time.now < 2
    assert idle(llm)


async def test_what_comes_late_from_an_endpoint_that_serves_nobody_changes_nothing():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: (503, {"Retry-After": "60"}) if number else 401)
    results = await rollouts(make(servers), 40, 1)
    assert {type(each) for each in results} == {EndpointError}
    assert all("answered 401" in str(each) for each in results)
    assert time.now <= 2


async def test_the_last_endpoint_is_asked_again_when_the_account_may_be_paid():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 402 if time.now < 4 else 200)
    llm = make(servers)
    for begun in (0, 2):
        await time.until(begun)
        with pytest.raises(EndpointError, match="must be paid for"):
            await resolve(time, llm.complete(Request(BODY, 7)))
    assert len(servers.seen) == 2
    await time.until(7)
    assert (await resolve(time, llm.complete(Request(BODY, 7)))).attempts == 1


async def test_an_unknown_route_is_told_to_its_caller_and_takes_no_endpoint_out():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 404)
    llm = make(servers, ["http://a/v1", "http://b/v1"])
    with pytest.raises(EndpointError, match=r"http://a/tokenize answered 404"):
        await resolve(time, llm.call("//tokenize", BODY))
    servers.answer = lambda host, number: 200
    assert all(isinstance(each, list) for each in await rollouts(llm, 4, 1))
    assert {host for _, host, _ in servers.seen[1:]} == {"a", "b"}


async def resolve(time, awaitable):
    (result,) = await time.run(awaitable)
    if isinstance(result, BaseException):
        raise result
    return result


async def test_waiting_for_an_endpoint_ends_at_the_deadline():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 503 if number else 200)
    llm = make(servers, backoff=Backoff(attempts=50, deadline=40.0))
    results = await rollouts(llm, 12, 2)
    errors = [each for each in results if isinstance(each, LLMError)]
    assert len(errors) == 12
    assert time.now <= 41.0 + 1.0
    assert all("deadline of 40 s is near" in str(each) for each in errors)
    assert idle(llm)


async def test_a_wrong_address_is_named_soon_also_to_a_crowd():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: refused(), latency=0.0)
    llm = make(servers, concurrency=64)
    results = await rollouts(llm, 200, 1)
    assert all(isinstance(each, EndpointError) for each in results)
    assert "is a server running there, and is the base URL right?" in str(results[0])
    assert time.now < 6
    assert len(servers.seen) < 80


@pytest.mark.parametrize(
    ("limits", "may_generate", "most"),
    [
        ({"requests_per_minute": 90}, 50, 92),
        ({"tokens_per_minute": 9000}, 50, 98),
        # Taken for half of what they are, until the first replies tell; and for five times as much.
        ({"tokens_per_minute": 9000}, 0, 100),
        ({"tokens_per_minute": 9000}, 450, 98),
    ],
)
async def test_rates_are_kept_in_every_minute(limits, may_generate, most):
    time = VirtualTime()
    servers = VirtualServers(time)
    llm = make(servers, ["http://a/v1", "http://b/v1"], limits=Limits(**limits))
    body = BODY.replace(b"50", b"%d" % may_generate)[:200]

    async def rollout(key):
        return [await llm.complete(Request(body, key)) for _ in range(15)]

    assert all(isinstance(each, list) for each in await time.run(*(rollout(key) for key in range(20))))
    moments = sorted(servers.times())
    for begin in moments:
        assert sum(begin <= moment < begin + 60 for moment in moments) <= most
    assert time.now == pytest.approx(200, rel=0.05), "and all that they allow is used"
    assert idle(llm)


async def test_tokens_of_attempts_that_failed_are_given_back():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 200 if number % 4 == 3 else 500)
    llm = make(servers, limits=Limits(tokens_per_minute=600), concurrency=1, backoff=Backoff(attempts=9))
    assert all(isinstance(each, list) for each in await rollouts(llm, 1, 11))
    assert len(servers.seen) == 44
    assert time.now < 170


async def test_an_endpoints_own_limits_are_kept_without_a_429():
    time = VirtualTime()
    state = {"level": 20.0, "seen": 0.0}

    def answer(host, number):
        state["level"] = min(20.0, state["level"] + (time.now - state["seen"]) * 0.5)
        state["seen"] = time.now
        if state["level"] < 1:
            return 429
        state["level"] -= 1
        told = {
            "x-ratelimit-limit-requests": "20",
            "x-ratelimit-remaining-requests": str(int(state["level"])),
            "x-ratelimit-reset-requests": f"{(20 - state['level']) / 0.5:.1f}s",
        }
        return 200, told

    servers = VirtualServers(time, answer)
    llm = make(servers, concurrency=4)
    assert all(isinstance(each, list) for each in await rollouts(llm, 4, 30))
    assert len(servers.seen) <= 123
    assert time.now <= 100 / 0.5 * 1.2


async def test_a_reply_says_how_long_it_waited_and_who_answered():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 500 if number == 0 else 200)
    llm = make(servers, concurrency=1)
    first, second = (each[0] for each in await rollouts(llm, 2, 1))
    assert (first.attempts, second.attempts) == (2, 1)
    assert first.endpoint == "http://a/v1"
    assert second.micros == pytest.approx(2_000_000)
    assert second.queue == pytest.approx(1_000_000)
    assert first.queue == first.micros - 2_000_000
    assert first.first == 1_000_000


async def test_when_a_probe_is_cancelled_the_next_call_probes():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 503 if number < 3 else 200)
    llm = make(servers)
    calls = [asyncio.ensure_future(llm.complete(Request(BODY, 7))) for _ in range(3)]
    await time.until(1.1)
    assert llm.endpoints[0].ejected
    while not llm.endpoints[0].probing:
        await time.until(time.now + 0.1)
    await time.until(time.now + 0.5)
    assert len(servers.seen) == 4
    calls[2].cancel()
    results = await time.run(*calls)
    assert [type(each).__name__ for each in results] == ["Reply", "Reply", "CancelledError"]


@pytest.mark.parametrize("scene", ["quiet", "rates", "outage", "pause"])
async def test_a_call_cancelled_at_any_moment_leaves_nothing_behind(scene):
    def answer(host, number):
        if scene == "outage":
            return 503 if time.now < 4 else 200
        if scene == "pause":
            return (429, {"Retry-After": "3"}) if number == 2 else 200
        return 200

    limits = Limits(requests_per_minute=60, tokens_per_minute=6000) if scene == "rates" else None
    for victim in range(6):
        for moment in range(24):
            time = VirtualTime()
            servers = VirtualServers(time, answer)
            llm = make(servers, concurrency=2, limits=limits)
            tasks = [asyncio.ensure_future(llm.complete(Request(BODY, 7))) for _ in range(6)]
            if moment < 12:
                for _ in range(moment):
                    await asyncio.sleep(0)
            else:
                # Also in the very step in which time wakes the next one.
                await time.until((moment - 12) * 0.5 - 1e-9)
                if time._sleepers:
                    time.now, _, due = time._sleepers.pop(0)
                    if not due.done():
                        due.set_result(None)
                await asyncio.sleep(0)
            tasks[victim].cancel()
            results = await time.run(*tasks)
            assert sum(isinstance(each, BaseException) for each in results) <= 1, (victim, moment, results)
            assert idle(llm, 2)
            assert not llm.endpoints[0].queue.closed
            assert math.isinf(llm.endpoints[0].until)
