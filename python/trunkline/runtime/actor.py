"""A host behind the calls of a Ray actor. Nothing here needs Ray."""

from __future__ import annotations

import asyncio

from trunkline.runtime.host import Host

__all__ = ["Actor", "portion"]

_PORTION = 8 * 1024 * 1024
"""About how many bytes of messages one call carries."""


class Actor:
    """A host that is told messages by one call and whose own are collected by another.

    One call of each kind is out at a time, so messages stay in order, and those that come up meanwhile share the next.
    """

    def __init__(self) -> None:
        self._host = Host(self._keep)
        self._kept: list[bytes] = []
        self._news = asyncio.Event()

    async def tell(self, payloads: list[bytes]) -> None:
        """Take messages of the controller.

        Raises:
            WorkerError: If one makes no sense now.
            msgspec.MsgspecError: If one is no message.
        """
        for payload in payloads:
            self._host.receive(payload)

    async def collect(self) -> list[bytes]:
        """Wait until there are messages for the controller, and hand them over."""
        while not self._kept:
            self._news.clear()
            await self._news.wait()
        payloads = portion(self._kept)
        del self._kept[: len(payloads)]
        return payloads

    async def leave(self) -> None:
        """End what runs, and leave nothing behind."""
        await self._host.close()

    def _keep(self, payload: bytes) -> None:
        self._kept.append(payload)
        self._news.set()


def portion(payloads: list[bytes]) -> list[bytes]:
    """Return the first payloads, as many as one call carries; one at least."""
    size = 0
    for number, payload in enumerate(payloads):
        size += len(payload)
        if number and size > _PORTION:
            return payloads[:number]
    return payloads[:]
