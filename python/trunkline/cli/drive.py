"""Runs a job as a person watches: progress on stderr, the summary after it, and the exit code."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Unpack

from trunkline.cli.output import tell
from trunkline.cli.progress import Progress
from trunkline.cli.show import print_summary
from trunkline.cli.watching import watching
from trunkline.runtime.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.rollout.agent import Agent
    from trunkline.runtime.options import Options
    from trunkline.runtime.snapshot import Snapshot
    from trunkline.store.summary import Summary
    from trunkline.team.team import Team
    from trunkline.types import Task

__all__ = ["drive"]


def drive(
    agent: Agent | Team,
    tasks: Sequence[Task] | None,
    *,
    threshold: float,
    watched: dict[str, Any],
    as_json: bool = False,
    said: str = "",
    **options: Unpack[Options],
) -> int:
    """Run, show, and judge.

    Args:
        agent: Who plays: an agent, or a team.
        tasks: The problems; None for those of a run that goes on.
        threshold: Broken rollouts allowed: a share below 1, a count from 1 on.
        watched: What :func:`~trunkline.cli.watching.watching_options` found.
        as_json: Print the summary as JSON.
        said: A line on the run file, which is printed once the call is known to be sound.
        **options: See :class:`trunkline.runtime.options.Options`; the run file must be among them.

    Returns:
        The exit code: 0, or 1 if more rollouts broke than allowed, too few groups were kept, or the run's budget or
        time kept tasks from being begun.
    """
    with watching(watched) as observed, Progress() as progress:
        lines = [said] if said else []

        def watch(shot: Snapshot) -> None:
            if lines:
                tell(lines.pop())
            progress.update(shot)

        options["watch"] = watch
        options.update(observed)
        result = run(agent, tasks, **options)
    if lines:
        # A run that was over is not run again.
        tell(lines.pop())
    summary = result.summary()
    print_summary(summary, as_json=as_json)
    tell(f"run file: {options['out']}")
    if summary.groups is not None and summary.groups_kept < summary.groups:
        missing = f"only {summary.groups_kept} of {summary.groups} groups were kept of {summary.finished} tasks"
        more = "give more questions, or loosen a filter" if result.state == "exhausted" else f"ended by {result.state}"
        tell(f"{missing}: {more}")
        return 1
    if result.state in {"budget", "deadline"}:
        left = f"the {result.state} of the run left {summary.tasks - summary.finished} tasks that were not begun"
        go_on = f"trunkline resume {shlex.quote(str(options['out']))} --budget WHAT=N,..."
        tell(f"{left}; with a larger one: {go_on}")
        return 1
    return judge(summary, threshold)


def judge(summary: Summary, threshold: float) -> int:
    """Return 1 if more rollouts broke than allowed, else 0. ``threshold`` is a share below 1, a count from 1 on.

    What had broken in an earlier run that this one continues does not count.

    A task that broke as a whole counts even where no rollout of it did, as when its worker died while it was scored.
    """
    allowed = threshold * summary.rollouts if threshold < 1 else threshold
    before = 0 if summary.taken is None else summary.taken.failed
    return int(max(summary.failed - before, summary.broken) > allowed)
