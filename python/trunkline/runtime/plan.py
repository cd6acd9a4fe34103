"""A run that is ready to start: everything is checked, and its file is there."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from trunkline.llm.cache import Cache
from trunkline.runtime.controller import Controller
from trunkline.runtime.draft import Draft
from trunkline.runtime.earlier import EarlierRun
from trunkline.runtime.ready import ready
from trunkline.runtime.result import Run, Shelf
from trunkline.store.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.rollout.agent import Agent
    from trunkline.runtime.options import Options
    from trunkline.runtime.outline import Outline
    from trunkline.store.schema import TakenRow
    from trunkline.types import Task

__all__ = ["Plan", "plan"]

logger = logging.getLogger(__name__)


class Plan(Draft):
    """One run, checked and ready to start: its file is there.

    Args:
        agent: Who plays.
        tasks: The problems; their ids must be unique. None for all those of ``start_from``.
        **options: See :class:`Options`.

    Raises:
        UsageError: If something in it cannot be done; nothing was sent and no file is left.
    """

    def __init__(self, agent: Agent, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> None:
        super().__init__(agent, tasks, **options)
        if self._job.cache is not None:
            # Refuses what no worker could open.
            Cache(self._job.cache).close()
        self._shelf = Shelf() if self._out is None else None
        self.path = self._shelf.path / "run" if self._shelf else Path(self._out or "")
        self._state = "running"
        self._writer = RunWriter.create(self.path, self._described, self._tasks)
        taken = None if self._start_from is None else self._take_over(self._start_from)
        self.controller = Controller(
            self._job,
            self._tasks,
            self._writer,
            self._backend,
            self._watch,
            taken,
            self._refill,
            grace=self._grace,
            memory=self._memory,
        )

    def _take_over(self, start_from: Path) -> dict[int, TakenRow]:
        """Write what an earlier run made of the tasks into this one's file; no file is left if that cannot be."""
        try:
            self._writer.note("continues", str(start_from))
            with EarlierRun(start_from) as earlier:
                return earlier.take_over(self._job, self._tasks, self._writer)
        except BaseException:
            self._writer.discard()
            raise

    async def execute(self) -> Run:
        """Run to the end, and leave a closed run file, or none if nothing came of it.

        Raises:
            EndpointError: If the endpoint serves nobody.
            InfrastructureError: If workers or the run file fail.
        """
        self._state = "failed"
        try:
            await ready(self._job)
            await self.controller.run()
            self._state = "interrupted" if self.controller.stopped else self.controller.ended or self._ended()
        except asyncio.CancelledError:
            self._state = "interrupted"
            raise
        finally:
            shot = self.controller.snapshot
            if self._state not in {"failed", "interrupted"} or shot.calls or shot.lost:
                self._writer.finish(self._state)
            else:
                self._writer.discard()
        return self.result()

    def _ended(self) -> str:
        """What a run that came to its end is called."""
        handout, shot = self.controller.handout, self.controller.snapshot
        if not handout.short:
            return "done"
        logger.warning("only %d of %s groups were kept of %d tasks", shot.kept, shot.groups, shot.tasks_done)
        return "exhausted"

    def result(self) -> Run:
        """Return what the run came to, once it is over."""
        return Run(self.path, self._state, self._shelf)


def plan(agent: Agent, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> Outline:
    """Check a run and work out what it would do at most; nothing is sent, and no file made.

    Args:
        agent: Who would play.
        tasks: The problems; their ids must be unique.
        **options: See :class:`Options`.

    Raises:
        UsageError: If something in it cannot be done.
    """
    return Draft(agent, tasks, **options).outline()
