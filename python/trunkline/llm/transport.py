"""One POST: the seam behind which the HTTP library stands."""

from __future__ import annotations

import asyncio
import errno
import io
import ipaddress
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AioTransport", "Answer", "Transport", "TransportError", "is_loopback"]

_LARGE_BODY: Final = 1 << 20
"""Above this aiohttp wants a file, which it sends in pieces that do not hold the event loop."""


class TransportError(Exception):
    """No answer came back.

    Args:
        message: What happened, without the URL.
        unreachable: Nothing was listening, or the name is unknown.
        retry: Whether trying again can help.
    """

    def __init__(self, message: str, *, unreachable: bool = False, retry: bool = True) -> None:
        super().__init__(message)
        self.unreachable = unreachable
        self.retry = retry


class Answer(NamedTuple):
    """What came back.

    Attributes:
        status: The HTTP status.
        headers: Looked up without regard to case.
        body: All of it.
        first: Seconds from the start of sending to the head of the answer.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    first: float


class Transport(Protocol):
    """Posts bytes and brings bytes back."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, limit: float) -> Answer:
        """Send one POST and read its whole answer.

        Args:
            url: Where to.
            headers: Everything beyond Host and Content-Length.
            body: The request's body.
            limit: Seconds for all of it.

        Raises:
            TransportError: There is no whole answer.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


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
        self, concurrency: int = 256, *, connect: float = 30.0, idle: float = 60.0, largest: int = 64 << 20
    ) -> None:
        self._concurrency = concurrency
        self._connect = connect
        self._idle = idle
        self._largest = largest
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._routes: dict[str, tuple[URL, str | None, dict[str, str] | None]] = {}
        self._timeouts: tuple[float, aiohttp.ClientTimeout] = (-1.0, aiohttp.ClientTimeout())

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, limit: float) -> Answer:
        """Send one POST; see :meth:`Transport.post`."""
        start = time.perf_counter()
        session = self._session or self._open()
        target, proxy, proxy_headers = self._routes.get(url) or self._route(url)
        if proxy_headers and target.scheme == "http":
            # Only a tunnel for https has a request of its own that could carry them.
            headers = {**headers, **proxy_headers}
        try:
            async with session.post(
                target,
                data=body if len(body) <= _LARGE_BODY else io.BytesIO(body),
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
            raise TransportError("the client is closed", retry=False)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._concurrency, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "trunkline"},
        )
        return self._session

    def _route(self, url: str) -> tuple[URL, str | None, dict[str, str] | None]:
        target = URL(url)
        route = (target, *_proxy(target))
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
            raise TransportError(f"the answer has {announced:,} bytes, more than {self._largest:,}", retry=False)
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
                raise TransportError(f"nothing came for {self._idle:g} s in the middle of the answer") from None
            size += len(chunk)
            if size > self._largest:
                raise TransportError(f"the answer has more than {self._largest:,} bytes", retry=False)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine by definition."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _proxy(target: URL) -> tuple[str | None, dict[str, str] | None]:
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


def _translate(error: Exception, limit: float) -> TransportError:
    if isinstance(error, aiohttp.ClientConnectorError) and type(error) is aiohttp.ClientConnectorError:
        ours = error.errno in {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL}
        reason = os.strerror(error.errno) if error.errno else type(error.os_error).__name__
        return TransportError(f"no connection ({reason})", unreachable=not ours)
    for kind, message, unreachable, retry in _MEANINGS:
        if isinstance(error, kind):
            return TransportError(message.format(limit), unreachable=unreachable, retry=retry)
    return TransportError(f"the connection broke ({type(error).__name__})")


# The first class that fits counts: most derive from a later one.
_MEANINGS: Final[tuple[tuple[type[Exception], str, bool, bool], ...]] = (
    (aiohttp.ClientConnectorCertificateError, "TLS certificate not trusted; see SSL_CERT_FILE", True, False),
    (aiohttp.ClientSSLError, "TLS failed; is it https there?", True, False),
    (aiohttp.ClientProxyConnectionError, "the proxy in the environment is not reachable", True, True),
    (aiohttp.ClientHttpProxyError, "the proxy in the environment refused", True, True),
    (aiohttp.ClientConnectorDNSError, "its host name is unknown", True, True),
    (aiohttp.ConnectionTimeoutError, "the connection was not established in time", True, True),
    (aiohttp.ClientConnectorError, "no connection", True, True),
    (aiohttp.InvalidURL, "it is no valid URL", True, False),
    (TimeoutError, "no whole answer within {:.3g} s", False, True),
    (aiohttp.ServerDisconnectedError, "the connection was closed before an answer", False, True),
    (aiohttp.ClientPayloadError, "the answer broke off or cannot be decompressed", False, True),
    (aiohttp.ClientResponseError, "the answer is not HTTP", False, True),
)
