"""The live state of a run, and its observers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import msgspec

from trunkline._internal.text import counted
from trunkline.protocol.messages import WorkerState
from trunkline.store.stats.calls import percentile
from trunkline.store.stats.summary import ServerUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trunkline._core import CommitRows
    from trunkline.protocol.job import Job, Refill
    from trunkline.protocol.messages import Batch, Done, EndpointState
    from trunkline.store.schema import TakenRow
    from trunkline.store.state import RunProgress
    from trunkline.types import Task


class Progress(msgspec.Struct):
    """The state of a run at one moment.

    Attributes:
        tasks: Tasks in the run.
        tasks_done: Tasks whose trees are complete.
        rollouts: Rollouts in all: those of finished tasks, and the most that the strategy may make of the others; with
            ``groups``, the most of as many tasks, or more. Rollouts that an earlier run ended are in no count.
        rollouts_done: Rollouts that have ended.
        failed: Of these, rollouts that broke.
        lost: Tasks that were given up because workers died of them.
        calls: Model turns in the run file.
        prompt: Prompt tokens of these turns.
        generated: Generated tokens of these turns.
        retries: Attempts beyond the first.
        retry_causes: These by what the attempt before came to: a status such as ``429``, ``timeout``,
            ``no connection``, ``connection lost``, ``unusable reply``; without those that an LLM of one's own made.
        llm_seconds: Seconds of all model calls together.
        tool_seconds: Seconds of all tool calls, by tool.
        workers: Workers that are ready.
        engines: The state of each worker, by its number, as it reported a second ago.
        silent: Seconds since the last message of each worker, where that is longer than a second.
        quiet: Seconds since the last progress in the run file.
        died: Workers that died.
        seconds: Wall time since the run began.
        groups: Groups that are wanted, of as many tasks as it takes; None where all tasks are run.
        kept: Groups that no filter has dropped and that can be trained on.
        latencies: Seconds of the latest model calls.
        memory: The most bytes that this process and the workers held together, looked at once a second; 0 before.
        servers: What model servers said of themselves, by their URLs; empty unless they are asked.
        behind: Whether the run waits for an observer, such as a slow ``on_event``.
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
    engines: dict[int, WorkerState] = msgspec.field(default_factory=dict)
    silent: dict[int, float] = msgspec.field(default_factory=dict)
    quiet: float = 0.0
    died: int = 0
    seconds: float = 0.0
    groups: int | None = None
    kept: int = 0
    latencies: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=512))
    memory: int = 0
    servers: dict[str, ServerUse] = msgspec.field(default_factory=dict)
    retry_causes: dict[str, int] = msgspec.field(default_factory=dict)
    behind: bool = False

    def called(self, rows: CommitRows) -> None:
        """Count the calls of a commit; those answered out of a cache cost nothing and took no time."""
        prompt, generated, retries, micros = rows.totals
        self.prompt += prompt
        self.generated += generated
        self.retries += retries
        self.llm_seconds += micros / 1e6
        self.latencies.extend(rows.latencies)
        for tool, micros in rows.tool_micros:
            self.tool_seconds[tool] = self.tool_seconds.get(tool, 0.0) + micros / 1e6

    def percentile(self, share: float) -> float | None:
        """Return a percentile of the latest calls' latency in seconds; None before the first call."""
        return percentile(sorted(self.latencies), share) if self.latencies else None


def opening(
    there: RunProgress, tasks: int, most: int, taken: Mapping[int, TakenRow], refill: Refill | None = None
) -> Progress:
    """Return the state of a run that begins or is continued, with at most ``most`` rollouts for each task."""
    planned = tasks if refill is None else refill.groups
    rollouts = planned * most + sum(row.growing for row in taken.values())
    if refill is None:
        # What finished tasks came to, in the place of the most that the strategy could have made of them.
        had = sum(taken[task].rollouts for task in there.finished if task in taken)
        rollouts += there.rollouts - had - most * len(there.finished)
    return Progress(
        tasks=tasks,
        rollouts=rollouts,
        tasks_done=len(there.finished),
        rollouts_done=there.ended,
        calls=there.turns,
        groups=refill.groups if refill else None,
        retry_causes=dict(there.retry_causes),
        **{name: getattr(there, name) for name in ("failed", "lost", "prompt", "generated", "retries", "kept")},
    )


class Observer:
    """Is told of a run's events, in the controller's event loop: nothing here may wait. Each event may be overridden.

    An observer that raises is told no more, and the run goes on without it.
    """

    @property
    def behind(self) -> bool:
        """Whether the run is to wait: workers are not told meanwhile that their turns are in the file, so they stop."""
        return False

    def opened(self, path: Path) -> None:
        """The run file is there, with the run's settings and tasks; the other events come after this one."""

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """A run begins.

        Args:
            job: What it does.
            tasks: Its tasks; other events name them by their places.
            taken: Rows of those that an earlier run had begun.
        """

    def committed(self, worker_id: int, batch: Batch, seconds: float) -> None:
        """A batch of a worker is in the run file; the commit that it was in took so many seconds."""

    def completed(self, done: Done) -> None:
        """A task is over, and in the run file."""

    def look(self, progress: Progress) -> None:
        """A second has passed."""

    def end(self, progress: Progress) -> None:
        """The run is over."""

    async def closed(self, path: Path | None, state: str) -> None:
        """The run file is closed. The call of the run waits for this, for at most 30 seconds.

        Args:
            path: The run file; None where it was removed, as nothing of the run was in it.
            state: How the run ended: ``done``, ``exhausted``, ``budget``, ``deadline``, ``interrupted`` by a signal or
                a cancellation, or ``failed`` by an error.
        """


logger = logging.getLogger(__name__)

STALLED = 30.0
"""Seconds without progress that are explained."""

_CLOSE_WITHIN = 30.0
"""Seconds that observers have once the run file is closed."""

_SILENT = 5.0
"""Seconds of silence of a worker that are reported."""


class StallDetector:
    """Logs what a run waits for: after 30 seconds without progress, and each time that has doubled."""

    def __init__(self) -> None:
        self._next = STALLED

    def look(self, progress: Progress) -> None:
        """Look at a run; once a second is enough."""
        if progress.quiet < STALLED:
            self._next = STALLED
        elif progress.quiet >= self._next:
            self._next = 2 * progress.quiet
            logger.warning("%s", explain(progress))


def explain(progress: Progress) -> str | None:
    """Say why there is no progress, in one printable line; None where there is."""
    if progress.quiet < STALLED:
        return None
    idle = "no request and no tool call is in flight" if progress.engines else "no worker has reported its status yet"
    reasons = list(_reasons(progress)) or [idle]
    if progress.behind:
        reasons.insert(0, "an observer, such as on_event, is too far behind, and the run waits for it")
    retries = [state.retry for state in progress.engines.values() if state.retry is not None]
    if retries:
        reasons.append(f"next retry in {max(0.0, min(retries)):.0f} s")
    return f"no progress for {progress.quiet:.0f} s: " + "; ".join(reasons)


def pause_of(progress: Progress) -> float:
    """Return the seconds for which all endpoints that are not out for good get no request; 0 where one does."""
    states = progress.engines.values()
    pauses = [one.pause for state in states for one in state.endpoints if one.pause or not one.shut]
    return min(pauses, default=0.0)


def _reasons(progress: Progress) -> Iterator[str]:
    states = progress.engines.values()
    out: dict[str, int] = defaultdict(int)
    waiting: dict[str, int] = defaultdict(int)
    shut: dict[str, EndpointState] = {}
    for state in states:
        for one in state.endpoints:
            out[one.endpoint] += one.out
            waiting[one.endpoint] += one.waiting
            if one.shut:
                shut[one.endpoint] = one
    oldest = max((state.request for state in states), default=0.0)
    at = " and ".join(endpoint for endpoint, number in out.items() if number)
    requests = sum(state.requests for state in states)
    if requests:
        where = f" at {at}" if at else ""
        yield f"{counted(requests, 'request waits', 'requests wait')}{where}, the oldest for {oldest:.0f} s"
    for endpoint, number in waiting.items():
        if number:
            yield f"{counted(number, 'of them waits', 'of them wait')} to be let in at {endpoint}"
    for endpoint, one in shut.items():
        left = f" (asked again in {one.pause:.0f} s)" if one.pause else ""
        yield f"{endpoint} gets no requests for now: {one.shut}{left}"
    tools = sum(state.tools for state in states)
    if tools:
        longest = max(states, key=lambda state: state.tool_seconds)
        yield f"{counted(tools, 'tool call runs', 'tool calls run')}, {longest.tool} for {longest.tool_seconds:.0f} s"
    places = sum(state.environments.waiting for state in states if state.environments is not None)
    if places:
        yield f"{counted(places, 'rollout waits', 'rollouts wait')} for an environment of the pool"
    for worker_id, silent in progress.silent.items():
        if silent >= _SILENT:
            yield f"worker {worker_id} has not answered for {silent:.0f} s"
    if progress.workers == 0:
        yield "no worker is up"


_LATE = "%s has not ended within %.0f s: the run does not wait for it"
_RAISED = "%s raised, and is told no more of this run"


class ObserverHub:
    """Fan-out of run events to observers: progress callback, Prometheus, OpenTelemetry."""

    def __init__(
        self, progress: Progress, watch: Callable[[Progress], None] | None, observers: Sequence[Observer]
    ) -> None:
        self._progress = progress
        self._watch = watch
        self._observers = list(observers)
        self._stall_detector = StallDetector()
        self._opened = False
        self._began = self._grown = time.monotonic()

    def opened(self, path: Path) -> None:
        """The run file is there."""
        self._opened = True
        self._tell(lambda observer: observer.opened(path))

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """The run begins."""
        self._tell(lambda observer: observer.begin(job, tasks, taken))

    def _tell(self, event: Callable[[Observer], None]) -> None:
        for observer in list(self._observers):
            try:
                event(observer)
            except Exception:
                self._observers.remove(observer)
                logger.warning(_RAISED, type(observer).__name__, exc_info=True)

    @property
    def behind(self) -> bool:
        """Whether an observer is so far behind that the run is to wait for it."""
        return bool(self._observers) and any(observer.behind for observer in self._observers)

    def grew(self) -> None:
        """Note progress."""
        self._grown = time.monotonic()

    def committed(self, worker_id: int, batch: Batch, seconds: float) -> None:
        """A batch is in the run file."""
        if self._observers:
            self._tell(lambda observer: observer.committed(worker_id, batch, seconds))

    def completed(self, finished: Sequence[Done]) -> None:
        """Tasks are over."""
        if self._observers:
            for done in finished:
                self._tell(lambda observer, done=done: observer.completed(done))  # type: ignore[misc]

    def look(self) -> None:
        """A second has passed."""
        self._tell(lambda observer: observer.look(self._progress))

    def show(self, silent: Mapping[int, float]) -> None:
        """Note the seconds that the run and its silent workers take, and show it."""
        shot, now = self._progress, time.monotonic()
        shot.seconds, shot.quiet, shot.silent = now - self._began, now - self._grown, dict(silent)
        shot.behind = self.behind
        self._stall_detector.look(shot)
        if self._watch is not None:
            self._watch(shot)

    def end(self) -> None:
        """The run is over."""
        self._tell(lambda observer: observer.end(self._progress))

    async def closed(self, path: Path | None, state: str) -> None:
        """The run file is closed; wait for the observers."""
        if self._opened:
            await asyncio.gather(*[_close(observer, path, state) for observer in self._observers])


async def _close(observer: Observer, path: Path | None, state: str) -> None:
    try:
        await asyncio.wait_for(observer.closed(path, state), _CLOSE_WITHIN)
    except TimeoutError:
        logger.warning(_LATE, type(observer).__name__, _CLOSE_WITHIN)
    except Exception:
        logger.warning(_RAISED, type(observer).__name__, exc_info=True)
