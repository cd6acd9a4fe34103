"""A run that is ready to start: everything is checked, and its file is there."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from trunkline.llm.cache import Cache
from trunkline.runtime.changes import gives_meaning
from trunkline.runtime.controller import Controller
from trunkline.runtime.draft import Draft
from trunkline.runtime.earlier import EarlierRun
from trunkline.runtime.ready import ready
from trunkline.runtime.result import Run, Shelf
from trunkline.runtime.stored import STORED, store_job
from trunkline.store.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.rollout.agent import Agent
    from trunkline.runtime.options import Options
    from trunkline.runtime.outline import Outline
    from trunkline.store.schema import TakenRow
    from trunkline.team.team import Team
    from trunkline.types import Task

__all__ = ["Plan", "plan"]

logger = logging.getLogger(__name__)


class Plan(Draft):
    """One run, checked and ready to start: its file is there.

    Args:
        agent: Who plays: an agent, or a team.
        tasks: The problems; their ids must be unique. None for all those of ``start_from``.
        **options: See :class:`Options`.

    Raises:
        UsageError: If something in it cannot be done; nothing was sent and no file is left.
    """

    def __init__(self, agent: Agent | Team, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> None:
        super().__init__(agent, tasks, **options)
        if self._job.cache is not None:
            # Refuses what no worker could open.
            Cache(self._job.cache).close()
        self._shelf = Shelf() if self._out is None else None
        self.path = self._shelf.path / "run" if self._shelf else Path(self._out or "")
        self._state = "running" if self._unfinished is None else self._unfinished.state
        if self.over:
            return
        self._writer = self._create() if self._unfinished is None else self._open()
        self._resumed = bool(self._writer.standing.state)
        taken = self._writer.standing.taken if self._resumed else self._take_over()
        self.controller = Controller(
            self._job,
            self._tasks,
            self._writer,
            self._backend,
            self._watch,
            taken,
            self._refill,
            durable=self._durable,
            grace=self._grace,
            memory=self._memory,
            observers=self._observers,
        )

    def _create(self) -> RunWriter:
        """Make the run's file."""
        return RunWriter.create(
            self.path,
            self._described,
            self._tasks,
            durable=self._durable,
            facts={STORED: self._stored()},
            state="running" if self._start_from is None else "beginning",
            over_stub=bool(self._resume),
        )

    def _open(self) -> RunWriter:
        """Open the run's file to go on in it."""
        return RunWriter.open(
            self.path,
            durable=self._durable,
            settings=self._described,
            facts={STORED: self._stored()},
            changed=[str(change) for change in self._changed],
            forced=any(gives_meaning(change.field) for change in self._changed),
        )

    def _stored(self) -> dict[str, Any]:
        """What ``trunkline resume`` is to go by."""
        return store_job(self._job, self._backend.workers, durable=self._durable)

    def _take_over(self) -> dict[int, TakenRow]:
        """Write what an earlier run made of the tasks into this one's file; no file is left if that cannot be."""
        if self._start_from is None:
            return {}
        try:
            self._writer.note("continues", str(self._start_from))
            with EarlierRun(self._start_from) as earlier:
                taken = earlier.take_over(self._job, self._tasks, self._writer)
            self._writer.begin()
        except BaseException:
            self._writer.discard()
            raise
        return taken

    @property
    def finished(self) -> list[str]:
        """The tasks that were done before this process began, by their ids."""
        return [self._tasks[number].id for number in self._writer.standing.finished]

    async def execute(self) -> Run:
        """Run to the end, and leave a closed run file, or none if nothing came of it. A run that is over is not run.

        Raises:
            EndpointError: If the endpoint serves nobody.
            InfrastructureError: If workers or the run file fail.
        """
        if self.over:
            return self.result()
        self._state = "failed"
        try:
            if self.controller.handout.open:
                await ready(self._job)
                await self.controller.run()
            self._state = "interrupted" if self.controller.stopped else self.controller.ended or self._ended()
        except asyncio.CancelledError:
            self._state = "interrupted"
            raise
        finally:
            shot = self.controller.snapshot
            if self._resumed or self._state not in {"failed", "interrupted"} or shot.calls or shot.lost:
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


def plan(agent: Agent | Team, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> Outline:
    """Check a run and work out what it would do at most; nothing is sent, and no file made.

    Args:
        agent: Who would play.
        tasks: The problems; their ids must be unique.
        **options: See :class:`Options`.

    Raises:
        UsageError: If something in it cannot be done.
    """
    return Draft(agent, tasks, **options).outline()
