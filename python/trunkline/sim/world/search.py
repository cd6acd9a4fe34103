"""Full-text search over a corpus: SQLite FTS5 in memory, ranked by BM25."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import weakref
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.errors import InputError
from trunkline.sim.world.files import read_corpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.sim.world.generator import Document

__all__ = ["Hit", "Index", "open_index"]

_TITLE_WEIGHT: Final = 6.0
_LONGEST_QUERY: Final = 1000
_MOST_WORDS: Final = 32
_MOST_QUERIES: Final = 16
_SENTENCES: Final = 2
_LONGEST_SNIPPET: Final = 400
_WORD: Final = re.compile(r"[^\W_]+")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_STOP_WORDS: Final = frozenset(
    str.split(
        "a an and are as at be by did do does for from has have in is it of on or that the this to was were what when "
        "where which who whom whose with"
    )
)
_OPEN_INDEXES: Final = 4


class Hit(NamedTuple):
    """A document found; its snippet is the whole sentences that fit the query best, in order, joined by `` … ``."""

    id: str
    title: str
    snippet: str


class Index:
    """An in-memory index of documents with unique ids, for any number of threads.

    Raises:
        InputError: This Python's SQLite was built without FTS5.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = tuple(documents)
        self._places = {document.id: place for place, document in enumerate(self._documents)}
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        # Runs when the last reference goes, for example when the cache of open indexes drops this one.
        self._closed = weakref.finalize(self, self._db.close)
        try:
            self._db.execute("CREATE VIRTUAL TABLE page USING fts5(title, text, tokenize='unicode61')")
        except sqlite3.OperationalError as error:
            self.close()
            raise InputError(f"SQLite {sqlite3.sqlite_version} has no full-text search: {error}") from error
        with self._db:
            self._db.executemany(
                "INSERT INTO page(rowid, title, text) VALUES (?, ?, ?)",
                ((place, page.title, page.text) for place, page in enumerate(self._documents)),
            )
        self._ranked = lru_cache(maxsize=4096)(self._rank)
        self._shown = lru_cache(maxsize=4096)(self._hit)

    def __len__(self) -> int:
        return len(self._documents)

    def close(self) -> None:
        """Free the index; it cannot be searched afterwards."""
        self._closed()

    def get(self, id: str) -> Document | None:
        """The document with this id, or None."""
        place = self._places.get(id)
        return None if place is None else self._documents[place]

    def search(self, queries: Sequence[str], k: int = 5) -> list[Hit]:
        """The ``k`` best hits of at most 16 queries of 1,000 characters: first of each, second of each, and so on.

        Every word is quoted for SQLite, so that a query may hold any text; one without a word finds nothing.
        """
        asked = [words for query in queries[:_MOST_QUERIES] if (words := _words(query))]
        ranks = [self._ranked(words, k) for words in asked]
        found: dict[int, tuple[str, ...]] = {}
        for turn in range(k):
            for words, places in zip(asked, ranks, strict=True):
                if turn < len(places) and len(found) < k:
                    found.setdefault(places[turn], words)
        return [self._shown(place, words) for place, words in found.items()]

    def _rank(self, words: tuple[str, ...], k: int) -> tuple[int, ...]:
        # Neighbours count as a term of their own, so that a whole name weighs more than its parts.
        pairs = [f"{one} {other}" for one, other in pairwise(words)]
        match = " OR ".join(f'"{term}"' for term in (*words, *pairs))
        with self._lock:
            rows = self._db.execute(
                "SELECT rowid FROM page WHERE page MATCH ? ORDER BY bm25(page, ?, 1.0), rowid LIMIT ?",
                (match, _TITLE_WEIGHT, k),
            ).fetchall()
        return tuple(row[0] for row in rows)

    def _hit(self, place: int, words: tuple[str, ...]) -> Hit:
        page = self._documents[place]
        return Hit(page.id, page.title, _snippet(page.text, frozenset(words)))


def open_index(path: str | os.PathLike[str]) -> Index:
    """The index of a corpus file, built once in this process and again when the file changes.

    Raises:
        InputError: The file cannot be read; path and line are named.
    """
    try:
        state = Path(path).stat()
    except OSError as error:
        raise InputError(f"cannot read the corpus: {error.strerror or error}", os.fspath(path)) from error
    with _OPENING:
        return _opened(str(Path(path).absolute()), state.st_mtime_ns, state.st_size)


_OPENING: Final = threading.Lock()


@lru_cache(maxsize=_OPEN_INDEXES)
def _opened(path: str, mtime_ns: int, size: int) -> Index:
    return Index(read_corpus(path))


def _words(query: str) -> tuple[str, ...]:
    """The words to search for, each once, without stop words unless there are no others."""
    words = list(dict.fromkeys(_WORD.findall(query[:_LONGEST_QUERY].casefold())))
    return tuple([word for word in words if word not in _STOP_WORDS][:_MOST_WORDS] or words[:_MOST_WORDS])


def _snippet(text: str, words: frozenset[str]) -> str:
    """The sentences that fit the words best; a word that many sentences hold counts for little."""
    sentences = _SENTENCE_END.split(text)
    held = [words.intersection(_WORD.findall(sentence.casefold())) for sentence in sentences]
    spread = {word: sum(word in some for some in held) for word in words}
    score = [sum(1 / spread[word] for word in sorted(some)) for some in held]
    best = sorted(range(len(sentences)), key=lambda i: (-score[i], i))[:_SENTENCES]
    chosen = sorted(i for i in best if score[i] > 0) or best[:1]
    snippet = " … ".join(sentences[i] for i in chosen)
    return snippet if len(snippet) <= _LONGEST_SNIPPET else snippet[:_LONGEST_SNIPPET].rstrip(". ") + " …"
