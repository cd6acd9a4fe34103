"""Sentences that carry no fact: how a document opens, what pads it, and names mentioned in passing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trunkline.sim.world.draws import Draws

__all__ = ["filler", "mention", "mistaken", "opening"]

_OPENINGS: Final[dict[str, tuple[str, ...]]] = {
    "person": (
        "{x} is one of the people kept in this register.",
        "This page collects what is known about {x}.",
    ),
    "place": (
        "{x} is a place on the old survey maps.",
        "This page describes {x} and its surroundings.",
    ),
    "organisation": (
        "{x} is an organisation with a long list of members.",
        "This page is about the organisation called {x}.",
    ),
    "work": (
        "{x} is a title that most readers know.",
        "This page is a short note on {x}.",
    ),
    "event": (
        "{x} is remembered in many households.",
        "This page gathers reports of {x}.",
    ),
}
_FILLERS: Final[dict[str, tuple[str, ...]]] = {
    "person": (
        "Friends praised a patient manner and a good memory for faces.",
        "Two portraits are kept in a private collection.",
        "A fondness for long walks is often noted.",
        "Several notebooks were lost in a fire.",
        "The letters of later life are full of weather and gardens.",
    ),
    "place": (
        "The market square is paved with grey stone.",
        "Fog is common in the early spring.",
        "A small museum shows tools and old coins.",
        "The railway station was rebuilt twice.",
        "Visitors come for the bread and the quiet.",
    ),
    "organisation": (
        "The archive is open on weekday mornings.",
        "Its seal shows a key and two oak leaves.",
        "Members meet four times a season.",
        "The first hall was a converted barn.",
        "An annual report is printed on blue paper.",
    ),
    "work": (
        "Critics were divided at first.",
        "The second edition corrected many small errors.",
        "A stage version ran for a single season.",
        "Its opening line is often quoted.",
        "The manuscript is kept behind glass.",
    ),
    "event": (
        "Rain delayed the opening by a day.",
        "Crowds filled the streets until late.",
        "A medal was struck for the occasion.",
        "Newspapers gave it several pages.",
        "Songs about it are still heard.",
    ),
}
_MENTIONS: Final = (
    "A visitor once compared it all to {x}.",
    "An old letter mentions {x} in passing.",
    "The story is sometimes told together with that of {x}.",
    "A footnote points to {x} without saying why.",
    "Some guides mention {x} on the same page.",
)
_MISTAKEN: Final = (
    "It should not be confused with {x}.",
    "Careless readers mix this entry up with {x}.",
)


def opening(name: str, kind: str, draws: Draws) -> str:
    """The first sentence of a document."""
    return draws.pick(_OPENINGS[kind]).format(x=name)


def filler(kind: str, count: int, draws: Draws) -> list[str]:
    """Some different sentences that say nothing about anybody.

    Args:
        kind: The kind of the document's entity.
        count: How many; at most five exist for a kind.
        draws: Where the choices come from.
    """
    return draws.shuffled(_FILLERS[kind])[:count]


def mention(name: str, draws: Draws) -> str:
    """A sentence that names something in a role of no importance."""
    return draws.pick(_MENTIONS).format(x=name)


def mistaken(name: str, draws: Draws) -> str:
    """A sentence that points to something of a similar name."""
    return draws.pick(_MISTAKEN).format(x=name)
