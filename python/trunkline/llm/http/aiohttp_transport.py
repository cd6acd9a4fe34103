"""Proxies; which transport serves a URL."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import time
from typing import TYPE_CHECKING, Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from trunkline.llm.http.direct_transport import DirectTransport
from trunkline.llm.http.transport import (
    BROKE_OFF,
    CONNECT_LATE,
    CONNECTION_BROKE,
    NO_ANSWER,
    NOT_HTTP,
    TLS_FAILED,
    UNKNOWN_HOST,
    UNTRUSTED,
    Answer,
    Body,
    TransportError,
    closed,
    late,
    silent,
    too_large,
    unconnected,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping
    from typing import Any

    from trunkline.llm.http.transport import Transport


__all__ = ["AioTransport", "SwitchTransport", "is_loopback", "proxy_of"]


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine by definition."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def proxy_of(target: URL) -> tuple[str | None, dict[str, str] | None]:
    """Find the proxy for a URL; a loopback address never has one.

    Returns:
        The proxy's URL without its user, and the headers that say who the user is; None for what is not there.
    """
    host = target.host or ""
    if is_loopback(host) or proxy_bypass(host):
        return None, None
    proxies = getproxies()
    found = proxies.get(target.scheme) or proxies.get("all")
    if not found:
        return None, None
    proxy = URL(found if "://" in found else f"http://{found}")
    if proxy.user is None:
        return str(proxy), None
    return str(proxy.with_user(None)), {
        "Proxy-Authorization": aiohttp.encode_basic_auth(proxy.user, proxy.password or "")
    }


_LARGE_BODY: Final = 1 << 20
"""Above this aiohttp wants a file, which it sends in pieces that do not hold the event loop."""


class AioTransport:
    """Posts through one aiohttp session with a keep-alive pool.

    Redirects are not followed, cookies are not kept, ``.netrc`` is not read. Proxies come from the
    environment, but never for a loopback address.

    Args:
        concurrency: Most connections at once.
        connect: Seconds to establish a connection.
        idle: Seconds of silence in the middle of a body.
        largest: Most bytes of a body, after decompression.
    """

    def __init__(
        self, concurrency: int = 256, *, connect: float = 5.0, idle: float = 60.0, largest: int = 64 << 20
    ) -> None:
        self._concurrency = concurrency
        self._connect = connect
        self._idle = idle
        self._largest = largest
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._routes: dict[str, tuple[URL, str | None, dict[str, str] | None]] = {}
        self._timeouts: tuple[float, aiohttp.ClientTimeout] = (-1.0, aiohttp.ClientTimeout())

    async def post(self, url: str, headers: Mapping[str, str], body: Body, limit: float) -> Answer:
        """Send one POST; see ``.transport.Transport.post``."""
        data = body if isinstance(body, bytes) else b"".join(body)
        return await self._send("POST", url, headers, data if len(data) <= _LARGE_BODY else io.BytesIO(data), limit)

    async def get(self, url: str, headers: Mapping[str, str], limit: float) -> Answer:
        """Send one GET; what it takes, returns and raises is that of ``post``."""
        return await self._send("GET", url, headers, None, limit)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | io.BytesIO | None, limit: float
    ) -> Answer:
        start = time.perf_counter()
        session = self._session or self._open()
        target, proxy, proxy_headers = self._routes.get(url) or self._route(url)
        if proxy_headers and target.scheme == "http":
            # Only a tunnel for https has a request of its own that could carry them.
            headers = {**headers, **proxy_headers}
        try:
            async with session.request(
                method,
                target,
                data=data,
                headers=headers,
                allow_redirects=False,
                timeout=self._timeout(limit),
                proxy=proxy,
                proxy_headers=proxy_headers,
            ) as response:
                first = time.perf_counter() - start
                return Answer(response.status, response.headers, await self._read(response), first)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _translate(error, limit) from error

    async def close(self) -> None:
        """Close every connection; may be called more than once."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise closed()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._concurrency, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "trunkline"},
        )
        return self._session

    def _route(self, url: str) -> tuple[URL, str | None, dict[str, str] | None]:
        target = URL(url)
        route = (target, *proxy_of(target))
        self._routes[url] = route
        return route

    def _timeout(self, limit: float) -> aiohttp.ClientTimeout:
        known, timeout = self._timeouts
        if known != limit:
            timeout = aiohttp.ClientTimeout(total=limit, sock_connect=min(self._connect, limit))
            self._timeouts = (limit, timeout)
        return timeout

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        announced = response.content_length
        if announced is not None and announced > self._largest:
            raise too_large(self._largest, announced)
        content = response.content
        chunks: list[bytes] = []
        size = 0
        while not content.at_eof():
            # A model may think for minutes before the first byte, so silence is measured in the body only.
            idle = asyncio.timeout(self._idle)
            try:
                async with idle:
                    chunk = await content.readany()
            except TimeoutError:
                if not idle.expired():  # it is the limit of the whole request
                    raise
                raise silent(self._idle) from None
            size += len(chunk)
            if size > self._largest:
                raise too_large(self._largest)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _translate(error: Exception, limit: float) -> TransportError:
    if isinstance(error, aiohttp.ClientConnectorError) and type(error) is aiohttp.ClientConnectorError:
        return unconnected(error.os_error)
    for kind, message, unreachable, retry in _MEANINGS:
        if isinstance(error, kind):
            return TransportError(message, unreachable=unreachable, retry=retry, timeout=message is CONNECT_LATE)
    if isinstance(error, TimeoutError):
        return late(limit)
    return TransportError(f"{CONNECTION_BROKE} ({type(error).__name__})")


# The first class that fits counts: most derive from a later one.
_MEANINGS: Final[tuple[tuple[type[Exception], str, bool, bool], ...]] = (
    (aiohttp.ClientConnectorCertificateError, UNTRUSTED, True, False),
    (aiohttp.ClientSSLError, TLS_FAILED, True, False),
    (aiohttp.ClientProxyConnectionError, "the proxy in the environment is not reachable", True, True),
    (aiohttp.ClientHttpProxyError, "the proxy in the environment refused", True, True),
    (aiohttp.ClientConnectorDNSError, UNKNOWN_HOST, True, True),
    (UnicodeError, UNKNOWN_HOST, True, True),  # a label that is too long
    (aiohttp.ConnectionTimeoutError, CONNECT_LATE, True, True),
    (aiohttp.ClientConnectorError, "no connection", True, True),
    (aiohttp.InvalidURL, "it is no valid URL", True, False),
    (aiohttp.ServerDisconnectedError, NO_ANSWER, False, True),
    (aiohttp.ClientPayloadError, BROKE_OFF, False, True),
    (aiohttp.ClientResponseError, NOT_HTTP, False, True),
)


class SwitchTransport:
    """Posts directly where there is no proxy, and through aiohttp where there is one.

    Args:
        concurrency: Most connections at once, of each of the two.
        options: What both take: ``connect``, ``idle`` and ``largest``.
    """

    def __init__(self, concurrency: int = 256, **options: Any) -> None:
        self._direct = DirectTransport(concurrency, **options)
        self._aio = AioTransport(concurrency, **options)
        self._chosen: dict[str, Transport] = {}

    def post(self, url: str, headers: Mapping[str, str], body: Body, limit: float) -> Coroutine[Any, Any, Answer]:
        """Send one POST; see ``.transport.Transport.post``."""
        return (self._chosen.get(url) or self._choose(url)).post(url, headers, body, limit)

    def direct(self, urls: Iterable[str]) -> DirectTransport | None:
        """Return what posts to all of some URLs, if none of them is behind a proxy."""
        chosen = {self._chosen.get(url) or self._choose(url) for url in urls}
        return self._direct if chosen == {self._direct} else None

    async def plain(self, answer: Answer) -> Answer:
        """Undo the compression of an answer that came directly."""
        return await self._direct.plain(answer)

    async def close(self) -> None:
        """Close every connection; may be called more than once."""
        await self._direct.close()
        await self._aio.close()

    def _choose(self, url: str) -> Transport:
        try:
            target = URL(url)
            # A user in the URL is aiohttp's to send.
            direct = target.user is None and proxy_of(target) == (None, None)
        except ValueError:
            direct = True  # it says what is wrong with the URL
        chosen = self._chosen[url] = self._direct if direct else self._aio
        return chosen
