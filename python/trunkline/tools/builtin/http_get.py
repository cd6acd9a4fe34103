"""Fetches pages of allowed hosts; every address is checked, and the one that was checked is connected to."""

from __future__ import annotations

import asyncio
import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from aiohttp import ClientError, ClientSession, DummyCookieJar, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from trunkline._internal.text import printable
from trunkline._internal.validation import check_bool, check_float, check_int, check_size, short_repr
from trunkline.errors import ConfigError, ToolError
from trunkline.tools.tool import Tool

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_HOST: Final = re.compile(r"(\*\.)?([a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_])?|\[[0-9a-f:.]{2,45}\])(?::(\d{1,5}))?")
_LONGEST: Final = 2_000
"""Characters of a URL."""
_PORTS: Final = {"http": 80, "https": 443}

_CARRIERS: Final = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))
"""IPv6 networks whose addresses carry one of IPv4, which may be a private one."""

_CHARSETS: Final = frozenset(("utf-8", "iso-8859-1", "windows-1252", "utf-16"))
_TEXTS: Final = re.compile(r"text/.*|application/(?:.*\+)?(?:json|xml|javascript|yaml|x-ndjson)|")


class HttpGet(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the tool ``http_get``, which a call makes; ``http_get`` describes them."""

    hosts: tuple[str, ...]
    private: bool = False
    seconds: float = 20.0
    size: int | str = "256KB"
    redirects: int = 5

    def __post_init__(self) -> None:
        given: object = self.hosts
        if not isinstance(given, list | tuple) or not given:
            raise ConfigError(
                "http_get: name the hosts that may be asked: tl.tools.http_get('docs.python.org', '*.wikipedia.org'), "
                "--tools http_get=docs.python.org+*.wikipedia.org"
            )
        for host in given:
            if not isinstance(host, str) or not (found := _HOST.fullmatch(host.lower())) or int(found[3] or 1) > 65535:
                raise ConfigError(
                    f"http_get: a host is written as 'docs.python.org', '*.wikipedia.org' or 'localhost:8000', not "
                    f"{short_repr(host)}"
                )
        msgspec.structs.force_setattr(self, "hosts", tuple(host.lower() for host in given))
        check_bool("http_get: private", self.private)
        check_float("http_get: seconds", self.seconds, 0, 3_600, above=True, unit="seconds")
        check_size("http_get: size", self.size, 1)
        check_int("http_get: redirects", self.redirects, 0, 20)

    def __call__(self) -> Tool[..., Any]:
        """Make the tool."""
        made: Tool[..., Any] = Tool(self.get, name="http_get", timeout=self.seconds + 10)
        made.made_by = self
        return made

    async def get(self, url: str) -> str:
        """Fetch a page from the web by a GET request, and return its text.

        Args:
            url: The whole address, beginning with https:// or http://.
        """
        try:
            async with asyncio.timeout(self.seconds):
                return await self._followed(url)
        except TimeoutError:
            raise ToolError(f"Error: the page did not come within {self.seconds:g} s.") from None
        except (ClientError, OSError, ValueError) as error:
            why = printable(str(error), 200) or type(error).__name__
            raise ToolError(f"Error: the page could not be fetched: {why}.") from None

    async def _followed(self, url: str) -> str:
        """Fetch a page, and what it redirects to."""
        target = self._allowed(url, None)
        headers = {"Accept-Encoding": "identity", "User-Agent": "trunkline"}
        connector = TCPConnector(resolver=CheckedResolver(private=self.private), use_dns_cache=False, force_close=True)
        async with ClientSession(
            connector=connector, headers=headers, cookie_jar=DummyCookieJar(), auto_decompress=False, trust_env=False
        ) as session:
            for _ in range(self.redirects + 1):
                async with session.get(target, allow_redirects=False) as response:
                    if response.status not in {301, 302, 303, 307, 308} or "Location" not in response.headers:
                        return await self._text(response)
                    target = self._allowed(response.headers["Location"], target)
        raise ToolError(f"Error: the page redirects more than {self.redirects} times.")

    def _allowed(self, url: str, base: URL | None) -> URL:
        """Return a URL that may be asked; ToolError for another one."""
        if len(url) > _LONGEST or not url.isprintable():
            raise ToolError(f"Error: a URL has at most {_LONGEST:,} printable characters.")
        try:
            target = URL(url) if base is None else base.join(URL(url))
            host, port = (target.host or "").lower(), target.port
        except ValueError:
            raise ToolError("Error: this is no URL that can be read.") from None
        named = f"[{host}]" if ":" in host else host
        if target.scheme not in _PORTS or not host:
            raise ToolError("Error: a URL must begin with https:// or http:// and a host.")
        if target.user is not None or target.password is not None:
            raise ToolError("Error: a URL must not have a user name or a password.")
        usual = port == _PORTS[target.scheme]
        for allowed in self.hosts:
            wild, name, its_port = _HOST.fullmatch(allowed).groups()  # type: ignore[union-attr]
            same = named.endswith(f".{name}") if wild else named == name
            if same and (usual if its_port is None else port == int(its_port)):
                break
        else:
            where = printable(named if usual else f"{named}:{port}", 100)
            refused = f"{where} may not be asked" if base is None else f"the page redirects to {where}: not allowed"
            raise ToolError(f"Error: {refused}. Hosts that may be asked: {', '.join(self.hosts)}.")
        if not self.private and (literal := as_address(host)) is not None:
            check_public(host, literal)
        return target.with_fragment(None)

    async def _text(self, response: ClientResponse) -> str:
        """Return status, type and text of a page, up to the size."""
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        head = f"[{response.status} {printable(kind, 100)}]".replace(" ]", "]")
        if encoding not in {"", "identity"}:
            return f"{head}\n[the server compressed it, which it was asked not to do]"
        if not _TEXTS.fullmatch(kind):
            return f"{head}\n[it is no text]"
        most = check_size("http_get: size", self.size)
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece[: most + 1 - len(body)]
            if len(body) > most:
                break
        try:
            charset = (response.charset or "utf-8").lower()
        except ValueError:
            charset = "utf-8"
        text = body[:most].decode(charset if charset in _CHARSETS else "utf-8", "replace")
        return f"{head}\n{text}" + (f"\n[cut: the first {most:,} bytes]" if len(body) > most else "")


def as_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def check_public(host: str, address: IPv4Address | IPv6Address) -> None:
    """Refuse an address that is not one of the public internet, or that carries another one."""
    mapped = getattr(address, "ipv4_mapped", None)
    found = address if mapped is None else mapped
    carried = found.version == 6 and any(found in network for network in _CARRIERS)
    if carried or not found.is_global or found.is_multicast or found.is_reserved:
        _refuse(host, f"it has the address {address}, which is private or local")


def _refuse(host: str, why: str) -> NoReturn:
    raise ToolError(f"Error: {printable(host, 100)} may not be asked: {why}.")


class CheckedResolver(AbstractResolver):
    """Looks up a host once, and hands out addresses only if all of them may be connected to."""

    def __init__(self, *, private: bool) -> None:
        self._private = private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host, as a connector of aiohttp takes them."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)
        results: list[ResolveResult] = []
        for kind, _, proto, _, place in found:
            address = ip_address(str(place[0]).partition("%")[0])
            if not self._private:
                check_public(host, address)
            numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            results.append(
                ResolveResult(hostname=host, host=str(address), port=port, family=kind, proto=proto, flags=numeric)
            )
        if not results:
            _refuse(host, "it has no address")
        return results

    async def close(self) -> None:
        """Nothing is held."""


def http_get(
    *hosts: str, private: bool = False, seconds: float = 20.0, size: int | str = "256KB", redirects: int = 5
) -> Tool[..., Any]:
    """Return a tool that fetches pages by GET from some hosts, without cookies, keys or proxies.

    Args:
        *hosts: Hosts that may be asked: ``docs.python.org``; ``*.wikipedia.org`` for all below it; with a port,
            ``localhost:8000``, for ports other than 80 and 443.
        private: Whether a host may have an address that is private, local or of this machine. Otherwise all addresses
            that a name leads to are checked before one of them is connected to, also after redirects.
        seconds: The most seconds of a call, redirects included.
        size: The most bytes of a page; what is beyond is cut. Bytes, or a text such as ``"1MB"``.
        redirects: How many redirects are followed; each must lead to one of the hosts.

    Raises:
        ConfigError: No host is named, or an option has a value it cannot have.
    """
    return HttpGet(hosts=hosts, private=private, seconds=seconds, size=size, redirects=redirects)()
