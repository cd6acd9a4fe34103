"""Whole answers with status 200 whose bodies are odd: which are replies, and which are none."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from fault_client import KEY, REQUEST, client, fails
from fault_server import GOOD, OK, FaultServer, completion, http, problem

from trunkline.errors import ContextTooLong, EndpointError, LLMError

ODD = "a\x00b\u2028c\x1b[31md\u202e"
CALL = {"id": "same", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def logprobs(value: str) -> bytes:
    listed = '"logprobs":{"content":[{"token":"a","bytes":[97],"logprob":VALUE,"top_logprobs":[]}]},"message"'
    return json.dumps(GOOD).replace('"message"', listed.replace("VALUE", value)).encode()


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
        b'{"choices": [{"message": {"content": "a\xff\xfe"}}]}',
        b'{"choices": [{"message": {"content": "a", "content": "b"}}]}',
        b'{"choices":' * 100_000,
        b"[" * 100_000,
        b"\x1b]0;title\x07 not json",
        b"data: {}\n\ndata: [DONE]\n\n",
        b"<html>Bad gateway</html>",
        json.dumps(GOOD).encode() + b"}",
        logprobs("NaN").replace(b"NaN", b"nan"),
        logprobs('"high"'),
        KEY.encode() * 3,
    ],
)
async def test_what_is_no_completion_is_asked_again_once(transport, body):
    async with FaultServer(OK, http(body)) as server, client(transport, server.url) as llm:
        await llm.complete(REQUEST)
        error = await fails(llm, LLMError, "no chat completion")
        assert (error.attempts, error.retryable, len(server.seen)) == (2, True, 3)
        server.answers = [http(body), OK]
        assert (await llm.complete(REQUEST)).attempts == 2
    assert server.connections == 1


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), "hello"),
        (completion("half \ud800"), "half \ufffd"),
        (completion(ODD), ODD),
        (completion(None, "stop"), ""),
        (completion("cut", "no_such_reason"), "cut"),
        (logprobs("NaN"), "hello"),
        (logprobs("-Infinity"), "hello"),
        (completion("x") | {"extra": [[[[]]]] * 20, "object": None}, "x"),
    ],
)
async def test_what_is_odd_but_usable_is_a_reply(transport, body, content):
    async with FaultServer(http(body)) as server, client(transport, server.url) as llm:
        reply = await llm.complete(REQUEST)
    assert (reply.choices[0].content, reply.attempts) == (content, 1)


async def test_an_unknown_finish_reason_is_kept(transport):
    async with FaultServer(http(completion("cut", "tired"))) as server, client(transport, server.url) as llm:
        assert (await llm.complete(REQUEST)).choices[0].finish == "tired"


async def test_calls_that_share_an_id_are_all_kept(transport):
    calls = completion(None, "tool_calls", tool_calls=[CALL, CALL])
    async with FaultServer(http(calls)) as server, client(transport, server.url) as llm:
        reply = await llm.complete(REQUEST)
    assert [(call.id, call.name) for call in reply.choices[0].tool_calls] == [("same", "f")] * 2


@pytest.mark.parametrize(
    ("usage", "figures"),
    [
        (None, (-1, -1, -1)),
        ({}, (-1, -1, -1)),
        ({"prompt_tokens": -5, "completion_tokens": 10**30}, (-1, -1, -1)),
        ({"prompt_tokens": "12", "completion_tokens": 2.5}, (-1, -1, -1)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 900}}, (5, 5, -1)),
    ],
)
async def test_usage_that_makes_no_sense_is_unknown(transport, usage, figures):
    async with FaultServer(http(GOOD | {"usage": usage})) as server, client(transport, server.url) as llm:
        reply = await llm.complete(REQUEST)
    assert (reply.prompt, reply.cached, reply.generated) == figures


async def test_a_server_that_ignores_n_gives_the_choices_it_gives(transport):
    request = REQUEST.__class__(b'{"n":4,"model":"m","messages":[]}', 7, 4)
    async with FaultServer(OK) as server, client(transport, server.url) as llm:
        assert len((await llm.complete(request)).choices) == 1


@pytest.mark.parametrize("kind", ["text/plain", "text/html", "application/octet-stream", "nonsense", ""])
async def test_the_content_type_does_not_matter(transport, kind):
    async with FaultServer(http(headers={"Content-Type": kind})) as server, client(transport, server.url) as llm:
        assert (await llm.complete(REQUEST)).choices[0].content == "hello"


async def test_a_web_page_where_no_completion_ever_came_stops_the_run(transport):
    page = http(b"<!DOCTYPE html><title>Welcome</title>", headers={"Content-Type": "text/html"})
    async with FaultServer(page) as server, client(transport, server.url) as llm:
        await fails(llm, EndpointError, "HTML page; is the base URL right")
    assert len(server.seen) == 1


async def test_an_error_inside_a_200_is_that_error(transport):
    limited = http({"error": {"message": "rate limited upstream", "code": 429}})
    async with FaultServer(limited, OK) as server, client(transport, server.url) as llm:
        assert (await llm.complete(REQUEST)).attempts == 2
        server.answers = [http({"error": {"message": "bad key " + KEY, "code": 401}, "choices": []})]
        await fails(llm, LLMError, "bad key [key]")  # it has served: one refusal is an attempt
        server.answers = [http({"error": {"message": "maximum context length is 5", "code": "400"}})]
        await fails(llm, ContextTooLong)
        server.answers = [http(problem("engine died"))]
        await fails(llm, LLMError, "engine died")


async def test_a_reply_that_a_filter_emptied_is_a_reply(transport):
    async with FaultServer(http(completion(None, "content_filter"))) as server, client(transport, server.url) as llm:
        assert (await llm.complete(REQUEST)).choices[0].finish == "content_filter"


def bare_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("GZIP", gzip.compress), ("deflate", zlib.compress), ("deflate", bare_deflate)],
)
async def test_a_compressed_reply_is_read(transport, encoding, pack):
    packed = http(pack(json.dumps(GOOD).encode()), headers={"Content-Encoding": encoding})
    async with FaultServer(packed) as server, client(transport, server.url) as llm:
        for _ in range(2):
            assert (await llm.complete(REQUEST)).choices[0].content == "hello"
    assert server.connections == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-12], lambda data: b"plain text", lambda data: data[::-1]])
async def test_a_compressed_reply_that_is_damaged_is_asked_again(transport, damage):
    packed = http(damage(gzip.compress(json.dumps(GOOD).encode())), headers={"Content-Encoding": "gzip"})
    async with FaultServer(packed, OK) as server, client(transport, server.url) as llm:
        assert (await llm.complete(REQUEST)).attempts == 2


async def test_a_compression_that_nobody_asked_for_is_refused(transport):
    packed = http(b"\x8b\x02\x80hello\x03", headers={"Content-Encoding": "br"})
    async with FaultServer(packed) as server, client(transport, server.url) as llm:
        error = await fails(llm, LLMError)
    assert error.attempts == len(server.seen)
