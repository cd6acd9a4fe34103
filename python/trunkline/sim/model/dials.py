"""How a simulated model errs: the dials of the generative model and their presets.

``docs/design/sim.md`` writes the model out; the formulas are in ``choice``.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Annotated, Final, Literal, get_args

import msgspec

from trunkline.errors import ConfigError

__all__ = ["PRESETS", "SIM_VERSION", "Dials", "Position", "fingerprint", "with_dials"]

SIM_VERSION: Final = "1"
"""Version of the generative model; any change of a formula, a dial's meaning or a preset raises it."""

Position = Literal["uniform", "early", "late", "single"]
"""Where the decisive choices of a question sit; ``single`` puts all its weight on one choice, anywhere."""

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
"""The named settings a server can start with and a model's name can end in."""


def with_dials(preset: str, changes: dict[str, object] | None = None) -> Dials:
    """A preset with some dials turned.

    Args:
        preset: A name in ``PRESETS``.
        changes: New values by dial; text is read as the dial's type, as the command line gives it.

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
        what, _, place = str(error).partition(" - at ")
        what = what.partition(", got ")[0]
        name = re.sub(r"\W", "", place)
        if name == "position":
            what = f"positions are {', '.join(get_args(Position))}"
        raise ConfigError(f"dial {name!r}: {what}, got {values.get(name)!r}") from None


def fingerprint(preset: str, dials: Dials) -> str:
    """The name of a generative model: equal for equal dials, in every process.

    Args:
        preset: The preset that the dials began as.
        dials: The dials as they are.

    Returns:
        ``sim-1`` for the default preset of version 1, ``sim-1:late-decisive`` for another one; where dials were
        turned, the preset's name is given and followed by ``+dials-`` and eight hex digits of all their values.
    """
    base = f"sim-{SIM_VERSION}"
    if dials != PRESETS[preset]:
        digest = hashlib.blake2b(msgspec.json.encode(dials), digest_size=4).hexdigest()
        return f"{base}:{preset}+dials-{digest}"
    return base if preset == "default" else f"{base}:{preset}"
