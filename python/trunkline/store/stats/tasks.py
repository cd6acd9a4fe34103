"""Figures by task, lengths and tokens of rollouts, and verdicts of filters."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
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


_TOGETHER = 64  # tasks that are added up at once
_CUT: Final = frozenset({Termination.CENSORED, None})
VOID: Final = UNSCORED | {None}
"""Terminations of rollouts whose answer and reward do not count, None of those that never ended."""

_TASK, _ROW = itemgetter(0), itemgetter(1)
_USAGE = attrgetter(*Usage.__struct_fields__)
_TOKENS = "flat", "tree", "flat_generated", "tree_generated", "unreported"
_token_sums = attrgetter(*_TOKENS)


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
    return row.termination not in VOID


def usage_of(rows: Iterable[RolloutRow | TakenRow]) -> Usage:
    """Add up what rollouts cost."""
    return Usage(*map(sum, zip(*map(_USAGE, rows), strict=True)))


def usage_of_task(rows: Iterable[RolloutRow], before: TakenRow | None) -> Usage:
    """Add up what a task's rollouts cost in this run, without an earlier run that it continues."""
    usage = usage_of(rows)
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

    def add(self, rows: Sequence[RolloutRow]) -> None:
        own = [row for row in rows if (row.termination in _CUT if self._cut else row.termination not in VOID)]
        lengths = [row.length for row in own if row.length is not None]
        self._rollouts += len(own)
        self._turns += sum([row.turns for row in own])
        self._counted += len(lengths)
        self._generated += sum(lengths)

    def length(self) -> Length | None:
        """The means; None without such rollouts."""
        if not self._rollouts:
            return None
        generated = self._generated / self._counted if self._counted else None
        return Length(self._rollouts, self._turns / self._rollouts, generated)


class TokenCounter:
    """Adds up the tokens of trees."""

    def __init__(self) -> None:
        self._sums = (0,) * len(_TOKENS)
        self._longest = 0
        self._exact: bool | None = None

    def add(self, trees: Sequence[TreeRow]) -> None:
        if trees:
            self._sums = tuple(map(sum, zip(self._sums, *map(_token_sums, trees), strict=True)))
            self._longest = max(self._longest, *[tree.longest for tree in trees])
            self._exact = {tree.exact for tree in trees} == {1} and self._exact is not False

    def tokens(self) -> Tokens:
        sums = dict(zip(_TOKENS, self._sums, strict=True))
        return Tokens(**sums, longest=self._longest, exact=bool(self._exact))


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
    return chain.from_iterable(some_tasks(rollouts))


def some_tasks(rollouts: Iterable[tuple[int, RolloutRow]]) -> Iterator[list[tuple[int, list[RolloutRow]]]]:
    """Yield the rollouts of some tasks after those of others, each with all of its own."""
    tasks = groupby(rollouts, _TASK)
    while batch := [(number, [*map(_ROW, pairs)]) for number, pairs in islice(tasks, _TOGETHER)]:
        yield batch


def _task(
    name: str, tree: TreeRow, rows: Sequence[RolloutRow], own: Sequence[Try], before: TakenRow | None, *, silent: bool
) -> TaskSummary:
    """Sum one task up, without its effective tries, which depend on all tasks."""
    alone = diversity([own])
    scored = [given for given in own if not math.isnan(given.reward)]
    counter = TokenCounter()
    counter.add([tree])
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
    left = False
    for row in rollouts:
        if row.note:
            said = notes.read(row.note)
            if any(verdict.action == "failed" for verdict in said):
                return False
            if notes.masked(said):
                continue
        left = left or ((row.reward is not None or not scored) and row.termination not in VOID)
    return left


class FilterStats:
    """Counts verdicts of filters."""

    def __init__(self, *, scored: bool) -> None:
        self._scored = scored
        self._stated: Counter[tuple[str, str]] = Counter()
        self._whole: Counter[str] = Counter()
        self.kept: set[int] = set()
        """Tasks with a rollout to train on; broken tasks are not known here."""

    def add(self, tasks: Iterable[tuple[int, Sequence[RolloutRow]]]) -> None:
        """Count the verdicts on whole tasks."""
        for task, rows in tasks:
            if kept(None, rows, scored=self._scored):
                self.kept.add(task)
            for row in rows:
                if row.note:
                    self._count(rows)
                    break

    def _count(self, rows: Sequence[RolloutRow]) -> None:
        """Count the verdicts on one task."""
        dropped: Counter[str] = Counter()
        for row in rows:
            # A filter that says the same twice about a rollout has taken it out once.
            for name, action in {(said.filter, said.action) for said in (notes.read(row.note) if row.note else ())}:
                self._stated[name, action] += 1
                dropped[name] += action == "drop"
        self._whole.update(name for name, count in dropped.items() if count == len(rows))

    def filtered(self) -> list[Filtered]:
        """The effect of each filter, by name."""
        return [
            Filtered(
                name,
                masked=self._stated[name, "mask"],
                dropped=self._stated[name, "drop"],
                penalised=self._stated[name, "penalty"],
                groups=self._whole[name],
                failed=self._stated[name, "failed"],
            )
            for name in sorted({name for name, _ in self._stated})
        ]
