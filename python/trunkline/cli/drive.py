"""Runs a job as a person watches: progress on stderr, the summary after it, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from trunkline.cli.progress import Progress
from trunkline.cli.show import print_summary
from trunkline.printable import printable
from trunkline.runtime.run import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trunkline.llm.spec import EndpointSpec
    from trunkline.rollout.agent import Agent
    from trunkline.rollout.strategy import Strategy
    from trunkline.score.filters.filter import Filter
    from trunkline.score.rewards import Reward
    from trunkline.store.summary import Summary
    from trunkline.types import Task

__all__ = ["drive"]


def drive(
    agent: Agent,
    tasks: Sequence[Task],
    *,
    llm: EndpointSpec,
    strategy: Strategy,
    reward: Reward | None,
    workers: int,
    seed: int | None,
    out: Path,
    labels: Mapping[str, Any],
    threshold: float,
    cache: str | None = None,
    start_from: str | None = None,
    filters: Sequence[Filter] = (),
    groups: int | None = None,
    max_tasks: int | None = None,
    limits: Mapping[str, Any] | None = None,
    as_json: bool = False,
) -> int:
    """Run, show, and judge.

    Args:
        agent: Who plays.
        tasks: The problems.
        llm: The endpoints.
        strategy: Where rollouts start.
        reward: Scores finished rollouts.
        workers: Worker processes; 0 stays in this one.
        seed: Seed of the run.
        out: The run file.
        labels: Kept with the settings.
        threshold: Broken rollouts allowed: a share below 1, a count from 1 on.
        cache: File of answers; None for none.
        start_from: Run file to go on from; None to begin anew.
        filters: Who judges each group.
        groups: Groups to keep; all tasks are run when None.
        max_tasks: The most tasks that this may take.
        limits: Further options of the run: budgets, and when a task ends early.
        as_json: Print the summary as JSON.

    Returns:
        The exit code: 0, or 1 if more rollouts broke than allowed, or too few groups were kept.
    """
    with Progress(len(tasks), len(tasks) * strategy.rollouts()) as progress:
        result = run(
            agent,
            tasks,
            llm=llm,
            strategy=strategy,
            reward=reward,
            workers=workers,
            seed=seed,
            cache=cache,
            start_from=start_from,
            filters=filters,
            groups=groups,
            max_tasks=max_tasks,
            out=out,
            labels=labels,
            watch=progress.update,
            **(limits or {}),
        )
    summary = result.summary()
    print_summary(summary, as_json=as_json)
    click.echo(printable(f"run file: {out}"), err=True)
    if result.state == "exhausted":
        missing = f"only {summary.groups_kept} of {summary.groups} groups were kept of {summary.finished} tasks"
        click.echo(f"{missing}: give more questions, or loosen a filter", err=True)
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
