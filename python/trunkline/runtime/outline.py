"""What a run would do, worked out before it starts: for ``--dry-run``, and for whoever wants to know the bill."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.errors import ConfigError, RunFileError
from trunkline.printable import printable, said
from trunkline.store.identify import describe
from trunkline.store.redact import redact
from trunkline.store.summary import Taken

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trunkline.rollout.strategy import Strategy
    from trunkline.runtime.job import Job

__all__ = ["Outline", "check_out", "outline"]


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has not started. What is said to be the most is a bound: rollouts of a tree share turns.

    Attributes:
        tasks: How many there are, or may be taken until enough groups were kept.
        rollouts: The most that each task gets.
        formula: How that comes about, for people; safe to print.
        calls: The most model turns of all tasks: rollouts times the turns each may take.
        generated: The most tokens these turns may generate; None where a turn has no ``max_tokens``.
        workers: Worker processes; 0 for none but this one.
        out: The run file; None for a temporary one.
        settings: What the run file will say of the run; no key is in it. A seed of None is drawn when it starts.
        taken: What would be taken over of an earlier run, some of which ``rollouts`` may count; None without one.
        finished: Tasks that are done, and would not be run again, of a run that would be resumed; None for a new one.
    """

    tasks: int
    rollouts: int
    formula: str
    calls: int
    generated: int | None
    workers: int
    out: str | None
    settings: dict[str, Any]
    taken: Taken | None = None
    finished: int | None = None


def outline(
    job: Job,
    tasks: int,
    settings: Mapping[str, Any],
    workers: int,
    out: Path | None,
    taken: Taken | None = None,
    finished: int | None = None,
) -> Outline:
    """Work out what a run would do.

    Args:
        job: What would be done to every task.
        tasks: How many there are, or may be taken.
        settings: What the run file would say of the run.
        workers: Worker processes.
        out: The run file.
        taken: What would be taken over of an earlier run.
        finished: Tasks that are done, where the run is resumed.

    Raises:
        ConfigError: If the strategy breaks when it is asked for its formula.
    """
    rollouts = job.strategy.rollouts()
    calls = tasks * rollouts * job.agent.max_turns
    bounds = [asker.sampling.max_tokens for asker in job.askers]
    most = None if None in bounds else max(bound for bound in bounds if bound is not None)
    return Outline(
        tasks=tasks,
        rollouts=rollouts,
        formula=_formula(job.strategy, rollouts),
        calls=calls,
        generated=None if most is None else calls * most,
        workers=workers,
        out=None if out is None else str(out),
        settings=redact(msgspec.to_builtins(dict(settings), enc_hook=str)),
        taken=taken,
        finished=finished,
    )


def check_out(path: Path | None) -> None:
    """Refuse a run file that is there already, as its writer would.

    Raises:
        RunFileError: Something is there.
    """
    if path is not None and os.path.lexists(path):
        raise RunFileError(f"{printable(str(path))} {describe(path)}: choose another --out, or remove it")


def _formula(strategy: Strategy, rollouts: int) -> str:
    """How a strategy's rollouts come about; it may be anybody's."""
    tell = getattr(strategy, "formula", None)
    if tell is None:
        return f"{rollouts}"
    try:
        return printable(str(tell()), 200)
    except Exception as problem:
        what = f"{type(problem).__name__}: {said(problem)}"
        raise ConfigError(f"strategy {type(strategy).__name__} raised in formula(): {what}") from problem
