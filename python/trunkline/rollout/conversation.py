"""A conversation as pieces of request bodies: a turn adds one piece, and what was said before is never joined again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._core import ROOT

if TYPE_CHECKING:
    from trunkline._core import Tree as Core

__all__ = ["Conversation"]

_JOINED = 16 << 10
"""Bytes up to which a body is cheaper to copy than to send in pieces."""

_MOST = 256
"""Pieces until they are joined into one: a system call that sends them takes no more than 1,024 at once."""


class Conversation:
    """The messages of one path, which grows.

    Args:
        core: The tree.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._end = ROOT
        self._pieces: list[bytes] = []

    def to(self, node: int) -> list[bytes]:
        """Return the messages from the root to a node, separated by commas, as pieces that must not be changed.

        Args:
            node: The node that the last call was for, or one below it.
        """
        if node != self._end:
            self._pieces.append(self._core.continuation(self._end, node))
            self._end = node
            if len(self._pieces) > _MOST:
                self._pieces = [b"".join(self._pieces)]
        return self._pieces

    def body(self, node: int, head: bytes, tail: bytes) -> bytes | list[bytes]:
        """Return the body of a request, in one piece if it is short.

        Args:
            node: As for :meth:`to`.
            head: What stands before the messages.
            tail: What stands behind them.
        """
        pieces = [head, *self.to(node), tail]
        return b"".join(pieces) if sum(map(len, pieces)) <= _JOINED else pieces

    def fork(self) -> Conversation:
        """Another conversation with the same beginning, whose pieces the two share."""
        other = Conversation(self._core)
        other._end, other._pieces = self._end, self._pieces.copy()
        return other
