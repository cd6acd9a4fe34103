"""The version of the weights in one engine, and the turns that are asked under it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Weights"]


class Weights:
    """A gate that every turn passes: open as a rule, held while weights change.

    Args:
        version: The version at first; None where nobody says.

    Attributes:
        version: The version in force: what a turn is asked under.
        aborting: Whether turns in flight were given up, and are to be asked again.
    """

    def __init__(self, version: str | None = None) -> None:
        self.version = version
        self.aborting = False
        self._asked: set[asyncio.Timeout] = set()
        self._free = asyncio.Event()
        self._free.set()
        self._quiet: Callable[[], None] | None = None

    async def begin(self) -> asyncio.Timeout:
        """Wait until a turn may be asked; returns the scope to ask it in, which expires if the turn is given up."""
        while not self._free.is_set():
            await self._free.wait()
        scope = asyncio.timeout(None)
        self._asked.add(scope)
        return scope

    def over(self, scope: asyncio.Timeout) -> None:
        """Note that a turn is not in flight any more."""
        self._asked.discard(scope)
        if not self._asked and self._quiet is not None:
            quiet, self._quiet = self._quiet, None
            quiet()

    def hold(self, *, abort: bool, quiet: Callable[[], None]) -> None:
        """Let no turn begin.

        Args:
            abort: Give those up that are in flight; else they are left to end.
            quiet: Called as soon as none is in flight.
        """
        self._free.clear()
        self._quiet = quiet
        self.aborting = abort
        if not self._asked:
            self._quiet = None
            quiet()
        elif abort:
            now = asyncio.get_running_loop().time()
            for scope in self._asked:
                scope.reschedule(now)

    def change(self, version: str | None) -> None:
        """Put a version in force, and let turns begin."""
        self.version = version
        self.aborting = False
        self._quiet = None
        self._free.set()
