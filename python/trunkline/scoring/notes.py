"""Verdicts: what was decided about a rollout after it ended, and the rollout's note that they stand in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from trunkline.bounds import number, shown
from trunkline.errors import ConfigError
from trunkline.printable import printable
from trunkline.score.notes import Graded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline._core import Tree as Core

__all__ = [
    "ACTIONS",
    "Action",
    "Verdict",
    "clear",
    "counted",
    "dropped",
    "encode",
    "entries",
    "grade",
    "masked",
    "note",
    "penalty",
    "read",
]

Action = Literal["mask", "drop", "penalty", "failed"]
ACTIONS: tuple[str, ...] = ("mask", "drop", "penalty", "failed")

_WIDTH = 300
"""Cells of a reason that are kept."""

_MOST = 1e100
"""The largest amount, which is the largest reward that estimators take."""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a filter, or a strategy that keeps some of its leaves, says about one rollout.

    Attributes:
        filter: Who says it.
        action: ``mask``: nothing of the rollout is trained. ``drop``: it is left out of its group altogether.
            ``penalty``: ``amount`` is added to its reward where it is trained. ``failed``: the filter
            broke, or the task did before it could judge; no rollout is changed by it, and nobody trains on the group.
        reason: Why, for people; it is made safe to print.
        count_in_baseline: Whether the reward of a masked rollout counts in its group's baseline. One that was dropped
            never does.
        amount: What a penalty adds to the reward.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    filter: str
    action: Action
    reason: str = ""
    count_in_baseline: bool = True
    amount: float = 0.0

    def __post_init__(self) -> None:
        # What is annotated need not be what was given: user filters make verdicts, and files hold them.
        for name in ("filter", "reason"):
            given: object = getattr(self, name)
            if not isinstance(given, str):
                raise ConfigError(f"Verdict: {name} must be a string, not {shown(given)}")
            msgspec.structs.force_setattr(self, name, printable(given, _WIDTH))
        if self.action not in ACTIONS:
            raise ConfigError(f"Verdict: action must be one of {', '.join(ACTIONS)}, not {shown(self.action)}")
        if not isinstance(self.count_in_baseline, bool):
            raise ConfigError(f"Verdict: count_in_baseline must be true or false, not {shown(self.count_in_baseline)}")
        number("Verdict: amount", self.amount, -_MOST, _MOST)
        if self.amount and self.action != "penalty":
            raise ConfigError(f"Verdict: amount belongs to a penalty, not to a {self.action}")


_Entry = Verdict | Graded | str
# Verdicts carry no tag, so that old notes are read; what a reward said is a list, which is one by its own.
_decoder = msgspec.json.Decoder(list[Verdict | list[Any] | str])


def encode(said: Iterable[_Entry]) -> str:
    """Write verdicts, what rewards said, and remarks as a note."""
    return msgspec.json.encode(list(said)).decode()


def entries(note: str | None) -> list[_Entry]:
    """Read a note; a text that somebody else wrote is an entry of its own."""
    if not note:
        return []
    try:
        found = _decoder.decode(note)
        return [msgspec.convert(entry, Graded) if isinstance(entry, list) else entry for entry in found]
    except (msgspec.MsgspecError, ConfigError, UnicodeError, RecursionError):
        return [note]


def read(note: str | None) -> list[Verdict]:
    """Return the verdicts in a note, in the order in which they were given.

    Args:
        note: :attr:`trunkline.Trajectory.note`, or that of a rollout's row. What holds no verdict, such as another
            writer's text, or damage, has none.
    """
    return [entry for entry in entries(note) if isinstance(entry, Verdict)]


def note(core: Core, rollout: int, *said: _Entry) -> None:
    """Add verdicts, what rewards said, or remarks to a rollout's note; what stands there stays.

    Args:
        core: The tree.
        rollout: The rollout's id.
        said: What is said about it.
    """
    if said:
        first, *rest = [*entries(core.rollout(rollout).note), *said]
        core.note(rollout, first if isinstance(first, str) and not rest else encode([first, *rest]))


def grade(core: Core, rollout: int, *parts: Graded) -> None:
    """Note what is to be said of a rollout's reward, in place of what was said before.

    Args:
        core: The tree.
        rollout: The rollout's id.
        parts: What each part said, or why there is no reward. What stands there without a weight is of an earlier
            reward, and is not taken away.
    """
    found = entries(core.rollout(rollout).note)
    left = [entry for entry in found if not (isinstance(entry, Graded) and entry.weight is not None)]
    if [*left, *parts] != found:
        core.note(rollout, encode([*left, *parts]) if left or parts else "")


def clear(core: Core, rollout: int) -> None:
    """Take all verdicts off a rollout; what somebody else noted stays.

    Args:
        core: The tree.
        rollout: The rollout's id.
    """
    found = entries(core.rollout(rollout).note)
    left = [entry for entry in found if not isinstance(entry, Verdict)]
    if len(left) < len(found):
        core.note(rollout, encode(left) if left else "")


def dropped(verdicts: Sequence[Verdict]) -> bool:
    """Whether one of them drops the rollout."""
    return any(verdict.action == "drop" for verdict in verdicts)


def masked(verdicts: Sequence[Verdict]) -> bool:
    """Whether one of them masks or drops the rollout: nothing of it is trained."""
    return any(verdict.action in {"mask", "drop"} for verdict in verdicts)


def counted(verdicts: Sequence[Verdict]) -> bool:
    """Whether the rollout's reward counts in baselines: nothing drops it, and each mask says that it does."""
    return not dropped(verdicts) and all(verdict.count_in_baseline for verdict in verdicts if verdict.action == "mask")


def penalty(verdicts: Iterable[Verdict]) -> float:
    """What penalties add to the reward, in all."""
    return math.fsum(verdict.amount for verdict in verdicts)
