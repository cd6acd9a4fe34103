"""What is underway: requests and tool calls that were begun and have not come back."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Underway"]

_LOOK = 0.01
"""Seconds between two looks at whether anything is left."""

_NAME = 60
"""Cells of a tool's name that are told."""

_QUIET = 3
"""Looks in a row that must find nothing."""


class Underway:
    """Knows what all rollouts of an engine wait for, and can keep them from beginning more.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # In the order in which they began: the first is the oldest.
        self._requests: dict[object, float] = {}
        self._tools: dict[object, tuple[str, float]] = {}
        self._shut = False

    @property
    def idle(self) -> bool:
        """Whether nothing is underway."""
        return not self._requests and not self._tools

    @property
    def requests(self) -> tuple[int, float]:
        """How many requests are out, and for how many seconds the oldest is."""
        return len(self._requests), self._clock() - next(iter(self._requests.values()), self._clock())

    @property
    def tools(self) -> tuple[int, str, float]:
        """How many tool calls run, and which runs longest, for how many seconds."""
        now = self._clock()
        name, since = next(iter(self._tools.values()), ("", now))
        # The model has named it, and may have made it up.
        return len(self._tools), printable(name, _NAME), now - since

    async def drained(self, within: float, waiting: Callable[[], int] = int) -> None:
        """Let nothing begin any more, and wait until what is underway has come back and is on the tree.

        Args:
            within: Seconds to wait at most.
            waiting: Says how many requests the LLM has not sent yet and will not send: these never come back.
        """
        self._shut = True
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                quiet = 0
                # A reply takes some steps of the event loop to become a turn, and a retry to be sent.
                while quiet < _QUIET:
                    await asyncio.sleep(_LOOK)
                    out = len(self._requests) - waiting()
                    quiet = 0 if out > 0 or self._tools else quiet + 1

    async def enter(self) -> None:
        """Return at once while something may begin; else never: whoever waits is to be cancelled."""
        if self._shut:
            await asyncio.get_running_loop().create_future()

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request is out."""
        key = object()
        self._requests[key] = self._clock()
        try:
            yield
        finally:
            del self._requests[key]

    @contextmanager
    def calling(self, names: Sequence[str]) -> Iterator[None]:
        """The tool calls of a turn run."""
        now = self._clock()
        calls = {object(): (name, now) for name in names}
        self._tools.update(calls)
        try:
            yield
        finally:
            for key in calls:
                del self._tools[key]
