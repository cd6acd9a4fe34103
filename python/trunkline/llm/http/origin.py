"""Making connections: names, addresses and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from functools import cache
from typing import TYPE_CHECKING, Final

import aiohappyeyeballs

from trunkline.llm.http.transport import TLS_FAILED, UNKNOWN_HOST, UNTRUSTED, TransportError, unconnected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohappyeyeballs import AddrInfoType


__all__ = ["HttpOrigin"]


_EYEBALLS: Final = 0.25
"""Seconds until the next address of a name is tried beside one that does not answer (RFC 8305)."""

_REMEMBERED: Final = 300.0
"""Seconds that the addresses of a name are believed."""


class HttpOrigin:
    """A host and port, with or without TLS.

    Args:
        host: A name, or an address without brackets.
        port: The port.
        encrypted: Whether to speak TLS.
    """

    __slots__ = ("_addresses", "_host", "_port", "_resolving", "encrypted")

    def __init__(self, host: str, port: int, *, encrypted: bool) -> None:
        self._host = host
        self._port = port
        self._addresses: tuple[float, Sequence[AddrInfoType]] = (0.0, ())
        self._resolving = asyncio.Lock()
        self.encrypted = encrypted

    async def connect(self, protocol: asyncio.BaseProtocol) -> None:
        """Make a connection for a protocol.

        Raises:
            TransportError: There is none.
        """
        loop = asyncio.get_running_loop()
        try:
            context = await asyncio.to_thread(_context) if self.encrypted else None
            addresses = await self._resolve(loop)
            link = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_EYEBALLS, loop=loop)
            name = self._host if self.encrypted else None
            try:
                await loop.create_connection(lambda: protocol, sock=link, ssl=context, server_hostname=name)
            except BaseException:
                link.close()
                raise
        except (socket.gaierror, UnicodeError):
            raise TransportError(UNKNOWN_HOST, unreachable=True) from None
        except ssl.SSLCertVerificationError:
            raise TransportError(UNTRUSTED, unreachable=True, retry=False) from None
        except ssl.SSLError:
            raise TransportError(TLS_FAILED, unreachable=True, retry=False) from None
        except OSError as error:
            self._addresses = (0.0, ())
            raise unconnected(error) from None
        except asyncio.CancelledError:
            self._addresses = (0.0, ())  # it is late, and the name may have moved
            raise

    async def _resolve(self, loop: asyncio.AbstractEventLoop) -> Sequence[AddrInfoType]:
        async with self._resolving:
            until, known = self._addresses
            if time.monotonic() < until:
                return known
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = (time.monotonic() + _REMEMBERED, found)
            return found


@cache
def _context() -> ssl.SSLContext:
    """Reads the certificates of all authorities, which takes tens of milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
