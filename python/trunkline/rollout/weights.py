"""The version of the weights in one engine, and the turns that are asked under it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Asked", "Weights"]


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
        self._asked: set[Asked] = set()
        self._held = False
        self._free = asyncio.Event()
        self._quiet: Callable[[], None] | None = None

    async def begin(self) -> Asked:
        """Wait until a turn may be asked; returns the ``with`` block to ask it in."""
        while self._held:
            await self._free.wait()
        return Asked(self)

    def enter(self, asked: Asked) -> None:
        """Note that a turn is in flight."""
        self._asked.add(asked)

    def leave(self, asked: Asked) -> None:
        """Note that a turn is not in flight any more."""
        self._asked.discard(asked)
        if self._quiet is not None and not self._asked:
            quiet, self._quiet = self._quiet, None
            quiet()

    def hold(self, *, abort: bool, quiet: Callable[[], None]) -> None:
        """Let no turn begin.

        Args:
            abort: Give those up that are in flight; else they are left to end.
            quiet: Called as soon as none is in flight.
        """
        self._held = True
        self._free.clear()
        self._quiet = quiet
        self.aborting = abort
        if not self._asked:
            self._quiet = None
            quiet()
        elif abort:
            for asked in self._asked:
                asked.give_up()

    def change(self, version: str | None) -> None:
        """Put a version in force, and let turns begin."""
        self.version = version
        self.aborting = False
        self._quiet = None
        self._held = False
        self._free.set()


class Asked:
    """A block in which a turn is asked; it ends early, without an error, if the turn is given up.

    Args:
        weights: Where it is noted.

    Attributes:
        given_up: Whether the turn was given up.
    """

    __slots__ = ("_cancelling", "_task", "_weights", "given_up")

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.given_up = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._weights.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        self._weights.leave(self)
        if not self.given_up:
            return False
        # Whoever else cancels the task meanwhile is not deprived of that.
        ours = self._task.uncancel() <= self._cancelling
        return ours and kind is not None and issubclass(kind, asyncio.CancelledError)

    def give_up(self) -> None:
        """End the block, once."""
        if not self.given_up:
            self.given_up = True
            self._task.cancel()
