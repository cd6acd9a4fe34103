"""Which transport posts to a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from yarl import URL

from trunkline.llm.aio import AioTransport
from trunkline.llm.plain import PlainTransport
from trunkline.llm.proxy import proxy_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from typing import Any

    from trunkline.llm.transport import Answer, Body, Transport

__all__ = ["SwitchTransport"]


class SwitchTransport:
    """Posts plainly to ``http://`` URLs without a proxy, and through aiohttp to all others.

    Args:
        concurrency: Most connections at once, of each of the two.
        options: What both take: ``connect``, ``idle`` and ``largest``.
    """

    def __init__(self, concurrency: int = 256, **options: Any) -> None:
        self._plain = PlainTransport(concurrency, **options)
        self._aio = AioTransport(concurrency, **options)
        self._chosen: dict[str, Transport] = {}

    def post(self, url: str, headers: Mapping[str, str], body: Body, limit: float) -> Coroutine[Any, Any, Answer]:
        """Send one POST; see :meth:`.transport.Transport.post`."""
        return (self._chosen.get(url) or self._choose(url)).post(url, headers, body, limit)

    async def close(self) -> None:
        """Close every connection; may be called more than once."""
        await self._plain.close()
        await self._aio.close()

    def _choose(self, url: str) -> Transport:
        try:
            target = URL(url)
            # A user in the URL is aiohttp's to send.
            plain = target.scheme == "http" and target.user is None and proxy_of(target) == (None, None)
        except ValueError:
            plain = True  # it says what is wrong with the URL
        chosen = self._chosen[url] = self._plain if plain else self._aio
        return chosen
