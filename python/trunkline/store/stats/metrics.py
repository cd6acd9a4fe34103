"""Every metric of a run, from its rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.scoring.metrics.at_k import PerSolved, majority_at_k, mean_pass_at_k, mean_pass_hat_k, per_solved
from trunkline.scoring.metrics.comparison import Calibration, calibration
from trunkline.scoring.metrics.intervals import Estimate, accuracy, best_of_n
from trunkline.scoring.notes import graded
from trunkline.store.stats.tasks import tried
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trunkline.scoring.diversity import Try
    from trunkline.store.reader import RunReader
    from trunkline.store.schema import RolloutRow
    from trunkline.store.stats.calls import Spending
    from trunkline.tree.views import Trajectory
    from trunkline.types import Usage

__all__ = ["RunMetrics", "calibrated", "run_metrics"]


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a run; those with a number of tries for powers of two, and for the most tries of a task.

    A task counts where it has so many scored tries; what broke is no try (see ``Estimate.tries``).

    Attributes:
        tries: The most scored tries of one task.
        accuracy: The mean reward of one try; None if nothing is scored, as below.
        best: The best reward of each task.
        pass_at: pass@k by k: that at least one of k tries is right.
        pass_hat: pass^k by k: that all of k tries are.
        majority: majority@k by k: the reward of the most frequent answer of k tries.
        generated_per_solved: Generated tokens for each solved task; None where nothing is solved or the servers
            reported no usage, as below. Those of an earlier run that this one continues are left out.
        tokens_per_solved: Prompt tokens, cached ones included, and generated ones for each solved task.
        cost_per_solved: Money for each solved task; None also without a price for every call.
        unreported: Calls without usage, which are in no count of tokens.
        parts: Of a reward that is made of several, the mean of each over the tries of which it has a value, as it is
            before its weight, by name.
    """

    tries: int
    accuracy: Estimate | None
    best: Estimate | None
    pass_at: dict[int, Estimate]
    pass_hat: dict[int, Estimate]
    majority: dict[int, Estimate]
    generated_per_solved: PerSolved | None
    tokens_per_solved: PerSolved | None
    cost_per_solved: PerSolved | None
    unreported: int
    parts: dict[str, Estimate]


def run_metrics(reader: RunReader) -> RunMetrics:
    """Compute the metrics of a run's finished tasks.

    Args:
        reader: The run's file.

    Raises:
        RunFileError: It is damaged.
    """
    tasks = reader.by_task()
    found: dict[int, list[Try]] = {number: [] for number, _row in reader.rows()}
    parts = _Parts()
    for number, row in reader.rollouts():
        if number in found:
            found[number].append(tried(row))
            parts.add(number, row)
    costs = reader.costs()
    spent = [costs.get(task.task) for task in tasks] if reader.prices else None
    return _run_metrics(list(found.values()), [task.usage for task in tasks], spent, parts.means())


class _Parts:
    """What the parts of a run's reward said."""

    def __init__(self) -> None:
        self._stated: dict[str, dict[int, list[float]]] = {}

    def add(self, task: int, row: RolloutRow) -> None:
        """Take up what a rollout's note says."""
        for one in graded(row.note):
            if one.weight is not None:
                value = math.nan if one.value is None else one.value
                self._stated.setdefault(one.reward, {}).setdefault(task, []).append(value)

    def means(self) -> dict[str, Estimate]:
        """The mean of each; the whole reward, of which a note may say why it has no value, has no mean here."""
        found = {name: accuracy(list(by_task.values())) for name, by_task in self._stated.items()}
        return {name: mean for name, mean in found.items() if mean is not None}


def calibrated(reader: RunReader, sure: Callable[[Trajectory], float]) -> Calibration | None:
    """Compare how sure the rollouts of finished tasks are with whether they are right.

    Args:
        reader: The run's file. Its trees are read one at a time.
        sure: How sure a rollout is, NaN where nobody knows, as :data:`trunkline.scoring.confidence.CONFIDENCES` say.

    Returns:
        The comparison, or None if no scored rollout has a confidence.

    Raises:
        RunFileError: The file is damaged.
    """
    confidences: list[list[float]] = []
    rewards: list[list[float]] = []
    for tree in reader.trees(mixed=True):
        counted = [one for one in tree.rollouts if one.termination is not None and one.termination not in UNSCORED]
        confidences.append([sure(one) for one in counted])
        rewards.append([one.reward for one in counted])
    return calibration(confidences, rewards)


def _run_metrics(
    tries: Sequence[Sequence[Try]],
    usage: Sequence[Usage],
    costs: Sequence[Spending | None] | None,
    parts: dict[str, Estimate],
) -> RunMetrics:
    rewards = [[given.reward for given in task] for task in tries]
    answers = [[given.answer for given in task] for task in tries]
    most = max((sum(not math.isnan(reward) for reward in task) for task in rewards), default=0)
    counts = _counts(most)
    solved = [any(reward >= 1 for reward in task) for task in rewards]
    unreported = sum(each.unreported for each in usage)
    reported = any(each.prompt or each.generated for each in usage)
    return RunMetrics(
        tries=most,
        accuracy=accuracy(rewards),
        best=best_of_n(rewards),
        pass_at=_found((k, mean_pass_at_k(rewards, k)) for k in counts),
        pass_hat=_found((k, mean_pass_hat_k(rewards, k)) for k in counts),
        majority=_found((k, majority_at_k(answers, rewards, k)) for k in counts),
        generated_per_solved=per_solved([each.generated for each in usage], solved) if reported else None,
        tokens_per_solved=per_solved([each.prompt + each.generated for each in usage], solved) if reported else None,
        cost_per_solved=_cost(costs, solved),
        unreported=unreported,
        parts=parts,
    )


def _counts(most: int) -> list[int]:
    """Return the powers of two below a number, and the number."""
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), *([most] if most else [])]


def _found(estimates: Iterable[tuple[int, Estimate | None]]) -> dict[int, Estimate]:
    return {k: estimate for k, estimate in estimates if estimate is not None}


def _cost(costs: Sequence[Spending | None] | None, solved: Sequence[bool]) -> PerSolved | None:
    if costs is None or any(cost is not None and cost.unpriced for cost in costs):
        return None
    return per_solved([0.0 if cost is None else cost.money for cost in costs], solved)
