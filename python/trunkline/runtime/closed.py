"""Waiting that nobody can interrupt half-way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["to_the_end"]


async def to_the_end(future: asyncio.Future[Any], stop: Callable[[], object] = lambda: None) -> None:
    """Wait for something that must not be left alone, whoever cancels meanwhile; the cancel is raised after it.

    Args:
        future: What to wait for; whoever calls looks at its result.
        stop: Called at each cancel.

    Raises:
        asyncio.CancelledError: The caller was cancelled, and the work is over.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
        except GeneratorExit:
            # The caller's loop is gone, and nobody is left to wait.
            stop()
            raise
    if cancelled is not None:
        # Looked at, so that nobody complains that it was not.
        _ = future.cancelled() or future.exception()
        raise cancelled
