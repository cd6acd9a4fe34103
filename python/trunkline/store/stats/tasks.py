"""Per task; what filters did."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.scoring import notes
from trunkline.scoring.diversity import Try, diversity, effective
from trunkline.tree.tokens import Tokens
from trunkline.types import UNSCORED, Termination, Usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from trunkline.store.schema import RolloutRow, TakenRow, TreeRow


__all__ = ["FilterStats", "Filtered", "Length", "TaskSummary", "by_task", "ended", "kept", "length", "tokens", "tried"]


_CUT: Final = (Termination.CENSORED, None)


class Length(msgspec.Struct, frozen=True):
    """How long rollouts are, in the mean, what they share with others included.

    Attributes:
        rollouts: How many they are.
        turns: Model turns on a path.
        generated: Generated tokens on a path, of those whose turns all have usage; None if there are none.
    """

    rollouts: int
    turns: float
    generated: float | None


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one finished task came to.

    Attributes:
        task: Its id: not safe to print.
        rollouts: Its rollouts.
        scored: Rollouts with a reward.
        reward: Their mean reward; None if there are none.
        tokens: Tokens, flat and as a tree.
        usage: What its calls cost; those of an earlier run that this one continues are left out, and in ``paths`` too.
        paths: Model turns on the paths of all rollouts: the calls that as many chains would have made.
        actions: Different first actions.
        answers: Different answers.
        effective: Independent tries that would say as much as its scored rollouts, with the run's correlation; None
            where that is not known.
        silent: Whether no server said what it had cached, so that ``usage.cached`` holds siblings' prompts alone.
    """

    task: str
    rollouts: int
    scored: int
    reward: float | None
    tokens: Tokens
    usage: Usage
    paths: int
    actions: int
    answers: int
    effective: float | None
    silent: bool = False


def ended(row: RolloutRow) -> bool:
    """Whether a rollout ended by itself, so that its answer and its reward count."""
    return row.termination is not None and row.termination not in UNSCORED


def tried(row: RolloutRow) -> Try:
    """What diversity needs to know of a rollout; what a value function said of one that was cut is no reward."""
    counts = ended(row)
    reward = row.reward if counts and row.reward is not None else math.nan
    return Try(row.subgroup, reward, row.answer if counts else None, row.action)


def length(rows: Sequence[RolloutRow], *, cut: bool) -> Length | None:
    """Measure rollouts; shared trunks count for each.

    Args:
        rows: Rollouts.
        cut: Measure those that were cut (``censored``, or left growing where their task ended), in place of those that
            ended by themselves.

    Returns:
        Means; None if there are none such.
    """
    found = [row for row in rows if (row.termination in _CUT if cut else ended(row))]
    if not found:
        return None
    counted = [row.length for row in found if row.length is not None]
    generated = sum(counted) / len(counted) if counted else None
    return Length(len(found), sum(row.turns for row in found) / len(found), generated)


def tokens(trees: Sequence[TreeRow]) -> Tokens:
    """Add up the tokens of trees."""
    return Tokens(
        flat=sum(tree.flat for tree in trees),
        tree=sum(tree.tree for tree in trees),
        flat_generated=sum(tree.flat_generated for tree in trees),
        tree_generated=sum(tree.tree_generated for tree in trees),
        longest=max((tree.longest for tree in trees), default=0),
        unreported=sum(tree.unreported for tree in trees),
        exact=bool(trees) and all(tree.exact == 1 for tree in trees),
    )


def by_task(
    trees: Iterable[tuple[int, TreeRow]],
    rollouts: Iterable[tuple[int, RolloutRow]],
    names: Sequence[str],
    taken: Iterable[tuple[int, TakenRow]] = (),
    silent: Collection[int] = (),
) -> list[TaskSummary]:
    """Sum rollouts up by task.

    Args:
        trees: Rows of finished tasks with their numbers.
        rollouts: Rows of their rollouts with the number of the task.
        names: Ids of all tasks.
        taken: What was taken over of an earlier run, likewise.
        silent: Numbers of tasks of which no server said what it had cached.

    Returns:
        A summary of each finished task, in the order of the tasks.
    """
    rows: dict[int, list[RolloutRow]] = {}
    for number, row in rollouts:
        rows.setdefault(number, []).append(row)
    tries = {number: [tried(row) for row in listed] for number, listed in rows.items()}
    found = diversity(tries.values())
    rho = None if found is None else found.rho
    before = dict(taken)
    return [
        _task(
            names[number],
            tree,
            rows.get(number, []),
            tries.get(number, []),
            rho,
            before.get(number),
            silent=number in silent,
        )
        for number, tree in trees
    ]


def _task(
    name: str,
    tree: TreeRow,
    rows: Sequence[RolloutRow],
    own: Sequence[Try],
    rho: float | None,
    before: TakenRow | None,
    *,
    silent: bool,
) -> TaskSummary:
    alone = diversity([own])
    scored = [given for given in own if not math.isnan(given.reward)]
    sizes = list(Counter(given.subgroup for given in scored).values())
    usage = sum((row.usage for row in rows), Usage())
    if before is not None:
        usage -= before.usage
    return TaskSummary(
        task=name,
        rollouts=len(rows),
        scored=len(scored),
        reward=math.fsum(given.reward for given in scored) / len(scored) if scored else None,
        tokens=tokens([tree]),
        usage=usage,
        silent=silent,
        paths=sum(row.turns for row in rows) - (0 if before is None else before.paths),
        actions=0 if alone is None else round(alone.actions.found),
        answers=0 if alone is None else round(alone.answers.found),
        effective=effective(sizes, rho) if scored and rho is not None else None,
    )


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
    filter_stats = FilterStats(scored=scored)
    for row in rollouts:
        filter_stats.add(0, row)
    return error is None and filter_stats.kept == {0}


class FilterStats:
    """Counts what filters said, one rollout at a time.

    Args:
        scored: Whether the run has a reward, which a rollout needs to be trained on.
    """

    def __init__(self, *, scored: bool) -> None:
        self._scored = scored
        self._rollouts: Counter[int] = Counter()
        self._stated: Counter[tuple[str, str]] = Counter()
        self._dropped: Counter[tuple[str, int]] = Counter()
        self._left: set[int] = set()
        self._unjudged: set[int] = set()

    def add(self, task: int, row: RolloutRow) -> None:
        """Count a rollout.

        Args:
            task: The number of its task.
            row: Its row.
        """
        said = notes.read(row.note)
        self._rollouts[task] += 1
        # A filter that says the same twice about a rollout has taken it out once.
        for name, action in {(verdict.filter, verdict.action): None for verdict in said}:
            self._stated[name, action] += 1
            if action == "drop":
                self._dropped[name, task] += 1
            elif action == "failed":
                self._unjudged.add(task)
        ended = row.termination is not None and row.termination not in UNSCORED
        if ended and not notes.masked(said) and (row.reward is not None or not self._scored):
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
                masked=self._stated[name, "mask"],
                dropped=self._stated[name, "drop"],
                penalised=self._stated[name, "penalty"],
                groups=whole[name],
                failed=self._stated[name, "failed"],
            )
            for name in sorted({name for name, _ in self._stated})
        ]
