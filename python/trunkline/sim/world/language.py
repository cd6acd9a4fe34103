"""The language of the world: relations, their wordings, and the grammar that reads sentences and questions.

The grammar is regular. A name is one to six capitalised words, a date is a year of four digits, a sentence is
``[prefix] slot infix slot .``, and a question is an opener, nested noun phrases with their argument last, and a name:
"Who is the founder of the employer of Ada Venn?". Nothing here depends on a name or a fact of a world.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ANSWER_KIND",
    "KINDS",
    "NAME",
    "RELATIONS",
    "Chain",
    "Fact",
    "alias_sentence",
    "ask",
    "ask_variants",
    "parse_question",
    "read",
    "read_aliases",
    "sentence",
]


KINDS: Final = ("person", "place", "organisation", "work", "event")
"""The kinds of entity that have a document; a relation may also lead to a ``date``."""


class Relation(msgspec.Struct, frozen=True):
    """A functional relation: a subject has at most one object, which may be a ``date``.

    ``sentences`` are wordings with ``{s}`` and ``{o}``; ``phrase`` and ``other`` lead from the subject to the object,
    as "the author of {x}"; ``keywords`` are words of a search beside the subject's name.
    """

    name: str
    subject: str
    object: str
    sentences: tuple[str, ...]
    phrase: str
    other: str
    keywords: str

    @property
    def phrases(self) -> tuple[str, str]:
        """Both noun phrases."""
        return (self.phrase, self.other)


_TABLE: Final = """
born_in: person -> place (birthplace born in)
    the birthplace of {x}; the place that saw the birth of {x}
    {s} was born in {o}. {o} is the birthplace of {s}. The birthplace of {s} is {o}.
birth_year: person -> date (birth year born)
    the birth year of {x}; the year that saw the birth of {x}
    {s} was born in the year {o}. The birth year of {s} is {o}.
works_for: person -> organisation (employer employs works for)
    the employer of {x}; the organisation that employs {x}
    {s} works for {o}. {o} employs {s}. The employer of {s} is {o}.
spouse: person -> person (spouse married to)
    the spouse of {x}; the person married to {x}
    {s} is married to {o}. The spouse of {s} is {o}.
mentor: person -> person (mentor trained by)
    the mentor of {x}; the person who trained {x}
    {s} was trained by {o}. {o} was the mentor of {s}. The mentor of {s} was {o}.
author: work -> person (author written wrote)
    the author of {x}; the person who wrote {x}
    {s} was written by {o}. {o} wrote {s}. The author of {s} is {o}.
released: work -> date (publication year published)
    the publication year of {x}; the year that saw the publication of {x}
    {s} was first published in {o}. The publication year of {s} is {o}.
subject_event: work -> event (event describes described theme)
    the event described in {x}; the event that is the theme of {x}
    {s} describes {o}. {o} is the theme of {s}. The event described in {s} is {o}.
located_in: place -> place (region located lies contains)
    the region around {x}; the region that contains {x}
    {s} lies in the region of {o}. The region around {s} is {o}.
mayor: place -> person (mayor governs governed)
    the mayor of {x}; the person who governs {x}
    {s} is governed by {o}. {o} governs {s}. The mayor of {s} is {o}.
twin: place -> place (twin town twinned with)
    the twin town of {x}; the place twinned with {x}
    {s} is twinned with {o}. The twin town of {s} is {o}.
founder: organisation -> person (founder founded by)
    the founder of {x}; the person who founded {x}
    {s} was founded by {o}. {o} founded {s}. The founder of {s} is {o}.
director: organisation -> person (director directs led)
    the director of {x}; the person who directs {x}
    {s} is led by the director {o}. {o} directs {s}. The director of {s} is {o}.
based_in: organisation -> place (home town based in offices)
    the home town of {x}; the place that houses the offices of {x}
    {s} is based in {o}. {o} houses the offices of {s}. The home town of {s} is {o}.
established: organisation -> date (founding year established since)
    the founding year of {x}; the year that saw the start of {x}
    {s} was established in {o}. The founding year of {s} is {o}.
held_in: event -> place (venue hosted held in)
    the venue of {x}; the place that hosted {x}
    {s} was held in {o}. {o} hosted {s}. The venue of {s} was {o}.
organiser: event -> organisation (organiser arranged organised by)
    the organiser of {x}; the organisation that arranged {x}
    {s} was arranged by {o}. {o} arranged {s}. The organiser of {s} was {o}.
year: event -> date (year took place date)
    the year of {x}; the year that witnessed {x}
    {s} took place in {o}. The year of {s} was {o}.
"""
"""Each relation: name, kinds of subject and object, keywords; both noun phrases; the wordings."""


def _relations(table: str) -> Iterator[Relation]:
    lines = iter(table.strip().splitlines())
    for head, phrases, wordings in zip(lines, lines, lines, strict=True):
        name, subject, found, keywords = re.split(r": | -> | \(", head.removesuffix(")"))
        phrase, other = phrases.strip().split("; ")
        sentences = tuple(f"{wording}." for wording in wordings.strip().removesuffix(".").split(". "))
        yield Relation(name, subject, found, sentences, phrase, other, keywords)


RELATIONS: Final = {relation.name: relation for relation in _relations(_TABLE)}

ANSWER_KIND: Final[dict[str, str]] = {name: relation.object for name, relation in RELATIONS.items()}


NAME: Final = r"[A-Z][a-z]++(?: [A-Z][a-z]++){0,5}+"
"""The pattern of a name; possessive and bounded, so that no text makes matching slow."""

_YEAR = r"[12][0-9]{3}"
_SLOT = rf"(?:{NAME}|{_YEAR})"


class Fact(NamedTuple):
    """A stated fact; names may be aliases, and the object may be a year."""

    subject: str
    relation: str
    object: str


class Chain(NamedTuple):
    """A question: ``relations[0]`` applied to ``anchor``, the next one to the result, and so on."""

    anchor: str
    relations: tuple[str, ...]


_OPENERS: Final[dict[str, tuple[str, str]]] = {
    "person": ("Who is ", "Which person is "),
    "place": ("Which place is ", "What is the name of "),
    "organisation": ("Which organisation is ", "What is the name of "),
    "work": ("Which work is ", "What is the title of "),
    "event": ("Which event is ", "What is the name of "),
    "date": ("What is ", "Which year is "),
}


def _any_of(options: set[str]) -> str:
    """A pattern for one of some literals, the longest first; sorted, so that it is the same in every process."""
    return "|".join(re.escape(option) for option in sorted(options, key=lambda o: (-len(o), o)))


class _Wording(NamedTuple):
    relation: str
    subject_first: bool


def _wordings() -> dict[tuple[str, str], _Wording]:
    table: dict[tuple[str, str], _Wording] = {}
    for relation in RELATIONS.values():
        for template in relation.sentences:
            prefix, first, infix, _, _ = re.split(r"\{([so])\}", template)
            table[prefix, infix] = _Wording(relation.name, first == "s")
    return table


_WORDINGS: Final = _wordings()
_PREFIX: Final = _any_of({prefix for prefix, _ in _WORDINGS if prefix})
_LINK: Final = _any_of({infix for prefix, infix in _WORDINGS if prefix})
_INFIX: Final = _any_of({infix for prefix, infix in _WORDINGS if not prefix})
_STATEMENT: Final = re.compile(
    rf"(?<![A-Za-z0-9])(?:(?P<prefix>{_PREFIX})(?P<a>{_SLOT})(?P<i>{_LINK})|(?P<b>{_SLOT})(?P<j>{_INFIX}))"
    rf"(?P<last>{_SLOT})\.(?!\.)"
)
_ALIAS: Final = re.compile(rf"(?<![A-Za-z0-9])({NAME}) is also known as ({NAME})\.(?!\.)")
_PHRASES: Final = {
    phrase.removesuffix("{x}"): relation.name for relation in RELATIONS.values() for phrase in relation.phrases
}
_PHRASE: Final = re.compile(_any_of(set(_PHRASES)))
_QUESTION: Final = re.compile(
    rf"(?<![A-Za-z0-9])(?:{_any_of({o for pair in _OPENERS.values() for o in pair})})"
    rf"(?P<phrases>(?:{_PHRASE.pattern}){{1,12}}+)(?P<anchor>{NAME})(?=[?.!,;\"'<)\]\\]|\s*\Z|\s*\n)"
)


def sentence(fact: Fact, variant: int) -> str:
    """State a fact in wording ``variant`` modulo the number of wordings; ``read`` turns the sentence back.

    Raises:
        ConfigError: The language has no such relation.
    """
    templates = _relation_named(fact.relation).sentences
    template = templates[variant % len(templates)]
    return template.replace("{s}", fact.subject).replace("{o}", fact.object)


def read(text: str) -> tuple[Fact, ...]:
    """Every fact stated in a text, in order, repeats included; a sentence without its full stop is not read."""
    facts = []
    for match in _STATEMENT.finditer(_lines(text)):
        prefix, a, i, b, j, last = match.group("prefix", "a", "i", "b", "j", "last")
        wording = _WORDINGS.get((prefix or "", i or j))
        if wording is None:
            continue
        first = a or b
        fact = Fact(first, wording.relation, last) if wording.subject_first else Fact(last, wording.relation, first)
        if not fact.subject.isdigit() and fact.object.isdigit() == (ANSWER_KIND[fact.relation] == "date"):
            facts.append(fact)
    return tuple(facts)


def alias_sentence(name: str, alias: str) -> str:
    """State that an entity has a second name."""
    return f"{name} is also known as {alias}."


def read_aliases(text: str) -> tuple[tuple[str, str], ...]:
    """Every ``(name, alias)`` pair stated in a text, in order."""
    return tuple((match[1], match[2]) for match in _ALIAS.finditer(_lines(text)))


def ask_variants(hops: int) -> int:
    """The number of wordings of a question of so many hops."""
    return 2 << hops


def ask(chain: Chain, variant: int) -> str:
    """Word a chain as a question: bit 0 of ``variant`` picks the opener, bit ``i + 1`` the phrase of ``relations[i]``.

    Raises:
        ConfigError: The chain is empty or names a relation that the language lacks.
    """
    if not chain.relations:
        raise ConfigError("a question needs at least one relation, and this chain has none")
    text = chain.anchor
    for i, name in enumerate(chain.relations):
        text = _relation_named(name).phrases[variant >> (i + 1) & 1].replace("{x}", text)
    return f"{_OPENERS[ANSWER_KIND[chain.relations[-1]]][variant & 1]}{text}?"


def parse_question(text: str) -> Chain | None:
    """The chain of the last question in a text, behind any examples; None where there is no question."""
    found = None
    for found in _QUESTION.finditer(_lines(text)):  # noqa: B007
        pass
    if found is None:
        return None
    phrases = _PHRASE.findall(found["phrases"])
    return Chain(found["anchor"], tuple(_PHRASES[phrase] for phrase in reversed(phrases)))


def _relation_named(name: str) -> Relation:
    try:
        return RELATIONS[name]
    except KeyError:
        raise ConfigError(f"no relation {name!r} in the language; it has {', '.join(RELATIONS)}") from None


def _lines(text: str) -> str:
    """Undo the escaping of line breaks, which would join an ``n`` to the next name."""
    return text.replace("\\n", "\n") if "\\n" in text else text
