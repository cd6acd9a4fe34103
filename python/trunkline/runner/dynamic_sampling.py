"""Dynamic sampling: tasks whose groups were dropped are tried again until enough groups are kept."""

from __future__ import annotations

import logging
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, cast

from trunkline._core import base_seed
from trunkline._internal.text import printable
from trunkline._internal.validation import check_bool, check_int, short_repr
from trunkline.errors import ConfigError, UsageError
from trunkline.runner.options import read_texts
from trunkline.runner.plan import check_tasks
from trunkline.runner.preflight import check_out
from trunkline.runner.run import arun, run
from trunkline.scoring import notes
from trunkline.scoring.filters.base import check
from trunkline.scoring.filters.builtin import ZeroVariance
from trunkline.store.reader import RunReader
from trunkline.strategies.base import Strategy, check_plan
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.agent import Agent
    from trunkline.runner.options import Options, TaskSource
    from trunkline.runner.result import Run
    from trunkline.team.team import Team
    from trunkline.tree.views import Tree

logger = logging.getLogger(__name__)

_OVER: Final = frozenset({"budget", "deadline", "interrupted"})
_MOST: Final = 1_000
_EQUAL: Final = ZeroVariance(single=False)

GroupVerdict = Literal["kept", "equal", "unscored", "filtered"]


class SampledGroups:
    """Groups that were kept, as trees: first those of the first try, each try in the order of its tasks.

    Trees are read from the run files when they are asked for, one at a time, as often as wanted.

    Attributes:
        runs: The run of each try.
        wanted: Groups that were asked for.
        kept: Of each try the ids of the tasks whose groups were kept.
        equal: Groups that were dropped because all their rewards are equal; a task counts once for each of its tries.
        unscored: Groups that were dropped because fewer than two of their rollouts have a reward that counts.
        filtered: Groups that other filters dropped, or that were not judged because of an error.
        state: ``done``, ``exhausted`` (no tries were left before enough groups were kept), or what ended the last try
            early: ``budget``, ``deadline``, ``interrupted``.
    """

    def __init__(self, wanted: int) -> None:
        self.runs: list[Run] = []
        self.wanted = wanted
        self.kept: list[list[str]] = []
        self.equal = self.unscored = self.filtered = 0
        self.state = "exhausted"

    @property
    def missing(self) -> int:
        """How many groups are missing."""
        return self.wanted - len(self)

    def __iter__(self) -> Iterator[Tree]:
        for one, kept in zip(self.runs, self.kept, strict=True):
            yield from (one[task] for task in kept)

    def __len__(self) -> int:
        return sum(map(len, self.kept))

    def __bool__(self) -> bool:
        """Always true, also without groups."""
        return True

    def __repr__(self) -> str:
        return f"<SampledGroups: {len(self)} of {self.wanted} after {len(self.runs)} tries, {self.state}>"


def sample_groups(
    agent: Agent | Team,
    tasks: TaskSource,
    *,
    tries: int = 2,
    keep_last: bool = False,
    **options: Unpack[Options],
) -> SampledGroups:
    """Run an agent over tasks, and over those again whose rewards are all equal, until enough groups are kept.

    This is dynamic sampling with a refill (DAPO, arXiv 2503.14476; Dr.MAS, arXiv 2602.08847): where all rewards of a
    group are equal, comparing them teaches nothing. Each try is a run of its own: the first of all tasks, the next of
    those that were dropped, with seeds that derive from the first one's. Never more groups are kept than asked for, and
    none is grown that cannot be needed. A budget is that of each try.

    Args:
        agent: The agent or team that plays.
        tasks: The problems; their ids must be unique.
        tries: The most times that a task is tried.
        keep_last: Whether groups of equal rewards are kept in the last try.
        **options: See ``trunkline.runs.Options``. ``groups`` is how many are kept of all tries, one for each
            task when None. ``out`` is a folder: the runs are ``try-1.run`` and so on in it, and ``resume`` continues
            the one that was not finished. ``strategy`` and ``reward`` must be given.

    Raises:
        UsageError: If something in the call cannot be done.
        EndpointError: As of ``trunkline.run``, and so are the others.
        InfrastructureError: Likewise.
        Interrupted: Likewise.
    """
    sampling = _Sampling(tasks, tries, dict(options), keep_last=keep_last)
    while sampling.tasks:
        sampling.take(run(agent, sampling.tasks, **sampling.options()))
    return sampling.ended()


async def asample_groups(
    agent: Agent | Team,
    tasks: TaskSource,
    *,
    tries: int = 2,
    keep_last: bool = False,
    **options: Unpack[Options],
) -> SampledGroups:
    """Like ``sample_groups``, in the running event loop."""
    sampling = _Sampling(tasks, tries, dict(options), keep_last=keep_last)
    while sampling.tasks:
        sampling.take(await arun(agent, sampling.tasks, **sampling.options()))
    return sampling.ended()


class _Sampling:
    """State of the tries: ``tasks`` are those of the next one, empty when sampling is over."""

    def __init__(self, tasks: TaskSource, tries: int, options: dict[str, Any], *, keep_last: bool) -> None:
        self.tasks = check_tasks(tasks)
        self._given = _checked(options)
        self._tries = check_int("tries", tries, 1, _MOST)
        self._keep_last = check_bool("keep_last", keep_last)
        groups = self._given.pop("groups", None)
        self._found = SampledGroups(len(self.tasks) if groups is None else check_int("groups", groups, 1))
        if self._found.wanted > len(self.tasks):
            raise ConfigError(f"groups is {groups}, and there are {len(self.tasks)} tasks: a task is one group at most")
        out = _folder(self._given.get("out"))
        self._paths = [out and out / f"try-{number}.run" for number in range(1, tries + 1)]
        for path in () if self._given.get("resume") else self._paths:
            check_out(path)

    def options(self) -> dict[str, Any]:
        """Return the options of the next run."""
        done, missing = len(self._found.runs), self._found.missing
        options = self._given | {"out": self._paths[done]}
        if missing < len(self.tasks):
            options["groups"] = missing
        if done:
            options["seed"] = base_seed(_seed_of(self._found.runs[0]), "try", (), done)
        if not (self._keep_last and done + 1 == self._tries):
            options["filters"] = [*self._given["filters"], _EQUAL]
        return options

    def take(self, made: Run) -> None:
        """Count the groups of a run."""
        found = self._found
        judged = {tree.task.id: _judge(tree) for tree in made}
        count = Counter(judged.values())
        found.runs.append(made)
        found.kept.append([task for task, kind in judged.items() if kind == "kept"])
        found.equal += count["equal"]
        found.unscored += count["unscored"]
        found.filtered += count["filtered"]
        logger.info(
            "try %d of %d: %d groups kept, %d missing; dropped: %d of equal rewards, %d unscored, %d by other filters",
            *(len(found.runs), self._tries, count["kept"], found.missing),
            *(count["equal"], count["unscored"], count["filtered"]),
        )
        self.tasks = [task for task in self.tasks if judged.get(task.id) != "kept"]
        if made.state in _OVER:
            found.state = made.state
        if found.missing == 0 or found.state in _OVER or len(found.runs) == self._tries:
            self.tasks = []

    def ended(self) -> SampledGroups:
        """Return the groups that were kept, and log how many are missing."""
        found = self._found
        if not found.missing:
            found.state = "done"
        else:
            logger.warning(
                "%d of %d groups were kept in %d tries; dropped: %d of equal rewards, %d unscored, %d by other filters",
                *(len(found), found.wanted, len(found.runs), found.equal, found.unscored, found.filtered),
            )
        return found


def _seed_of(run: Run) -> int:
    with RunReader.open(run.path) as reader:
        if reader.seed is None:
            raise UsageError(f"{printable(str(run.path))} does not say its seed")
        return reader.seed


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the options; ConfigError for those that do not go with sampling."""
    options = dict(read_texts(cast("Options", options)))
    for name in ("max_tasks", "continue_from", "retry"):
        if options.get(name) is not None:
            raise ConfigError(f"{name} does not go with sampling groups: leave it out")
    if options.get("reward") is None:
        raise ConfigError("reward is not given: groups are kept by their rewards")
    options["filters"] = check(options.get("filters", ()), scored=True)
    strategy = options.get("strategy")
    alone = strategy is None
    if isinstance(strategy, Strategy):
        check_plan(strategy)
        alone = strategy.rollouts() == 1
    if alone:
        raise ConfigError(
            "strategy grows one rollout a task, so all rewards of every group are equal and none would be kept: "
            "give strategy=trunkline.Chain(8), or another one that grows at least two"
        )
    return options


def _folder(out: object) -> Path | None:
    if out is None:
        return None
    if not isinstance(out, str | Path):
        raise ConfigError(f"out must be the path of a folder, not {short_repr(out)}")
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        why = problem.strerror or type(problem).__name__
        raise ConfigError(f"out: cannot make the folder {printable(str(out))}: {why}") from None
    return Path(out)


def _judge(tree: Tree) -> GroupVerdict:
    """Return whether a group is kept, as its run counted it, or why it was dropped."""
    live: list[float] = []
    left, unjudged = False, tree.ended == "broken"
    for rollout in tree.rollouts:
        said = notes.read(rollout.note)
        unjudged |= any(verdict.action == "failed" for verdict in said)
        others = [verdict for verdict in said if verdict.filter != _EQUAL.name]
        if rollout.termination in UNSCORED or notes.masked(others) or math.isnan(rollout.reward):
            continue
        live.append(rollout.reward)
        left |= not notes.masked(said)
    if len(live) < 2:
        return "unscored"
    if left and not unjudged:
        return "kept"
    return "equal" if len(set(live)) == 1 and not unjudged else "filtered"
