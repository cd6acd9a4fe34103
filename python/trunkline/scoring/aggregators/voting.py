"""Equivalent answers; majority, weighted, best-of-n."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from inspect import iscoroutinefunction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, get_args

import msgspec

from trunkline._internal.text import format_error
from trunkline._internal.validation import check_bool, check_choice, check_that, short_repr
from trunkline.errors import ConfigError, UsageError
from trunkline.scoring.aggregators.base import Decision, Party
from trunkline.tree.answers import LONG, compatible, normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trunkline.scoring.aggregators.base import Candidate


Same = Callable[[str, str], bool]
"""Says whether two answers mean the same; a plain function of both, never a coroutine function."""

_WORDS: Final = 40
"""Words of the longest answer in which others are looked for: a longer one is a text that may mention any of them."""

_FRACTION: Final = re.compile(r"([-+]?)(?:([0-9]{1,30})\s+)?([0-9]{1,30})\s*[/\u2044]\s*([0-9]{1,30})")
"""A fraction, also behind a whole number."""

_AROUND: Final = " \t\r\n.,;:!$()[]{}"  # characters around a fraction that do not change its value
_PERCENT: Final = re.compile(r"(-?[0-9]*\.?[0-9]+) per ?cent")
_NUMBER: Final = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_SCALES: Final = frozenset(
    {"dozen", "hundred", "thousand", "million", "billion", "trillion", "percent", "k", "m", "bn"}
)
_NEGATIONS: Final = (
    "not no never neither nor none cannot cant isnt wasnt arent or either maybe wrong false incorrect except without "
    "unlike rather instead than dont doesnt didnt minus negative"
)
_UNSURE: Final = frozenset(_NEGATIONS.split())


class Cluster(msgspec.Struct, frozen=True):
    """Answers that count as one."""

    key: str
    answer: str
    members: tuple[int, ...]


def key_of(answer: str) -> str:
    """The normal form in which answers are compared (``trunkline.tree.answers.normalise``, and exact numbers).

    Fractions of whole numbers are their values: ``1/2`` is ``0.5``, ``2/6`` is ``1/3``. A percentage is the number
    before the sign: ``50 %`` is ``50``, not ``0.5``, since an answer to a question for a percentage may omit the sign.
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
    """Whether an answer counts as a vote: it has something to compare, not invisible characters alone."""
    return answer is not None and (any(map(str.isalnum, answer)) or bool(key_of(answer)))


def _written(value: Fraction) -> str:
    """A fraction as a decimal number where it is one, in the form of ``normalise``; else in lowest terms."""
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


def cluster(answers: Sequence[str | None], *, contain: bool = False, same: Same | None = None) -> list[Cluster]:
    """Group equivalent answers; their order makes no difference.

    Answers are joined by equal keys (``key_of``), by ``same`` in either order, and with ``contain`` where one holds
    the other unambiguously; joins are transitive.
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
    """Ask a user's function about two answers, in both orders, since it may be asymmetric."""
    for one, other in ((first, second), (second, first)):
        try:
            verdict: object = same(one, other)
        except Exception as problem:
            raise ConfigError(
                f"same raised {type(problem).__name__} for two answers: {format_error(problem)}"
            ) from problem
        # Through __bool__ of numbers such as NumPy's, but no coroutine, which would always be true.
        if not isinstance(verdict, bool | int) and type(verdict).__name__ not in {"bool_", "bool"}:
            raise ConfigError(f"same must return True or False, not {short_repr(verdict)}")
        if verdict:
            return True
    return False


class _Answer:
    """A key as words, to be searched for in other keys."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.padded = f" {key} "

    @cached_property
    def words(self) -> list[str]:
        return self.key.split()

    def holds(self, other: _Answer) -> bool:
        """Whether the other key stands in it as whole words, without a negation or a further number beside it."""
        start = self.padded.find(other.padded)
        if start < 0 or len(self.key) == len(other.key):
            return False
        rest = f"{self.padded[:start]} {self.padded[start + len(other.padded) - 1 :]}".split()
        if _UNSURE.intersection(rest):
            return False
        # A number that continues, or stands beside another one, is not the number of the longer answer.
        number = _NUMBER.fullmatch(other.key) is not None
        return not (number and any(word in _SCALES or _NUMBER.fullmatch(word) for word in rest))


def _contained(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of a key and a longer key that holds it, where neither side is ambiguous."""
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


By = Literal["confidence", "reward", "value"]
"""Which number of a candidate says what its vote weighs."""

SOURCES: Final = get_args(By)

_HEAVIEST: Final = 1e15  # the largest weight of a vote: sums of them stay finite, and exact where they are whole


class Ballot(NamedTuple):
    """The counted votes of candidates."""

    parties: tuple[Party, ...]
    keys: tuple[str, ...]
    why: str = ""
    equal: bool = False

    @property
    def answer(self) -> str | None:
        """The answer with the most weight; None without a vote."""
        return self.parties[0].answer if self.parties else None

    @property
    def tied(self) -> bool:
        """Whether another answer has the same weight as the first."""
        return len(self.parties) > 1 and self.parties[0].weight == self.parties[1].weight

    def decision(self, method: str, **known: Any) -> Decision:
        """The decision by the votes, with what is known otherwise in their place."""
        found = {"answer": self.answer, "tied": self.tied, "why": self.why, "fallback": self.equal}
        return Decision(parties=self.parties, method=method, **found | known)


def poll(
    candidates: Sequence[Candidate],
    weigh: Mapping[int, float] | None = None,
    *,
    contain: bool = False,
    same: Same | None = None,
    why: str = "",
) -> Ballot:
    _voting(candidates)
    ids = [candidate.id for candidate in candidates]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise UsageError(f"two candidates have the id {twice}: number them, each once")
    found = []
    for one in cluster([candidate.answer for candidate in candidates], contain=contain, same=same):
        voters = tuple(sorted(ids[place] for place in one.members))
        total = math.fsum(1.0 if weigh is None else weigh[voter] for voter in voters)
        # Sums that differ in the last digits only, as 0.1 + 0.2 and 0.3 do, are equal.
        found.append((Party(one.answer, voters, float(f"{total:.12g}")), one.key))
    found.sort(key=lambda item: (-item[0].weight, item[1]))
    return Ballot(
        tuple(party for party, _ in found), tuple(key for _, key in found), why, equal=weigh is None and why != ""
    )


def weights(candidates: Sequence[Candidate], by: By) -> tuple[dict[int, float] | None, str]:
    """The weight of each vote (None: all equal), and a remark.

    A candidate without a number gets the mean of the others; a negative reward or value weighs 0.
    """
    voters = _voting(candidates)
    if not voters:
        return None, ""
    known = {one.id: _read(one, by) for one in voters}
    there = sorted(value for value in known.values() if not math.isnan(value))
    if not there:
        return None, f"no try has a {by}, so every vote weighs the same"
    if not any(there):
        return None, f"no try has a {by} above 0, so every vote weighs the same"
    mean = math.fsum(there) / len(there)
    missing = len(voters) - len(there)
    why = f"{missing} of {len(voters)} tries have no {by} and count as the mean, {mean:.4g}" if missing else ""
    return {one: mean if math.isnan(value) else value for one, value in known.items()}, why


def number_of(candidate: Candidate, by: By) -> float:
    """A number of a candidate as a float; NaN where it has none."""
    value: object = getattr(candidate, by)
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"candidate {candidate.id}: its {by} must be a number, not {short_repr(value)}") from None


def _voting(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that have an answer."""
    for one in candidates:
        answer: object = one.answer
        if answer is not None and not isinstance(answer, str):
            raise UsageError(f"candidate {one.id}: its answer must be text or None, not {short_repr(answer)}")
    return [one for one in candidates if votes(one.answer)]


def _read(candidate: Candidate, by: By) -> float:
    """The weight of a candidate's vote; NaN where it has no number."""
    value = number_of(candidate, by)
    if math.isnan(value):
        return value
    if not -_HEAVIEST <= value <= _HEAVIEST:
        raise UsageError(f"candidate {candidate.id}: its {by} is {value:g}, expected at most 1e15 in size, or NaN")
    if value < 0 and by == "confidence":
        raise UsageError(f"candidate {candidate.id}: its confidence is {value:g}, expected at least 0, or NaN")
    return max(value, 0.0)


def check_options(name: str, by: object, contain: object, same: object) -> None:
    check_choice(f"{name}: by", by, *SOURCES)
    check_bool(f"{name}: contain", contain)
    check_that(same is None or callable(same), f"{name}: same must be a function of two answers", same)
    if iscoroutinefunction(same):
        raise ConfigError(f"{name}: same must be a plain function of two answers, not a coroutine function")


class Majority(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that most tries gave: self-consistency (Wang et al. 2023, arXiv 2203.11171).

    Args:
        contain: Whether an answer counts as one that holds it, where that is unambiguous; see
            ``trunkline.scoring.aggregators.voting.cluster``.
        same: Whether two answers mean the same, beside those with one normal form; on a command line
            ``module:function``.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    name: ClassVar[str] = "majority"
    contain: bool = False
    same: Same | None = None

    def __post_init__(self) -> None:
        check_options("Majority", "confidence", self.contain, self.same)

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """See ``.base.Aggregator.decide``; a tie goes to the first in the order of normalised answers."""
        return poll(candidates, contain=self.contain, same=self.same).decision(self.name)


class WeightedVote(msgspec.Struct, frozen=True, kw_only=True):
    """The answer whose tries weigh most together.

    A try without a number counts as the mean of those that have one; where none has, all weigh the same. Rewards and
    values below 0 weigh nothing.

    Args:
        by: What weighs: the candidates' ``confidence``, ``reward`` or ``value``.
        contain: See ``Majority``.
        same: See ``Majority``.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    name: ClassVar[str] = "weighted"
    by: By = "confidence"
    contain: bool = False
    same: Same | None = None

    def __post_init__(self) -> None:
        check_options("WeightedVote", self.by, self.contain, self.same)

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """See ``.base.Aggregator.decide``; a tie goes to the first in the order of normalised answers."""
        weigh, why = weights(candidates, self.by)
        return poll(candidates, weigh, contain=self.contain, same=self.same, why=why).decision(self.name)


class BestOfN(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the try with the best number.

    Of several such tries the one counts whose answer more tries gave, then the first in the order of normalised
    answers. Parties weigh what they have of votes. Where no try has a number, most votes decide.

    Args:
        by: What is best: the candidates' ``reward``, ``confidence`` or ``value``. Here they may be negative; one that
            is infinite does not count.
        contain: See ``Majority``.
        same: See ``Majority``.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    name: ClassVar[str] = "best"
    by: By = "reward"
    contain: bool = False
    same: Same | None = None

    def __post_init__(self) -> None:
        check_options("BestOfN", self.by, self.contain, self.same)

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """See ``.base.Aggregator.decide``."""
        ballot = poll(candidates, contain=self.contain, same=self.same)
        values = {one.id: number_of(one, self.by) for one in candidates}
        best = [
            max((values[voter] for voter in party.voters if math.isfinite(values[voter])), default=-math.inf)
            for party in ballot.parties
        ]
        top = max(best, default=-math.inf)
        if top == -math.inf:
            why = f"no try has a {self.by}, so most votes decide" if ballot.parties else ""
            return ballot.decision(self.name, why=why, fallback=why != "")
        # Parties stand in the order of their votes, then of their answers, which is that of ties.
        leading = [party for party, worth in zip(ballot.parties, best, strict=True) if worth == top]
        tried = next(voter for voter in leading[0].voters if values[voter] == top)
        tied = len(leading) > 1 and leading[0].weight == leading[1].weight
        why = f"try {tried} has the best {self.by}, {top:.4g}"
        return ballot.decision(self.name, answer=leading[0].answer, tied=tied, why=why)
