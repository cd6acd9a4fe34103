"""The environment of a program's rollout: the calls on record run again before anything new is done."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from trunkline.errors import EnvironmentFailed, ForkRefused
from trunkline.rollout.environments import EnvironmentHandle, Figures, figures
from trunkline.rollout.programs.replay import shown
from trunkline.tools.environment import Environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence

    from trunkline.llm.types import ToolCall
    from trunkline.rollout.environments import EnvironmentManager, RecordedCalls, RolloutPosition
    from trunkline.tools.toolbox import Toolbox
    from trunkline.tree.records import Record

__all__ = ["BEGUN", "NO_STEP", "ProgramEnvironment", "RecordKey", "key_of", "step_on_record"]

RecordKey = tuple[int, str, str, int]
"""Rollout, kind, key and number of a recorded action, which no other action on the way to a state shares."""

NO_STEP: Final[Figures] = (None, "")

BEGUN: Final = "begun"
"""What the record says of calls on an environment that were given up after they had begun."""


def key_of(record: Record) -> RecordKey:
    """Return the key of a recorded action."""
    return record.rollout, record.kind, record.key, record.nth


def step_on_record(told: Sequence[float | str | None]) -> Figures:
    """Return what a record says of a step, at its end: nothing where the environment said nothing."""
    if not told:
        return NO_STEP
    reward, ended = told
    return None if reward is None else float(reward), str(ended)


class ProgramEnvironment(EnvironmentHandle):
    """The environment of one rollout of a program.

    While the program is replayed, the calls of its record are collected. They run once the record is over and
    something new is to be done, or the rollout has ended: on a fresh environment, or after the last one that has a
    snapshot.
    """

    def __init__(
        self, manager: EnvironmentManager, rollout: RolloutPosition, records: Callable[[int], Sequence[Record]]
    ) -> None:
        kept = manager.kept(lambda: [key_of(record) for record in records(rollout.id)], rollout.id)
        super().__init__(manager, rollout, kept)
        self._calls: list[tuple[RecordKey, RecordedCalls | ForkRefused]] = []
        self._bringing: asyncio.Task[None] | None = None
        self._count = 0

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Provide the environment, which ``ready`` brings to its state; raises EnvironmentFailed or ForkRefused."""
        self.environment = environment = self._made()
        try:
            yield
        except ForkRefused as refusal:
            self._manager.warn("fork refused", refusal)
            raise
        finally:
            if self._bringing is not None:
                self._rollout.activity.leave()
                await self._manager.close(environment, self._bringing)

    async def ready(self) -> None:
        """Wait until the environment has the state that the record leads to; raises EnvironmentFailed, ForkRefused."""
        if self._bringing is None:
            self._bringing = asyncio.get_running_loop().create_task(self._catch_up())
        elif self._bringing.done() and self._bringing.exception() is None:
            return
        await asyncio.shield(self._bringing)

    async def _catch_up(self) -> None:
        """Run the calls again that are on record, those before a snapshot excepted."""
        assert self.environment is not None
        calls, self._calls = self._calls, []
        keys: list[Hashable] = [key for key, _ in calls]
        if self._kept is not None and self._kept.place in keys:
            calls = calls[keys.index(self._kept.place) + 1 :]
        else:
            self._kept = None
        self._rollout.activity.leave()
        try:
            await self._bring(self.environment, _repeatable(one for _, one in calls))
        finally:
            self._rollout.activity.run()

    def concerns(self, toolbox: Toolbox, calls: Sequence[ToolCall]) -> bool:
        """Whether calls of a turn take the environment, or it says what the turn was worth."""
        assert self.environment is not None
        return toolbox.stateful(calls) or type(self.environment).stepped is not Environment.stepped

    def on_record(self, record: Record, recorded: Callable[[], RecordedCalls]) -> None:
        """Note calls that the program makes again and that are on record."""
        if record.given_up and not record.data:
            return  # before they began
        self._count += 1
        calls: RecordedCalls | ForkRefused
        if record.given_up:
            why = f"the program gave up {shown(record.name)} before its calls had ended: how far they came is unknown"
            calls = ForkRefused(why)
        else:
            calls = recorded()
        self._calls.append((key_of(record), calls))

    async def after(self, kind: str, key: str, nth: int) -> Figures | EnvironmentFailed:
        """Return what the environment says of calls that have ended, or how it failed to; take a snapshot."""
        assert self.environment is not None
        step = await self.stepped(0)
        if isinstance(step, EnvironmentFailed):
            return step
        self._count += 1
        if step is None or not step.ended:
            place = self._rollout.id, kind, key, nth
            await self._manager.take(self.environment, place, self._rollout.id, self._count)
        return figures(step)


def _repeatable(calls: Iterator[RecordedCalls | ForkRefused]) -> Iterator[RecordedCalls]:
    """Yield calls until one cannot be run again; raises ForkRefused."""
    for one in calls:
        if isinstance(one, ForkRefused):
            raise one
        yield one
