"""Requests as clients write them, read in any pieces, are what the clients were given."""

from __future__ import annotations

import asyncio
import http.client

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from trunkline._core import HEAD_LIMIT, RequestReader
from trunkline.errors import CoreError

LARGEST = 5_000
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=12).filter(
    lambda name: name not in {"content-length", "transfer-encoding", "connection", "host", "expect"}
)
VALUES = st.text([chr(c) for c in (*range(0x21, 0x7F), *range(0xA0, 0x100))], max_size=20)
TARGETS = st.text([chr(c) for c in range(0x21, 0x7F)], max_size=20).map("/".__add__)


class Recorded(http.client.HTTPConnection):
    """Keeps what it would send."""

    def __init__(self) -> None:
        super().__init__("host")
        self.data = b""

    def send(self, data: bytes) -> None:
        self.data += data


@st.composite
def requests(draw):
    """One request as http.client writes it: its bytes, and what a reader takes out of it."""
    method, target = draw(st.sampled_from(["GET", "POST", "DELETE", "OPTIONS"])), draw(TARGETS)
    fields, pieces = draw(st.dictionaries(NAMES, VALUES, max_size=5)), draw(st.lists(st.binary(max_size=99)))
    client = Recorded()
    chunked = draw(st.booleans())
    more = {} if chunked else {"Content-Length": str(len(b"".join(pieces)))}
    stays = draw(st.booleans())
    more |= {} if stays else {"Connection": "close"}
    headers = {name.title(): value for name, value in fields.items()} | more
    client.request(method, target, iter(pieces), headers, encode_chunked=chunked)
    wanted = tuple(fields.get(name) for name in ("a", *fields))
    return client.data, tuple(fields), (method, target, b"".join(pieces), stays, wanted)


@settings(max_examples=150)
@given(requests(), st.lists(st.integers(1, 800), max_size=6), st.integers(1, 3))
def test_requests_are_the_same_however_they_are_cut(request, cuts, times):
    data, names, expected = request
    data *= times
    reader = RequestReader(LARGEST, ["a", *names])
    read = []
    cuts = sorted(cut for cut in cuts if cut < len(data))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        state = reader.feed(memoryview(data)[start:end])
        while state == 2:
            read.append(reader.take())
            state = reader.feed(b"")
    assert (read, state, reader.held) == ([expected] * times, 0, 0)


@settings(max_examples=200)
@given(st.binary(max_size=200), requests(), st.integers(0, 200))
def test_any_bytes_are_requests_or_one_refusal(noise, request, place):
    data = request[0][:place] + noise + request[0][place:]
    reader = RequestReader(LARGEST, [])
    try:
        while reader.feed(data) == 2:
            reader.take()
            data = b""
    except ValueError as error:
        status, text = error.args
        assert status in {400, 413, 417, 431, 501, 505}
        assert text.isascii()
        assert text.isprintable()
        with pytest.raises(ValueError, match=text) as again:
            reader.feed(b"GET / HTTP/1.1\r\n\r\n")
        assert again.value.args == (status, text)
        assert reader.held == 0
    with pytest.raises(ValueError, match="no request is whole"):
        reader.take()


class Served(asyncio.Protocol):
    """Answers each request with its body, and keeps what it was asked."""

    def __init__(self, asked: list) -> None:
        self.asked, self.reader = asked, RequestReader(1 << 20, ["content-type"])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        state = self.reader.feed(data)
        if state == 1 and self.reader.expects:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while state == 2:
            self.asked.append(self.reader.take())
            body = self.asked[-1][2]
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            state = self.reader.feed(b"")


def test_what_aiohttp_sends_is_read():
    async def chunks():
        for number in range(100):
            yield b"%d" % number * 99

    async def ask():
        asked = []
        server = await asyncio.get_running_loop().create_server(lambda: Served(asked), "127.0.0.1", 0)
        url = "http://127.0.0.1:{}/v1/{}".format(server.sockets[0].getsockname()[1], "%C3%A9?a=b%20c")
        large = {"text": "\u00e9" * 100_000}
        async with server, aiohttp.ClientSession() as session:
            for options in ({"json": large}, {"data": chunks()}, {"data": b"x" * 999, "expect100": True}, {}):
                async with session.post(URL(url, encoded=True), **options) as answer:
                    assert await answer.read() == asked[-1][2]
            assert len(server.sockets) == 1
        return asked

    asked = asyncio.run(ask())
    assert {each[:2] for each in asked} == {("POST", "/v1/%C3%A9?a=b%20c")}
    whole = b"".join(b"%d" % number * 99 for number in range(100))
    assert [each[2] for each in asked[1:]] == [whole, b"x" * 999, b""]
    assert asked[0][4] == ("application/json",)
    assert len(asked[0][2]) > 200_000


def test_foolish_arguments_are_refused():
    for most in (-1, 1 << 64):
        with pytest.raises(CoreError, match="out of range"):
            RequestReader(most, [])
    with pytest.raises(CoreError, match="lone surrogates"):
        RequestReader(1, ["\ud800"])
    for wrong in (None, "text", 3):
        with pytest.raises(TypeError):
            RequestReader(1, []).feed(wrong)
    reader = RequestReader(0, ["Host", "host", ""])
    assert reader.feed(b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n") == 2
    assert reader.take()[4] == (None, "\xff", None)
    with pytest.raises(ValueError, match="too large"):
        reader.feed(b"GET /" + b"a" * HEAD_LIMIT)
