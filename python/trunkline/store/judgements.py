"""What filters said, counted over the rows of a run: whom they masked or dropped, and which groups are kept."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from trunkline.score import verdicts
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.store.schema import RolloutRow

__all__ = ["Filtered", "Judgements", "kept"]


class Filtered(msgspec.Struct, frozen=True):
    """What one filter did to a run.

    Attributes:
        filter: Its name; a strategy that keeps some of its rollouts stands here too.
        masked: Rollouts that it masked.
        dropped: Rollouts that it dropped.
        penalised: Rollouts whose reward it lowered or raised.
        groups: Groups that it dropped whole, whose rollouts are among ``dropped``.
        failed: Groups that it has not judged, because it broke or the task did.
    """

    filter: str
    masked: int = 0
    dropped: int = 0
    penalised: int = 0
    groups: int = 0
    failed: int = 0


def kept(error: str | None, rollouts: Iterable[RolloutRow], *, scored: bool) -> bool:
    """Whether a finished group is one to train on: a rollout of it has an outcome, and no filter has taken it out.

    Args:
        error: Why its task broke as a whole, if it did.
        rollouts: Its rows.
        scored: Whether the run has a reward, which a rollout then needs.
    """
    judgements = Judgements(scored=scored)
    for row in rollouts:
        judgements.add(0, row)
    return error is None and judgements.kept == {0}


class Judgements:
    """Counts what filters said, one rollout at a time.

    Args:
        scored: Whether the run has a reward, which a rollout needs to be trained on.
    """

    def __init__(self, *, scored: bool) -> None:
        self._scored = scored
        self._rollouts: Counter[int] = Counter()
        self._said: Counter[tuple[str, str]] = Counter()
        self._dropped: Counter[tuple[str, int]] = Counter()
        self._left: set[int] = set()
        self._unjudged: set[int] = set()

    def add(self, task: int, row: RolloutRow) -> None:
        """Count a rollout.

        Args:
            task: The number of its task.
            row: Its row.
        """
        said = verdicts.read(row.note)
        self._rollouts[task] += 1
        # A filter that says the same twice about a rollout has taken it out once.
        for name, action in {(verdict.filter, verdict.action): None for verdict in said}:
            self._said[name, action] += 1
            if action == "drop":
                self._dropped[name, task] += 1
            elif action == "failed":
                self._unjudged.add(task)
        ended = row.termination is not None and row.termination not in UNSCORED
        if ended and not verdicts.masked(said) and (row.reward is not None or not self._scored):
            self._left.add(task)

    @property
    def kept(self) -> set[int]:
        """Tasks of which something is left to train on, broken ones not known."""
        return self._left - self._unjudged

    def filtered(self) -> list[Filtered]:
        """Return what each filter did, by name."""
        whole = Counter(name for (name, task), count in self._dropped.items() if count == self._rollouts[task])
        return [
            Filtered(
                name,
                masked=self._said[name, "mask"],
                dropped=self._said[name, "drop"],
                penalised=self._said[name, "penalty"],
                groups=whole[name],
                failed=self._said[name, "failed"],
            )
            for name in sorted({name for name, _ in self._said})
        ]
