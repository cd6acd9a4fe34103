"""Results of pure tools: equal calls share one, whether it is there or under way."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["Results", "key_of"]

SIZE: Final = 64_000_000
"""Bytes of results, and of the arguments they are for, that are kept."""

_ASIDE: Final = 200
"""Bytes that an entry takes beside its texts, about."""

_encoder: Final = msgspec.json.Encoder(order="deterministic")


def key_of(tool: str, positional: object, named: object, arguments: str) -> bytes:
    """Return what equal calls have in common: the tool and the converted arguments, in one order.

    Args:
        tool: The tool's name.
        positional: Positional arguments as the function gets them.
        named: Keyword arguments, likewise.
        arguments: The text they were read from, which stands for them where they are no JSON any more.
    """
    try:
        return _encoder.encode((tool, positional, named))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return _encoder.encode((tool, arguments))


class Results:
    """Results by key, the latest ones.

    Args:
        size: Bytes that are kept.

    Attributes:
        hits: By tool, how many calls got a result that another one had worked for.
    """

    def __init__(self, size: int = SIZE) -> None:
        self.hits: Counter[str] = Counter()
        self._left = size
        self._kept: OrderedDict[bytes, str] = OrderedDict()
        self._shared: dict[bytes, _SharedCall] = {}

    async def get(
        self, tool: str, key: bytes, work: Callable[[], Coroutine[Any, Any, tuple[str, bool]]]
    ) -> tuple[str, bool, bool]:
        """Return the result of a call, working for it if nobody has or does.

        Work goes on while anybody waits for it. What fails is not kept, and told to those who waited for it.

        Args:
            tool: The tool's name.
            key: See :func:`key_of`.
            work: Makes the result: the text, and whether it is one.

        Returns:
            The text, whether it is a result, and whether another call had worked for it.
        """
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self.hits[tool] += 1
            return kept, True, True
        shared = self._shared.get(key)
        joins = shared is not None
        self.hits[tool] += joins
        if shared is None:
            shared = self._shared[key] = _SharedCall(asyncio.ensure_future(work()))
        text, ok = await self._landing(key, shared)
        if ok:
            self._keep(key, text)
        return text, ok, joins

    async def _landing(self, key: bytes, shared: _SharedCall) -> tuple[str, bool]:
        """Wait until work is done; the last one to give up stops it."""
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.work)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                del self._shared[key]
                if not shared.work.done():
                    shared.work.cancel()
                    await asyncio.wait({shared.work})

    def _keep(self, key: bytes, text: str) -> None:
        if key in self._kept:
            return
        self._kept[key] = text
        self._left -= _size(key, text)
        while self._left < 0:
            self._left += _size(*self._kept.popitem(last=False))


class _SharedCall:
    """Work that several may wait for."""

    def __init__(self, work: asyncio.Future[tuple[str, bool]]) -> None:
        self.work = work
        self.waiting = 0


def _size(key: bytes, text: str) -> int:
    """Return about how many bytes an entry takes."""
    return sys.getsizeof(key) + sys.getsizeof(text) + _ASIDE
