"""What a server that is up fails at or refuses: a matter of that request, not of the endpoint or the run."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import VirtualServers, VirtualTime, failing

from trunkline.errors import EndpointError, LLMError
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.http.outcome import Backoff, RequestContext, classify
from trunkline.llm.types import Reply, Request

BODY = b'{"model":"m","messages":[]}'


class Bodies(VirtualServers):
    """Servers whose answer depends on what is asked."""

    async def post(self, url, headers, body, limit):
        self.asked = body
        return await super().post(url, headers, body, limit)


def make(servers, *, concurrency=16, attempts=6, urls=1):
    llm = HttpLLM(
        [f"http://{name}/v1" for name in "ab"[:urls]],
        None,
        max_concurrency=concurrency,
        transport=servers,
        sleep=servers.time.sleep,
        clock=servers.time,
        draw=random.Random(1).random,
        backoff=Backoff(attempts=attempts),
    )
    llm.limiter._later = servers.time.later
    return llm


async def one(llm, n=1):
    (result,) = await llm._clock.run(llm.complete(Request(BODY, 7, n=n)))
    return result


async def test_requests_that_a_server_fails_at_hold_nothing_up():
    time = VirtualTime()
    servers = Bodies(time, lambda host, number: failing() if b"bad" in servers.asked else 200)
    llm = make(servers)
    bodies = [(b"bad" if number % 6 == 0 else b"good") + b"%d" % number for number in range(120)]
    results = await time.run(*(llm.complete(Request(body, number)) for number, body in enumerate(bodies)))
    broken = [result for body, result in zip(bodies, results, strict=True) if body.startswith(b"bad")]
    assert [(type(error), error.attempts, error.separable) for error in broken] == [(LLMError, 6, True)] * 20
    assert sum(isinstance(result, Reply) for result in results) == 100
    assert len(servers.seen) == 100 + 20 * 6
    assert llm.endpoints[0].ejections == 0
    assert time.now < 120


async def test_half_of_all_answers_may_be_failures_of_a_server_that_is_up():
    time, dice = VirtualTime(), random.Random(5)
    servers = VirtualServers(time, lambda host, number: failing() if dice.random() < 0.5 else 200)
    llm = make(servers)
    results = await time.run(*(llm.complete(Request(BODY, number)) for number in range(24)))
    assert all(isinstance(result, Reply) for result in results)


async def test_a_probe_that_a_server_fails_at_counts_whole_and_opens_it():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 503 if number < 3 else failing())
    llm = make(servers, attempts=6)
    error = await one(llm)
    assert (type(error), error.attempts) == (LLMError, 6)
    assert not llm.endpoints[0].ejected


@pytest.mark.parametrize(
    ("status", "body", "down"),
    [
        (500, b'{"error":{"message":"boom"}}', False),
        (500, b'{"detail":"boom"}', False),
        (501, b'{"message":"boom"}', False),
        (500, b"Internal Server Error", False),
        (500, b"", True),
        (500, b"{}", True),
        (500, b"<html>Internal Server Error</html>", True),
        (500, b"upstream error", True),
        (502, b'{"error":{"message":"boom"}}', True),
        (503, b'{"error":{"message":"Loading model"}}', True),
        (504, b'{"error":{"message":"boom"}}', True),
        (529, b'{"error":{"message":"overloaded"}}', True),
        (408, b'{"error":{"message":"late"}}', True),
        (429, b'{"error":{"message":"later"}}', False),
        (404, b"", False),
    ],
)
def test_which_answers_come_from_a_server_that_is_up(status, body, down):
    outcome = classify(status, {}, body, RequestContext("http://h/v1"))
    assert (outcome.down, outcome.own) == (down, status >= 500 and not down)


@pytest.mark.parametrize(
    "text",
    [
        "The model produced output that does not match the expected peg-native format",
        "got exception: Unexpected empty grammar stack after accepting piece: <tool_call>\n[ (283)",
        "Failed to parse input at pos 17: <tool_call>",
        "error parsing tool call: raw='{\"a\"', err=unexpected end of JSON input",
    ],
)
async def test_a_reply_that_the_server_cannot_read_ends_its_draw_with_advice(text):
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: failing(text))
    error = await one(make(servers))
    assert (type(error), error.attempts, error.retryable) == (LLMError, 1, False)
    assert "could not read the model's reply: --dialect hermes" in str(error)


@pytest.mark.parametrize(("text", "attempts"), [("boom", 2), ("error parsing tool call: x", 1)])
async def test_a_request_for_several_draws_is_given_up_early_to_be_split(text, attempts):
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: failing(text))
    error = await one(make(servers), n=4)
    assert (error.attempts, error.separable) == (attempts, True)


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, "quota"])
@pytest.mark.parametrize("max_retries", [0, 5])
async def test_one_refusal_of_a_server_that_has_served_is_an_attempt_of_its_request(status, max_retries):
    time = VirtualTime()
    odd = (429, {}, failing("You exceeded your current quota")[2]) if status == "quota" else status
    servers = VirtualServers(time, lambda host, number: odd if number % 5 == 4 else 200)
    llm = make(servers, attempts=max_retries + 1)
    results = [await one(llm) for _ in range(40)]
    broken = [error for error in results if not isinstance(error, Reply)]
    assert [type(error) for error in broken] == ([] if max_retries else [LLMError] * 8)
    assert not llm.endpoints[0].out


@pytest.mark.parametrize("status", [307, 401, 404])
async def test_ten_refusals_in_a_row_end_a_run_that_was_served_before(status):
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 200 if number < 5 else status)
    llm = make(servers)
    assert all([isinstance(await one(llm), Reply) for _ in range(5)])
    assert [type(await one(llm)) for _ in range(2)] == [LLMError, EndpointError]
    assert len(servers.seen) == 5 + 10


async def test_refusals_take_one_endpoint_of_two_out_when_they_go_on():
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: 404 if host == "a" and number >= 8 else 200)
    llm = make(servers, urls=2, concurrency=2)
    results = await time.run(*(llm.complete(Request(BODY, number)) for number in range(60)))
    assert all(isinstance(result, Reply) for result in results)
    assert [endpoint.out for endpoint in llm.endpoints] == [True, False]
    assert 10 <= sum(moment > 4 for moment in servers.times("a")) <= 12


KINDS = {"reply": 200, "busy": 429, "own": failing(), "odd": 404}


def expected(answers, attempts):
    """How calls one after the other end, and after how many requests, by a plain count."""
    ends, left = [], list(answers)
    good, erratic, refusals = False, False, 0
    strikes, asked, last = 0, 0, ""
    while left:
        end, kind = None, left.pop(0)
        asked += 1
        if kind == "reply":
            end, good, refusals = Reply, True, 0
            erratic = erratic or last == "own"
        elif kind == "odd":
            refusals += 1
            end = EndpointError if not good or refusals >= 10 else None
        strikes += {"reply": 0, "busy": 1, "own": 2 if erratic else 4, "odd": 4}[kind]
        if end is None and strikes > 4 * (attempts - 1):
            end = LLMError
        last = kind
        if end is not None:
            ends.append((end, asked))
            strikes, asked, last = 0, 0, ""
    return ends


@settings(max_examples=150)
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=40), st.integers(1, 4))
async def test_calls_end_as_a_plain_count_says(answers, attempts):
    ends = expected(answers, attempts)
    time = VirtualTime()
    servers = VirtualServers(time, lambda host, number: KINDS[answers[number]] if number < len(answers) else 200)
    llm = make(servers, attempts=attempts)
    before = 0
    for kind, asked in ends:
        result = await one(llm)
        assert (type(result), len(servers.seen) - before) == (kind, asked)
        before = len(servers.seen)
        time.now += 1
