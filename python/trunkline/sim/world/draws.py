"""Random numbers that are the same on every machine and in every Python version."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Draws"]

T = TypeVar("T")

_BLOCK = 8


class Draws:
    """A stream of draws named by a key: the hash of the key and a counter.

    Streams of different keys are independent, so one part of a world can change without moving another.

    Args:
        key: What the stream is for, for example ``Draws(seed, "names")``.
    """

    __slots__ = ("_block", "_key", "_words")

    def __init__(self, *key: int | str) -> None:
        self._key = "\x1f".join(f"{type(part).__name__}:{part}" for part in key).encode()
        self._block = 0
        self._words: list[int] = []

    def word(self) -> int:
        """64 random bits as an integer."""
        if not self._words:
            block = hashlib.blake2b(self._key + self._block.to_bytes(8, "little")).digest()
            self._words = [int.from_bytes(block[i : i + _BLOCK], "little") for i in range(0, 64, _BLOCK)]
            self._block += 1
        return self._words.pop()

    def random(self) -> float:
        """A number of at least 0 and below 1, with 53 random bits."""
        return (self.word() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """A whole number of at least 0 and below ``n``, which is at least 1."""
        return self.word() * n >> 64

    def chance(self, p: float) -> bool:
        """True with probability ``p``."""
        return self.random() < p

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, which must not be empty."""
        return options[self.below(len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order, as a new list."""
        order = list(items)
        for i in range(len(order) - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order
