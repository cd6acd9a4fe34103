"""Closing that nobody can interrupt half-way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["to_the_end"]


async def to_the_end(work: Coroutine[None, None, None]) -> None:
    """Await something that has to be done whole; a cancellation meanwhile counts once it is.

    Args:
        work: What lets go of processes, connections and files; it takes a bounded time.

    Raises:
        asyncio.CancelledError: If the caller was cancelled meanwhile.
        Exception: What the work raises.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            # Unlike awaiting the task itself, this leaves it alone when we are cancelled.
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
