"""HTTP/1.1 straight to a server, plain or over TLS."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import TYPE_CHECKING, Final

from yarl import URL

from trunkline._core import HEAD_LIMIT, ExchangeTable, request_head
from trunkline.errors import ArgumentError
from trunkline.llm.http.connection import LONG, ConnectionDriver
from trunkline.llm.http.origin import HttpOrigin
from trunkline.llm.http.transport import (
    BROKE_OFF,
    CONNECT_LATE,
    CONNECTION_BROKE,
    NO_ANSWER,
    NOT_HTTP,
    Answer,
    Body,
    Headers,
    TransportError,
    closed,
    late,
    silent,
    too_large,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.llm.http.connection import ArrivedAnswer, FailedRequest


__all__ = ["DirectTransport", "inflate"]


_ACCEPTED: Final = 3.0
"""Seconds until a new connection whose request was not even acknowledged is given up."""

_PATIENCE: Final = 1.0
"""Seconds that a new connection may bring nothing while kept ones have nothing to do, or are served before it."""

_CROWDED: Final = 60.0
"""Seconds for which a server is believed to hold a thread for each kept connection, and to have too few of them."""

_HEADS: Final = 4096
"""Most beginnings of requests that are kept; each tree may have headers of its own."""


_WORDS: Final = {
    "not_http": NOT_HTTP,
    "head_too_large": f"the answer has more than {HEAD_LIMIT:,} bytes of headers",
    "broke_off": BROKE_OFF,
    "no_answer": NO_ANSWER,
    "connect_late": CONNECT_LATE,
}


class _Route:
    """Where a URL leads, and the beginnings of requests to it."""

    __slots__ = ("_heads", "host", "origin", "target")

    def __init__(self, origin: int, target: URL) -> None:
        self.origin = origin
        self.target = target.raw_path_qs
        self.host = target.host_port_subcomponent or ""
        self._heads: dict[tuple[tuple[str, str], ...], bytes] = {}

    def head(self, headers: Mapping[str, str]) -> bytes:
        """Give the head of a request, up to the length of its body."""
        key = tuple(headers.items())
        known = self._heads.get(key)
        if known is None:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            try:
                known = self._heads[key] = request_head(self.target, self.host, key)
            except ArgumentError:
                raise TransportError("a header holds a character that no header can carry", retry=False) from None
        return known


class DirectTransport:
    """Posts over keep-alive connections of its own, plain or over TLS; see ``docs/explanation/turn.md``.

    Redirects are not followed, cookies are not kept, no compression is asked for, the environment is not
    read. A request whose connection had answered before and was closed before any byte of this answer came
    is sent once more: that is what a server's idle timeout looks like, and a completion changes nothing on
    the server, so that the worst a second one can do is to cost its tokens again.

    Args:
        concurrency: Most connections at once to one host and port.
        connect: Seconds to establish a connection.
        idle: Seconds of silence in the middle of a body.
        keep: Seconds that a connection is kept without a request.
        largest: Most bytes of a body, after decompression.
    """

    def __init__(
        self,
        concurrency: int = 256,
        *,
        connect: float = 5.0,
        idle: float = 60.0,
        keep: float = 15.0,
        largest: int = 64 << 20,
    ) -> None:
        self._idle = idle
        self._largest = largest
        self._table = ExchangeTable(
            concurrency,
            largest,
            connect=connect,
            accepted=_ACCEPTED,
            keep=keep,
            idle=idle,
            patience=_PATIENCE,
            crowded=_CROWDED,
        )
        self._pending: dict[int, tuple[Body, asyncio.Future[Answer], float]] = {}
        self.driver = ConnectionDriver(self._table, self._body, self._deliver, self._refuse)
        self._routes: dict[str, _Route] = {}
        self._origins: dict[tuple[str, str, int], int] = {}
        self._token = 0
        self._closed = False

    async def post(self, url: str, headers: Mapping[str, str], body: Body, limit: float) -> Answer:
        """Send one POST; see ``.transport.Transport.post``."""
        route = self._routes.get(url) or self._route(url)
        head = route.head(headers)
        size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        token = self._token = self._token + 1
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[token] = (body, future, limit)
        self._table.send(token, route.origin, head, size, limit, time.monotonic())
        if size <= LONG:
            self.driver.wake()
        else:
            # The other side can empty what the kernel holds while the next one is made.
            self.driver.run()
        try:
            answer = await future
        except asyncio.CancelledError:
            self._pending.pop(token, None)
            self._table.cancel(token, time.monotonic())
            self.driver.wake()
            raise
        return await self.plain(answer)

    async def plain(self, answer: Answer) -> Answer:
        """Undo the compression of an answer.

        Raises:
            TransportError: It is one that was not asked for, broken, or the result is too large.
        """
        if "content-encoding" not in answer.headers:
            return answer
        encoding = answer.headers["content-encoding"]
        plain = await asyncio.to_thread(inflate, answer.body, encoding, self._largest)
        return answer._replace(body=plain)

    def aim(self, url: str) -> tuple[int, str, str]:
        """Give the number of a URL's origin, its path and the host, as requests name them.

        Raises:
            TransportError: It is no valid URL.
        """
        route = self._routes.get(url) or self._route(url)
        return route.origin, route.target, route.host

    async def close(self) -> None:
        """Close every connection; may be called more than once."""
        self._closed = True
        self._routes.clear()
        await self.driver.close()

    def _body(self, token: int) -> Body | None:
        body, future, _ = self._pending[token]
        return None if future.done() else body

    def _deliver(self, arrived: Sequence[ArrivedAnswer], failed: Sequence[FailedRequest]) -> None:
        for token, status, headers, body, first in arrived:
            _, future, _ = self._pending[token]
            if not future.done():
                del self._pending[token]
                future.set_result(Answer(status, Headers(headers), body, first))
        for token, fault, detail in failed:
            self._refuse(token, self.error(fault, detail, self._pending[token][2]))

    def _refuse(self, token: int, error: BaseException) -> None:
        if token not in self._pending:
            assert self.driver.turns is not None
            self.driver.turns.refused(token, error)
            return
        _, future, _ = self._pending[token]
        if not future.done():  # who stopped waiting for it removes it
            del self._pending[token]
            future.set_exception(error)

    def error(self, fault: str, detail: str, limit: float) -> TransportError:
        """Say what a fault of the table means; see ``trunkline._core.ExchangeTable.land``."""
        words = _WORDS.get(fault)
        if words is not None:
            return TransportError(words, unreachable=fault == "connect_late", timeout=fault == "connect_late")
        match fault:
            case "too_large":
                return too_large(self._largest, int(detail) if detail else None)
            case "connection_broke":
                return TransportError(f"{CONNECTION_BROKE} ({detail})")
            case "late":
                return late(limit)
            case "silent":
                return silent(self._idle)
            case _:
                return closed()

    def _route(self, url: str) -> _Route:
        if self._closed:
            raise closed()
        try:
            target = URL(url)
        except ValueError:
            target = URL()
        if target.scheme not in {"http", "https"} or target.raw_host is None or target.port is None:
            raise TransportError("it is no valid URL", unreachable=True, retry=False)
        place = (target.scheme, target.raw_host, target.port)
        known = self._origins.get(place)
        if known is None:
            origin = HttpOrigin(target.raw_host, target.port, encrypted=target.scheme == "https")
            known = self._origins[place] = self.driver.add(origin)
        route = self._routes[url] = _Route(known, target)
        return route


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
