"""Servers that answer with something other than 200: what is asked again, and what ends a rollout or a run."""

from __future__ import annotations

import email.utils
import time

import pytest
from fault_client import KEY, REQUEST, Waits, client, fails
from fault_server import OK, FaultServer, http, problem

from trunkline.errors import BadRequest, ContentFiltered, ContextTooLong, EndpointError, LLMError
from trunkline.tree.records import Failure


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_passing_trouble_is_asked_again(transport, status):
    waits = Waits()
    answers = (http(problem(), status), http(b"oops", status), OK)
    async with FaultServer(*answers) as server, client(transport, server.url, waits=waits) as llm:
        reply = await llm.complete(REQUEST)
    assert reply.attempts == len(server.seen) == 3
    assert waits == [0.25, 0.5]


@pytest.mark.parametrize(("status", "attempts"), [(429, 9), (500, 3), (529, 3)])
async def test_trouble_that_stays_is_an_error_of_the_rollout(transport, status, attempts):
    """A 429 counts a quarter of an attempt: it was only told to come later."""
    async with FaultServer(http(problem("busy"), status)) as server, client(transport, server.url) as llm:
        error = await fails(llm, LLMError, f"answered {status} (busy)", f"(after {attempts} attempts)")
    assert (error.attempts, error.retryable, len(server.seen)) == (attempts, True, attempts)
    assert [line.partition(":")[0] for line in error.tries] == [str(number + 1) for number in range(attempts)]
    assert all(f"answered {status} (busy)" in line for line in error.tries)


async def test_a_failure_keeps_what_came_of_each_attempt_and_how_the_last_answer_began(transport):
    pages = [http(f"<html>{page} {KEY} {'x' * 5000}".encode(), 502) for page in ("first", "second", "third")]
    async with FaultServer(*pages) as server, client(transport, server.url) as llm:
        failure = Failure.of(await fails(llm, LLMError, "answered 502"))
    assert failure.blame.startswith(f"endpoint {server.url}")
    assert len(failure.tries) == failure.attempts == 3
    assert failure.evidence.startswith("<html>third ")
    assert 1900 < len(failure.evidence) < 2010
    assert KEY not in failure.encode()
    assert Failure.decode(failure.encode()) == failure


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "7"}, 7, 7.7),
        ({"RETRY-AFTER": "1.5"}, 1.5, 1.65),
        ({"retry-after-ms": "2500", "Retry-After": "60"}, 2.5, 2.75),
        ({"Retry-After": "1000000000"}, 120, 132),
        ({"Retry-After": "inf"}, 120, 132),
        ({"Retry-After": "-5"}, 0.25, 0.25),
        ({"Retry-After": "nan"}, 0.25, 0.25),
        ({"Retry-After": "soon"}, 0.25, 0.25),
        ({"Retry-After": ""}, 0.25, 0.25),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.25, 0.25),
        ({"Retry-After": "Thu, 99 Foo 99999 00:00:10 GMT"}, 0.25, 0.25),
        ({}, 0.25, 0.25),
    ],
)
async def test_the_wait_that_a_server_asks_for(transport, headers, low, high):
    waits = Waits()
    limited = http(problem("slow down"), 429, headers)
    async with FaultServer(limited, OK) as server, client(transport, server.url, waits=waits) as llm:
        assert (await llm.complete(REQUEST)).attempts == 2
    assert low <= waits[0] <= high


async def test_the_wait_as_a_date(transport):
    waits = Waits()
    busy = http(b"", 503, {"Retry-After": email.utils.formatdate(time.time() + 20, usegmt=True)})
    async with FaultServer(busy, OK) as server, client(transport, server.url, waits=waits) as llm:
        await llm.complete(REQUEST)
    assert 17 <= waits[0] <= 22


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, problem("Incorrect API key provided: " + KEY), ["401", "OPENAI_API_KEY", "[key]"]),
        (402, problem("Insufficient Balance"), ["402", "paid"]),
        (403, problem("not for you"), ["403", "OPENAI_API_KEY", "not for you"]),
        (404, problem("The model `m` does not exist", "model_not_found"), ["404", "check its name"]),
        (404, {"detail": "Not Found"}, ["404", "check the base URL"]),
        (405, b"", ["405", "check the base URL"]),
        (429, problem("You exceeded your current quota", "insufficient_quota"), ["429", "quota"]),
        (400, problem("quota", "insufficient_quota"), ["quota", "OPENAI_API_KEY"]),
        (503, problem("quota", None, "insufficient_quota"), ["quota"]),
    ],
)
async def test_what_stops_the_run_at_once(transport, status, body, words):
    async with FaultServer(http(body, status)) as server, client(transport, server.url) as llm:
        await fails(llm, EndpointError, server.url + "/chat/completions", *words)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, problem("This model's maximum context length is 8192 tokens. However, ..."), ContextTooLong),
        (400, problem("Please reduce the length", "context_length_exceeded"), ContextTooLong),
        (413, problem("prompt is too long: 210000 tokens > 200000 maximum"), ContextTooLong),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096"}, ContextTooLong),
        (400, problem("triggered our content management policy", "content_filter"), ContentFiltered),
        (403, problem("Your input was flagged by moderation"), ContentFiltered),
        (400, problem("temperature must be below 2", None, "invalid_request_error"), BadRequest),
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}, BadRequest),
        (400, b"<html>bad</html>", BadRequest),
        (413, b"entity too large", BadRequest),
        (418, b"\x1b[31mred\x1b[0m \xff\xfe\x00", BadRequest),
    ],
)
async def test_a_refusal_of_this_request_ends_its_rollout(transport, status, body, kind):
    async with FaultServer(http(body, status)) as server, client(transport, server.url) as llm:
        error = await fails(llm, kind, str(status))
    assert (error.attempts, error.retryable, len(server.seen)) == (1, False, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_never_followed(transport, status):
    async with FaultServer(OK) as other:
        moved = http(b"", status, {"Location": other.url + "/chat/completions?token=abc"})
        async with FaultServer(moved) as server, client(transport, server.url) as llm:
            error = await fails(llm, EndpointError, "points to 127.0.0.1", "give the final base URL")
            assert "abc" not in str(error)
    assert (len(server.seen), other.connections) == (1, 0)


@pytest.mark.parametrize("target", ["http://[broken", "", "\x1b[2J", "//" + KEY + "/v1"])
async def test_a_redirect_to_nonsense_is_shown_safely(transport, target):
    async with FaultServer(http(b"", 302, {"Location": target})) as server, client(transport, server.url) as llm:
        with pytest.raises((EndpointError, LLMError)) as caught:
            await llm.complete(REQUEST)
    assert str(caught.value).isprintable()
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("status", [100, 102, 103])
async def test_interim_answers_are_passed_over(transport, status):
    interim = f"HTTP/1.1 {status} Wait\r\nLink: </x>\r\n\r\n".encode()
    async with FaultServer(interim * 3 + OK) as server, client(transport, server.url) as llm:
        for _ in range(2):
            assert (await llm.complete(REQUEST)).attempts == 1
    assert len(server.seen) == 2


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_is_none(transport, status):
    empty = f"HTTP/1.1 {status} Said\r\n\r\n".encode()
    async with FaultServer(empty) as server, client(transport, server.url) as llm:
        with pytest.raises((EndpointError, LLMError)) as caught:
            await llm.complete(REQUEST)
    assert str(status) in str(caught.value)
    assert len(server.seen) == (1 if status == 304 else 2)
