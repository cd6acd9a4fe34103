"""Two runs on the same tasks, compared task by task."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline._internal.text import counted, printable, quoted
from trunkline.errors import UsageError
from trunkline.scoring.metrics.at_k import Metric
from trunkline.scoring.metrics.at_k import metric as named
from trunkline.scoring.metrics.comparison import Paired, paired
from trunkline.scoring.metrics.intervals import Estimate, inside
from trunkline.store.reader import RunReader
from trunkline.store.stats.calls import Spending, add_up
from trunkline.store.stats.metrics import finished_tasks
from trunkline.store.stats.summary import first_try
from trunkline.store.stats.tasks import tried, usage_of_task
from trunkline.tree.html import MOST_ROWS, interval, number, table
from trunkline.types import Termination, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.types import Task

_NAMED = 5  # ids that an error shows


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of two runs, on the compared tasks.

    Attributes:
        run: Its file.
        estimate: The metric, with its own interval.
        rollouts: Rollouts of these tasks, scored or not.
        usage: Calls and tokens of these tasks; those of an earlier run that it continues are left out.
        spent: What that cost; None without a price.
        chosen: Tries of the run that were asked again because of their result.
        first_try: The run's accuracy of one try without that, over all of its tasks; None where there are none.
    """

    run: str
    estimate: Estimate
    rollouts: int
    usage: Usage
    spent: Spending | None
    chosen: int = 0
    first_try: Estimate | None = None


class ChangedTask(msgspec.Struct, frozen=True):
    """A task on which two runs differ.

    Attributes:
        task: Its id: not safe to print.
        a: The metric in the first run.
        b: In the second.
        difference: The second less the first.
    """

    task: str
    a: float
    b: float
    difference: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared on finished tasks of the same content that were measured in both.

    Attributes:
        metric: The metric's name.
        reward: The name of the reward that both were scored with; None where their programs say what a try is worth.
        a: The first run.
        b: The second.
        paired: The difference, the second less the first, with its interval and its p value.
        changed: The tasks that changed, the largest change first; what became better before what became worse.
        only_a: Ids of tasks that only the first run has: not safe to print, like all ids here.
        only_b: Ids of tasks that only the second has.
        different: Ids that both have with another prompt or other reference answers.
        unfinished: Ids that both have, and that are not finished in both.
        unmeasured: Ids that are finished in both, and on which too few tries are scored in one.
    """

    metric: str
    reward: str | None
    a: Side
    b: Side
    paired: Paired
    changed: list[ChangedTask]
    only_a: list[str]
    only_b: list[str]
    different: list[str]
    unfinished: list[str]
    unmeasured: list[str]

    def _repr_html_(self) -> str:
        """What a notebook shows: both runs, the difference, and the tasks that changed most."""
        sides = [
            (side.run, interval(side.estimate.value, side.estimate.low, side.estimate.high), f"{side.rollouts:,}")
            for side in (self.a, self.b)
        ]
        found = self.paired
        told = f"{found.tasks:,} tasks: {found.better:,} better, {found.worse:,} worse, {found.same:,} the same"
        sides += [("difference", interval(found.difference, found.low, found.high), ""), ("p", number(found.p), told)]
        changed = self.changed[:MOST_ROWS]
        rows = [(one.task, number(one.a), number(one.b), number(one.difference)) for one in changed]
        above = table(f"{self.metric}, {self.reward or 'scored by its program'}", sides, ("run", "value", "rollouts"))
        head = ("task", "a", "b", "difference")
        return above + table("tasks that changed", rows, head, more=len(self.changed) - len(rows)) if rows else above


class _Tries(NamedTuple):
    answers: Sequence[str | None]
    rewards: Sequence[float]


class _Read(NamedTuple):
    """What a comparison needs of a run."""

    path: Path
    tasks: dict[str, Task]
    tries: dict[str, _Tries]
    usage: dict[str, Usage]
    costs: dict[str, Spending]
    priced: bool
    reward: str | None
    chosen: int
    first_try: Estimate | None


def compare(
    a: str | Path, b: str | Path, metric: str = "accuracy", *, common: bool = False, allow_selected: bool = False
) -> Comparison:
    """Compare two runs on the same tasks, task by task.

    Tasks are the same if their id, their prompt and their reference answers are. The differences of tasks are the
    sample, see ``trunkline.metrics.paired``.

    Args:
        a: The file of the first run.
        b: The file of the second.
        metric: ``accuracy``, ``best``, ``majority``, ``avg@K``, ``pass@K``, ``pass^K`` or ``majority@K``.
        common: Leave out tasks of the same id and another content, in place of an error.
        allow_selected: Compare also a run of which tries were asked again because of their result.

    Returns:
        The comparison.

    Raises:
        RunFileError: A file is not a readable run.
        UsageError: There is no such metric; the runs were scored by different rewards, or one is not scored or scored
            again in part; they have different tasks under one id, or no task that can be compared; or tries of one were
            asked again because of their result.
    """
    wanted = named(metric)
    votes = wanted.kind.startswith("majority")
    first, second = _read(Path(a), votes=votes), _read(Path(b), votes=votes)
    for run in (first, second):
        if run.chosen and not allow_selected:
            raise UsageError(
                f"{_shown(run)}: {counted(run.chosen, 'try', 'tries')} asked again because of their result, which "
                "favours the run: compare one without such, or give --allow-selected (allow_selected=True)"
            )
    _same_reward(first, second)
    shared = [name for name in first.tasks if name in second.tasks]
    pairs = {name: (first.tasks[name], second.tasks[name]) for name in shared}
    different = [name for name, (x, y) in pairs.items() if x.messages != y.messages or x.reference != y.reference]
    if different and not common:
        has = f"{counted(len(different), 'task')} of the same id {'has' if len(different) == 1 else 'have'}"
        raise UsageError(
            f"{has} another prompt or other reference answers in {_shown(second)} than in {_shown(first)}:"
            f" {_ids(different)}; compare runs of one file of questions, or leave these tasks out with --common"
            " (common=True)"
        )
    apart = set(different)
    alike = [name for name in shared if name not in apart]
    done = [name for name in alike if name in first.tries and name in second.tries]
    values = {name: (wanted.value(*first.tries[name]), wanted.value(*second.tries[name])) for name in done}
    measured = {name: (x, y) for name, (x, y) in values.items() if x is not None and y is not None}
    if not measured:
        raise UsageError(_nothing(wanted, first, second, len(shared), len(alike), len(done)))
    found = paired(
        [x for x, _ in measured.values()],
        [y for _, y in measured.values()],
        draws=_draws(wanted, first, second, measured),
        bounded=wanted.kind in ("pass@", "pass^") or all(inside(_rewards(run, measured)) for run in (first, second)),
    )
    assert found is not None
    return Comparison(
        metric=wanted.name,
        reward=first.reward,
        a=_side(wanted, first, measured),
        b=_side(wanted, second, measured),
        paired=found,
        changed=_changed(measured),
        only_a=[name for name in first.tasks if name not in second.tasks],
        only_b=[name for name in second.tasks if name not in first.tasks],
        different=different,
        unfinished=[name for name in alike if name not in values],
        unmeasured=[name for name in done if name not in measured],
    )


def _read(path: Path, *, votes: bool) -> _Read:
    """Read what a comparison needs of a run; answers only where they vote."""
    with RunReader.open(path) as reader:
        reader.require_one_reward()
        tasks = reader.tasks()
        names = [task.id for task in tasks]
        before = dict(reader.taken())
        usage, tries = {}, {}
        for number, rows in finished_tasks(reader):
            name, given = names[number], [tried(row) for row in rows if row.termination != Termination.RETRIED]
            usage[name] = usage_of_task(rows, before.get(number))
            answers = [one.answer for one in given] if votes else []
            tries[name] = _Tries(answers, array("d", (one.reward for one in given)))
        reward = reader.settings.get("reward")
        costs, priced, chosen = reader.costs(), bool(reader.prices), reader.chosen()
        first = first_try(reader.rollouts()) if chosen else None
    if not any(not math.isnan(reward) for given in tries.values() for reward in given.rewards):
        raise UsageError(
            f"{printable(str(path))}: no rollout of a finished task is scored, so there is nothing to compare;"
            " run it with a reward, or score it with trunkline score"
        )
    tasks_by_id = dict(zip(names, tasks, strict=True))
    scored_by = reward if isinstance(reward, str) else None
    return _Read(path, tasks_by_id, tries, usage, costs, priced, scored_by, chosen, first)


def _same_reward(first: _Read, second: _Read) -> None:
    if first.reward != second.reward:
        said = [
            f"{_shown(run)} was scored by {'no reward function' if run.reward is None else quoted(run.reward, 80)}"
            for run in (first, second)
        ]
        raise UsageError(
            f"{said[0]} and {said[1]}: their rewards are not the same figure; score both by one reward first"
            " (trunkline score)"
        )


def _rewards(run: _Read, names: Iterable[str]) -> list[Sequence[float]]:
    return [run.tries[name].rewards for name in names]


def _draws(metric: Metric, first: _Read, second: _Read, names: Iterable[str]) -> float:
    """Return how many independent values a task's value is a mean of: the harmonic mean over tasks and runs."""
    parts = [
        1 / metric.draws(sum(not math.isnan(reward) for reward in run.tries[name].rewards))
        for name in names
        for run in (first, second)
    ]
    return len(parts) / math.fsum(parts)


def _side(metric: Metric, run: _Read, names: Sequence[str] | dict[str, tuple[float, float]]) -> Side:
    estimate = metric.estimate([run.tries[name].answers for name in names], _rewards(run, names))
    assert estimate is not None
    costs = [run.costs[name] for name in names if name in run.costs]
    return Side(
        run=str(run.path),
        estimate=estimate,
        rollouts=sum(len(run.tries[name].rewards) for name in names),
        usage=sum((run.usage[name] for name in names), Usage()),
        spent=add_up(costs) if run.priced else None,
        chosen=run.chosen,
        first_try=run.first_try,
    )


def _changed(measured: dict[str, tuple[float, float]]) -> list[ChangedTask]:
    found = [ChangedTask(name, x, y, y - x) for name, (x, y) in measured.items() if abs(y - x) > 1e-9]
    return sorted(found, key=lambda one: (-round(abs(one.difference), 9), -one.difference, one.task))


def _nothing(metric: Metric, first: _Read, second: _Read, shared: int, alike: int, done: int) -> str:
    """Why there is no task to compare."""
    both = f"{_shown(first)} and {_shown(second)}"
    if not shared:
        ids = [_ids(list(run.tasks)) for run in (first, second)]
        return f"{both} have no task in common; ids of the first are {ids[0]}, of the second {ids[1]}"
    if not alike:
        return f"{both} have no task of the same content in common"
    if not done:
        return f"no task is finished in both {both}: resume them first"
    needed = "a scored try" if metric.k is None else counted(metric.k, "scored try", "scored tries")
    return f"{metric.name} needs {needed} of a task in both runs; no task of {both} has them"


def _shown(run: _Read) -> str:
    return printable(str(run.path))


def _ids(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(quoted(name, 40) for name in names[:_NAMED]) + more
