"""Repetition: a stretch of text that comes again and again."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from trunkline.bounds import choice, whole
from trunkline.score.filters.options import treatment
from trunkline.score.verdicts import Action, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.score.filters.group import Group
    from trunkline.tree.node import Node

__all__ = ["Repetition", "repeats"]

_MOST = 1 << 17
"""Characters at the end of a turn that are looked at; what repeats itself without end does so there."""

_AT_ONCE = 1 << 12
"""Windows between two looks at the counts: what repeats early is found early."""


def repeats(text: str, window: int, times: int) -> bool:
    """Whether some stretch of ``window`` characters stands at ``times`` places of a text or more; they may overlap.

    Of a text of more than 131,072 characters only the last ones are looked at, which takes 15 MB at most.

    Args:
        text: Any text.
        window: Characters of the stretch.
        times: Places.
    """
    text = text[-_MOST:]
    places = len(text) - window + 1
    if places < times or not _suspicious(text, window, times):
        return False
    # Hashes stand for stretches, which would take their whole length each. They are keyed and have 64 bits.
    counts: Counter[int] = Counter()
    hashes = (hash(text[start : start + window]) for start in range(places))
    while some := list(islice(hashes, _AT_ONCE)):
        counts.update(some)
        if any(counts[one] >= times for one in some):
            return True
    return False


def _suspicious(text: str, window: int, times: int) -> bool:
    """Whether a look at few pieces leaves it open; where it does not, no window is counted, which is most of the work.

    Of ``times`` places two are a multiple of ``times - 1`` apart. A piece that begins at such multiples, and is by as
    much shorter than the window, lies in both, at the same place of either: it stands there twice.
    """
    stride = min(times - 1, window)
    size = window - stride + 1
    pieces = [hash(text[start : start + size]) for start in range(0, len(text) - size + 1, stride)]
    return len(set(pieces)) < len(pieces)


class Repetition(msgspec.Struct, frozen=True, kw_only=True):
    """Masks trajectories in which the model repeats itself.

    A stretch of ``window`` characters stands at ``times`` places, in all that the model wrote in a turn: reasoning,
    text, arguments of calls. The defaults are TreePO's (arXiv 2508.17445), which looks at the last piece of text.

    Args:
        window: Characters of the stretch.
        times: Places at which it must stand; they may overlap.
        where: ``last``: in the last turn. ``any``: in any turn, each by itself.
        action: ``mask`` or ``drop``.
        count_in_baseline: Whether the reward of a masked trajectory counts in the baseline.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "repetition"
    window: int = 32
    times: int = 8
    where: Literal["last", "any"] = "last"
    action: Action = "mask"
    count_in_baseline: bool = True

    def __post_init__(self) -> None:
        whole("Repetition: window", self.window, 1, 1024)
        whole("Repetition: times", self.times, 2)
        choice("Repetition: where", self.where, "last", "any")
        treatment("Repetition", self.action, self.count_in_baseline)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory that repeats itself, with the first turn that does."""
        known: dict[int, bool] = {}
        for rollout in group.ended:
            turns = list(enumerate(group.turns(rollout), 1))
            for place, turn in turns if self.where == "any" else turns[-1:]:
                if self._found(group, turn, known):
                    reason = f"turn {place} repeats {self.window} characters {self.times} times"
                    yield rollout.id, Verdict(self.name, self.action, reason, self.count_in_baseline)
                    break

    def _found(self, group: Group, turn: Node, known: dict[int, bool]) -> bool:
        """Look at a turn, once for all rollouts that share it."""
        if turn.id not in known:
            known[turn.id] = repeats(group.said(turn), self.window, self.times)
        return known[turn.id]
