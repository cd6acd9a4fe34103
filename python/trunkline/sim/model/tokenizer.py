"""A small byte-level byte-pair encoding: trainer, encoder and decoder.

Token ids are the 256 bytes, one id for each merge in order of rank, and the special tokens. ``train`` learned the
merges in ``merges.txt`` from the text of the default world.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.sim.world.names import Draws

__all__ = ["ADDED", "CONTROL", "MERGES", "Bpe", "default_bpe", "dump", "load", "train"]

MERGES: Final = 2000

CONTROL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Tokens that only a template writes; the same characters in a message are ordinary text."""

ADDED: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Markup that is one token everywhere."""

_WORD: Final = re.compile(r" ?[^\W\d_]+| ?\d| ?(?:[^\s\w]|_)+|\n+|\s")
_ADDED: Final = re.compile("|".join(re.escape(token) for token in ADDED))
_SPECIAL: Final = re.compile("|".join(re.escape(token) for token in (*CONTROL, *ADDED)))
_CACHE_LIMIT: Final = 65536
_BYTES: Final = 256


class Bpe:
    """An encoder for a list of merges, pairs of token ids; the pair at rank ``i`` makes the token ``256 + i``.

    Raises:
        ConfigError: A merge uses an id that does not exist yet.
    """

    def __init__(self, merges: Sequence[tuple[int, int]]) -> None:
        self._bytes: list[bytes] = [bytes([value]) for value in range(_BYTES)]
        self._parts: list[tuple[int, int] | None] = [None] * _BYTES
        self._ranks: dict[tuple[int, int], int] = {}
        for pair in merges:
            left, right = pair
            known = len(self._bytes)
            if not (0 <= left < known and 0 <= right < known):
                raise ConfigError(f"merge {known - _BYTES}: {pair} names a token at or above {known}")
            self._ranks[pair] = known
            self._parts.append(pair)
            self._bytes.append(self._bytes[left] + self._bytes[right])
        self.special: dict[str, int] = {}
        for token in (*CONTROL, *ADDED):
            self.special[token] = len(self._bytes)
            self._parts.append(None)
            self._bytes.append(token.encode())
        self.control: frozenset[int] = frozenset(self.special[token] for token in CONTROL)
        self._words: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self._bytes)

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Token ids of a text; with ``control`` the spelling of control tokens means the tokens."""
        if "<" not in text:
            return self._plain(text)
        ids: list[int] = []
        start = 0
        for match in (_SPECIAL if control else _ADDED).finditer(text):
            if match.start() > start:
                ids += self._plain(text[start : match.start()])
            ids.append(self.special[match[0]])
            start = match.end()
        if start < len(text):
            ids += self._plain(text[start:])
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of token ids, which need not be whole characters.

        Raises:
            ConfigError: An id is outside the vocabulary.
        """
        return b"".join([self.token_bytes(token) for token in ids])

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; errors as for ``decode``."""
        if not 0 <= token < len(self._bytes):
            raise ConfigError(f"token id {token} is outside the vocabulary of {len(self._bytes)}")
        return self._bytes[token]

    def parts(self, token: int) -> tuple[int, int] | None:
        """The two tokens of a merged token; None for a byte or a special token."""
        return self._parts[token]

    def split(self, ids: Sequence[int], rate: float, draws: Draws) -> list[int]:
        """Another segmentation of the same bytes: each merged token is split in two at this rate."""
        out: list[int] = []
        for token in ids:
            parts = self._parts[token]
            if parts is not None and draws.random() < rate:
                out += parts
            else:
                out.append(token)
        return out

    def _plain(self, text: str) -> list[int]:
        words = self._words
        ids: list[int] = []
        for word in _WORD.findall(text):
            known = words.get(word)
            if known is None:
                known = tuple(self._merge(word.encode("utf-8", "replace")))
                if len(words) >= _CACHE_LIMIT:
                    words.clear()
                words[word] = known
            ids += known
        return ids

    def _merge(self, word: bytes) -> list[int]:
        """Apply the lowest-ranked merge until none applies; a heap keeps one huge word near-linear."""
        ids = list(word)
        size = len(ids)
        following = [*range(1, size), -1]
        before = list(range(-1, size - 1))
        ranks = self._ranks
        heap = [
            (rank, i, ids[i], ids[i + 1])
            for i in range(size - 1)
            if (rank := ranks.get((ids[i], ids[i + 1]))) is not None
        ]
        heapq.heapify(heap)
        while heap:
            rank, i, left, right = heapq.heappop(heap)
            j = following[i]
            if ids[i] != left or j < 0 or ids[j] != right:
                continue
            ids[i], ids[j] = rank, -1
            after = following[i] = following[j]
            if after >= 0:
                before[after] = i
                pair = (rank, ids[after])
                if (found := ranks.get(pair)) is not None:
                    heapq.heappush(heap, (found, i, *pair))
            if (back := before[i]) >= 0:
                pair = (ids[back], rank)
                if (found := ranks.get(pair)) is not None:
                    heapq.heappush(heap, (found, back, *pair))
        return [token for token in ids if token >= 0]


def train(texts: Iterable[str], merges: int = MERGES) -> list[tuple[int, int]]:
    """Learn merges: join the most frequent pair of neighbours inside words, until no pair occurs twice.

    Ties go to the pair with the smallest ids, so that the same texts give the same merges everywhere.
    """
    count: Counter[str] = Counter()
    for text in texts:
        for piece in _ADDED.split(text):
            count.update(_WORD.findall(piece))
    words = [(list(word.encode("utf-8", "replace")), times) for word, times in sorted(count.items())]
    pairs: Counter[tuple[int, int]] = Counter()
    where: dict[tuple[int, int], set[int]] = {}
    for index, (ids, times) in enumerate(words):
        for pair in itertools.pairwise(ids):
            pairs[pair] += times
            where.setdefault(pair, set()).add(index)
    heap = [(-times, pair) for pair, times in pairs.items()]
    heapq.heapify(heap)
    learnt: list[tuple[int, int]] = []
    while heap and len(learnt) < merges:
        negative, pair = heapq.heappop(heap)
        if pairs.get(pair, 0) != -negative:
            continue
        if negative > -2:
            break
        new = _BYTES + len(learnt)
        learnt.append(pair)
        changed: set[tuple[int, int]] = set()
        for index in where.pop(pair):
            ids, times = words[index]
            for old in itertools.pairwise(ids):
                pairs[old] -= times
                changed.add(old)
            _join(ids, pair, new)
            for now in itertools.pairwise(ids):
                pairs[now] += times
                where.setdefault(now, set()).add(index)
                changed.add(now)
        pairs.pop(pair, None)
        for touched in changed:
            if touched != pair and pairs[touched] > 0:
                heapq.heappush(heap, (-pairs[touched], touched))
    return learnt


def _join(ids: list[int], pair: tuple[int, int], new: int) -> None:
    """Replace each occurrence of a pair by the new token, in place, from the left."""
    write = read = 0
    while read < len(ids):
        if ids[read] == pair[0] and read + 1 < len(ids) and ids[read + 1] == pair[1]:
            ids[write] = new
            read += 2
        else:
            ids[write] = ids[read]
            read += 1
        write += 1
    del ids[write:]


def dump(merges: Sequence[tuple[int, int]]) -> str:
    """The text of a merges file: two token ids a line."""
    return "".join(f"{left} {right}\n" for left, right in merges)


def load(text: str) -> list[tuple[int, int]]:
    """Read the text of a merges file.

    Raises:
        ConfigError: A line is not two numbers; the message names it.
    """
    merges = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if len(fields) != 2 or not all(field.isdecimal() for field in fields):
            raise ConfigError(f"merges, line {number}: expected two token ids, got {line!r}")
        merges.append((int(fields[0]), int(fields[1])))
    return merges


@lru_cache(maxsize=1)
def default_bpe() -> Bpe:
    """The encoder of the shipped merges."""
    return Bpe(load(resources.files(__package__ or __name__).joinpath("merges.txt").read_text("ascii")))
