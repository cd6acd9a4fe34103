"""The simulated prefix cache: blocks of 16 tokens under chained hashes, dropped by least recent use."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.sim.model.chat import Message, encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BLOCK", "Prefix", "PrefixCache", "of_messages"]

BLOCK: Final = 16
"""Tokens in a block; only whole blocks are shared."""


class Prefix(NamedTuple):
    """A token sequence as the cache sees it.

    Attributes:
        blocks: Hashes of its whole blocks, each chained to the one before it.
        rest: The tokens after the last whole block.
        tokens: How many tokens there are.
    """

    blocks: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()
    tokens: int = 0

    def then(self, ids: Sequence[int]) -> Prefix:
        """The sequence with more tokens at its end."""
        blocks, rest = _chain(self.blocks[-1] if self.blocks else 0, self.rest, tuple(ids))
        return Prefix(self.blocks + blocks, rest, self.tokens + len(ids))


class PrefixCache:
    """Which blocks a server still holds.

    Args:
        capacity: Size in tokens; 0 holds nothing.
    """

    def __init__(self, capacity: int) -> None:
        self._most = capacity // BLOCK
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Tokens held."""
        return len(self._held) * BLOCK

    def enter(self, prompt: Prefix) -> int:
        """Take a prompt in.

        Returns:
            How many of its tokens were held. The last token of a prompt is always computed.
        """
        if not self._most:
            return 0
        cached = 0
        for block in prompt.blocks:
            if block not in self._held:
                break
            cached += 1
        self._hold(prompt.blocks)
        return min(cached, max(prompt.tokens - 1, 0) // BLOCK) * BLOCK

    def extend(self, prompt: Prefix, ids: Sequence[int]) -> None:
        """Hold what was generated after a prompt, too."""
        if self._most:
            self._hold(prompt.then(ids).blocks[len(prompt.blocks) :])

    def _hold(self, blocks: Sequence[int]) -> None:
        held = self._held
        # From the end, so that the beginning of a sequence, which others share, is the last to be dropped.
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._most:
            held.popitem(last=False)


def of_messages(messages: Sequence[Message]) -> Prefix:
    """The prefix that messages make; what earlier requests had in common with it is not worked out again."""
    blocks: list[int] = []
    rest: tuple[int, ...] = ()
    tokens = 0
    last = 0
    for message in messages:
        more, rest, count = _message(last, rest, message)
        if more:
            blocks += more
            last = more[-1]
        tokens += count
    return Prefix(tuple(blocks), rest, tokens)


@lru_cache(maxsize=16384)
def _message(last: int, rest: tuple[int, ...], message: Message) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    ids = encoded(message).ids
    blocks, left = _chain(last, rest, ids)
    return blocks, left, len(ids)


def _chain(last: int, rest: tuple[int, ...], ids: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ids = rest + ids
    blocks = []
    whole = len(ids) - len(ids) % BLOCK
    for start in range(0, whole, BLOCK):
        last = hash((last, ids[start : start + BLOCK]))
        blocks.append(last)
    return tuple(blocks), ids[whole:]
