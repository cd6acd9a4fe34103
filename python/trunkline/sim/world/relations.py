"""The relations of the embedded world: what may hold between its entities, and how it is worded."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["ANSWER_KIND", "KINDS", "RELATIONS", "Relation"]

KINDS: Final = ("person", "place", "organisation", "work", "event")
"""The kinds of entity that have a document; a relation may also lead to a ``date``."""


class Relation(msgspec.Struct, frozen=True):
    """One functional relation: a subject has at most one object.

    Attributes:
        name: Its key in ``RELATIONS``.
        subject: Kind of the subject.
        object: Kind of the object, or ``date``.
        sentences: Wordings with ``{s}`` and ``{o}``, the subject's and the object's place.
        phrase: Noun phrase that leads from the subject to the object: "the author of {x}".
        other: A second noun phrase of the same meaning.
        keywords: What a searcher types beside the subject's name.
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


def _relation(
    name: str, subject: str, object: str, phrase: str, other: str, keywords: str, *sentences: str
) -> Relation:
    return Relation(name, subject, object, sentences, phrase, other, keywords)


RELATIONS: Final[dict[str, Relation]] = {
    relation.name: relation
    for relation in (
        _relation(
            *("born_in", "person", "place", "the birthplace of {x}", "the place that saw the birth of {x}"),
            "birthplace born in",
            "{s} was born in {o}.",
            "{o} is the birthplace of {s}.",
            "The birthplace of {s} is {o}.",
        ),
        _relation(
            *("birth_year", "person", "date", "the birth year of {x}", "the year that saw the birth of {x}"),
            "birth year born",
            "{s} was born in the year {o}.",
            "The birth year of {s} is {o}.",
        ),
        _relation(
            *("works_for", "person", "organisation"),
            *("the employer of {x}", "the organisation that employs {x}", "employer employs works for"),
            "{s} works for {o}.",
            "{o} employs {s}.",
            "The employer of {s} is {o}.",
        ),
        _relation(
            *("spouse", "person", "person", "the spouse of {x}", "the person married to {x}"),
            "spouse married to",
            "{s} is married to {o}.",
            "The spouse of {s} is {o}.",
        ),
        _relation(
            *("mentor", "person", "person", "the mentor of {x}", "the person who trained {x}"),
            "mentor trained by",
            "{s} was trained by {o}.",
            "{o} was the mentor of {s}.",
            "The mentor of {s} was {o}.",
        ),
        _relation(
            *("author", "work", "person", "the author of {x}", "the person who wrote {x}"),
            "author written wrote",
            "{s} was written by {o}.",
            "{o} wrote {s}.",
            "The author of {s} is {o}.",
        ),
        _relation(
            *(
                "released",
                "work",
                "date",
                "the publication year of {x}",
                "the year that saw the publication of {x}",
            ),
            "publication year published",
            "{s} was first published in {o}.",
            "The publication year of {s} is {o}.",
        ),
        _relation(
            *(
                "subject_event",
                "work",
                "event",
                "the event described in {x}",
                "the event that is the theme of {x}",
            ),
            "event describes described theme",
            "{s} describes {o}.",
            "{o} is the theme of {s}.",
            "The event described in {s} is {o}.",
        ),
        _relation(
            *("located_in", "place", "place", "the region around {x}", "the region that contains {x}"),
            "region located lies contains",
            "{s} lies in the region of {o}.",
            "The region around {s} is {o}.",
        ),
        _relation(
            *("mayor", "place", "person", "the mayor of {x}", "the person who governs {x}"),
            "mayor governs governed",
            "{s} is governed by {o}.",
            "{o} governs {s}.",
            "The mayor of {s} is {o}.",
        ),
        _relation(
            *("twin", "place", "place", "the twin town of {x}", "the place twinned with {x}"),
            "twin town twinned with",
            "{s} is twinned with {o}.",
            "The twin town of {s} is {o}.",
        ),
        _relation(
            *("founder", "organisation", "person", "the founder of {x}", "the person who founded {x}"),
            "founder founded by",
            "{s} was founded by {o}.",
            "{o} founded {s}.",
            "The founder of {s} is {o}.",
        ),
        _relation(
            *("director", "organisation", "person", "the director of {x}", "the person who directs {x}"),
            "director directs led",
            "{s} is led by the director {o}.",
            "{o} directs {s}.",
            "The director of {s} is {o}.",
        ),
        _relation(
            *("based_in", "organisation", "place"),
            *(
                "the home town of {x}",
                "the place that houses the offices of {x}",
                "home town based in offices",
            ),
            "{s} is based in {o}.",
            "{o} houses the offices of {s}.",
            "The home town of {s} is {o}.",
        ),
        _relation(
            *("established", "organisation", "date"),
            *(
                "the founding year of {x}",
                "the year that saw the start of {x}",
                "founding year established since",
            ),
            "{s} was established in {o}.",
            "The founding year of {s} is {o}.",
        ),
        _relation(
            *("held_in", "event", "place", "the venue of {x}", "the place that hosted {x}"),
            "venue hosted held in",
            "{s} was held in {o}.",
            "{o} hosted {s}.",
            "The venue of {s} was {o}.",
        ),
        _relation(
            *("organiser", "event", "organisation"),
            *(
                "the organiser of {x}",
                "the organisation that arranged {x}",
                "organiser arranged organised by",
            ),
            "{s} was arranged by {o}.",
            "{o} arranged {s}.",
            "The organiser of {s} was {o}.",
        ),
        _relation(
            *("year", "event", "date", "the year of {x}", "the year that witnessed {x}"),
            "year took place date",
            "{s} took place in {o}.",
            "The year of {s} was {o}.",
        ),
    )
}
"""Every relation of the language, by name."""

ANSWER_KIND: Final[dict[str, str]] = {name: relation.object for name, relation in RELATIONS.items()}
"""The kind of thing a relation leads to, so that a guesser knows what to guess."""
