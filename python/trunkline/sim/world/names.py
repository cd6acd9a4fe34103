"""Names, sentences without facts, and random numbers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, TypeVar

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["Draws", "Namer", "filler", "mention", "mistaken", "opening"]


def _syllables(first: str, middle: str, last: str) -> tuple[list[str], list[str], list[str]]:
    """Syllables of a stem; the middle one may be missing."""
    return first.split(), ["", "", *middle.split()], last.split()


_SYLLABLES: Final = {
    "given": _syllables(
        "ma li vo ne ta so el da jo mi ko an is or ve ro em",
        "ri la no me vi",
        "ra na lin ren dis mon ta lia ric sa nor vel ma bert da",
    ),
    "family": _syllables(
        "hal ver mor bran cas del fen gar hol jar kel lor nor pel win",
        "a e in or ber den",
        "man stad ley rick mont low sen ner wick dale mere well lund roth",
    ),
    "place": _syllables(
        "ar bel cor dun es fal gren hav ist kar lun mar nes os riv",
        "be do la mi ra te vo",
        "len mouth ford stead ria dor burg holm vik tana sel moor nia low",
    ),
    "firm": _syllables(
        "ac bre con dy ex flo gal hex in lum nov ob pro quan syn",
        "ta me lo ri ve da",
        "tex dron lix pora stra vance mark tica logue nex tum vera lock",
    ),
}
_FORMS: Final = {
    kind: forms.split(", ")
    for kind, forms in {
        "place": "Port {}, {} Bridge, {} Heights, Lower {}, {} Cross, New {}, {} Bay, Saint {}, {} Mills, Upper {}, "
        "{} Green, Castle {}",
        "region": "North {}, {} Province, South {}, {} Uplands, {} Coast",
        "organisation": "{} Institute, {} Trading Guild, {} Works, Royal {} Society, {} Foundry, {} Press, "
        "{} Laboratory, {} Shipping Company, {} Academy, Free {} Union",
        "event": "{} Regatta, Great {} Fair, {} Congress, {} Music Week, {} Flood, {} Treaty, Grand {} Race, "
        "{} Harvest Feast, {} Exhibition, {} Assembly",
    }.items()
}
_ADJECTIVES: Final = str.split(
    "Silent Amber Broken Crimson Distant Empty Fading Golden Hidden Iron Last Narrow Northern Pale Quiet Restless "
    "Scarlet Second Sleeping Tall Unwritten Velvet Wandering White Winter Wooden Borrowed Burning Clever Drowned"
)
_NOUNS: Final = str.split(
    "Harbour Lantern Orchard Compass Mirror Letter Garden Bridge Tower Window Ferry Clock Forest Island Kingdom "
    "Ladder Map Meadow Mountain Needle Organ Painter Railway River Sailor Shadow Stair Station Stone Summer "
    "Teacher Thief Threshold Tide Traveller Voyage Watchman Well Witness Orphan"
)
_WORK_ENDS: Final = ("Letters", "Songs", "Diaries", "Tales", "Studies", "Variations", "Papers", "Nocturnes")
_TRIES: Final = 300


class Namer:
    """Makes names, each once, in the form of their kind."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._taken: set[str] = set()
        self._places: list[str] = []
        self._stems: dict[str, str] = {}

    def fresh(self, kind: str) -> str:
        """A new name of a ``person``, ``place``, ``region``, ``organisation``, ``work`` or ``event``.

        Raises:
            ConfigError: The names of this kind have run out.
        """
        return self._unused(kind, self._form)

    def alias(self, kind: str) -> str:
        """A second name; it shares no word with the first one on purpose."""
        if kind == "person":
            honours = ("Captain", "Doctor", "Old", "Master", "Judge")
            return self._unused(kind, lambda _: f"{self._draws.pick(honours)} {self._stem('family')}")
        return self.fresh(kind)

    def twin(self, name: str, kind: str) -> str:
        """A new name like another: one word of a person's, all words but the last of a title, else the same stem."""
        words = name.split()
        stem = self._stems.get(name, "")

        def variant(kind: str) -> str:
            draws = self._draws
            if kind == "person":
                first = draws.chance(0.5)
                return f"{self._stem('given')} {words[1]}" if first else f"{words[0]} {self._stem('family')}"
            if kind == "work":
                return " ".join((*words[:-1], draws.pick(_NOUNS if words[0] == "The" else _WORK_ENDS)))
            return self._shaped(kind, stem)

        # In a large world every variant may be taken; then any new name has to do.
        return self._unused(kind, variant, self._form)

    def _unused(self, kind: str, *makers: Callable[[str], str]) -> str:
        """The first free name, of the first maker that finds one."""
        for make in makers:
            for _ in range(_TRIES):
                name = make(kind)
                words = name.removeprefix("The ").split()
                if name not in self._taken and len(set(words)) == len(words):
                    self._taken.add(name)
                    return name
        raise ConfigError(f"no {kind} names are left for a world of this size; ask for fewer documents")

    def _form(self, kind: str) -> str:
        draws = self._draws
        if kind == "person":
            return f"{self._stem('given')} {self._stem('family')}"
        if kind == "work":
            adjective, noun = draws.pick(_ADJECTIVES), draws.pick(_NOUNS)
            if draws.chance(0.5):
                return f"The {adjective} {noun}"
            return f"{draws.pick((adjective, self._stem('given')))} {noun} {draws.pick(_WORK_ENDS)}"
        # Some organisations and events are called after a place, so that a search for one finds the other.
        if kind in {"organisation", "event"} and self._places and draws.chance(0.3):
            return self._shaped(kind, draws.pick(self._places))
        return self._shaped(kind, self._stem("firm" if kind == "organisation" else "place"))

    def _shaped(self, kind: str, stem: str) -> str:
        name = self._draws.pick(_FORMS[kind]).format(stem)
        self._stems[name] = stem
        if kind in {"place", "region"}:
            self._places.append(stem)
        return name

    def _stem(self, kind: str) -> str:
        first, middle, last = _SYLLABLES[kind]
        return (self._draws.pick(first) + self._draws.pick(middle) + self._draws.pick(last)).capitalize()


_OPENINGS: Final[dict[str, tuple[str, ...]]] = {
    "person": ("{x} is one of the people kept in this register.", "This page collects what is known about {x}."),
    "place": ("{x} is a place on the old survey maps.", "This page describes {x} and its surroundings."),
    "organisation": (
        "{x} is an organisation with a long list of members.",
        "This page is about the organisation called {x}.",
    ),
    "work": ("{x} is a title that most readers know.", "This page is a short note on {x}."),
    "event": ("{x} is remembered in many households.", "This page gathers reports of {x}."),
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
_MISTAKEN: Final = ("It should not be confused with {x}.", "Careless readers mix this entry up with {x}.")


def opening(name: str, kind: str, draws: Draws) -> str:
    """The first sentence of a document."""
    return draws.pick(_OPENINGS[kind]).format(x=name)


def filler(kind: str, count: int, draws: Draws) -> list[str]:
    """Up to five different sentences without a fact."""
    return draws.shuffled(_FILLERS[kind])[:count]


def mention(name: str, draws: Draws) -> str:
    """A sentence that mentions a name without a fact."""
    return draws.pick(_MENTIONS).format(x=name)


def mistaken(name: str, draws: Draws) -> str:
    """A sentence that points to a similar name."""
    return draws.pick(_MISTAKEN).format(x=name)


T = TypeVar("T")

_BLOCK = 8


class Draws:
    """A stream of random numbers named by a key, independent of the streams of other keys."""

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
        """A whole number of at least 0 and below ``n``."""
        return self.word() * n >> 64

    def chance(self, p: float) -> bool:
        """True with probability ``p``."""
        return self.random() < p

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order, as a new list."""
        order = list(items)
        for i in range(len(order) - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order
