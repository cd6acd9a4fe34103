"""The bytes of one HTTP answer after another, read by llhttp under bounds; no socket is touched here."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from trunkline.llm.transport import BROKE_OFF, NOT_HTTP, TransportError, too_large

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AnswerReader", "Headers", "inflate"]

HEAD_LIMIT: Final = 64 << 10
"""Most bytes of a head, and most that may come between two pieces of a body (sizes of chunks, trailers)."""


class Headers(Mapping[str, str]):
    """The headers of an answer, looked up without regard to case; of equal names the first counts.

    Args:
        raw: Values by name in lower case.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self.raw = raw

    def __getitem__(self, name: str) -> str:
        return self.raw[name.lower().encode("latin-1", "replace")].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode("latin-1", "replace") in self.raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self.raw)

    def __len__(self) -> int:
        return len(self.raw)


class AnswerReader:
    """Reads the answers that one connection brings, each after a :meth:`start`.

    Attributes:
        status: The HTTP status, once ``headed``.
        headers: The headers, once ``headed``.
        begun: Whether any byte of the answer is there.
        headed: Whether its head is there; interim answers (1xx) do not count.
        whole: Whether all of it is there.
        reusable: Whether another answer may follow on the connection; known when ``whole``.

    Args:
        largest: Most bytes of a body.
    """

    __slots__ = (
        "_bulk",
        "_dry",
        "_head",
        "_largest",
        "_length",
        "_missing",
        "_parser",
        "_piece",
        "_problem",
        "_size",
        "_spent",
        "begun",
        "headed",
        "headers",
        "reusable",
        "status",
        "whole",
    )

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._parser: HttpResponseParser
        self._spent = True
        self.start()

    def start(self) -> None:
        """Expect the next answer."""
        if self._spent:
            self._parser = HttpResponseParser(self)
            self._spent = False
        self.begun = self.headed = self.whole = self.reusable = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._head = self._dry = self._size = self._missing = 0
        self._length: int | None = None
        self._piece = b""
        self._bulk: BytesIO | None = None
        self._problem: TransportError | None = None

    def release(self) -> None:
        """Let the parser go, which holds this object as this holds it."""
        del self._parser

    @property
    def body(self) -> bytes:
        """What there is of the body."""
        return self._piece if self._bulk is None else self._bulk.getvalue()

    def feed(self, data: bytes) -> bool:
        """Take bytes.

        Returns:
            Whether the answer is whole.

        Raises:
            TransportError: It is no HTTP, or too large.
        """
        self.begun = True
        if self._missing:
            return self._feed_rest(data)
        self._dry += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self.whole:
                raise self._problem or TransportError(NOT_HTTP) from None
            self.reusable = False  # the answer is fine, but what follows it was not asked for
        if self.whole:
            return True
        if self._dry > HEAD_LIMIT:
            raise _overlong_head()
        if self.headed and self._length is not None:
            # What is left is body and nothing else, so it need not be copied through the parser. That one
            # stays in the middle of the body, and the next answer gets another.
            self._missing = self._length - self._size
            self._spent = True
        return False

    def end(self) -> bool:
        """The other side sends nothing more.

        Returns:
            Whether the answer is whole: it is, if its head leaves the length of its body open.
        """
        self.whole = self.headed and self._length is None and b"transfer-encoding" not in self.headers
        return self.whole

    def _feed_rest(self, data: bytes) -> bool:
        self._missing -= len(data)
        if self._missing < 0:
            self.reusable = False
            data = data[: self._missing]
            self._missing = 0
        self.on_body(data)
        self.whole = not self._missing
        return self.whole

    # What llhttp calls. An error raised there comes out of feed_data as one of its own, hence `_problem`.

    def on_message_begin(self) -> None:
        """A status line begins."""
        if self.whole:
            raise ValueError

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer of a chunked body, which is passed over."""
        self._head += len(name) + len(value)
        if self._head > HEAD_LIMIT:
            self._problem = _overlong_head()
            raise self._problem
        if not self.headed:
            self.headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self.status = self._parser.get_status_code()
        if self.status < 100:
            raise ValueError
        if self.status < 200:
            self.headers = {}
            return
        self.headed = True
        self.reusable = self._parser.should_keep_alive()
        length = self.headers.get(b"content-length")
        if length is not None:
            self._length = int(length)
            if self._length > self._largest:
                self._problem = too_large(self._largest, self._length)
                raise self._problem

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._dry = 0
        self._size += len(data)
        if self._size > self._largest:
            self._problem = too_large(self._largest)
            raise self._problem
        if self._bulk is not None:
            self._bulk.write(data)
        elif self._piece:
            # Not a list of pieces: a server chooses how many there are, and each would cost its own object.
            self._bulk = BytesIO()
            self._bulk.write(self._piece)
            self._bulk.write(data)
        else:
            self._piece = data

    def on_message_complete(self) -> None:
        """The answer is whole, or it was an interim one."""
        self.whole = self.headed


def _overlong_head() -> TransportError:
    return TransportError(f"the answer has more than {HEAD_LIMIT:,} bytes of headers")


def inflate(data: bytes, encoding: str, largest: int) -> bytes:
    """Undo a compression that was not asked for.

    Args:
        data: The body as received.
        encoding: The value of Content-Encoding.
        largest: Most bytes of the result.

    Raises:
        TransportError: It is another encoding, broken, or too large.
    """
    named = encoding.strip().lower()
    if named in {"", "identity"}:
        return data
    if named not in {"gzip", "x-gzip", "deflate"}:
        raise TransportError("the answer is compressed in a way that was not asked for", retry=False)
    # Some servers leave the zlib header of "deflate" away. With it, the low half of the first byte is 8.
    bare = named == "deflate" and data[:1] != b"" and data[0] & 15 != 8
    stream = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
    try:
        plain = stream.decompress(data, largest + 1)
    except zlib.error:
        raise TransportError(BROKE_OFF) from None
    if len(plain) > largest:
        raise too_large(largest)
    if not stream.eof or stream.unused_data:
        raise TransportError(BROKE_OFF)
    return plain
