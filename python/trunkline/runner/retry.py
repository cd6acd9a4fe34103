"""Tries of a finished run that are asked again: which ones, and how their trees are opened for the next draws."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline._internal.text import counted, printable, quoted
from trunkline._internal.validation import did_you_mean, short_repr
from trunkline.errors import ConfigError
from trunkline.rollout.checkpoint import CarriedOver, Checkpoint, RetryMark, write
from trunkline.rollout.programs.replay import Journal
from trunkline.scoring import notes
from trunkline.store.schema import TreeEnding
from trunkline.store.stats.tasks import each_task
from trunkline.strategies.base import prompt
from trunkline.tree.records import Failure
from trunkline.types import FAILED, Termination

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from trunkline._core import CoreTree
    from trunkline.store.reader import RunReader
    from trunkline.store.schema import RolloutRow, TreeRow

WORDS: Final = ("broken", "cut", "empty")
_ID: Final = "id:"
"""What an id may begin with, so that it is no word and has no commas between ids."""

SPENT: Final = frozenset({"budget", "deadline"})
"""Endings of runs, and of trees, that a limit cut."""

_OF_RUN: Final = frozenset({"run budget", "deadline"})
_OF_TASK: Final = "task budget"
"""With these words begins why a rollout was cut: by a limit that a resumed run has anew, or by what its task spent."""


class Reopened(NamedTuple):
    """The tries of one task that are asked again.

    Attributes:
        tries: Their rollouts, each with whether it was chosen by its result.
        unpaid: Chains that were to start and that no budget paid for.
    """

    tries: dict[int, bool]
    unpaid: int = 0


class Retry(NamedTuple):
    """What is asked again: kinds of tries, and ids of tasks (``q7``) or of single tries (``q7#2``)."""

    words: frozenset[str]
    ids: tuple[str, ...]

    @classmethod
    def read(cls, given: object) -> Retry | None:
        """Read the option ``retry``: None, words and ids between commas, or a list of them."""
        if given is None:
            return None
        parts = cls.parts(given) if isinstance(given, str) else given
        if not isinstance(parts, list | tuple) or not parts or not all(isinstance(part, str) for part in parts):
            raise ConfigError(f"retry must be broken, cut, empty, or ids of tasks, not {short_repr(given)}")
        named = [part.strip() for part in parts]
        if "" in named:
            raise ConfigError(f"retry: {short_repr(given)} names nothing in one place; write a kind of tries, or an id")
        ids = tuple(part for part in named if part not in WORDS)
        return cls(frozenset(named).intersection(WORDS), ids)

    @staticmethod
    def parts(text: str) -> list[str]:
        """Words and ids between commas; what begins with ``id:`` is one id, whatever it holds."""
        return [text] if text.startswith(_ID) else text.split(",")

    def choose(self, reader: RunReader, *, other_task_budget: bool = False) -> dict[int, Reopened]:
        """Return the tries of a run file that are asked again, by the number of their task.

        What its task's budget cut is asked again with another one alone: what was spent stays spent.
        """
        trees = dict(reader.rows())
        wanted = self._wanted(reader, trees)
        found: dict[int, dict[int, bool]] = {}
        missing = {(task, number) for task, numbers in wanted.items() for number in numbers or ()}
        limits = _OF_RUN | {_OF_TASK} if other_task_budget else _OF_RUN
        held = 0
        for task, rows in each_task(reader.rollouts()):
            missing.difference_update({(task, row.rollout) for row in rows})
            told = {row.rollout: self._by(row, wanted.get(task, ())) for row in rows}
            chosen = {number: by for number, by in told.items() if by is not None}
            if chosen or "cut" in self.words:
                # What a limit cut goes with the others of its tree, which grows on without that limit's mark.
                causes = {row.rollout: _cut_by(row) for row in rows}
                chosen = {number: False for number, cause in causes.items() if cause in limits} | chosen
                held += sum(cause == _OF_TASK and number not in chosen for number, cause in causes.items())
            if chosen:
                found[task] = chosen
        for task, number in sorted(missing):
            raise ConfigError(f"retry: task {quoted(reader.task_ids()[task])} has no try #{number}")
        unpaid = self._unpaid(reader, trees, found)
        if "broken" in self.words:
            unpaid |= {task: 0 for task, tree in trees.items() if tree.error is not None and not tree.rollouts}
        if held and not found and not unpaid and reader.meta.get("state") not in SPENT:
            raise ConfigError(
                f"retry: {counted(held, 'try', 'tries')} cut by the budget of the task, {_told(reader)}, which would "
                "cut the next ones as well: give a larger task_budget (--task-budget), with resume='force', in tl.run()"
            )
        return {task: Reopened(found.get(task, {}), unpaid.get(task, 0)) for task in sorted({*found, *unpaid})}

    def _by(self, row: RolloutRow, wanted: frozenset[int] | tuple[()] | None) -> bool | None:
        """Whether a try is chosen by its result; None for one that is not asked again."""
        if row.termination in {None, Termination.RETRIED}:
            return None
        if "broken" in self.words and row.termination in FAILED:
            return False
        empty = "empty" in self.words and row.termination == Termination.ANSWER and not (row.answer or "").strip()
        named = wanted is None or row.rollout in wanted
        return True if empty or named else None

    def _wanted(self, reader: RunReader, trees: Mapping[int, TreeRow]) -> dict[int, frozenset[int] | None]:
        """The rollouts that the ids name, by task; None for all of a task."""
        names = {name: number for number, name in enumerate(reader.task_ids())} if self.ids else {}
        found: dict[int, frozenset[int] | None] = {}
        for text in self.ids:
            given = text.removeprefix(_ID)
            name, hash_, number = (given, "", "") if given in names else given.rpartition("#")
            task = names.get(name)
            if task is None or (hash_ and not re.fullmatch(r"[0-9]{1,9}", number)):
                raise ConfigError(
                    f"retry: {quoted(text)} is neither broken, cut nor empty, nor a task of the run, nor a try (TASK#2)"
                    f"{did_you_mean(given, [*WORDS, *names])}"
                )
            if task not in trees:
                raise ConfigError(f"retry: task {quoted(name)} is not finished: resume the run first")
            known = found.get(task, frozenset())
            found[task] = None if not hash_ or known is None else known | {int(number)}
        return found

    def _unpaid(self, reader: RunReader, trees: Mapping[int, TreeRow], found: Collection[int]) -> dict[int, int]:
        """Rollouts that no budget paid for, by task: chains, and all of a tree; of others it is not known where."""
        strategy = reader.settings.get("strategy")
        plain = isinstance(strategy, dict) and strategy.get("kind") == "Chain"
        wanted = trees if "cut" in self.words else found
        cut = {task: trees[task] for task in wanted if trees[task].refused and trees[task].ended in SPENT}
        return {task: tree.refused for task, tree in cut.items() if plain or not tree.rollouts}


def _cut_by(row: RolloutRow) -> str:
    """The first words of why a rollout was cut; empty for one that was not."""
    cut = row.termination == Termination.CENSORED and row.error is not None
    return Failure.decode(row.error).message.partition(":")[0] if cut and row.error is not None else ""


def _told(reader: RunReader) -> str:
    budget = reader.settings.get("task_budget")
    limits = budget.items() if isinstance(budget, dict) else ()
    return printable("task_budget=" + ",".join(f"{name}={limit}" for name, limit in limits if limit is not None), 80)


def opened(reader: RunReader, chosen: Mapping[int, Reopened]) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield a delta for each task, with the numbers of the task and of itself: its tree with the next draws begun.

    A task that was given up before it had a try has none, and begins anew.
    """
    strategy, programmed = reader.settings.get("strategy"), reader.settings.get("program") is not None
    kept = str(strategy.get("kind")) if isinstance(strategy, dict) else ""
    trees = dict(reader.rows()) if chosen else {}
    for task, again in chosen.items():
        core = reader.grown(task).core
        if again.tries or again.unpaid:
            _open(core, again, trees[task], kept, programmed=programmed)
        yield task, len(reader.deltas(task)), core.delta()


def _open(core: CoreTree, again: Reopened, tree: TreeRow, kept: str, *, programmed: bool) -> None:
    """Open the next draw where each try began, or a chain, and note what stands in whose place.

    A tree without a rollout has its strategy ahead of it: what ended it is taken back.
    """
    checkpoint, first = Checkpoint.of(core, CarriedOver()), core.rollouts
    journal = Journal(core)
    forks, places = [], {}
    for number in again.tries:
        facts = core.rollout(number)
        if (of := journal.branches.get(number)) is not None:
            places[number] = journal.branch(of, journal.diverged.get(of, 0), prompt(core))
        else:
            places[number] = core.fork(facts.point, 1, None, facts.subgroup)
        if (record := checkpoint.fork(number)) is not None:
            forks.append(msgspec.structs.replace(record, first=places[number], n=1))
    if again.unpaid and first:
        core.fork(core.rollout(0).point, again.unpaid)
    journal.read()
    for number in range(first, core.rollouts) if programmed else ():
        if number not in journal.branches:
            journal.opened(number)
    for number, by in places.items():
        facts = core.rollout(number)
        reward = None if math.isnan(facts.reward) else facts.reward
        core.close(number, Termination.RETRIED)
        core.score(number, math.nan)
        notes.note(core, number, notes.Retried(facts.termination or "", by, again.tries[number], reward))
    for number in range(first):
        notes.clear(core, number, kept)
    write(core, RetryMark((first, core.rollouts - first), tuple(forks), _still(core, again, tree, first)))


def _still(core: CoreTree, again: Reopened, tree: TreeRow, first: int) -> TreeEnding | None:
    """The ending of a tree where it holds though some of its tries are asked again."""
    if tree.ended in {"enough", "settled"}:
        return TreeEnding(tree.ended, tree.why, tree.refused)
    refused = 0 if again.unpaid else tree.refused
    for number in range(first):
        facts = core.rollout(number)
        if facts.termination == Termination.CENSORED and facts.error is not None:
            why = Failure.decode(facts.error).message
            if why.partition(":")[0] == _OF_TASK:
                return TreeEnding("budget", why, refused)
    return TreeEnding(tree.ended, tree.why, refused) if refused and tree.ended in SPENT else None


def asked_again(chosen: Mapping[int, Reopened]) -> str:
    """Say how many tries are asked again, for people; empty where there are none."""
    by = Counter(by for again in chosen.values() for by in again.tries.values())
    unpaid = sum(again.unpaid for again in chosen.values())
    parts = [
        counted(by[False], "try", "tries") + " that broke or were cut" if by[False] else "",
        counted(by[True], "try", "tries") + " chosen by their result" if by[True] else "",
        counted(unpaid, "try", "tries") + " that no budget paid for" if unpaid else "",
    ]
    return printable(", ".join(filter(None, parts)))
