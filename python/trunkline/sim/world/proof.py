"""Derives answers from the text of a corpus alone, which is what makes them provable."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trunkline.errors import InputError
from trunkline.sim.world import arithmetic
from trunkline.sim.world.language import parse_question, read, read_aliases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.sim.world.generator import Document, Question

__all__ = ["Evidence", "Proof", "prove"]


class Proof(NamedTuple):
    """An answer, and for each hop the ids of the documents that state it (none for arithmetic)."""

    answer: str
    stated_in: tuple[tuple[str, ...], ...]


class Evidence:
    """What the documents of a corpus state, read once.

    Args:
        documents: The whole corpus.

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
        """The own name of what a name or alias stands for; an unknown name stands for itself."""
        return self._names.get(name, name)

    def prove(self, question: str) -> Proof:
        """Derive the answer to a question.

        Args:
            question: The question's text.

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
        """Take one hop.

        Args:
            name: A name or alias.
            relation: A relation of the language.

        Returns:
            The object's own name and the ids of the documents that state it.

        Raises:
            InputError: No document states it.
        """
        key = self.name(name), relation
        if key not in self._facts:
            raise InputError(f"no document states {relation} of {key[0]}")
        value, places = self._facts[key]
        return value, tuple(places)


def prove(documents: Sequence[Document], question: Question) -> str:
    """Derive the answer to one question; for many questions make an ``Evidence`` once.

    Args:
        documents: The whole corpus.
        question: Only its text is read.

    Raises:
        InputError: As for ``Evidence`` and its ``prove``.
    """
    return Evidence(documents).prove(question.question).answer
