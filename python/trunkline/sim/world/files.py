"""The files of a world, renaming, and proofs of answers from the text alone.

The corpus holds no questions and no answers; search and the simulated models never read the file of questions.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from trunkline.errors import ConfigError, InputError
from trunkline.sim.world import arithmetic
from trunkline.sim.world.generator import Document, Question, World
from trunkline.sim.world.language import NAME, parse_question, read, read_aliases
from trunkline.sim.world.names import Draws

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


__all__ = [
    "CORPUS",
    "QUESTIONS",
    "Evidence",
    "permutation",
    "read_corpus",
    "read_questions",
    "rename",
    "write_world",
]


CORPUS: Final = "corpus.jsonl"

QUESTIONS: Final = "questions.jsonl"

_RUN: Final = re.compile(rf"(?<![A-Za-z0-9]){NAME}")


class _Page(msgspec.Struct):
    id: str
    title: str
    text: str


class _Facts(msgspec.Struct):
    hops: int
    kind: str
    support: tuple[str, ...]


class _Row(msgspec.Struct):
    id: str
    question: str
    answer: list[str]
    metadata: _Facts


Row = TypeVar("Row", _Page, _Row)


def write_world(world: World, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write a world's corpus and questions, each file whole or not at all, and return their paths.

    Files of an earlier world are replaced, and the same world gives the same bytes.

    Raises:
        InputError: The folder cannot be written to.
    """
    base = Path(folder)
    pages: list[_Page | _Row] = [_Page(page.id, page.title, page.text) for page in world.documents]
    rows: list[_Page | _Row] = [
        _Row(q.id, q.question, [q.answer, *q.aliases], _Facts(q.hops, q.kind, q.support)) for q in world.questions
    ]
    targets = base / CORPUS, base / QUESTIONS
    drafts = [target.with_name(f".{target.name}.{os.getpid()}.part") for target in targets]
    try:
        base.mkdir(parents=True, exist_ok=True)
        for draft, lines in zip(drafts, (pages, rows), strict=True):
            draft.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        for draft, target in zip(drafts, targets, strict=True):
            draft.replace(target)
    except OSError as error:
        raise InputError(f"cannot write the world here: {error.strerror or error}", str(base)) from error
    finally:
        for draft in drafts:
            if draft.is_file():
                draft.unlink()
    return targets


def read_corpus(path: str | os.PathLike[str]) -> tuple[Document, ...]:
    """Read the documents of a corpus; their kind, which is not in the file, is empty.

    Raises:
        InputError: The file is missing, empty or malformed, or an id appears twice; path and line are named.
    """
    return tuple(Document(row.id, row.title, "", row.text) for row in _rows(path, _Page))


def read_questions(path: str | os.PathLike[str]) -> tuple[Question, ...]:
    """Read a ``questions.jsonl``; errors as for ``read_corpus``."""
    questions = []
    for row in _rows(path, _Row):
        answer, *aliases = row.answer or [""]
        facts = row.metadata
        found = Question(row.id, row.question, answer, tuple(aliases), facts.hops, facts.kind, facts.support)
        questions.append(found)
    return tuple(questions)


def permutation(world: World, seed: int) -> dict[str, str]:
    """A random permutation of a world's names within each kind, aliases among aliases, for ``rename``."""
    groups: dict[str, list[str]] = {}
    for page in world.documents:
        groups.setdefault(page.kind, []).append(page.title)
        for _, alias in read_aliases(page.text):
            groups.setdefault(f"{page.kind} alias", []).append(alias)
    mapping: dict[str, str] = {}
    for kind, names in groups.items():
        mapping.update(zip(names, Draws(seed, "permutation", kind).shuffled(names), strict=True))
    return mapping


def rename(world: World, mapping: Mapping[str, str]) -> World:
    """A world with other names (own names or aliases) in documents, questions and answers; missing names stay.

    Raises:
        ConfigError: A name is unknown, a new name is not a name, or two things would get the same name.
    """
    names = {page.title for page in world.documents}
    names.update(alias for page in world.documents for _, alias in read_aliases(page.text))
    for old, new in mapping.items():
        if old not in names:
            raise ConfigError(f"cannot rename {old!r}: the world has nothing of this name")
        if not re.fullmatch(NAME, new):
            raise ConfigError(f"cannot rename {old!r} to {new!r}: a name is one to six capitalised words")
    after = [mapping.get(name, name) for name in sorted(names)]
    if len(set(after)) != len(after):
        twice = next(name for name in sorted(after) if after.count(name) > 1)
        raise ConfigError(f"cannot rename: two things would be called {twice!r}")

    def apply(text: str) -> str:
        return _RUN.sub(lambda run: _renamed(run[0], names, mapping), text)

    return World(
        world.seed,
        tuple(Document(page.id, apply(page.title), page.kind, apply(page.text)) for page in world.documents),
        tuple(
            msgspec.structs.replace(
                q,
                question=apply(q.question),
                answer=apply(q.answer),
                aliases=tuple(apply(alias) for alias in q.aliases),
            )
            for q in world.questions
        ),
    )


def _renamed(run: str, names: set[str], mapping: Mapping[str, str]) -> str:
    """Rename inside a run of capitalised words, the longest known name first."""
    words = run.split(" ")
    out: list[str] = []
    start = 0
    while start < len(words):
        for stop in range(len(words), start, -1):
            name = " ".join(words[start:stop])
            if name in names or stop == start + 1:
                out.append(mapping.get(name, name))
                start = stop
                break
    return " ".join(out)


def _rows(path: str | os.PathLike[str], row: type[Row]) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(row)
    seen: set[str] = set()
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror or error}", os.fspath(path)) from error
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            item = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"not a line of this file: {error}", os.fspath(path), number) from error
        if item.id in seen:
            raise InputError(f"the id {item.id!r} appears twice", os.fspath(path), number)
        seen.add(item.id)
        yield item
    if not seen:
        raise InputError("the file is empty", os.fspath(path))


class Proof(NamedTuple):
    """An answer, and for each hop the ids of the documents that state it (none for arithmetic)."""

    answer: str
    stated_in: tuple[tuple[str, ...], ...]


class Evidence:
    """The facts that the documents of a corpus state.

    Raises:
        InputError: Two documents contradict each other, or one second name belongs to two things.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        pages = list(documents)
        self._names: dict[str, str] = {page.title: page.title for page in pages}
        self._facts: dict[tuple[str, str], tuple[str, list[str]]] = {}
        for page in pages:
            for name, alias in read_aliases(page.text):
                if self._names.setdefault(alias, name) != name:
                    raise InputError(f"document {page.id}: {alias} is a name of {self._names[alias]} and of {name}")
        for page in pages:
            for fact in read(page.text):
                key, value = (self.name(fact.subject), fact.relation), self.name(fact.object)
                known, places = self._facts.setdefault(key, (value, []))
                if known != value:
                    raise InputError(f"document {page.id}: {fact.relation} of {key[0]} is {known} and {value}")
                if page.id not in places:
                    places.append(page.id)

    def name(self, name: str) -> str:
        """The own name behind a name or alias; an unknown name stands for itself."""
        return self._names.get(name, name)

    def prove(self, question: str) -> Proof:
        """Derive the answer to a question.

        Raises:
            InputError: The question cannot be read, or the documents do not state one of its hops.
        """
        chain = parse_question(question)
        if chain is None:
            steps = arithmetic.parse(question)
            if steps is None:
                raise InputError(f"this is no question of the world's language: {question!r}")
            return Proof(str(arithmetic.evaluate(steps)[-1]), ())
        at, stated_in = chain.anchor, []
        for relation in chain.relations:
            at, places = self.follow(at, relation)
            stated_in.append(places)
        return Proof(at, tuple(stated_in))

    def follow(self, name: str, relation: str) -> tuple[str, tuple[str, ...]]:
        """The object of a relation, by its own name, and the ids of the documents that state it.

        Raises:
            InputError: No document states it.
        """
        key = self.name(name), relation
        if key not in self._facts:
            raise InputError(f"no document states {relation} of {key[0]}")
        value, places = self._facts[key]
        return value, tuple(places)
