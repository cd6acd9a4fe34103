"""What is underway: requests and tool calls that were begun and have not come back."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Underway"]

T = TypeVar("T")

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
        self._requests: dict[_Out[float], float] = {}
        self._tools: dict[_Out[_Calls], _Calls] = {}
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
        names, since = next(iter(self._tools.values()), ([""], now))
        count = sum(len(calls.names) for calls in self._tools.values())
        # The model has named it, and may have made it up.
        return count, printable(names[0], _NAME), now - since

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

    def request(self) -> _Out[float]:
        """A request is out, for a ``with`` block."""
        return _Out(self._requests, self._clock())

    def calling(self, names: Sequence[str]) -> _Out[_Calls]:
        """The tool calls of a turn run, for a ``with`` block; at least one."""
        return _Out(self._tools, _Calls(names, self._clock()))


class _Calls(NamedTuple):
    """The tool calls of a turn: the tools' names, and when they began."""

    names: Sequence[str]
    since: float


class _Out(Generic[T]):
    """Something that is on a list while a block runs. A class, since every request passes here.

    Args:
        listed: The list, in the order of beginnings.
        what: What is on it.
    """

    __slots__ = ("_listed", "_what")

    def __init__(self, listed: dict[_Out[T], T], what: T) -> None:
        self._listed = listed
        self._what = what

    def __enter__(self) -> None:
        self._listed[self] = self._what

    def __exit__(self, *_: object) -> None:
        del self._listed[self]
