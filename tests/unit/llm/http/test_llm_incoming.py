"""Bytes of HTTP answers, read in any pieces, are what a plain reader makes of them."""

from __future__ import annotations

import contextlib
import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import HEAD_LIMIT, ExchangeTable, request_head
from trunkline.llm.http.direct_transport import inflate
from trunkline.llm.http.transport import Headers, TransportError

LARGEST = 5_000
TOKENS = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_", min_size=1, max_size=12).filter(
    lambda name: name.lower() not in {"content-length", "transfer-encoding", "connection", "upgrade", "keep-alive"}
)
VALUES = st.text([chr(c) for c in (*range(0x21, 0x7F), *range(0xA0, 0x100))], max_size=20)
FIELDS = st.lists(st.tuples(TOKENS, VALUES), max_size=6)
BODIES = st.binary(max_size=300)


@st.composite
def answers(draw):
    """One answer: its bytes, status, fields, body, whether another may follow, and whether the end must be seen."""
    status = draw(st.integers(200, 599).filter(lambda code: code not in {204, 205, 304}))
    fields, body = draw(FIELDS), draw(BODIES)
    framing = draw(st.sampled_from(["length", "chunks", "end"]))
    stays = framing != "end" and draw(st.booleans())
    lines = [f"{name}: {value}" for name, value in fields]
    if framing == "length":
        lines.append(f"cOntent-length: {len(body)}")
        data = body
    elif framing == "chunks":
        lines.append("Transfer-Encoding: chunked")
        cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=4)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        data = b"".join(b"%X;e=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
        data += b"0\r\n" + draw(st.sampled_from([b"", b"X-Late: 1\r\n"])) + b"\r\n"
    else:
        data = body
    if framing != "end" and not stays:
        lines.append("Connection: close")
    head = f"HTTP/1.1 {status} Some Words\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n"
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 E\r\nLink: <x>\r\n\r\n"]))
    return interim + head.encode("latin-1") + data, status, fields, body, stays, framing == "end"


class FaultError(Exception):
    """An exchange failed: its name, and the detail."""


class Reader:
    """Asks for one answer after the other on the only connection of a table, and says what came of it."""

    def __init__(self, largest: int = LARGEST) -> None:
        times = dict.fromkeys(("connect", "accepted", "keep", "idle", "patience", "crowded"), 1e6)
        self.table = ExchangeTable(1, largest, **times)
        self.table.add_origin(encrypted=True)
        self.token = 0
        self.start()

    def start(self) -> None:
        self.token += 1
        self.reusable = True
        self.status, self.headers, self.body = 0, {}, b""
        self.table.send(self.token, 0, request_head("/", "h", []), 0, 1e6, 0.0)
        opens, writes, *_ = self.table.act(0.0)
        if opens:
            self.table.opened(0, 0.0)
            _, writes, *_ = self.table.act(0.0)
        assert [(slot, token) for slot, token, *_ in writes] == [(0, self.token)]

    def feed(self, data: bytes) -> bool:
        self.table.feed(0, data, 0.0)
        return self.settle()

    def end(self) -> bool:
        self.table.eof(0, 0.0)
        with contextlib.suppress(FaultError):
            return self.settle()
        return False

    def settle(self) -> bool:
        landed, failed = self.table.land(0.0)
        _, _, _, closes, _ = self.table.act(0.0)
        self.reusable &= not closes
        for _, fault, detail in failed:
            raise FaultError(fault, detail)
        for _, self.status, self.headers, self.body, _ in landed:
            return True
        return False


def feed(reader: Reader, data: bytes, cuts: list[int]) -> bool:
    whole = False
    cuts = sorted(cut for cut in cuts if 0 < cut < len(data))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        assert not whole
        whole = reader.feed(data[start:end])
    return whole


@settings(max_examples=150)
@given(st.lists(answers(), min_size=1, max_size=3), st.lists(st.integers(1, 600), max_size=6))
def test_answers_are_the_same_however_they_are_cut(several, cuts):
    reader = Reader()
    for number, (data, status, fields, body, stays, ends) in enumerate(several):
        if number:
            reader.start()
        assert feed(reader, data, cuts) != ends
        if ends:
            assert reader.end()
        assert (reader.status, reader.body, reader.reusable) == (status, body, stays)
        headers = Headers(reader.headers)
        for name, value in fields:
            first = next(other for known, other in fields if known.lower() == name.lower())
            assert headers[name.upper()] == headers.get(name.title()) == first, value
        if not stays:
            break


@settings(max_examples=100)
@given(answers(), st.data())
def test_an_answer_cut_short_is_never_whole(answer, data):
    given_bytes, _, _, body, _, ends = answer
    reader = Reader()
    kept = data.draw(st.integers(1, len(given_bytes) - 1))
    assert not reader.feed(given_bytes[:kept])
    assert reader.end() == (ends and kept >= len(given_bytes) - len(body))


@settings(max_examples=200)
@given(st.binary(max_size=200), answers(), st.integers(0, 200))
def test_any_bytes_are_an_answer_or_one_error(noise, answer, place):
    reader = Reader()
    data = answer[0][:place] + noise + answer[0][place:]
    with contextlib.suppress(FaultError):
        reader.feed(data)
    assert len(reader.body) <= LARGEST


@pytest.mark.parametrize("split", [1, 5, 1000])
def test_bodies_beyond_the_bound_are_refused_in_every_framing(split):
    heads = {
        b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % 9000: "",
        b"\r\n": "",
        b"Content-Length: 9000\r\n\r\n": "9000",
    }
    for head, announced in heads.items():
        data = b"HTTP/1.1 200 OK\r\n" + head + b"x" * 9000
        with pytest.raises(FaultError) as caught:
            feed(Reader(), data, list(range(split, len(data), split)))
        assert caught.value.args == ("too_large", announced)


@pytest.mark.parametrize(
    ("begun", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", "head_too_large"),
        (b"HTTP/1.1 200 ", "head_too_large"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", "head_too_large"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", "head_too_large"),
    ],
)
def test_what_is_no_body_is_bounded_wherever_it_stands(begun, fault):
    reader = Reader()
    reader.feed(begun)
    with pytest.raises(FaultError, match=fault):
        feed(reader, b"x" * 2 * HEAD_LIMIT, list(range(1000, HEAD_LIMIT + 1000, 1000)))


def test_a_status_below_all_that_exist_is_no_interim_answer():
    with pytest.raises(FaultError, match="not_http"):
        Reader().feed(b"HTTP/1.1 099 Low\r\nContent-Length: 5\r\n\r\nhello")


def test_a_head_that_is_too_large_is_refused_even_when_it_comes_at_once():
    for fields in (b"X: " + b"x" * HEAD_LIMIT, b"\r\n".join([b"X: yyyyyyyyy"] * (HEAD_LIMIT // 10))):
        with pytest.raises(FaultError, match="head_too_large"):
            Reader().feed(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\nContent-Length: 2\r\n\r\n{}")


CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: a\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        CHUNKS + b"5 \r\nhello\r\n0\r\n\r\n",
        CHUNKS + b" 5\r\nhello\r\n0\r\n\r\n",
        CHUNKS + b"0x5\r\nhello\r\n0\r\n\r\n",
        CHUNKS + b"\r\nhello\r\n0\r\n\r\n",
        CHUNKS + b"5\nhello\r\n0\r\n\r\n",
        CHUNKS + b"5\r\nhello\n0\r\n\r\n",
        CHUNKS + b"5;a\x01\r\nhello\r\n0\r\n\r\n",
        CHUNKS + b"5;a=b\nc\r\nhello\r\n0\r\n\r\n",
        CHUNKS + b"10000000000000005\r\nhello\r\n0\r\n\r\n",
        CHUNKS + b"5\r\nhello\r\n0\r\nX: a\nY: b\r\n\r\n",
        CHUNKS + b"5\r\nhello\r\n0\r\nno trailer\r\n\r\n",
    ],
)
@pytest.mark.parametrize("split", [1, 1000])
def test_what_two_readers_could_understand_in_two_ways_is_refused(said, split):
    with pytest.raises(FaultError, match="not_http"):
        feed(Reader(), said, list(range(split, len(said), split)))


@pytest.mark.parametrize(
    ("said", "body", "stays"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", b"", False),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\nConnection: x, Close\r\n\r\n{}", b"{}", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\n{}", b"{}", True),
        (CHUNKS + b'5;a="b;\\"";c\r\nhello\r\n0\r\n\r\n', b"hello", True),
        (CHUNKS + b"00005\r\nhello\r\n000\r\nX: 1\r\nY: 2\r\n\r\n", b"hello", True),
        (CHUNKS + b"5\r\nhello\r\n0\r\n\r\nx", b"hello", False),
    ],
)
def test_where_an_answer_ends_and_whether_another_may_follow(said, body, stays):
    reader = Reader()
    assert reader.feed(said)
    assert (reader.body, reader.reusable) == (body, stays)


def test_headers_are_a_mapping_without_regard_to_case():
    headers = Headers({b"retry-after": b"5", b"x": b"\xe9"})
    assert dict(headers) == {"retry-after": "5", "x": "\xe9"}
    assert len(headers) == 2
    assert headers["Retry-After"] == "5"
    assert headers.get("missing", "none") == "none"
    assert headers.get("\u20ac") is None


@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "x-gzip", " GZip ", "deflate"])
def test_compression_is_undone_up_to_the_bound(encoding):
    plain = b"abc" * 1000
    pack = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}.get(
        encoding.strip().lower(), bytes
    )
    assert inflate(pack(plain), encoding, 3000) == plain
    if pack is not bytes:
        with pytest.raises(TransportError, match="more than 2,999"):
            inflate(pack(plain), encoding, 2999)
        for damaged in (pack(plain)[:-3], pack(plain) + b"more", b"\x00\x01", b""):
            with pytest.raises(TransportError, match="cannot be decompressed"):
                inflate(damaged, encoding, 3000)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "\x1b[31m"])
def test_other_compressions_are_refused(encoding):
    with pytest.raises(TransportError, match="not asked for") as caught:
        inflate(b"x", encoding, 10)
    assert not caught.value.retry
