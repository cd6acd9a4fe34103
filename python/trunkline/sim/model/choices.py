"""The generative model: dials, presets, and the masses of options.

Masses are a function of the question, the place of the choice in it and the dials; the seed only decides which option
is drawn. ``docs/explanation/simulator.md`` writes the formulas out.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, get_args

import msgspec

from trunkline.errors import ConfigError
from trunkline.sim.world.names import Draws

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = [
    "PRESETS",
    "SIM_VERSION",
    "Choice",
    "Dials",
    "Point",
    "chance",
    "decide",
    "fingerprint",
    "misfit",
    "options",
    "point_success",
    "temper",
    "truncate",
    "with_dials",
]


SIM_VERSION: Final = "1"
"""Version of the generative model; any change of a formula, a dial's meaning or a preset raises it."""

Position = Literal["uniform", "early", "late", "single"]
"""Where the decisive choices of a question are; ``single`` puts all weight on one choice, anywhere."""

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Dials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dials of the generative model; every share and rate lies between 0 and 1.

    Attributes:
        skill: Chance of solving a question of median difficulty; 1 makes no error at all.
        spread: Standard deviation of a question's difficulty, in logits.
        shared_misbelief: Share of all errors that every draw of the question makes alike.
        recoverability: Chance, a turn, of noticing an earlier error that the text in view contradicts.
        position: Where decisive choices sit in a question.
        action_share: Share of a hop's weight on choosing the document; the rest is on what to believe.
        confident_errors: Share of shared misbeliefs held with one option near certainty; in the others the
            mass is spread over several wrong options.
        uncertain_right: Chance that a part of a turn without a decisive choice carries a harmless one,
            between two equally likely wordings.
        wrong_options: Most wrong options a choice has, at least 1.
        length_tail: Sigma of the lognormal number of filler thoughts a turn; 0 always gives one.
        malformed: Chance that a tool call has broken arguments or names an unknown tool.
        empty: Chance that a turn has no text and no call.
        false_accept: Chance that a verdict accepts what is wrong.
        false_reject: Chance that a verdict rejects what is right.
    """

    skill: Share = 0.54
    spread: Annotated[float, msgspec.Meta(ge=0.0, le=20.0)] = 2.2
    shared_misbelief: Share = 0.45
    recoverability: Share = 0.12
    position: Position = "uniform"
    action_share: Share = 0.3
    confident_errors: Share = 0.5
    uncertain_right: Share = 0.25
    wrong_options: Annotated[int, msgspec.Meta(ge=1, le=20)] = 4
    length_tail: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] = 0.8
    malformed: Share = 0.01
    empty: Share = 0.005
    false_accept: Share = 0.15
    false_reject: Share = 0.1


PRESETS: Final[dict[str, Dials]] = {
    "default": Dials(),
    "early-decisive": Dials(position="early", recoverability=0.0, shared_misbelief=0.2),
    "late-decisive": Dials(position="late", recoverability=0.0, shared_misbelief=0.2),
    "shared-misbelief": Dials(shared_misbelief=0.95, recoverability=0.0, confident_errors=0.8),
    "null": Dials(
        skill=0.5,
        spread=0.0,
        shared_misbelief=0.0,
        recoverability=0.0,
        position="single",
        action_share=0.5,
        uncertain_right=1.0,
        wrong_options=1,
        malformed=0.0,
        empty=0.0,
    ),
}
"""The named settings, which a model's name can end in."""


def with_dials(preset: str, changes: dict[str, object] | None = None) -> Dials:
    """A preset with changed dials; text is read as the dial's type.

    Raises:
        ConfigError: Unknown preset or dial, or a value the dial cannot have.
    """
    if preset not in PRESETS:
        raise ConfigError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    values = msgspec.structs.asdict(PRESETS[preset])
    for name, value in (changes or {}).items():
        if name not in values:
            raise ConfigError(f"no dial {name!r}; there are {', '.join(values)}")
        values[name] = value
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"dial {name!r}: {value} is not a finite number")
    try:
        return msgspec.convert(values, Dials, strict=False)
    except msgspec.ValidationError as error:
        name, what = misfit(error)
        if name == "position":
            what = f"positions are {', '.join(get_args(Position))}"
        raise ConfigError(f"dial {name!r}: {what}, got {values.get(name)!r}") from None


def misfit(error: msgspec.ValidationError) -> tuple[str, str]:
    """The field that a value does not fit, and what the field takes."""
    what, _, place = str(error).partition(" - at ")
    return place.strip("`$."), what.partition(", got ")[0]


def fingerprint(preset: str, dials: Dials) -> str:
    """The name of a generative model, equal for equal dials in every process.

    ``sim-1`` is the default preset of version 1, ``sim-1:late-decisive`` another one; with changed dials the preset's
    name is followed by ``+dials-`` and eight hex digits of all their values.
    """
    base = f"sim-{SIM_VERSION}"
    if dials != PRESETS[preset]:
        digest = hashlib.blake2b(msgspec.json.encode(dials), digest_size=4).hexdigest()
        return f"{base}:{preset}+dials-{digest}"
    return base if preset == "default" else f"{base}:{preset}"


DECAY: Final = 0.08
"""Weight of a hop relative to its neighbour towards the favoured end, in ``early`` and ``late``."""

MISBELIEF: Final = 0.985
"""Mass of the wrong options together where a question is misbelieved."""

CONFIDENT: Final = 0.95
"""Share of that mass on one option in a confident misbelief; the rest falls by ``FALL``."""

FALL: Final = 0.5
"""Mass of each further wrong option relative to the one before it."""

SPREAD_FALL: Final = 0.8
"""The same in a misbelief that is not confident."""


class Point(NamedTuple):
    """The place of a choice: of a document (``action``) or a belief, which may be the ``whole`` hop."""

    key: str
    hop: int
    hops: int
    action: bool
    actions: bool
    whole: bool = False


class Choice(NamedTuple):
    """A categorical choice: the options as written, their masses, and the index of the one drawn."""

    options: tuple[str, ...]
    masses: tuple[float, ...]
    pick: int

    @property
    def chosen(self) -> str:
        """The option drawn."""
        return self.options[self.pick]


class _Profile(NamedTuple):
    success: float
    misbelief: int | None
    confident: bool
    weights: tuple[float, ...]


@lru_cache(maxsize=16384)
def _profile(key: str, hops: int, actions: bool, dials: Dials) -> _Profile:
    draws = Draws("sim", SIM_VERSION, "question", key)
    z = NormalDist().inv_cdf(min(max(draws.random(), 1e-12), 1 - 1e-12))
    if dials.skill in {0.0, 1.0}:
        success = dials.skill
    else:
        success = 1 / (1 + math.exp(-(math.log(dials.skill / (1 - dials.skill)) + dials.spread * z)))
    weights = _weights(hops, dials, draws.random(), actions=actions)
    common = dials.shared_misbelief * (1 - success)
    misbelieved, where, how = draws.random() < common, draws.random(), draws.random()
    if not misbelieved:
        return _Profile(success / (1 - common) if common < 1 else 0.0, None, False, weights)
    return _Profile(success / (1 - common), _at(weights, where), how < dials.confident_errors, weights)


def _weights(hops: int, dials: Dials, where: float, *, actions: bool) -> tuple[float, ...]:
    """Weights of a question's points in order, document before belief in each hop; they sum to 1."""
    share = dials.action_share if actions else 0.0
    weights: list[float] = []
    for hop in range(hops):
        weight = 1.0
        if dials.position == "early":
            weight = DECAY**hop
        elif dials.position == "late":
            weight = DECAY ** (hops - 1 - hop)
        weights += [weight * share, weight * (1 - share)]
    total = sum(weights)
    weights = [weight / total for weight in weights]
    if dials.position == "single":
        chosen = _at(weights, where)
        weights = [float(index == chosen) for index in range(len(weights))]
    return tuple(weights)


def _at(weights: Sequence[float], where: float) -> int:
    """The index whose share of the unit interval holds ``where``."""
    total = 0.0
    last = 0
    for index, weight in enumerate(weights):
        if weight > 0:
            last = index
            total += weight
            if where < total:
                break
    return last


def point_success(point: Point, dials: Dials) -> tuple[float, bool, bool]:
    """Mass of the right option at temperature 1, whether it is misbelieved here, and whether confidently."""
    profile = _profile(point.key, point.hops, point.actions, dials)
    document, belief = 2 * point.hop, 2 * point.hop + 1
    indexes = [document, belief] if point.whole else [document if point.action else belief]
    if profile.misbelief in indexes:
        return 1 - MISBELIEF, True, profile.confident
    return profile.success ** sum(profile.weights[index] for index in indexes), False, False


def options(point: Point, right: str | None, wrong: Sequence[str], dials: Dials) -> dict[str, float]:
    """The options of a choice that have mass at temperature 1; ``wrong`` ones come with the most plausible class first.

    ``right`` is None where the text in view supports none. The order is a hash of the question, so that a tie at
    temperature 0 favours no side.
    """
    others = [option for option in dict.fromkeys(wrong) if option != right][: dials.wrong_options]
    others.sort(key=lambda option: Draws(point.key, point.hop, option).word())
    success, misbelieved, confident = point_success(point, dials)
    if right is None:
        success = 0.0
    elif not others:
        return {right: 1.0}
    if not others:
        return {}
    fall = SPREAD_FALL if misbelieved and not confident else FALL
    shares = [fall**rank for rank in range(len(others))]
    if misbelieved and confident and len(others) > 1:
        rest = sum(shares[1:])
        shares = [CONFIDENT, *((1 - CONFIDENT) * share / rest for share in shares[1:])]
    total = sum(shares)
    masses = {option: (1 - success) * share / total for option, share in zip(others, shares, strict=True)}
    if right is not None:
        masses[right] = success
    kept = {option: mass for option, mass in masses.items() if mass > 0}
    return dict(sorted(kept.items(), key=lambda item: Draws(point.key, item[0]).word()))


def temper(masses: Sequence[float], temperature: float) -> list[float]:
    """Masses at a temperature: ``p ** (1 / T)``, normalised to 1; at 0 all mass is on the first largest."""
    largest = max(masses)
    if temperature <= 0:
        best = list(masses).index(largest)
        return [float(index == best) for index in range(len(masses))]
    raised = [(mass / largest) ** (1 / temperature) for mass in masses]
    total = sum(raised)
    return [mass / total for mass in raised]


def truncate(masses: Sequence[float], top_p: float) -> list[float]:
    """Masses of the fewest likeliest options that hold ``top_p`` of the mass; 0 for the others."""
    if top_p >= 1:
        return list(masses)
    order = sorted(range(len(masses)), key=lambda index: -masses[index])
    kept: list[int] = []
    total = 0.0
    for index in order:
        kept.append(index)
        total += masses[index]
        if total >= top_p:
            break
    return [mass / total if index in kept else 0.0 for index, mass in enumerate(masses)]


def decide(
    masses: dict[str, float], draws: Draws, temperature: float, top_p: float, allowed: frozenset[str] | None = None
) -> Choice:
    """Draw one of some options, or of the ``allowed`` among them.

    The choice holds the masses that it was drawn with, at temperature 0 those at temperature 1.
    """
    names = tuple(masses)
    plain = tuple(masses.values())
    shown = plain if temperature <= 0 else tuple(truncate(temper(plain, temperature), top_p))
    open_ = [mass if allowed is None or name in allowed else 0.0 for name, mass in zip(names, shown, strict=True)]
    total = sum(open_)
    if total <= 0:
        open_ = [float(allowed is None or name in allowed) for name in names]
        total = sum(open_)
    if temperature <= 0:
        return Choice(names, shown, open_.index(max(open_)))
    return Choice(names, shown, _at([mass / total for mass in open_], draws.random()))


def chance(rate: float, draws: Draws, temperature: float) -> bool:
    """Whether an accident of this rate happens; at temperature 0 only where it is the likelier side."""
    if rate <= 0.0 or rate >= 1.0:
        return rate >= 1.0
    return draws.random() < temper([1 - rate, rate], temperature)[1]
