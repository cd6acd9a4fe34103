"""The snapshots of one tree: of the states its rollouts passed, as many as may be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Held", "Snapshots"]

Use = tuple[int, int, int]
"""When a snapshot was used last: the round, the rollout, and how many turns that had taken."""


class Held(NamedTuple):
    """A snapshot that is kept.

    Attributes:
        node: The state it was taken at.
        rollout: Whose it was.
        turns: Model turns on the path to the state.
        snapshot: What the environment gave.
        size: Its bytes, where it is bytes.
    """

    node: int
    rollout: int
    turns: int
    snapshot: Any
    size: int


class Snapshots:
    """Keeps the snapshots that were used last.

    Which these are depends on rounds, rollouts and turns alone, never on who was faster: once one was dropped, an
    older one is not taken in any more.

    Args:
        most: How many are kept.
        most_bytes: How many bytes of them.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._round = 0
        self._held: dict[Use, Held] = {}
        self._bytes = 0
        self._dropped: Use = (0, 0, 0)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._bytes

    def next_round(self) -> None:
        """Note that whatever is used from now on is used later than all before."""
        self._round += 1

    def put(self, node: int, rollout: int, turns: int, snapshot: Any) -> None:
        """Take in the snapshot of a state, unless it is too large or too old to be kept.

        Args:
            node: The state.
            rollout: Whose it is.
            turns: Model turns on the path to it.
            snapshot: The snapshot.
        """
        size = memoryview(snapshot).nbytes if isinstance(snapshot, bytes | bytearray | memoryview) else 0
        use = (self._round, rollout, turns)
        if size > self._most_bytes or use <= self._dropped:
            return
        self._held[use] = Held(node, rollout, turns, snapshot, size)
        self._bytes += size
        while len(self._held) > self._most or self._bytes > self._most_bytes:
            self._dropped = min(self._held)
            self._bytes -= self._held.pop(self._dropped).size

    def find(self, path: Sequence[int], rollout: int) -> Held | None:
        """Return the snapshot of the last state on a path that has one; it counts as used.

        Several rollouts may have passed a state; the snapshot is that of the first one.

        Args:
            path: Nodes from the root on.
            rollout: Who wants it.
        """
        on_path = set(path)
        passed = [use for use, held in self._held.items() if held.node in on_path]
        if not passed:
            return None
        use = max(passed, key=lambda use: (self._held[use].turns, -self._held[use].rollout))
        held = self._held.pop(use)
        self._held[self._round, rollout, held.turns] = held
        return held
