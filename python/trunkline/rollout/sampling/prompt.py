"""Seeds of draws."""

from __future__ import annotations

from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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
