"""What rewards said about a rollout, as it stands in its note beside the verdicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.bounds import number, shown
from trunkline.errors import ConfigError
from trunkline.printable import printable

if TYPE_CHECKING:
    from trunkline.score.rewards.reward import Part, Scored

__all__ = ["Graded", "as_graded", "as_noted", "graded", "why_unscored"]

_WIDTH = 300
"""Cells of a reason that are kept."""

_MOST = 1e308


class Graded(msgspec.Struct, frozen=True, array_like=True, tag="graded"):
    """What one reward said about one rollout: a part of its reward, or a reward that another one took the place of.

    Attributes:
        reward: The reward's name; it is made safe to print.
        value: Its value; None if it gave none.
        weight: What it counts in the rollout's reward; None if it has no part in that.
        why: Why there is no value, or what else is to be said, for people; it is made safe to print.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    reward: str
    value: float | None = None
    weight: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        for name in ("reward", "why"):
            given: object = getattr(self, name)
            if not isinstance(given, str):
                raise ConfigError(f"Graded: {name} must be a string, not {shown(given)}")
            msgspec.structs.force_setattr(self, name, printable(given, _WIDTH))
        if self.value is not None and not (isinstance(self.value, float) and math.isnan(self.value)):
            number("Graded: value", self.value, -_MOST, _MOST)
        elif self.value is not None:
            msgspec.structs.force_setattr(self, "value", None)
        if self.weight is not None:
            number("Graded: weight", self.weight, -_MOST, _MOST)


def as_graded(part: Part) -> Graded:
    """Return what a part of a reward said as notes hold it.

    Args:
        part: The part.

    Raises:
        ConfigError: It has a value, a weight or a name that cannot be.
    """
    return Graded(part.name, part.value, part.weight, part.problem or "")


def as_noted(reward: str, scored: Scored) -> list[Graded]:
    """Return what notes hold of what a reward said: its parts, and why there is no value where none of them says it.

    Args:
        reward: What the reward is called.
        scored: What it said.
    """
    noted = [as_graded(part) for part in scored.parts]
    if scored.problem is not None and not any(one.why for one in noted):
        noted.append(Graded(reward, None, 1.0, scored.problem))
    return noted


_decoder = msgspec.json.Decoder(list[Graded | dict[str, Any] | str])


def graded(note: str | None) -> list[Graded]:
    """Return what rewards said in a note, in the order in which they said it.

    Args:
        note: :attr:`trunkline.Trajectory.note`, or that of a rollout's row. What holds nothing of a reward, such as
            another writer's text, or damage, has none.
    """
    if not note:
        return []
    try:
        found = _decoder.decode(note)
    except (msgspec.MsgspecError, ConfigError, UnicodeError, RecursionError):
        return []
    return [entry for entry in found if isinstance(entry, Graded)]


def why_unscored(note: str | None) -> str:
    """Return why a rollout has no reward, by its note; empty where its reward gave no reason."""
    return next((one.why for one in graded(note) if one.weight is not None and one.value is None and one.why), "")
