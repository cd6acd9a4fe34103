"""One call over several attempts and endpoints; what single faults mean is in tests/chaos/faults."""

import asyncio
import time

import pytest
from aiohttp import web
from llm_servers import KEY, REQUEST, client, completion, serve, serve_raw

from trunkline.errors import ContextTooLong, LLMError
from trunkline.llm.types import Request

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


async def test_the_next_endpoint_takes_over():
    async with serve((500, {}, b"")) as bad, serve(OK) as good, client(bad.base_url, good.base_url) as llm:
        for key in range(4):
            reply = await llm.complete(Request(REQUEST.body, key))
            assert reply.attempts == (2 if key % 2 == 0 else 1)
        assert len(bad.seen) == 2
        assert len(good.seen) == 4


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
        assert 0.4 <= time.monotonic() - start < 20
        assert counts["connections"] == 3


async def test_a_long_history_goes_out_whole():
    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 3_000_000 + b'"}]}'
    async with serve(OK) as server, client(server.base_url) as llm:
        await llm.complete(Request(body, 1))
    assert server.seen[0][2] == body


async def test_cancelling_frees_the_slot():
    async def silence(reader, writer):
        await reader.read()

    moments = []

    def later(seconds, call, gate):
        moments.append((seconds, call, gate))
        return asyncio.get_running_loop().call_soon(int)

    async with serve_raw(silence) as (url, _), client(url) as llm:
        llm.llm.limiter._later = later
        gate = llm.llm.endpoints[0].queue
        waiting = [asyncio.ensure_future(llm.complete(REQUEST)) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert gate.in_flight == 4, "until something is served, or for half a second"
        ((seconds, call, its),) = moments
        assert (seconds, its) == (0.5, gate)
        call(gate)
        await asyncio.sleep(0.05)
        assert gate.in_flight == 8
        for task in waiting:
            task.cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert llm.llm.endpoints[0].load == 0


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


async def test_closing_leaves_no_timer():
    async def silence(reader, writer):
        await reader.read()

    async with serve_raw(silence) as (url, _):
        async with client(url) as llm:
            call = asyncio.ensure_future(llm.complete(REQUEST))
            timers = []
            while not timers:
                await asyncio.sleep(0.01)
                timers = [each for each in asyncio.get_running_loop()._scheduled if "Limiter" in repr(each)]
            call.cancel()
            assert [timer.cancelled() for timer in timers] == [False]
        assert timers[0].cancelled()
