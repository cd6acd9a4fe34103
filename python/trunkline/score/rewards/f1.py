"""How many words an answer shares with an accepted one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.score.answers import tail
from trunkline.tree.vote import fold

if TYPE_CHECKING:
    from trunkline.tree.trajectory import Trajectory

__all__ = ["F1"]

_MOST: Final = 50_000
"""Characters at the end of an answer whose words count."""


def _words(text: str) -> Counter[str]:
    return Counter(fold(tail(text.strip(), _MOST)).split())


def _f1(answer: Counter[str], accepted: Counter[str]) -> float:
    shared = (answer & accepted).total()
    return 2 * shared / (answer.total() + accepted.total()) if shared else 0.0


class F1(msgspec.Struct, frozen=True):
    """The F1 of an answer's words against those of an accepted answer, the best of them where there are several.

    As SQuAD measures it (Rajpurkar et al., 2016): with s words in common, counted as often as they stand in both, of m
    in the answer and n in the accepted one, 2s / (m + n). Words are compared after normalisation, without articles and
    punctuation. Of an answer of more than 50,000 characters only the last ones count.
    """

    def __call__(self, trajectory: Trajectory) -> float | None:
        """Return a number from 0 to 1; None if the task has no accepted answer.

        Args:
            trajectory: An ended rollout.
        """
        accepted = [words for reference in trajectory.task.reference if (words := _words(reference))]
        if not accepted:
            return None
        answer = _words(trajectory.answer or "")
        return max(_f1(answer, words) for words in accepted)
