"""Connections and bodies of hostile agents, over sockets."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from trunkline.gateway.formats import FORMATS
from trunkline.gateway.requests import AgentRequests
from trunkline.gateway.server import Gateway
from trunkline.gateway.types import RequestRefused

if TYPE_CHECKING:
    from trunkline.gateway.server import GatewayCall
    from trunkline.gateway.types import AgentRequest


class Refusing:
    """A session that refuses all that it is asked."""

    refused = 0

    def answer(self, request: AgentRequest, call: GatewayCall) -> None:
        del request, call
        raise RequestRefused("no")


async def test_bodies_that_wait_when_their_rollout_ends_leave_no_connection() -> None:
    gateway = Gateway()
    await gateway.start()
    peers = []
    try:
        with gateway.serving("secret", Refusing()) as url:
            port = int(url.split(":")[2].split("/")[0])
            for _ in range(12):  # more than are read at a time: the rest are paused, and do not see a peer that leaves
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /secret/v1/messages HTTP/1.1\r\nContent-Length: 99999\r\n\r\n{")
                peers.append((reader, writer))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /secret/v1/models HTTP/1.1\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            writer.close()
        for reader, _ in peers:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
    finally:
        for _, writer in peers:
            writer.close()
        await gateway.close()


async def test_many_requests_in_one_write_have_a_reply_each() -> None:
    gateway = Gateway()
    await gateway.start()
    try:
        with gateway.serving("secret", Refusing()) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            one = b"POST /secret/v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
            writer.write(one * 3000 + b"GET /\xe9\xff HTTP/1.1\r\n\r\n")
            said = b""
            while said.count(b"HTTP/1.1") < 3001:
                piece = await asyncio.wait_for(reader.read(1 << 20), 10)
                assert piece
                said += piece
            assert said.count(b"HTTP/1.1 400") >= 3000
            writer.close()
    finally:
        await gateway.close()


def one_read(reader: AgentRequests, route: str, body: bytes) -> object:
    try:
        asked = reader.read(FORMATS[route], body)
    except RequestRefused as refusal:
        return refusal.status  # places in its text are those of what was read
    return asked


BEHIND = [
    b"]}",
    b"",
    b"]",
    b",",
    b'}],"%s%c":[{"role":"user","content":"b"}',
    b',{"role":"user","content":"b"}],"%s%c":[{"role":"user","content":"c"}]}',
    b',{"role":"user","content":"b"}] ,"x":[1]}',
    b' , {"role":"user","content":"b"} ] }',
    b',{"role":"user","content":"\\u00e9"}],"temperature":0.5}',
    b'],"%s\\u%04x":[{"role":"user","content":"other"}]}',
    b',{"role":"user","content":"b"}],"%s\\u%04x":[{"role":"user","content":"b"}]}',
    b'],"%s\\u%04x":"text"}',
    b'],"x":{"%s\\u%04x":[]}}',
    b",]}",
    b"]}x",
    b',{"role":"user","content":"\xff"}]}',
    b'],"model":"other"}',
    b'],"model":5}',
    b',{"type":"function_call","call_id":"c","name":"n","arguments":"{}","role":"assistant","content":"x"}]}',
    b',{"role":"assistant","content":"x"}]}',
    b',{"role":"user","content":"secret"}]}',
]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_reader_that_knows_the_beginning_reads_what_a_fresh_one_reads(route: str) -> None:
    field = FORMATS[route].conversation.encode()
    parts = [{"type": "input_text" if "responses" in route else "text", "text": "a"}]
    for content, first, second in itertools.product(("a", parts), BEHIND, BEHIND):
        message = json.dumps({"role": "user", "content": content}).encode()
        reader = AgentRequests(b"secret")
        for behind in (b"]}", first, second):
            more = behind % (field[:-1], field[-1]) if b"%" in behind else behind
            body = b'{"model":"m","max_tokens":5,"%b":[%b%b' % (field, message, more)
            known, fresh = one_read(reader, route, body), one_read(AgentRequests(b"secret"), route, body)
            assert known == fresh, (first, body)


PARTED = {
    "/v1/chat/completions": {"role": "user", "content": [{"type": "text", "text": "a]}"}]},
    "/v1/responses": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a]}"}]},
    "/v1/messages": {"role": "user", "content": [{"type": "text", "text": "a"}]},
}


@pytest.mark.parametrize("rest", [b"]}", b"]}\n", b' ] ,"user":"]}"}', b'],"},":null}', b'],"user":null,"x":[]}'])
@pytest.mark.parametrize("route", PARTED)
def test_every_beginning_of_a_body_is_read_as_by_a_fresh_reader_also_with_its_end_once_more(route: str, rest: bytes):
    item = json.dumps(PARTED[route], separators=(",", ":")).encode()
    body = b'{"model":"m","%b":[%b,%b%b' % (FORMATS[route].conversation.encode(), item, item, rest)
    for end in range(len(body) + 1):
        for behind in (b"", b",", b"]}", rest, b"," + rest, b"," + item + rest):
            reader = AgentRequests(b"secret")
            one_read(reader, route, body)
            cut = body[:end] + behind
            assert one_read(reader, route, cut) == one_read(AgentRequests(b"secret"), route, cut), cut


def test_a_message_may_be_nested_as_deeply_behind_others_as_in_a_body_of_its_own():
    begin = b'{"model":"m","messages":[{"role":"user","content":"a"}'
    for depth in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit()):
        body = begin + b',{"role":"user","content":"b","more":' + b"[" * depth + b"]" * depth + b"}]}"
        reader, route = AgentRequests(b"secret"), "/v1/chat/completions"
        one_read(reader, route, begin + b"]}")
        assert one_read(reader, route, body) == one_read(AgentRequests(b"secret"), route, body), depth
