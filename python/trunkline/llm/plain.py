"""The lean transport: HTTP/1.1 without TLS or proxies, for servers of one's own."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Final

from yarl import URL

from trunkline.llm.connection import Bounds, UnansweredError
from trunkline.llm.incoming import inflate
from trunkline.llm.pool import Pool
from trunkline.llm.transport import Answer, Body, TransportError, closed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.llm.connection import Connection

__all__ = ["PlainTransport"]

_HEADS: Final = 4096
"""Most beginnings of requests that are kept; each tree may have headers of its own."""

_HEADERS: Final = re.compile(r"(?:[^\x00-\x20\x7f-\U0010ffff:]+: [^\x00-\x08\x0a-\x1f\x7f\u0100-\U0010ffff]*\r\n)*")


class _Route:
    """Where a URL leads, and the beginnings of requests to it."""

    __slots__ = ("heads", "line", "pool")

    def __init__(self, pool: Pool, target: URL) -> None:
        self.pool = pool
        self.line = f"POST {target.raw_path_qs} HTTP/1.1\r\nHost: {target.host_port_subcomponent}\r\n"
        self.heads: dict[tuple[tuple[str, str], ...], bytes] = {}

    def head(self, headers: Mapping[str, str], size: int) -> bytes:
        """Give the head of a request whose body has this size."""
        key = tuple(headers.items())
        known = self.heads.get(key)
        if known is None:
            if len(self.heads) >= _HEADS:
                self.heads.clear()
            known = self.heads[key] = self._build(headers)
        return b"%b%d\r\n\r\n" % (known, size)

    def _build(self, headers: Mapping[str, str]) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if not _HEADERS.fullmatch(lines) or lines.count("\n") != len(headers) or ":" in "".join(headers):
            raise TransportError("a header holds a character that no header can carry", retry=False)
        agent = "" if "\nuser-agent:" in f"\n{lines.lower()}" else "User-Agent: trunkline\r\n"
        return f"{self.line}{agent}{lines}Content-Length: ".encode("latin-1")


class PlainTransport:
    """Posts over keep-alive connections of its own, parsed by llhttp; see ``docs/design/transport.md``.

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
        connect: float = 30.0,
        idle: float = 60.0,
        keep: float = 15.0,
        largest: int = 64 << 20,
    ) -> None:
        self._concurrency = concurrency
        self._connect = connect
        self._bounds = Bounds(idle, keep, largest)
        self._routes: dict[str, _Route] = {}
        self._pools: dict[tuple[str, int], Pool] = {}
        self._closed = False

    async def post(self, url: str, headers: Mapping[str, str], body: Body, limit: float) -> Answer:
        """Send one POST; see :meth:`.transport.Transport.post`."""
        deadline = time.monotonic() + limit
        route = self._routes.get(url) or self._route(url)
        head = route.head(headers, len(body) if isinstance(body, bytes) else sum(map(len, body)))
        pool = route.pool
        connection = pool.take() or await pool.wait(deadline, limit)
        try:
            answer = await _exchange(connection, head, body, deadline, limit)
        except UnansweredError:
            connection = await pool.wait(deadline, limit)
            answer = await _exchange(connection, head, body, deadline, limit)
        if "content-encoding" not in answer.headers:
            return answer
        encoding = answer.headers["content-encoding"]
        plain = await asyncio.to_thread(inflate, answer.body, encoding, self._bounds.largest)
        return answer._replace(body=plain)

    async def close(self) -> None:
        """Close every connection; may be called more than once."""
        self._closed = True
        pools, self._pools = self._pools, {}
        self._routes.clear()
        for pool in pools.values():
            await pool.close()

    def _route(self, url: str) -> _Route:
        if self._closed:
            raise closed()
        try:
            target = URL(url)
        except ValueError:
            target = URL()
        if target.scheme != "http" or target.raw_host is None or target.port is None:
            raise TransportError("it is no valid URL", unreachable=True, retry=False)
        origin = (target.raw_host, target.port)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(*origin, self._concurrency, self._connect, self._bounds)
        route = self._routes[url] = _Route(pool, target)
        return route


async def _exchange(connection: Connection, head: bytes, body: Body, deadline: float, limit: float) -> Answer:
    future = connection.send(head, body, deadline, limit)
    try:
        return await future
    except asyncio.CancelledError:
        connection.abandon(future)
        raise
