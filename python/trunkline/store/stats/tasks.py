"""Figures by task, lengths and tokens of rollouts, and verdicts of filters."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.scoring import notes
from trunkline.scoring.diversity import Try, clusters, diversity, effective, intraclass
from trunkline.scoring.metrics.columns import NestedColumn
from trunkline.tree.tokens import Tokens
from trunkline.types import UNSCORED, Termination, Usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from trunkline.store.schema import RolloutRow, TakenRow, TreeRow


_CUT: Final = (Termination.CENSORED, None)


class Length(msgspec.Struct, frozen=True):
    """The mean length of rollouts, shared parts included.

    Attributes:
        rollouts: How many they are.
        turns: Model turns on a path.
        generated: Generated tokens on a path, of those whose turns all have usage; None if there are none.
    """

    rollouts: int
    turns: float
    generated: float | None


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one finished task.

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
        effective: Independent tries that would be worth as much as its scored rollouts; None where that is not known.
        silent: No server reported cached tokens, so that ``usage.cached`` holds siblings' prompts alone.
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


def usage_of_task(rows: Iterable[RolloutRow], before: TakenRow | None) -> Usage:
    """Add up what a task's rollouts cost in this run, without an earlier run that it continues."""
    usage = sum((row.usage for row in rows), Usage())
    return usage if before is None else usage - before.usage


def tried(row: RolloutRow) -> Try:
    """A rollout as a try of its task; the value of one that was cut is no reward."""
    counts = ended(row)
    reward = row.reward if counts and row.reward is not None else math.nan
    return Try(row.subgroup, reward, row.answer if counts else None, row.action)


class LengthCounter:
    """Measures rollouts that ended by themselves or, with ``cut``, that were cut; shared trunks count for each."""

    def __init__(self, *, cut: bool) -> None:
        self._cut = cut
        self._rollouts = self._turns = self._counted = self._generated = 0

    def add(self, row: RolloutRow) -> None:
        if row.termination in _CUT if self._cut else ended(row):
            self._rollouts += 1
            self._turns += row.turns
            if row.length is not None:
                self._counted += 1
                self._generated += row.length

    def length(self) -> Length | None:
        """The means; None without such rollouts."""
        if not self._rollouts:
            return None
        generated = self._generated / self._counted if self._counted else None
        return Length(self._rollouts, self._turns / self._rollouts, generated)


class TokenCounter:
    """Adds up the tokens of trees, one at a time."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(("flat", "tree", "flat_generated", "tree_generated", "unreported"), 0)
        self._longest = 0
        self._exact: bool | None = None

    def add(self, tree: TreeRow) -> None:
        sums = self._sums
        sums["flat"] += tree.flat
        sums["tree"] += tree.tree
        sums["flat_generated"] += tree.flat_generated
        sums["tree_generated"] += tree.tree_generated
        sums["unreported"] += tree.unreported
        self._longest = max(self._longest, tree.longest)
        self._exact = tree.exact == 1 and self._exact is not False

    def tokens(self) -> Tokens:
        return Tokens(**self._sums, longest=self._longest, exact=bool(self._exact))


def by_task(
    trees: Iterable[tuple[int, TreeRow]],
    rollouts: Iterable[tuple[int, RolloutRow]],
    names: Sequence[str],
    taken: Iterable[tuple[int, TakenRow]] = (),
    silent: Collection[int] = (),
) -> list[TaskSummary]:
    """Sum rollouts up by task; those of one task must be adjacent. ``silent``: tasks without cache figures."""
    finished, before = dict(trees), dict(taken)
    chains = NestedColumn()
    places: dict[int, int] = {}
    found: dict[int, TaskSummary] = {}

    def summed(number: int, rows: Sequence[RolloutRow], tries: Sequence[Try]) -> TaskSummary:
        return _task(names[number], finished[number], rows, tries, before.get(number), silent=number in silent)

    for number, rows in each_task(rollouts):
        tries = [tried(row) for row in rows]
        places[number] = len(chains)
        chains.append(clusters(tries))
        if number in finished:
            found[number] = summed(number, rows, tries)
    rho = intraclass(chains)
    summaries = []
    for number in finished:
        summary = found.pop(number, None) or summed(number, [], [])
        if summary.scored and rho is not None:
            sizes = [len(chain) for chain in chains[places[number]]]
            summary = msgspec.structs.replace(summary, effective=effective(sizes, rho))
        summaries.append(summary)
    return summaries


def each_task(rollouts: Iterable[tuple[int, RolloutRow]]) -> Iterator[tuple[int, list[RolloutRow]]]:
    """Yield the rollouts of one task after the other."""
    for number, pairs in groupby(rollouts, itemgetter(0)):
        yield number, [row for _, row in pairs]


def _task(
    name: str, tree: TreeRow, rows: Sequence[RolloutRow], own: Sequence[Try], before: TakenRow | None, *, silent: bool
) -> TaskSummary:
    """Sum one task up, without its effective tries, which depend on all tasks."""
    alone = diversity([own])
    scored = [given for given in own if not math.isnan(given.reward)]
    counter = TokenCounter()
    counter.add(tree)
    return TaskSummary(
        task=name,
        rollouts=len(rows),
        scored=len(scored),
        reward=math.fsum(given.reward for given in scored) / len(scored) if scored else None,
        tokens=counter.tokens(),
        usage=usage_of_task(rows, before),
        silent=silent,
        paths=sum(row.turns for row in rows) - (0 if before is None else before.paths),
        actions=0 if alone is None else round(alone.actions.found),
        answers=0 if alone is None else round(alone.answers.found),
        effective=None,
    )


class Filtered(msgspec.Struct, frozen=True):
    """The verdicts of one filter in a run.

    Attributes:
        filter: Its name, or that of a strategy that keeps some of its rollouts only.
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
    """Whether a finished group can be trained on: not broken, and a rollout with an outcome passed the filters."""
    if error is not None:
        return False
    found = False
    for row in rollouts:
        said = notes.read(row.note) if row.note else []
        if any(verdict.action == "failed" for verdict in said):
            return False
        found = found or _trains(row, said, scored=scored)
    return found


def _trains(row: RolloutRow, said: Sequence[notes.Verdict], *, scored: bool) -> bool:
    return (row.reward is not None or not scored) and ended(row) and not (said and notes.masked(said))


class FilterStats:
    """Counts verdicts of filters, one rollout at a time; rollouts of one task must be adjacent."""

    def __init__(self, *, scored: bool) -> None:
        self._scored = scored
        self._task: int | None = None
        self._rollouts = 0
        self._stated: Counter[tuple[str, str]] = Counter()
        self._dropped: Counter[str] = Counter()
        self._whole: Counter[str] = Counter()
        self._left: set[int] = set()
        self._unjudged: set[int] = set()

    def add(self, task: int, row: RolloutRow) -> None:
        if task != self._task:
            if self._dropped:
                self._whole, self._dropped = self._dropped_whole(), Counter()
            self._task, self._rollouts = task, 0
        said = notes.read(row.note) if row.note else []
        self._rollouts += 1
        # A filter that says the same twice about a rollout has taken it out once.
        for name, action in dict.fromkeys([(verdict.filter, verdict.action) for verdict in said]) if said else ():
            self._stated[name, action] += 1
            if action == "drop":
                self._dropped[name] += 1
            elif action == "failed":
                self._unjudged.add(task)
        if _trains(row, said, scored=self._scored):
            self._left.add(task)

    @property
    def kept(self) -> set[int]:
        """Tasks with a rollout to train on; broken tasks are not known here."""
        return self._left - self._unjudged

    def _dropped_whole(self) -> Counter[str]:
        """How many tasks each filter dropped whole, the current one included."""
        return self._whole + Counter(name for name, count in self._dropped.items() if count == self._rollouts)

    def filtered(self) -> list[Filtered]:
        """The effect of each filter, by name."""
        whole = self._dropped_whole()
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
