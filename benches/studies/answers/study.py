"""The whole study of aggregators: every preset in every world, in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from studies.answers.cell import Cell, run_cell
from studies.study import FIRST_WORLD, in_processes, worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from studies.answers.cell import Asked

__all__ = ["Plan", "run_study"]


class Plan(NamedTuple):
    """How large a study is.

    Attributes:
        presets: How the model errs.
        first: Seed of the first world.
        worlds: How many worlds, from ``first`` on.
        questions: Of each world.
        pool: Chains of each question.
        most: Chains that the budget pays for.
        windows: Groups of each size of a question's chains.
        processes: How many work at a time; 0 for this one alone.
    """

    presets: tuple[str, ...]
    first: int = FIRST_WORLD
    worlds: int = 16
    questions: int = 40
    pool: int = 16
    most: int = 8
    windows: int = 2
    processes: int = 2


def run_study(plan: Plan, tell: Callable[[str], None]) -> Iterator[list[Asked]]:
    """Run a study, world by world; what comes out depends on the plan's sizes alone, not on the processes.

    Args:
        plan: How large it is.
        tell: Told of each cell once it was yielded.

    Raises:
        WorkerError: A process was killed.

    Yields:
        For each cell, in the order of the plan, what came of its questions.
    """
    with worlds(plan.first, plan.worlds, plan.questions) as files:
        cells = [
            Cell(preset, seed, *files[seed], plan.questions, plan.pool, plan.most, plan.windows)
            for seed in files
            for preset in plan.presets
        ]
        for cell, asked in zip(cells, in_processes(run_cell, cells, plan.processes), strict=True):
            yield asked
            tell(f"{cell.preset}, world {cell.seed}")
