"""Every metric of a run, from its rows."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

import msgspec

from trunkline.scoring.metrics.at_k import (
    AnswerClasses,
    MajorityAtK,
    PerSolved,
    mean_pass_at_k,
    mean_pass_hat_k,
    per_solved,
)
from trunkline.scoring.metrics.columns import RaggedColumn
from trunkline.scoring.metrics.comparison import Calibration, calibration
from trunkline.scoring.metrics.intervals import Estimate, accuracy, best_of_n, inside
from trunkline.scoring.notes import graded
from trunkline.store.stats.tasks import each_task, tried, usage_of_task
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trunkline.store.reader import RunReader
    from trunkline.store.schema import RolloutRow, TakenRow
    from trunkline.tree.views import Trajectory

_LARGEST_VOTE = 128
"""The most tries of a vote that is counted, but for one of all: the time grows with the third power of their number."""


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a run; those with a number of tries for powers of two, and for the most tries of a task.

    A task counts where it has so many scored tries; what broke is no try (see ``Estimate.tries``).
    """

    tries: int  # the most scored tries of one task
    accuracy: Estimate | None  # the mean reward of one try; None if nothing is scored, as below
    best: Estimate | None  # the best reward of each task
    pass_at: dict[int, Estimate]  # pass@k by k: that at least one of k tries is right
    pass_hat: dict[int, Estimate]  # pass^k by k: that all of k tries are
    # majority@k by k, up to 128 and for all: the reward of the most frequent answer of k tries
    majority: dict[int, Estimate]
    # generated tokens for each solved task; None where nothing is solved or the servers reported no usage, as below.
    # Those of an earlier run that this one continues are left out
    generated_per_solved: PerSolved | None
    tokens_per_solved: PerSolved | None  # prompt tokens, cached ones included, and generated ones for each solved task
    cost_per_solved: PerSolved | None  # money for each solved task; None also without a price for every call
    unreported: int  # calls without usage, which are in no count of tokens
    # of a reward that is made of several, the mean of each over the tries of which it has a value, as it is before its
    # weight, by name
    parts: dict[str, Estimate]


def run_metrics(reader: RunReader) -> RunMetrics:
    """Compute the metrics of a run's finished tasks."""
    before = dict(reader.taken())
    totals, parts = _Totals(), _Parts()
    for number, rows in finished_tasks(reader):
        totals.add(rows, before.get(number))
        parts.add(rows)
    rewards, solved, most = totals.rewards, totals.solved, totals.most
    # The powers of two below the most tries, and that number.
    counts = [*(1 << power for power in range(most.bit_length()) if 1 << power < most), *([most] if most else [])]
    votes = {k: MajorityAtK(k) for k in counts if k <= _LARGEST_VOTE or k == most}
    for _, rows in finished_tasks(reader) if votes else ():
        tries = [tried(row) for row in rows]
        classes = AnswerClasses([given.answer for given in tries], [given.reward for given in tries])
        for one in votes.values():
            one.add(classes)
    bounded = inside(rewards)
    return RunMetrics(
        tries=most,
        accuracy=accuracy(rewards),
        best=best_of_n(rewards),
        pass_at=_found((k, mean_pass_at_k(rewards, k)) for k in counts),
        pass_hat=_found((k, mean_pass_hat_k(rewards, k)) for k in counts),
        majority=_found((k, one.estimate(bounded=bounded)) for k, one in votes.items()),
        generated_per_solved=per_solved(totals.generated, solved) if totals.reported else None,
        tokens_per_solved=per_solved(totals.tokens, solved) if totals.reported else None,
        cost_per_solved=_cost_per_solved(reader, solved),
        unreported=totals.unreported,
        parts=parts.means(),
    )


def finished_tasks(reader: RunReader) -> Iterator[tuple[int, list[RolloutRow]]]:
    """Yield the rollouts of each finished task, of which there may be none, in the order of the tasks."""
    grown = each_task(reader.rollouts())
    number, rows = next(grown, (None, []))
    for finished, _ in reader.rows():
        while number is not None and number < finished:
            number, rows = next(grown, (None, []))
        yield finished, rows if number == finished else []


class _Totals:
    """What the tries of finished tasks come to, but for their answers."""

    def __init__(self) -> None:
        self.rewards = RaggedColumn()
        self.solved: list[bool] = []
        self.generated, self.tokens = array("q"), array("q")
        self.unreported = 0
        self.most = 0
        self.reported = False

    def add(self, rows: Sequence[RolloutRow], before: TakenRow | None) -> None:
        """Add a task, and what it had cost in an earlier run."""
        rewards = [tried(row).reward for row in rows]
        self.rewards.append(rewards)
        self.most = max(self.most, sum(not math.isnan(reward) for reward in rewards))
        self.solved.append(any(reward >= 1 for reward in rewards))
        usage = usage_of_task(rows, before)
        self.generated.append(usage.generated)
        self.tokens.append(usage.prompt + usage.generated)
        self.unreported += usage.unreported
        self.reported |= bool(usage.prompt or usage.generated)


class _Parts:
    """What the parts of a run's reward said."""

    def __init__(self) -> None:
        self._stated: dict[str, RaggedColumn] = {}

    def add(self, rows: Sequence[RolloutRow]) -> None:
        """Take up what the notes of a task's rollouts say."""
        values: dict[str, list[float]] = {}
        for row in rows:
            for one in graded(row.note):
                if one.weight is not None:
                    values.setdefault(one.reward, []).append(math.nan if one.value is None else one.value)
        for name, stated in values.items():
            self._stated.setdefault(name, RaggedColumn()).append(stated)

    def means(self) -> dict[str, Estimate]:
        """The mean of each; the whole reward, of which a note may say why it has no value, has no mean here."""
        found = {name: accuracy(by_task) for name, by_task in self._stated.items()}
        return {name: mean for name, mean in found.items() if mean is not None}


def calibrated(reader: RunReader, sure: Callable[[Trajectory], float]) -> Calibration | None:
    """Compare how sure the rollouts of finished tasks are with whether they are right."""
    confidences: list[list[float]] = []
    rewards: list[list[float]] = []
    for tree in reader.trees(mixed=True):
        counted = [one for one in tree.rollouts if one.termination is not None and one.termination not in UNSCORED]
        confidences.append([sure(one) for one in counted])
        rewards.append([one.reward for one in counted])
    return calibration(confidences, rewards)


def _found(estimates: Iterable[tuple[int, Estimate | None]]) -> dict[int, Estimate]:
    return {k: estimate for k, estimate in estimates if estimate is not None}


def _cost_per_solved(reader: RunReader, solved: Sequence[bool]) -> PerSolved | None:
    """None without a price for every call."""
    if not reader.prices:
        return None
    costs, names = reader.costs(), reader.task_ids()
    spent = [costs.get(names[number]) for number, _ in reader.rows()]
    if any(cost is not None and cost.unpriced for cost in spent):
        return None
    return per_solved([0.0 if cost is None else cost.money for cost in spent], solved)
