"""The stream of a run's events: ``trunkline.events`` over its file, and ``on_event`` in the process that runs it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from trunkline._internal.text import describe_error
from trunkline._internal.validation import check_bool, check_choice, check_int, check_optional, check_that, short_repr
from trunkline.errors import ConfigError
from trunkline.observability.event_reader import EventReader
from trunkline.observability.events import KINDS, EventsDropped, RunEnded, RunEvent
from trunkline.observability.logging import safe
from trunkline.observability.observers import Observer
from trunkline.store.lock import is_written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from trunkline.protocol.messages import Batch, Done

logger = logging.getLogger(__name__)

TEXT: Final = 10_000
"""The most characters of a text, if not said otherwise."""

_MOST_TEXT: Final = 1_000_000_000
_MOST_BEHIND: Final = 1_000_000
POLL: Final = 0.1
"""Seconds between two looks at a file."""

_TOGETHER: Final = 64  # committed deltas whose events are made at once


def check_kinds(kinds: object) -> frozenset[str] | None:
    """Return kinds of events, which may be a text with commas; None for all; ConfigError for unknown ones."""
    if kinds is None:
        return None
    listed = [one.strip() for one in kinds.split(",")] if isinstance(kinds, str) else kinds
    if not isinstance(listed, list | tuple) or not listed:
        raise ConfigError(f"kinds must be names of kinds of events, such as 'turn,score', not {short_repr(kinds)}")
    for one in listed:
        check_choice("kinds: a kind of events", one, *KINDS)
    return frozenset(listed)


def _check_text(text: int | None) -> int | None:
    check_optional(check_int, "text", text, 0, _MOST_TEXT)
    return text


class EventStream:
    """The events of a run file, to be iterated, also with ``async for``; each iteration begins anew.

    It is made by ``events``, which says more.
    """

    def __init__(self, run: object, *, follow: bool, kinds: object, text: int | None) -> None:
        path = getattr(run, "path", run)
        if not isinstance(path, str | Path) or not str(path):
            raise ConfigError(f"events needs a run or the path of a run file, not {short_repr(run)}")
        self._run = run  # a temporary file goes with it
        self._path = Path(path)
        self._follow = check_bool("follow", follow)
        self._kinds = check_kinds(kinds)
        self._most = _check_text(text)
        EventReader(self._path, self._most)

    def __iter__(self) -> Iterator[RunEvent]:
        for batch in self.batches():
            yield from batch
            if not batch:
                time.sleep(POLL)

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        steps = self.batches()
        while (batch := await asyncio.to_thread(next, steps, None)) is not None:
            for event in batch:
                yield event
            if not batch:
                await asyncio.sleep(POLL)

    def batches(self) -> Iterator[list[RunEvent]]:
        """Yield the events, some at a time; an empty list where it is to be waited for more."""
        kinds = self._kinds
        for batch in self._steps():
            chosen = [event for event in batch if kinds is None or event.kind in kinds]
            if chosen or not batch:
                yield chosen

    def _steps(self) -> Iterator[list[RunEvent]]:
        reader = EventReader(self._path, self._most)
        yield [reader.started]
        written = is_written(self._path)
        yield from filter(None, reader.all())
        while self._follow and written:
            written = is_written(self._path)
            if reader.changed():
                yield from filter(None, reader.new())
            if written:
                yield []
        if self._follow:
            yield from filter(None, reader.rest())
        yield [reader.ended()]


def events(
    run: object, *, follow: bool = False, kinds: str | Sequence[str] | None = None, text: int | None = TEXT
) -> EventStream:
    """Return the events of a run, from its file: turns, tool calls, observations, forks, scores, errors.

    ``for`` and ``async for`` iterate them, each time from the start. The events of a rollout come in order, a fork
    before what its rollout does, a score behind the end of its rollout; the first event is ``run_started``, the last
    one ``run_ended``. Those of other tasks may stand between any two. What is not read yet is in the file alone, so a
    slow consumer loses nothing and holds up no run.

    Args:
        run: A run, or the path of its file. It may still be running, in any process of this machine.
        follow: Whether to wait for further events until no process writes the file any more.
        kinds: The kinds that are wanted, such as ``"turn,score"``; all when None.
        text: The most characters of each text; None for whole texts.

    Raises:
        RunFileError: There is no file, or it is not a run; also while it is iterated.
        DamagedRunFile: It is damaged; also while it is iterated, behind the events of what is whole.
        ConfigError: An argument is wrong.
    """
    return EventStream(run, follow=follow, kinds=kinds, text=text)


class EventListener(Observer):
    """Calls a function with the events of a run while it is executed; the option ``on_event`` makes one of a function.

    The function is called in a thread of its own, with one event after the other, of what this process adds to the run
    file; of a run that is resumed, what was there before is in ``trunkline.events``. If it raises, that is logged
    once, it is called no more, and the run continues. The call of the run returns once all events were taken, and after
    30 seconds at the latest.

    Args:
        function: Called with each ``RunEvent``; it may wait.
        kinds: The kinds that are wanted, such as ``"turn,score"``; all when None.
        text: The most characters of each text; None for whole texts.
        most_behind: Records of the run file, of one or several turns each, whose events may wait for the function.
        when_behind: What happens where more of them wait: ``"wait"`` holds up the run until they were taken, and
            ``"drop"`` leaves events out, and tells how many in an event of the kind ``dropped``.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        function: Callable[[RunEvent], object],
        *,
        kinds: str | Sequence[str] | None = None,
        text: int | None = TEXT,
        most_behind: int = 1000,
        when_behind: str = "wait",
    ) -> None:
        check_that(callable(function), "on_event must be a function that takes an event", function)
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            raise ConfigError(
                "on_event must not be async: it is called in a thread; `async for event in tl.events(path, "
                "follow=True)` reads events in an event loop"
            )
        self._function, self._kinds, self._most = function, check_kinds(kinds), _check_text(text)
        self._limit = check_int("most_behind", most_behind, 1, _MOST_BEHIND)
        check_choice("when_behind", when_behind, "wait", "drop")
        self._drops = when_behind == "drop"
        self._thread: _ListenerThread | None = None

    @property
    def behind(self) -> bool:
        """Whether the run is to wait for the function."""
        return self._thread is not None and not self._drops and self._thread.waiting > self._limit

    def opened(self, path: Path) -> None:
        """See ``Observer``."""
        if self._thread is not None:
            raise ConfigError("an EventListener listens to one run at a time")
        reader = EventReader(path, self._most, new=True)
        self._thread = _ListenerThread(reader, self._function, self._kinds, self._limit if self._drops else None)

    def committed(self, worker_id: int, batch: Batch, seconds: float) -> None:
        """See ``Observer``."""
        if self._thread is not None:
            for delta in batch.deltas:
                self._thread.put(delta.task)

    def completed(self, done: Done) -> None:
        """See ``Observer``."""
        if self._thread is not None:
            self._thread.put(done.task)

    def end(self, progress: object) -> None:
        """See ``Observer``."""
        if self._thread is not None:
            self._thread.pause()

    async def closed(self, path: Path | None, state: str) -> None:
        """See ``Observer``."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.close(state, kept=path is not None)


class _ListenerThread:
    """Reads what was committed, and calls a function with its events."""

    def __init__(
        self,
        reader: EventReader,
        function: Callable[[RunEvent], object],
        kinds: frozenset[str] | None,
        limit: int | None,
    ) -> None:
        self._reader, self._function, self._kinds, self._limit = reader, function, kinds, limit
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._reading = threading.Lock()
        self._file_closed = threading.Event()
        self._pausing = self._failed = self._given_up = self._last = False
        self._dropped = 0
        self._state, self._kept = "", True
        self._over: Future[None] = Future()
        self._over.set_running_or_notify_cancel()
        threading.Thread(target=self._run, name="trunkline-events", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Committed deltas whose events were not made yet; 0 once the function has failed."""
        return 0 if self._failed else self._queue.qsize()

    def put(self, task: int) -> None:
        """Note that a delta of a task, or its end, is in the file."""
        if not self._failed:
            self._queue.put(task)

    def pause(self) -> None:
        """Leave the file alone until it is closed: it is not folded while a reader has it open."""
        self._pausing = True
        with self._reading:
            pass

    async def close(self, state: str, *, kept: bool) -> None:
        """Have the rest told, and wait for it."""
        self._state, self._kept = state, kept
        self._queue.put(None)
        self._file_closed.set()
        try:
            await asyncio.wrap_future(self._over)
        except asyncio.CancelledError:
            self._given_up = True
            raise

    def _run(self) -> None:
        try:
            self._tell_all()
        except BaseException as error:  # noqa: BLE001 - nothing that an observer raises ends a run, or holds it up
            self._failed = True
            logger.warning(
                "on_event is told no more, and the run continues without it: %s", safe(describe_error(error), 500)
            )
        finally:
            self._over.set_result(None)

    def _tell_all(self) -> None:
        reader = self._reader
        self._tell([reader.started])
        while grown := self._next():
            self._tell(self._read(grown))
        if self._kept:
            for batch in reader.rest():
                self._tell(batch)
            end = reader.ended(self._state)
        else:
            end = RunEnded(time=time.time(), state=self._state, tasks=reader.started.tasks, finished=0)
        self._limit = None
        self._tell([end])

    def _next(self) -> Counter[int]:
        """Wait for tasks that grew, each with the number of its deltas; none once the run is over."""
        grown: Counter[int] = Counter()
        while not self._last and grown.total() < _TOGETHER and not (grown and self._queue.empty()):
            task = self._queue.get()
            if task is None:
                self._last = True
            else:
                grown[task] += 1
        return grown

    def _read(self, grown: Counter[int]) -> list[RunEvent]:
        with self._reading:
            if not self._pausing or self._file_closed.is_set():
                return [event for batch in self._reader.new(grown) for event in batch] if self._kept else []
        self._file_closed.wait()
        return self._read(grown)

    def _tell(self, events: list[RunEvent]) -> None:
        for event in events:
            if self._given_up:
                return
            if self._kinds is not None and event.kind not in self._kinds:
                continue
            if self._limit is not None and self._queue.qsize() > self._limit:
                self._dropped += 1
                continue
            if self._dropped:
                count, self._dropped = self._dropped, 0
                self._function(EventsDropped(time=event.time, count=count))
            self._function(event)
