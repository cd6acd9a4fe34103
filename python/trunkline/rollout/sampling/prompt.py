"""Incremental request bodies; seeds.

Pieces grow as the digits of a binary counter do: two of about one size become one. So there are few of them, which
costs less to send, and each byte is copied as often as the conversation doubles.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING

from trunkline._core import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import CoreTree


__all__ = ["PromptBuilder", "base_seed"]


_JOINED = 16 << 10
"""Bytes up to which a body is cheaper to copy than to send in pieces."""

_MOST = 256
"""Pieces, after many forks, until they are joined: a system call that sends them takes no more than 1,024 at once."""


class PromptBuilder:
    """The messages of one path, which grows.

    Args:
        core: The tree.
    """

    def __init__(self, core: CoreTree) -> None:
        self._core = core
        self._end = ROOT
        self._pieces: list[bytes] = []
        self._shared = 0

    def to(self, node: int) -> list[bytes]:
        """Return the messages from the root to a node, separated by commas, as pieces that must not be changed.

        Args:
            node: The node that the last call was for, or one below it.
        """
        if node != self._end:
            self._append(self._core.continuation(self._end, node))
            self._end = node
        return self._pieces

    def _append(self, piece: bytes) -> None:
        pieces = self._pieces
        while len(pieces) > self._shared and len(pieces[-1]) <= len(piece):
            piece = pieces.pop() + piece
        pieces.append(piece)
        if len(pieces) > _MOST:
            pieces[:], self._shared = [b"".join(pieces)], 0

    def body(self, node: int, head: bytes, tail: bytes) -> bytes | list[bytes]:
        """Return the body of a request, in one piece if it is short.

        Args:
            node: As for :meth:`to`.
            head: What stands before the messages.
            tail: What stands behind them.
        """
        pieces = [head, *self.to(node), tail]
        return b"".join(pieces) if sum(map(len, pieces)) <= _JOINED else pieces

    def fork(self) -> PromptBuilder:
        """Another conversation with the same beginning, whose pieces the two share."""
        other = PromptBuilder(self._core)
        other._end, other._pieces = self._end, self._pieces.copy()
        self._shared = other._shared = len(self._pieces)
        return other


_SPACE = 2**31 - 2**16
"""Bases stay below this, so that base + draw fits the 31 bits that every server takes."""


def base_seed(run_seed: int, task_id: str, path: Sequence[int], turn: int) -> int:
    """Return the base seed of a fork point; draw i of that point is sent with base + i.

    Args:
        run_seed: The run's seed.
        task_id: The task's id.
        path: Fork path of the rollout whose state this is, flattened (turn, draw, turn, draw, ...); empty before
            the first fork.
        turn: Model turns on the path to this state.

    Returns:
        An integer in ``[0, 2**31 - 2**16)``.
    """
    name = task_id.encode("utf-8", "surrogatepass")
    key = pack(f"<qI{len(path)}II", run_seed, len(path), *path, turn) + name
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") % _SPACE
