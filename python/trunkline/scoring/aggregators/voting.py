"""When answers of several tries count as one: an equivalence, so that no order of the tries makes a difference."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from inspect import iscoroutinefunction
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.printable import said
from trunkline.tree.vote import LONG, compatible, normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Cluster", "Same", "check_same", "cluster", "key_of", "votes"]

Same = Callable[[str, str], bool]
"""Says whether two answers mean the same; a plain function of both, never a coroutine function."""

_WORDS: Final = 40
"""Words of the longest answer in which others are looked for: a longer one is a text that may mention any of them."""

_FRACTION: Final = re.compile(r"([-+]?)(?:([0-9]{1,30})\s+)?([0-9]{1,30})\s*[/\u2044]\s*([0-9]{1,30})")
"""A fraction, also behind a whole number."""

_AROUND: Final = " \t\r\n.,;:!$()[]{}"
"""What may stand around a fraction and says nothing of its value."""

_PERCENT: Final = re.compile(r"(-?[0-9]*\.?[0-9]+) per ?cent")
_NUMBER: Final = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_SCALES: Final = frozenset(
    ("dozen", "hundred", "thousand", "million", "billion", "trillion", "percent", "k", "m", "bn")
)
_UNSURE: Final = frozenset(
    (
        "not",
        "no",
        "never",
        "neither",
        "nor",
        "none",
        "cannot",
        "cant",
        "isnt",
        "wasnt",
        "arent",
        "or",
        "either",
        "maybe",
        "wrong",
        "false",
        "incorrect",
        "except",
        "without",
        "unlike",
        "rather",
        "instead",
        "than",
        "dont",
        "doesnt",
        "didnt",
        "minus",
        "negative",
    )
)


class Cluster(msgspec.Struct, frozen=True):
    """Answers that count as one.

    Attributes:
        key: The form in which the answer is compared and put in order.
        answer: Its most frequent spelling, the first in the alphabet of several.
        members: Positions in what was clustered, ascending.
    """

    key: str
    answer: str
    members: tuple[int, ...]


def key_of(answer: str) -> str:
    """The form in which an answer is compared: :func:`trunkline.tree.vote.normalise`, with a word for numbers.

    An answer that is a fraction of two whole numbers is its value, exactly: ``1/2`` is ``0.5``, ``1 1/2`` is ``1.5``,
    and ``2/6`` is ``1/3``, which no decimal number equals. A percentage is the number before the sign: ``50 %``,
    ``50 percent`` and ``50`` are one, and ``0.5`` is another, since who is asked for a percentage may leave the sign
    away.

    Args:
        answer: An answer; blank for none.
    """
    if len(answer) <= 200:
        plain = compatible(answer).strip(_AROUND).replace("\u2212", "-")
        found = _FRACTION.fullmatch(plain)
        if found is not None and int(found[4]):
            value = int(found[2] or 0) + Fraction(int(found[3]), int(found[4]))
            return _written(-value if found[1] == "-" else value)
    key = normalise(answer)
    percent = _PERCENT.fullmatch(key) if len(key) <= 200 else None
    return percent[1] if percent is not None else key


def votes(answer: str | None) -> bool:
    """Whether an answer is one: there is something in it that can be compared, not invisible characters alone."""
    return answer is not None and (any(map(str.isalnum, answer)) or bool(key_of(answer)))


def _written(value: Fraction) -> str:
    """A fraction as a decimal number where it is one, in the form of :func:`normalise`; else in lowest terms."""
    below, twos, fives = value.denominator, 0, 0
    while below % 2 == 0:
        below, twos = below // 2, twos + 1
    while below % 5 == 0:
        below, fives = below // 5, fives + 1
    if below > 1:
        return f"{value.numerator}/{value.denominator}"
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}" if places else sign + digits


def check_same(name: str, same: object) -> None:
    """Check what a user gives to compare answers with.

    Args:
        name: What it is called, for the message.
        same: What was given; None for nothing.

    Raises:
        ConfigError: It cannot be called, or is a coroutine function.
    """
    if same is not None and not callable(same):
        raise ConfigError(f"{name} must be a function of two answers, not {shown(same)}")
    if iscoroutinefunction(same):
        raise ConfigError(f"{name} must be a plain function of two answers, not a coroutine function")


def cluster(answers: Sequence[str | None], *, contain: bool = False, same: Same | None = None) -> list[Cluster]:
    """Put answers that count as one together.

    Two answers are together if their keys are equal (:func:`key_of`), if one is contained in the other and that is
    wanted and unambiguous, or if ``same`` says so of them in either order; and so is whatever is connected by such
    pairs. The order of the answers makes no difference.

    Args:
        answers: The answers; None and blank ones are in no cluster.
        contain: Whether an answer counts as one that holds it as whole words, as ``1962`` and ``it was in 1962``. An
            answer is not taken for another that it holds if it holds several that are not part of one another, if it
            denies or doubts (``not``, ``or``, ``rather than``), if it is longer than 40 words, or if a number in it
            goes on (``5 million``). Neither is one that stands in several which are not part of one another.
        same: Whether two answers mean the same; asked of the most frequent spellings of each pair.

    Returns:
        The clusters, in the order of their keys.

    Raises:
        ConfigError: ``same`` raised, or did not say True or False.
    """
    positions: dict[str, list[int]] = {}
    # Many tries spell their answer alike.
    keys = {answer: key_of(answer) for answer in set(answers) if answer is not None}
    for position, answer in enumerate(answers):
        key = "" if answer is None else keys[answer]
        if key:
            positions.setdefault(key, []).append(position)
    spelt = {key: _spelling(str(answers[one]).strip() for one in there) for key, there in positions.items()}
    union = _Union(sorted(positions))
    if contain:
        for short, long in _contained(union.keys):
            union.join(short, long)
    if same is not None:
        for place, first in enumerate(union.keys):
            for second in union.keys[place + 1 :]:
                if union.root(first) != union.root(second) and _alike(same, spelt[first], spelt[second]):
                    union.join(first, second)
    groups: dict[str, list[int]] = {}
    for key in union.keys:
        groups.setdefault(union.root(key), []).extend(positions[key])
    found = []
    for members in groups.values():
        answer = _spelling(str(answers[one]).strip() for one in members)
        found.append(Cluster(key_of(answer), answer, tuple(sorted(members))))
    return sorted(found, key=lambda one: one.key)


class _Union:
    """Disjoint sets of keys; the root of a set is its first key, whatever the order in which it was joined."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self._above = {key: key for key in keys}

    def root(self, key: str) -> str:
        while self._above[key] != key:
            self._above[key] = key = self._above[self._above[key]]
        return key

    def join(self, one: str, other: str) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self._above[high] = low


def _spelling(spellings: Iterable[str]) -> str:
    return min(Counter(spellings).items(), key=lambda item: (-item[1], item[0]))[0]


def _alike(same: Same, first: str, second: str) -> bool:
    """Ask a user's function about two answers, in both orders where the first says no: an equivalence has none."""
    for one, other in ((first, second), (second, first)):
        try:
            verdict: object = same(one, other)
        except Exception as problem:
            raise ConfigError(f"same raised {type(problem).__name__} for two answers: {said(problem)}") from problem
        # Through __bool__ of numbers such as NumPy's, but no coroutine, which would always be true.
        if not isinstance(verdict, bool | int) and type(verdict).__name__ not in {"bool_", "bool"}:
            raise ConfigError(f"same must return True or False, not {shown(verdict)}")
        if verdict:
            return True
    return False


class _Answer:
    """A key as words, to be looked for in others."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.padded = f" {key} "

    @cached_property
    def words(self) -> list[str]:
        return self.key.split()

    def holds(self, other: _Answer) -> bool:
        """Whether the other stands in it as whole words, and it says nothing else of it that matters."""
        start = self.padded.find(other.padded)
        if start < 0 or len(self.key) == len(other.key):
            return False
        rest = f"{self.padded[:start]} {self.padded[start + len(other.padded) - 1 :]}".split()
        if _UNSURE.intersection(rest):
            return False
        # A number that goes on, or stands beside another one, is not the number of the longer answer.
        number = _NUMBER.fullmatch(other.key) is not None
        return not (number and any(word in _SCALES or _NUMBER.fullmatch(word) for word in rest))


def _contained(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of a key and one that holds it, where neither side leaves a doubt."""
    known = [_Answer(key) for key in keys if len(key) <= LONG]
    short = [one for one in known if len(one.words) <= _WORDS]
    inside = {long.key: [one for one in short if long.holds(one)] for long in short}
    around: dict[str, list[_Answer]] = {one.key: [] for one in short}
    for long in short:
        for one in inside[long.key]:
            around[one.key].append(long)
    return [
        (one.key, long.key)
        for long in short
        for one in inside[long.key]
        if _nested(inside[long.key], inside) and _nested(around[one.key], inside)
    ]


def _nested(several: Sequence[_Answer], inside: Mapping[str, Sequence[_Answer]]) -> bool:
    """Whether of any two the longer holds the shorter."""
    ordered = sorted(several, key=lambda one: len(one.key))
    return all(shorter in inside[longer.key] for shorter, longer in pairwise(ordered))
