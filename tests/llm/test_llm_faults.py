"""Servers that misbehave, over real sockets: each fault has its one outcome."""

import asyncio
import email.utils
import gzip
import json
import os
import time
from pathlib import Path

import pytest
from aiohttp import web
from llm_servers import KEY, REQUEST, client, completion, serve, serve_raw

from trunkline.errors import BadRequest, ContentFiltered, ContextTooLong, EndpointError, LLMError
from trunkline.llm.protocol import Request

OK = completion()


def error(message="no", code=None, kind=None):
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


async def test_a_good_reply_and_what_was_sent():
    async with serve(OK) as server, client(server.base_url) as llm:
        reply = await llm.complete(REQUEST)
    assert (reply.prompt, reply.cached, reply.generated, reply.attempts) == (12, 8, 3, 1)
    assert reply.choices[0].content == "hello"
    assert reply.served == "served-model"
    assert 0 < reply.micros < 10_000_000
    path, headers, body = server.seen[0]
    assert path == "/v1/chat/completions"
    assert body == REQUEST.body
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"] == "trunkline"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_passing_trouble_is_repeated_and_counted(status):
    async with (
        serve((status, {}, error()), (status, {}, b"oops"), OK) as server,
        client(server.base_url) as llm,
    ):
        reply = await llm.complete(REQUEST)
        assert reply.attempts == 3
        assert llm.waits == [0.25, 0.5]
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "7"}, 7, 7.7),
        ({"Retry-After": "1.5"}, 1.5, 1.65),
        ({"retry-after-ms": "2500", "Retry-After": "60"}, 2.5, 2.75),
        ({"Retry-After": "1000000000"}, 120, 132),
        ({"Retry-After": "inf"}, 120, 132),
        ({"Retry-After": "-5"}, 0.25, 0.25),
        ({"Retry-After": "nan"}, 0.25, 0.25),
        ({"Retry-After": "soon"}, 0.25, 0.25),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.25, 0.25),
        ({}, 0.25, 0.25),
    ],
)
async def test_the_wait_a_server_asks_for(headers, low, high):
    async with serve((429, headers, error("slow down")), OK) as server, client(server.base_url) as llm:
        reply = await llm.complete(REQUEST)
        assert reply.attempts == 2
        assert low <= llm.waits[0] <= high


async def test_the_wait_as_a_date():
    when = email.utils.formatdate(time.time() + 20, usegmt=True)
    async with serve((503, {"Retry-After": when}, b""), OK) as server, client(server.base_url) as llm:
        await llm.complete(REQUEST)
        assert 17 <= llm.waits[0] <= 22


async def test_attempts_end():
    async with serve((503, {}, error("busy"))) as server, client(server.base_url, attempts=3) as llm:
        with pytest.raises(LLMError, match=r"answered 503 \(busy\) \(after 3 attempts\)") as caught:
            await llm.complete(REQUEST)
    assert (caught.value.attempts, caught.value.retryable) == (3, True)
    assert len(server.seen) == 3


async def test_no_retry_means_one_request():
    async with (
        serve((429, {"Retry-After": "9"}, error())) as server,
        client(server.base_url, attempts=1) as llm,
    ):
        with pytest.raises(LLMError):
            await llm.complete(REQUEST)
        assert llm.waits == []
    assert len(server.seen) == 1


async def test_a_wait_beyond_the_deadline_is_not_waited():
    busy = (429, {"Retry-After": "100"}, error("later"))
    async with serve(busy) as server, client(server.base_url, deadline=50.0) as llm:
        with pytest.raises(LLMError, match="deadline of 50 s"):
            await llm.complete(REQUEST)
        assert llm.waits == []


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, error("Incorrect API key provided: " + KEY), ["401", "OPENAI_API_KEY", "[key]"]),
        (403, error("not for you"), ["403", "OPENAI_API_KEY", "not for you"]),
        (402, error("Insufficient Balance"), ["402", "paid"]),
        (404, error("The model `m` does not exist", "model_not_found"), ["404", "check its name"]),
        (404, {"detail": "Not Found"}, ["404", "check the base URL"]),
        (405, b"", ["405", "check the base URL"]),
        (
            429,
            error("You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
            ["quota"],
        ),
        (400, error("quota", "insufficient_quota"), ["quota", "OPENAI_API_KEY"]),
        (503, error("quota", None, "insufficient_quota"), ["quota"]),
    ],
)
async def test_what_stops_the_run_at_once(status, body, words):
    async with serve((status, {}, body)) as server, client(server.base_url) as llm:
        with pytest.raises(EndpointError) as caught:
            await llm.complete(REQUEST)
    message = str(caught.value)
    assert len(server.seen) == 1
    assert server.base_url + "/chat/completions" in message
    for word in words:
        assert word in message
    assert KEY not in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            400,
            error("This model's maximum context length is 8192 tokens. However, your messages resulted in 9001"),
        ),
        (400, error("Please reduce the length", "context_length_exceeded")),
        (
            400,
            {"object": "error", "message": "This model's maximum context length is 4096 tokens", "code": 400},
        ),
        (400, error("The decoder prompt (length 5000) is longer than the maximum model length of 4096.")),
        (400, error("The input (5000 tokens) is longer than the model's context length (4096 tokens).")),
        (
            400,
            error("Requested token count exceeds the model's maximum context length of 4096 tokens."),
        ),
        (400, error("Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens).")),
        (400, error("the request exceeds the available context size", None, "exceed_context_size_error")),
        (
            422,
            {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", "error_type": "v"},
        ),
        (413, error("prompt is too long: 210000 tokens > 200000 maximum")),
    ],
)
async def test_a_conversation_that_no_longer_fits(status, body):
    async with serve((status, {}, body)) as server, client(server.base_url) as llm:
        with pytest.raises(ContextTooLong):
            await llm.complete(REQUEST)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            400,
            {
                "error": {
                    "code": "content_filter",
                    "message": "triggered our content management policy",
                    "status": 400,
                }
            },
        ),
        (
            400,
            {"error": {"code": None, "message": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}}},
        ),
        (403, error("Your input was flagged by moderation")),
    ],
)
async def test_a_filter(status, body):
    async with serve((status, {}, body)) as server, client(server.base_url) as llm:
        with pytest.raises(ContentFiltered):
            await llm.complete(REQUEST)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("temperature must be below 2", None, "invalid_request_error")),
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}),
        (400, b"<html>bad</html>"),
        (418, b"\x1b[31mred\x1b[0m"),
        (413, b"entity too large"),
    ],
)
async def test_any_other_refusal_ends_the_rollout(status, body):
    async with serve((status, {}, body)) as server, client(server.base_url) as llm:
        with pytest.raises(BadRequest) as caught:
            await llm.complete(REQUEST)
    assert str(status) in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"null",
        b"[]",
        b'{"choices": [{"index": 0, "mess',
        b'{"choices": []}',
        b'{"choices": null}',
        b'{"choices": [{"index": 0}]}',
        b'{"choices": [{"message": {"content": 3}}]}',
        b'{"choices": [{"message": {"content": "a", "tool_calls": 5}}]}',
        b'{"choices": [{"message": {"content": "a"}, "logprobs": NaN}]}',
        b'{"choices": [{"message": {"content": "a\xff\xfe"}}]}',
        b'{"choices":' * 100_000,
        b"[" * 100_000,
        b"\x1b]0;title\x07 not json",
    ],
)
async def test_garbage_is_asked_again_once_and_then_an_error_of_the_rollout(body):
    async with serve(OK, body) as server, client(server.base_url) as llm:
        await llm.complete(REQUEST)
        with pytest.raises(LLMError, match="no chat completion") as caught:
            await llm.complete(REQUEST)
        assert len(server.seen) == 3
        assert caught.value.attempts == 2
        assert caught.value.retryable
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 700
        server.answers = [body, OK]
        assert (await llm.complete(REQUEST)).attempts == 2


async def test_an_html_page():
    page = (200, {"Content-Type": "text/html"}, b"<!DOCTYPE html><title>Welcome</title>")
    async with serve(page) as server, client(server.base_url) as llm:
        with pytest.raises(EndpointError, match="HTML page; is the base URL right"):
            await llm.complete(REQUEST)
        server.answers = [OK]
        await llm.complete(REQUEST)
        server.answers = [page]
        with pytest.raises(LLMError, match="HTML page"):
            await llm.complete(REQUEST)


async def test_the_content_type_does_not_matter():
    plain = (200, {"Content-Type": "text/plain"}, OK)
    async with serve(plain) as server, client(server.base_url) as llm:
        assert (await llm.complete(REQUEST)).choices[0].content == "hello"


async def test_an_error_object_inside_a_200():
    limited = {"error": {"message": "rate limited upstream", "code": 429}}
    async with serve(limited, OK) as server, client(server.base_url) as llm:
        assert (await llm.complete(REQUEST)).attempts == 2
        server.answers = [{"error": {"message": "bad key", "code": 401}, "choices": []}]
        with pytest.raises(EndpointError, match="bad key"):
            await llm.complete(REQUEST)
        server.answers = [{"error": {"message": "maximum context length is 5", "code": "400"}}]
        with pytest.raises(ContextTooLong):
            await llm.complete(REQUEST)
        server.answers = [{"error": {"message": "engine died"}}]
        with pytest.raises(LLMError, match="engine died"):
            await llm.complete(REQUEST)


async def test_a_redirect_is_not_followed():
    async with serve(OK) as target:
        moved = (307, {"Location": target.base_url + "/chat/completions?token=abc"}, b"")
        async with serve(moved) as server, client(server.base_url) as llm:
            with pytest.raises(EndpointError, match=r"points to 127\.0\.0\.1") as caught:
                await llm.complete(REQUEST)
    assert target.seen == []
    assert "abc" not in str(caught.value)


async def test_refused_connection_and_unknown_host():
    async with serve(OK) as server:
        gone = server.base_url
    async with client(gone) as llm:
        with pytest.raises(EndpointError, match=r"Connection refused.*is a server running there"):
            await llm.complete(REQUEST)
        assert len(llm.waits) == 3
    async with client("http://no-such-host.invalid/v1") as llm:
        with pytest.raises(EndpointError, match="no-such-host"):
            await llm.complete(REQUEST)


async def test_an_endpoint_that_goes_away_ends_rollouts_only():
    async def drop(request):
        request.transport.abort()
        return web.Response()

    async with serve(OK) as server, client(server.base_url) as llm:
        await llm.complete(REQUEST)
        server.answers = [drop]
        with pytest.raises(LLMError) as caught:
            await llm.complete(REQUEST)
        assert caught.value.attempts == 6


async def test_the_next_endpoint_takes_over():
    async with serve((500, {}, b"")) as bad, serve(OK) as good, client(bad.base_url, good.base_url) as llm:
        for key in range(4):
            reply = await llm.complete(Request(REQUEST.body, key))
            assert reply.attempts == (2 if key % 2 == 0 else 1)
        assert len(bad.seen) == 2
        assert len(good.seen) == 4


async def test_broken_connections_over_raw_sockets():
    data = json.dumps(OK).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

    async def whole(reader, writer):
        writer.write(head % len(data) + data)
        await writer.drain()

    async def before_headers(reader, writer):
        writer.transport.abort()

    async def inside_headers(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-")
        await writer.drain()

    async def inside_body(reader, writer):
        writer.write(head % len(data) + data[:20])
        await writer.drain()
        writer.transport.abort()

    async def short_body(reader, writer):
        writer.write(head % (len(data) + 10) + data)
        await writer.drain()

    async def bad_chunk(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n")
        await writer.drain()

    async def not_http(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
        await writer.drain()

    async def huge_header(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nX-Big: " + b"a" * 200_000 + b"\r\n\r\n")
        await writer.drain()

    for broken in (before_headers, inside_headers, inside_body, short_body, bad_chunk, not_http, huge_header):
        async with serve_raw(broken, whole) as (url, counts), client(url) as llm:
            reply = await llm.complete(REQUEST)
            assert reply.attempts == 2, broken.__name__
            assert counts["connections"] == 2
        async with serve_raw(broken) as (url, counts), client(url, attempts=2) as llm:
            with pytest.raises(LLMError, match=r"gave no answer"):
                await llm.complete(REQUEST)


async def test_silence_and_slow_drips():
    async def silence(reader, writer):
        await reader.read()

    async def headers_then_silence(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await reader.read()

    async def drip(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def half_closed(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        writer.write_eof()
        await reader.read()

    cases = [
        (silence, {"timeout": 0.3}, "no whole answer within 0.3 s", 0.3),
        (headers_then_silence, {"timeout": 5.0, "idle": 0.3}, "nothing came for 0.3 s", 0.3),
        (drip, {"timeout": 0.4, "idle": 0.3}, "no whole answer within 0.4 s", 0.4),
        (half_closed, {"timeout": 5.0}, "broke off", 0.0),
    ]
    for script, options, message, seconds in cases:
        async with serve_raw(script) as (url, _), client(url, attempts=1, **options) as llm:
            start = time.monotonic()
            with pytest.raises(LLMError, match=message):
                await llm.complete(REQUEST)
            assert seconds * 0.9 <= time.monotonic() - start < seconds + 1.5


async def test_the_deadline_covers_all_attempts():
    async def silence(reader, writer):
        await reader.read()

    async with (
        serve_raw(silence) as (url, counts),
        client(url, timeout=0.2, deadline=0.45, draw=lambda: 0.0) as llm,
    ):
        start = time.monotonic()
        with pytest.raises(LLMError, match="deadline"):
            await llm.complete(REQUEST)
        assert 0.4 <= time.monotonic() - start < 2
        assert counts["connections"] == 3


async def test_a_body_over_the_limit_is_not_read():
    async def stream(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(200):
            await response.write(b" " * 65536)
        return response

    announced = (200, {}, b" " * 300_000)
    async with serve(announced, stream) as server, client(server.base_url, largest=100_000) as llm:
        with pytest.raises(LLMError, match="300,000 bytes, more than 100,000"):
            await llm.complete(REQUEST)
        with pytest.raises(LLMError, match="more than 100,000 bytes"):
            await llm.complete(REQUEST)
    assert len(server.seen) == 2


async def test_a_decompression_bomb_stays_small():
    bomb = gzip.compress(b" " * 200_000_000)
    answer = (200, {"Content-Encoding": "gzip"}, bomb)
    async with serve(answer) as server, client(server.base_url, largest=1_000_000) as llm:
        before = _resident()
        with pytest.raises(LLMError, match="more than 1,000,000 bytes"):
            await llm.complete(REQUEST)
        assert _resident() - before < 60_000_000


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_compressed_reply_is_read():
    packed = (200, {"Content-Encoding": "gzip"}, gzip.compress(json.dumps(OK).encode()))
    async with serve(packed) as server, client(server.base_url) as llm:
        assert (await llm.complete(REQUEST)).choices[0].content == "hello"


async def test_a_long_history_goes_out_whole():
    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 3_000_000 + b'"}]}'
    async with serve(OK) as server, client(server.base_url) as llm:
        await llm.complete(Request(body, 1))
    assert server.seen[0][2] == body


async def test_no_descriptor_or_task_is_left():
    async def reset(request):
        request.transport.abort()
        return web.Response()

    async with serve(OK, reset, (500, {}, b""), b"{", OK) as server:
        descriptors, tasks = _descriptors(), len(asyncio.all_tasks())
        for _ in range(3):
            async with client(server.base_url) as llm:
                await asyncio.gather(*(llm.complete(REQUEST) for _ in range(20)), return_exceptions=True)
        await asyncio.sleep(0.05)
        assert _descriptors() <= descriptors
        assert len(asyncio.all_tasks()) <= tasks


async def test_cancelling_frees_the_slot():
    async def silence(reader, writer):
        await reader.read()

    async with serve_raw(silence) as (url, _), client(url) as llm:
        waiting = [asyncio.ensure_future(llm.complete(REQUEST)) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert llm.llm._slots.locked()
        for task in waiting:
            task.cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert llm.llm._slots._value == 8


async def test_a_closed_client_says_so():
    async with serve(OK) as server, client(server.base_url) as llm:
        await llm.complete(REQUEST)
        await llm.aclose()
        await llm.aclose()
        with pytest.raises(LLMError, match="closed"):
            await llm.complete(REQUEST)


async def test_concurrency_is_capped():
    running, most = 0, 0

    async def slow(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return web.json_response(OK)

    async with serve(slow) as server, client(server.base_url) as llm:
        await asyncio.gather(*(llm.complete(REQUEST) for _ in range(50)))
    assert 2 <= most <= 8
