"""Rescore and report on a finished run."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from trunkline import _core
from trunkline._internal.aio import LoopThread
from trunkline._internal.text import printable
from trunkline._internal.validation import short_repr
from trunkline.agent import BoundDialect
from trunkline.errors import ConfigError, CrossingError, RunFileError
from trunkline.runner.stored_job import STORED, scored_by, stored_judges
from trunkline.scoring import notes
from trunkline.scoring.filters.base import Group, judge
from trunkline.scoring.metrics import Estimate
from trunkline.scoring.notes import Graded, Verdict, as_noted, graded, why_unscored
from trunkline.scoring.reports.extractive import Reported, extract_tree
from trunkline.scoring.rewards.base import full_name, policy_of, short_name
from trunkline.scoring.rewards.grading import Grader, takes_environment
from trunkline.scoring.rewards.reading import read_reward
from trunkline.store.amend import Amender, copied
from trunkline.store.reader import RunReader
from trunkline.store.sqlite import is_stub
from trunkline.store.state import RESCORINGS, Scoring, rescorings, reward_of, under_way
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trunkline._core import CoreTree
    from trunkline.scoring.filters.base import Filter
    from trunkline.scoring.reports.reporter import Reporter
    from trunkline.scoring.rewards import Reward, Scored
    from trunkline.tree.views import Trajectory, Tree


def seen(tree: Tree) -> list[Trajectory]:
    """Return the rollouts that a reward is shown: those with an outcome, in opening order."""
    return [one for one in tree.rollouts if one.termination is not None and one.termination not in UNSCORED]


def set_aside(tree: Tree, reward: str | None, kept: Collection[str] | None = None) -> None:
    """Move a tree's rewards into its notes, and drop verdicts that are not of ``kept``; None keeps all."""
    for rollout in seen(tree):
        if reward is not None:
            _keep(tree.core, rollout, reward)
        tree.core.score(rollout.id, math.nan)
    for rollout in tree.rollouts if kept is not None else ():
        found = notes.entries(rollout.note)
        _put(tree.core, rollout, [one for one in found if not isinstance(one, Verdict) or one.filter in (kept or ())])


def _keep(core: CoreTree, rollout: Trajectory, reward: str) -> None:
    """Note a rollout's reward as an earlier one."""
    found = notes.entries(rollout.note)
    value = None if math.isnan(rollout.reward) else rollout.reward
    # The note of an unscored rollout has its reason already.
    noted = Graded(reward, value)  # which may have made a long name shorter
    own = [one for one in found if isinstance(one, Graded) and one.weight and one.reward == noted.reward]
    past = [msgspec.structs.replace(one, weight=None) if isinstance(one, Graded) else one for one in found]
    _put(core, rollout, past if own and value is None else [*past, noted])


def write(tree: Tree, reward: str, said: Mapping[int, Scored]) -> None:
    """Write the scores of a tree in the order in which its rollouts were opened."""
    for number in sorted(said):
        tree.core.score(number, said[number].value)
        notes.note(tree.core, number, *as_noted(reward, said[number]))


def earlier(note: str | None) -> float | None:
    """Return a rollout's earlier reward from its note; None where it has none."""
    past = [one for one in graded(note) if one.weight is None]
    return past[-1].value if past else None


def _put(core: CoreTree, rollout: Trajectory, found: list[notes.Entry]) -> None:
    """Write a note that differs from the present one."""
    alone = found[0] if len(found) == 1 else None
    text = alone if isinstance(alone, str) else notes.encode(found) if found else ""
    if text != (rollout.note or ""):
        core.note(rollout.id, text)


_RESCORED_TOGETHER = 256
"""Rollouts that are asked about together; a process that is killed asks at most so many again."""


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of scoring a run again. Only finished tasks are in it.

    Attributes:
        path: The run file that has the new rewards.
        reward: What the reward is called, with its options.
        before: What the one before it is called; None for none.
        old: Accuracy of one try by that one; None if nothing was scored.
        new: Accuracy of one try now; None if nothing is scored.
        rollouts: Rollouts that have an outcome, and so were shown to the reward.
        changed: How many of these have another reward than before, or one for the first time, or none any more.
        unscored: How many of these the reward left unscored.
        reasons: Why: the most frequent reasons, at most three, each with how many rollouts it left unscored. They are
            safe to print; a reward that gives no value need not give one.
    """

    path: Path
    reward: str
    before: str | None
    old: Estimate | None
    new: Estimate | None
    rollouts: int
    changed: int
    unscored: int
    reasons: list[tuple[str, int]]


class _Judges:
    """Filters of the run, which judge its trees again after scoring; ConfigError if they cannot be loaded here."""

    def __init__(self, reader: RunReader, *, keep: bool) -> None:
        self._filters: Sequence[Filter] = ()
        # Of all that give verdicts, a strategy does so while the tree grows.
        strategy = reader.settings.get("strategy")
        self._strategy = str(strategy.get("kind")) if isinstance(strategy, dict) else ""
        if keep or not reader.settings.get("filters"):
            return
        try:
            self._filters, agent = stored_judges(reader.path, reader.meta)
        except (ConfigError, CrossingError) as problem:
            raise ConfigError(
                f"{printable(str(reader.path))} has filters, whose verdicts may depend on rewards, and they cannot be "
                f"asked again ({problem}): give keep_verdicts=True (--keep-verdicts) to leave what they said as it is"
            ) from None
        self._read = BoundDialect(agent.dialect, agent.tools, agent.sampling).read

    def kept(self, tree: Tree) -> set[str] | None:
        """Return the sources of verdicts that stay; None (all) for a tree that is not judged again."""
        return {self._strategy} if self._filters and tree.ended not in {"", "broken"} else None

    def judge(self, tree: Tree) -> None:
        """Judge a scored tree as the run did."""
        if self.kept(tree) is not None:
            judge(self._filters, Group(tree, self._read))


class _Scoring:
    """One scoring of an open run file; ``anew`` restarts an interrupted one of the same reward."""

    def __init__(self, run: Amender, reward: Reward, judges: _Judges, *, anew: bool) -> None:
        self._run = run
        self._reward = reward
        self._judges = judges
        self._name = full_name(reward)
        self._known = rescorings(run.reader.meta)
        self._names = run.task_ids()
        last = self._known[-1] if self._known else None
        if anew or last is None or last.finished or last.reward != self._name:
            self._begin()

    def _begin(self) -> None:
        """Record the scoring: from now on the run's reward is the new one."""
        reader, before = self._run.reader, self._run.reader.settings.get("reward")
        self._known.append(
            Scoring(
                reward=self._name,
                before=before if isinstance(before, str) else None,
                accuracy=reader.summary().accuracy,
                at=time.time(),
                trunkline=_core.__version__,
            )
        )
        facts: dict[str, Any] = {"settings": reader.settings | {"reward": self._name}, **self._stands()}
        if (job := scored_by(reader.path, reader.meta, self._reward)) is not None:
            facts[STORED] = job
        self._run.note(**facts)

    def _stands(self, **changed: Any) -> dict[str, Any]:
        """Return the file's list of scorings with changed fields of this one."""
        self._known[-1] = msgspec.structs.replace(self._known[-1], **changed)
        return {RESCORINGS: msgspec.to_builtins(self._known)}

    async def execute(self, grader: Grader) -> None:
        """Score the remaining tasks in batches."""
        place = self._known[-1].done
        while place < len(self._names):
            trees: list[Tree] = []
            rollouts = 0
            while place + len(trees) < len(self._names) and rollouts < _RESCORED_TOGETHER:
                tree, last = self._run.tree(self._names[place + len(trees)]), self._known[-1]
                was = reward_of(self._known[:-1], last.before, place + len(trees))
                set_aside(tree, was, self._judges.kept(tree))
                trees.append(tree)
                rollouts += tree.core.rollouts
            await self._score(grader, trees, place)
            place += len(trees)
        self._run.note(**self._stands(finished=True))

    async def _score(self, grader: Grader, trees: Sequence[Tree], place: int) -> None:
        """Score a batch of trees together and commit them one by one."""
        asked = [rollout for tree in trees for rollout in seen(tree)]
        said = dict(zip(asked, await grader.score_all(asked), strict=True))
        for done, tree in enumerate(trees, place + 1):
            write(tree, self._name, {one.id: said[one] for one in seen(tree)})
            self._judges.judge(tree)
            self._run.commit(tree.task.id, tree, **self._stands(done=done))
            await asyncio.sleep(0)  # committing does not yield to the loop

    def result(self) -> Rescored:
        """Return the figures of the scoring from the file's rows."""
        last = self._known[-1]
        rollouts = changed = unscored = 0
        reasons: Counter[str] = Counter()
        for _, row in self._run.reader.rollouts():
            if row.termination is None or row.termination in UNSCORED:
                continue
            rollouts += 1
            before = None if last.before is None else earlier(row.note)
            changed += row.reward != before
            if row.reward is None:
                unscored += 1
                reasons.update(filter(None, [why_unscored(row.note)]))
        return Rescored(
            path=self._run.path,
            reward=last.reward,
            before=last.before,
            old=last.accuracy,
            new=self._run.reader.summary().accuracy,
            rollouts=rollouts,
            changed=changed,
            unscored=unscored,
            reasons=sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:3],
        )


async def arescore(
    path: str | Path,
    reward: Reward | str | Sequence[str],
    *,
    out: str | Path | None = None,
    keep_verdicts: bool = False,
    anew: bool = False,
) -> Rescored:
    """Score a run again that is over: ask a reward about every rollout that has an outcome. Nothing is generated.

    The new rewards take the place of the old ones, which stay in the notes of the rollouts; a rollout that the reward
    leaves unscored has no reward any more. The run's filters judge every finished group again. From then on the run is
    one of the new reward, also when it is resumed. After an interruption the same call continues.

    Args:
        path: The run file. Unless there is an ``out``, it is changed.
        reward: The reward, as for ``trunkline.run``.
        out: Where to make a copy, which is changed in its place.
        keep_verdicts: Leave what filters said as it is. Needed where they cannot be loaded from the file.
        anew: Ask about every rollout again where the same reward was interrupted before.

    Returns:
        The figures of the scoring.

    Raises:
        ConfigError: The reward is no function, or the run's filters cannot be loaded.
        RunFileError: It is no run that can be read here, or it is being written; or something else is at ``out``.
        InfrastructureError: The file cannot be written.
    """
    read = read_reward(reward)
    given: object = read
    if not callable(given):
        raise ConfigError(f"reward must be a function of a trajectory, not {short_repr(given)}")
    reward = cast("Reward", read)
    policy_of(reward)
    if takes_environment(reward):
        raise ConfigError(
            f"reward {short_name(reward)} takes the rollouts' environments, which are closed since the run: read "
            "trajectory.final_info instead"
        )
    path, target = Path(path), Path(path if out is None else out)
    with RunReader.open(path) as reader:
        # First: what is wrong with the run is said before anything is written.
        judges = _Judges(reader, keep=keep_verdicts)
    async with Grader(reward) as grader:  # one that cannot be opened here changes nothing
        if out is not None and not _is_begun(path, target, full_name(reward)):
            await asyncio.to_thread(_copy, path, target, reward, judges)
            anew = False
        with Amender.open(target) as run:
            scoring = _Scoring(run, reward, judges, anew=anew)
            await scoring.execute(grader)
            return scoring.result()


def rescore(
    path: str | Path,
    reward: Reward | str | Sequence[str],
    *,
    out: str | Path | None = None,
    keep_verdicts: bool = False,
    anew: bool = False,
) -> Rescored:
    """Like ``arescore``, and wait for it; also inside a running event loop, as in a notebook."""
    with closing(LoopThread("trunkline-rescore")) as loop_thread:
        return loop_thread.send(arescore(path, reward, out=out, keep_verdicts=keep_verdicts, anew=anew)).wait()


def _copy(path: Path, out: Path, reward: Reward, judges: _Judges) -> None:
    """Copy a run and record the scoring in the copy, so that an interrupted call is continued there."""
    with copied(path, out) as part, Amender.open(part) as run:
        _Scoring(run, reward, judges, anew=True)


def _is_begun(path: Path, out: Path, reward: str) -> bool:
    """Whether ``out`` is a copy of the run in which the same reward was interrupted."""
    if not path.exists() or not out.is_file() or out.samefile(path) or is_stub(out):
        return False
    try:
        with RunReader.open(path) as reader, RunReader.open(out) as copy:
            there = under_way(copy.meta)
            return there is not None and there.reward == reward and _identity(reader) == _identity(copy)
    except RunFileError:
        return False


def _identity(reader: RunReader) -> tuple[str | None, ...]:
    """Return the metadata that a run file shares with its copies alone."""
    return tuple(reader.meta.get(key) for key in ("created", "command", "versions", "finished"))


REPORTS: Final = "reports"
"""Key of a run file's meta table for authors and costs of its reports, which the run's own figures leave out."""

_REPORTS_TOGETHER: Final = 8
"""Trees that are reported on concurrently, so that the last calls of one do not hold up the others."""


async def report_run(path: str | Path, reporter: Reporter) -> Reported:
    """Let a model write reports on all trees of a finished run; reports and their costs survive any interruption."""
    with Amender.open(path) as run:
        record = _ReportLog(run, reporter.model)
        waiting = iter(run.task_ids())

        async def write() -> None:
            for name in waiting:
                tree = run.tree(name)
                work = reporter.work_on(tree)
                try:
                    await work.execute()
                finally:
                    # What came before a failure or an interruption was paid for, too.
                    record.commit(name, tree, work.reported)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_REPORTS_TOGETHER):
                    group.create_task(write())
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        return record.total


def extract_run(path: str | Path, *, limit: int, again: bool = False) -> Reported:
    """Write an extracted report of at most ``limit`` characters on every leaf of a finished run."""
    with Amender.open(path) as run:
        record = _ReportLog(run, None)
        for name in run.task_ids():
            tree = run.tree(name)
            record.commit(name, tree, extract_tree(tree, limit=limit, again=again))
        return record.total


class _ReportLog:
    """Records the author and cost of reports with each tree that is committed."""

    def __init__(self, run: Amender, model: str | None) -> None:
        self.total = Reported()
        self._run = run
        self._model = model
        try:
            self._before = msgspec.json.decode(run.reader.meta.get(REPORTS, "[]"), type=list[Any])
        except msgspec.MsgspecError:
            self._before = []

    def commit(self, name: str, tree: Tree, found: Reported) -> None:
        """Commit a tree and the cost of its reports."""
        self.total += found
        total, facts = self.total, dict[str, Any]()
        if total.written or total.usage.calls:
            usage = {name: count for name, count in msgspec.structs.asdict(total.usage).items() if count}
            entry = {"model": self._model, "written": total.written, "failed": total.failed, "usage": usage}
            facts[REPORTS] = [*self._before, entry | {"at": time.time()}]
        self._run.commit(name, tree, **facts)
