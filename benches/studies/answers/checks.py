"""What the study must show: nothing in ``null``, and little of a vote where all draws are wrong alike.

In ``null`` one choice decides a question, right or wrong at even odds, and nothing that is said or stated tells which;
who reads the documents again picks and judges at even odds, too. Right and wrong can be exchanged, so every arm is
right with one half where one wrong answer can be chosen. The other questions are left out: where there is none, every
arm is right, and where there are two, votes for wrong answers split. Chains that no arm is given show which these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from studies.answers.arms import ARMS, MAJORITY, ONE
from studies.answers.compare import paid
from studies.compare import comparable
from studies.interval import Interval, mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from studies.answers.cell import Asked

__all__ = ["LEAST", "LITTLE", "Check", "Gain", "Null", "gains", "nulls"]

LITTLE: Final = 0.06
"""What the majority may gain under a shared misbelief, at the upper end of its interval."""

LEAST: Final = 100
"""Questions from which that is checked: with fewer, the interval is wider than what it is to show."""

EVEN: Final = 0.5
"""What every arm is right with in ``null``."""

_SHARED: Final = "shared-misbelief"
_USUAL: Final = "default"


class Check(NamedTuple):
    """One thing that must hold.

    Attributes:
        what: What it is about, for a message.
        passed: Whether it holds.
    """

    what: str
    passed: bool


class Null(NamedTuple):
    """An arm in ``null``.

    Attributes:
        arm: Its name.
        theory: What it may be right with at most.
        found: What it is right with; the intervals of all arms hold together with 95 %.
    """

    arm: str
    theory: float
    found: Interval

    @property
    def check(self) -> Check:
        """No arm may be surely above its theoretical value."""
        said = f"null: {self.arm}: it is right with {self.found.value:.4f} where theory allows {self.theory:.4f}"
        return Check(said, not self.found.low > self.theory)


class Gain(NamedTuple):
    """What a vote gains over one try.

    Attributes:
        of: Where: a preset, or one less another.
        found: How much.
        check: What must hold of it; None where there is nothing to hold, or too few questions to tell.
    """

    of: str
    found: Interval
    check: Check | None


def nulls(asked: Sequence[Asked]) -> list[Null]:
    """Compare what every arm shows in ``null`` with theory; empty where it was not run.

    Args:
        asked: The questions of a study.
    """
    own = comparable(one for one in asked if one.even).get("null", [])
    if not own:
        return []
    return [Null(arm, EVEN, mean([each.point.right for each in paid(own, arm)], len(ARMS))) for arm in ARMS]


def gains(asked: Sequence[Asked]) -> list[Gain]:
    """What the majority gains by default and under a shared misbelief; empty where that was not run.

    Args:
        asked: The questions of a study.
    """
    presets = comparable(asked)
    if _SHARED not in presets:
        return []
    shared = _gains(presets[_SHARED])
    enough = len(shared) >= LEAST
    little = mean(list(shared.values()))
    said = f"{_SHARED}: the majority gains up to {little.high:.3f} over one try, where less than {LITTLE} was expected"
    found = [Gain(_SHARED, little, Check(said, little.high < LITTLE) if enough else None)]
    if _USUAL in presets:
        usual = _gains(presets[_USUAL])
        # Both presets ask the same questions.
        more = mean([usual[key] - shared[key] for key in usual if key in shared])
        said = f"{_SHARED}: the majority gains {-more.value:.3f} more than by default, where less was expected"
        found.insert(0, Gain(_USUAL, mean(list(usual.values())), None))
        found.append(Gain(f"{_USUAL} less {_SHARED}", more, Check(said, more.value > 0) if enough else None))
    return found


def _gains(asked: Sequence[Asked]) -> dict[tuple[int, str], float]:
    both = zip(asked, paid(asked, MAJORITY), paid(asked, ONE), strict=True)
    return {(one.seed, one.question): vote.point.right - single.point.right for one, vote, single in both}
