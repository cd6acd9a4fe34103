"""The whole study: every preset in every world, in several processes."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from studies.arms import ARMS
from studies.cell import Cell, run_cell
from studies.truth import CONTINUATIONS
from trunkline.errors import WorkerError
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from studies.cell import Group

__all__ = ["FIRST_WORLD", "Plan", "in_processes", "run_study", "worlds"]

FIRST_WORLD = 2001
"""The first held-out world: no strategy, default or dial was chosen on worlds from here on, and none was looked at."""

_DOCUMENTS = 600

_Cell = TypeVar("_Cell")
_Found = TypeVar("_Found")


class Plan(NamedTuple):
    """How large a study is.

    Attributes:
        presets: How the model errs.
        arms: Names of the arms.
        first: Seed of the first world.
        worlds: How many worlds, from ``first`` on.
        questions: Of each world.
        judged: Of so many of them, steps are judged by the truth.
        pool: Chains of each question that arms are compared with, at least: half as many again as any arm plans.
        continuations: Of each state whose truth is wanted.
        processes: How many work at a time; 0 for this one alone.
    """

    presets: tuple[str, ...]
    arms: tuple[str, ...]
    first: int = FIRST_WORLD
    worlds: int = 16
    questions: int = 40
    judged: int = 1
    pool: int = 16
    continuations: int = CONTINUATIONS
    processes: int = 2


def run_study(plan: Plan, tell: Callable[[str], None]) -> Iterator[list[Group]]:
    """Run a study, world by world; what comes out depends on the plan's sizes alone, not on the processes.

    Args:
        plan: How large it is.
        tell: Told of each cell once it was yielded.

    Raises:
        WorkerError: A process was killed.

    Yields:
        For each cell, in the order of the plan, one group for each question and arm, and the chains they are compared
        with.
    """
    # Questions of one step have trees of chains alone, which must not cost more than the pool.
    pool = max(plan.pool, *(3 * ARMS[arm].strategy.rollouts() // 2 for arm in plan.arms))
    with worlds(plan.first, plan.worlds, plan.questions) as files:
        cells = [
            Cell(preset, seed, *files[seed], plan.questions, plan.judged, pool, plan.continuations, plan.arms)
            for seed in files
            for preset in plan.presets
        ]
        for cell, groups in zip(cells, in_processes(run_cell, cells, plan.processes), strict=True):
            yield groups
            tell(f"{cell.preset}, world {cell.seed}")


@contextmanager
def worlds(first: int, count: int, questions: int) -> Iterator[dict[int, tuple[str, str]]]:
    """Files of held-out worlds, by seed: documents and questions. They are gone when the context ends.

    Args:
        first: Seed of the first.
        count: How many worlds.
        questions: Of each world.
    """
    with tempfile.TemporaryDirectory(prefix="trunkline-study-") as folder:
        files: dict[int, tuple[str, str]] = {}
        for seed in range(first, first + count):
            corpus, tasks = write_world(make_world(seed, _DOCUMENTS, questions), Path(folder) / str(seed))
            files[seed] = str(corpus), str(tasks)
        yield files


def in_processes(work: Callable[[_Cell], _Found], cells: Sequence[_Cell], processes: int) -> Iterator[_Found]:
    """Work on cells, several at a time; what comes of them is in their order.

    Args:
        work: A function of a module.
        cells: What it is given.
        processes: How many work at a time; 0 for this one alone.

    Raises:
        WorkerError: A process was killed.
    """
    if not processes:
        yield from map(work, cells)
        return
    others = set(multiprocessing.active_children())
    # Spawned, since this process may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_end_quietly) as pool:
        try:
            for future in [pool.submit(work, cell) for cell in cells]:
                yield future.result()
        except BrokenProcessPool:
            raise WorkerError("a process of the study was killed; it may have run out of memory: try fewer") from None
        except BaseException:
            # Whoever stops a study does not wait for the cells in work.
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise


def _end_quietly() -> None:
    """Let an interrupt end a process without a traceback; the one that started it says what happened."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
