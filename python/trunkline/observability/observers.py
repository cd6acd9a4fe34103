"""What a run looks like while it goes on: numbers for a progress line, never for a result."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from trunkline.runtime.vitals import EngineState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trunkline.runtime.handout import Refill
    from trunkline.store.schema import CallRow, TakenRow, ToolRow
    from trunkline.store.standing import Standing

__all__ = ["Snapshot", "opening"]


class Snapshot(msgspec.Struct):
    """The state of a run at one moment.

    Attributes:
        tasks: Tasks in the run.
        tasks_done: Tasks whose trees are complete.
        rollouts: Rollouts in all: those that finished tasks came to, and the most that the strategy may make of the
            others; with ``groups``, the most of as many tasks, or more. What an earlier run ended is in no count.
        rollouts_done: Rollouts that have ended.
        failed: Of these, rollouts that broke.
        lost: Tasks that were given up because workers died of them.
        calls: Model turns in the run file.
        prompt: Prompt tokens of these turns.
        generated: Generated tokens of these turns.
        retries: Attempts beyond the first.
        llm_seconds: Seconds of all calls of models together.
        tool_seconds: Those of tool calls, by tool.
        workers: Engines that are up.
        engines: How each of them is, by its seat, as it said a second ago.
        silent: Seconds since each of them said anything, where that is longer than a second.
        quiet: Seconds since anything got into the run file.
        died: Workers that died.
        seconds: Wall time since the run began.
        groups: Groups that are wanted, of as many tasks as it takes; None where all tasks are run.
        kept: Groups that no filter has dropped and that can be trained on.
        latencies: Seconds of the latest model calls.
    """

    tasks: int
    rollouts: int
    tasks_done: int = 0
    rollouts_done: int = 0
    failed: int = 0
    lost: int = 0
    calls: int = 0
    prompt: int = 0
    generated: int = 0
    retries: int = 0
    llm_seconds: float = 0.0
    tool_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    workers: int = 0
    engines: dict[int, EngineState] = msgspec.field(default_factory=dict)
    silent: dict[int, float] = msgspec.field(default_factory=dict)
    quiet: float = 0.0
    died: int = 0
    seconds: float = 0.0
    groups: int | None = None
    kept: int = 0
    latencies: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=512))

    def called(self, calls: Iterable[CallRow]) -> None:
        """Count calls; those answered out of a cache cost nothing and took no time."""
        sent = [call for call in calls if call.attempts]
        counted = [call for call in sent if call.reported]
        self.prompt += sum([call.prompt for call in counted])
        self.generated += sum([call.generated for call in counted])
        self.retries += sum([call.attempts for call in sent]) - len(sent)
        self.llm_seconds += sum([call.micros for call in sent]) / 1e6
        self.latencies.extend([call.micros / 1e6 for call in sent if call.draws])

    def used(self, uses: Iterable[ToolRow]) -> None:
        """Count tool calls."""
        for use in uses:
            self.tool_seconds[use.tool] = self.tool_seconds.get(use.tool, 0.0) + use.micros / 1e6

    def percentile(self, share: float) -> float | None:
        """Return a percentile of the latest calls' latency in seconds; None before the first call."""
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def opening(
    there: Standing, tasks: int, most: int, taken: Mapping[int, TakenRow], refill: Refill | None = None
) -> Snapshot:
    """Return the state of a run that begins, or goes on.

    Args:
        there: How far it has come.
        tasks: Its tasks.
        most: The most rollouts that its strategy makes of a task.
        taken: What was taken over of an earlier run.
        refill: How many groups are wanted.
    """
    planned = tasks if refill is None else refill.groups
    rollouts = planned * most + sum(row.growing for row in taken.values())
    if refill is None:
        # What finished tasks came to, in the place of the most that the strategy could have made of them.
        had = sum(taken[task].rollouts for task in there.finished if task in taken)
        rollouts += there.rollouts - had - most * len(there.finished)
    return Snapshot(
        tasks=tasks,
        rollouts=rollouts,
        tasks_done=len(there.finished),
        rollouts_done=there.ended,
        failed=there.failed,
        lost=there.lost,
        calls=there.turns,
        prompt=there.prompt,
        generated=there.generated,
        retries=there.retries,
        groups=refill.groups if refill else None,
        kept=there.kept,
    )
