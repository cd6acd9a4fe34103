"""A bell that wakes one waiter early."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Bell"]


class Bell:
    """Lets one task wait for a time that news may cut short.

    Args:
        sleep: Waits for a time.
    """

    def __init__(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._sleep = sleep
        self._news: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the waiter, if there is one."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Wait until the bell rings or a time has passed.

        Args:
            seconds: How long; infinity for no such time.

        Returns:
            Whether the time has passed.
        """
        self._news = news = asyncio.get_running_loop().create_future()
        timer = None if seconds == math.inf else asyncio.ensure_future(self._sleep(max(0.0, seconds)))
        try:
            await asyncio.wait([news] if timer is None else [news, timer], return_when=asyncio.FIRST_COMPLETED)
            return timer is not None and timer.done()
        finally:
            news.cancel()
            if timer is not None:
                timer.cancel()
