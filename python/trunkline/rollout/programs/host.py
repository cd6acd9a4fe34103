"""Plays one program: its own loop runs it, the worker's loop does its work, results are given one at a time."""

from __future__ import annotations

import asyncio
import sys
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from trunkline._internal.aio import raised_by_user_code
from trunkline._internal.text import describe_error
from trunkline.errors import InfrastructureError, LLMError, ProgramError, ReplayDiverged
from trunkline.rollout.programs.loop import REMEDY, ProgramLoop
from trunkline.rollout.programs.replay import TIMER, ends_early, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from trunkline.rollout.programs.executor import ProgramExecutor
    from trunkline.rollout.programs.loop import ProgramTask
    from trunkline.rollout.programs.replay import Replay, ReplaySlot

__all__ = ["ProgramHost"]

_SLICE: Final = 2_000
"""Callbacks of a program that run before the worker's loop gets on."""

_MOST_ROUNDS: Final = 20
"""Times that a program whose rollout is over is cancelled, or a timer of it fires, before it is left where it is."""

_LAST_ROUNDS: Final = 3
"""Times that tasks are cancelled which a program has left behind."""

_MOST_TIMERS: Final = 10_000
"""Timers that fire in a replay for one record, where the record has none: earlier versions did not record them."""


class ProgramHost:
    """Runs one program to its end.

    A step of it runs the program until none of its callbacks is ready, and then does one thing: what the record has
    next, or else the result of the first call in line, if it is there, or a timer that is due.

    Args:
        line: What the program does, and what is on record.
        executor: Does its work.
        fired: Called with the number of a timer that fires and is not on record.

    Attributes:
        loop: The program's loop.
        end: How the rollout ended, where the program does not say so; the first reason counts.
        closed: Whether the program has ended.
        cancelled: Whether its rollout was cancelled.
        stopped: Whether nothing more may come of the program, for any of these reasons.
    """

    def __init__(self, line: Replay, executor: ProgramExecutor, fired: Callable[[int], None]) -> None:
        self._worker = asyncio.get_running_loop()
        self._hooks = sys.get_asyncgen_hooks()
        self.loop = ProgramLoop(self._worker)  # type: ignore[abstract]
        self.end: BaseException | None = None
        self.closed = False
        self.cancelled = self.stopped = False
        self._line = line
        self._executor = executor
        self._fired = fired
        self._main: ProgramTask[Any] | None = None
        self._over: asyncio.Future[None] | None = None
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waking = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_due = 0.0
        self._rounds = 0
        self._untold = 0

    async def run(self, program: Coroutine[Any, Any, Any]) -> Any:
        """Run a program, and return what it returns; a cancel reaches the program, and ends with it."""
        self._main = main = self.loop.create_task(program)
        self._wake()
        while not self.closed:
            self._over = self._worker.create_future()
            try:
                await self._over
            except asyncio.CancelledError:
                self.cancelled = self.stopped = True
                if not self.closed:
                    main.cancel()
                    self._wake()
        try:
            if self._fault is not None:
                raise self._fault
            if not main.done():
                raise self.end or asyncio.CancelledError
            return main.result()
        finally:
            del main  # its error refers to this frame

    async def close(self) -> None:
        """Give up work that is left, and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def release(self) -> None:
        """Drop what refers to the closed host."""
        self.end = self._fault = self._main = None
        self._fired = _ignored

    async def turn(
        self,
        slot: ReplaySlot,
        work: Callable[[], Coroutine[Any, Any, Any]] | None = None,
        drop: Callable[[Any], None] | None = None,
    ) -> Any:
        """Wait, in the program's loop, until it is the turn of a place in line; return the result of its work.

        Args:
            slot: The place.
            work: Does the work on the worker's loop, as soon as the record is over.
            drop: Called with a result that is not used.
        """
        if work is not None:
            slot.work, slot.drop, slot.context, slot.over = work, drop, copy_context(), False
            self._line.waiting.append(slot)
        slot.turn = asyncio.Future(loop=self.loop)
        await slot.turn
        if self.stopped:
            self.check()
        slot.work = None
        error = slot.error
        if error is None:
            return slot.result
        # Errors of the model are the program's to catch; others are raised again, now and at every later step.
        raise error if isinstance(error, LLMError | asyncio.CancelledError) else self.stop(error)

    def check(self) -> None:
        """Refuse to go on with a rollout that is over, however the program took being told so."""
        if self.closed or self.cancelled:
            raise asyncio.CancelledError
        if self.end is not None:
            raise self.end

    def stop(self, end: BaseException) -> BaseException:
        """Note how the rollout ends, and return it; the first reason counts."""
        self.stopped = True
        if self.end is None:
            self.end = end
        return self.end

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._worker.call_soon(self._pump)

    def _pump(self) -> None:
        """Let the program get on, as far as it can."""
        self._waking = False
        if self.closed:
            return
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self.loop.finalize)
        try:
            self._advance()
        except BaseException as error:  # noqa: BLE001 - it is raised where the rollout waits for its program
            self._fault = error
            self._finish()
        finally:
            sys.set_asyncgen_hooks(*self._hooks)

    def _advance(self) -> None:
        assert self._main is not None
        loop, line, main, executor, left = self.loop, self._line, self._main, self._executor, _SLICE
        while left > 0:
            if loop.ready:
                left -= self._run(left)
                continue
            if line.unused:
                self._drop_unused()
            if executor.has_grown:
                executor.flush()
            if main.done():
                self._leave()
                return
            if self.stopped:
                if not self._unwind():
                    self._leave()
                    return
            elif not self._step():
                return
        if self.stopped and not self._cancel():
            self._leave()
        else:
            self._wake()

    def _run(self, most: int) -> int:
        """Run callbacks; an error that would end an event loop ends the program."""
        try:
            return self.loop.run(most)
        except (SystemExit, KeyboardInterrupt) as problem:
            if not raised_by_user_code(problem, None):
                raise
            self.stop(ProgramError(f"the program raised {describe_error(problem)}"))
            return 1

    def _step(self) -> bool:
        """Do what comes next; return whether there was something."""
        line = self._line
        if not line.over:
            return self._replay()
        if line.waiting:
            self._begin()
        for slot in line.new:
            if slot.over:
                _give(slot)
                return True
            break
        timer = self.loop.due() if self.loop.by_due else None
        if timer is not None and timer.due <= self._worker.time():
            self._fired(timer.number)
            self.loop.fire(timer)
            return True
        if timer is not None:
            self._ring_at(timer.due)
        elif not line.new:
            self.stop(ProgramError(f"the program waits for something that cannot come: {REMEDY}"))
            return True
        return False

    def _replay(self) -> bool:
        """Do what the record has next."""
        record, slot = self._line.next, self._line.due()
        assert record is not None
        if record.kind == TIMER:
            timer = self.loop.timer(record.nth)
            if timer is not None:
                self._line.fired()
        elif slot is not None and not record.given_up:
            self._untold = 0
            _give(slot)
            return True
        else:
            timer = self.loop.earliest() if not self._line.timed and self._untold < _MOST_TIMERS else None
            self._untold += 1
        if timer is not None:
            self.loop.fire(timer)
            return True
        first = self._line.first
        does = "waits for nothing of its rollout" if first is None else f"comes to {shown(first.name)}"
        if slot is not None:
            does = f"goes on with {shown(slot.name)}"
        has = f"its record {'gives up' if record.given_up else 'goes on with'} {shown(record.name)}"
        self.stop(ReplayDiverged(f"the program, run again, {does}, where {has}"))
        return True

    def _begin(self) -> None:
        """Begin work that waited for the record to be over."""
        waiting, self._line.waiting = self._line.waiting, []
        for slot in waiting:
            if slot.ordered and not slot.left and slot is not next(iter(self._line.new), None):
                self._line.waiting.append(slot)
            elif not slot.left:
                slot.task = self._worker.create_task(self._do(slot), context=slot.context)
                self._tasks.add(slot.task)

    async def _do(self, slot: ReplaySlot) -> None:
        """Do the work of a place in line, on the worker's loop."""
        assert slot.work is not None
        try:
            slot.result = await slot.work()
        except BaseException as error:
            if not raised_by_user_code(error, slot.task):
                raise
            slot.error = error
        finally:
            self._tasks.discard(slot.task)
        slot.over = True
        if slot.left:
            _give_up(slot)
            return
        if slot.error is not None and isinstance(slot.error, InfrastructureError):
            self.stop(slot.error)
        self._wake()

    def _ring_at(self, due: float) -> None:
        """Go on when a timer is due; an alarm that is set for an earlier time is kept."""
        if self._alarm is not None:
            if self._alarm_due <= due:
                return
            self._alarm.cancel()
        self._alarm_due = due
        self._alarm = self._worker.call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._wake()

    def _drop_unused(self) -> None:
        """Give up the work of what has left the line."""
        unused, self._line.unused = self._line.unused, []
        for slot in unused:
            _give_up(slot)

    def _unwind(self) -> bool:
        """Tell a program whose rollout is over so, wherever it waits; return whether there is more to do."""
        if (slot := self._line.first) is not None:
            _give(slot)
            return True
        if (timer := self.loop.earliest()) is None:
            return self._cancel()
        self._rounds += 1
        self.loop.fire(timer)
        return self._rounds <= _MOST_ROUNDS

    def _cancel(self) -> bool:
        """Cancel what the program has not ended the first time it was told; return False after many times."""
        self._rounds += 1
        if self._rounds > 1:
            for task in self.loop.unfinished():
                task.cancel()
        return self._rounds <= _MOST_ROUNDS

    def _leave(self) -> None:
        """End what the program left behind, and say that it is over."""
        if self.end is None and not self.cancelled and (waiting := self._line.next) is not None:
            self.end = ends_early(waiting)
        self.closed = self.stopped = True
        for _ in range(_LAST_ROUNDS):
            if not (left := self.loop.unfinished()):
                break
            for task in left:
                task.cancel()
            self._run(_SLICE)
        for slot in [*self._line.known.values(), *self._line.new]:
            slot.left = True
            self._line.unused.append(slot)
        self._drop_unused()
        self._finish()

    def _finish(self) -> None:
        self.closed = self.stopped = True
        self.loop.close()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


def _ignored(_: object) -> None:
    """Of a host that is closed, no timer fires."""


def _give(slot: ReplaySlot) -> None:
    """Let a result be taken."""
    if slot.turn is not None and not slot.turn.done():
        slot.turn.set_result(None)


def _give_up(slot: ReplaySlot) -> None:
    """Give up work whose result is not used; a result that is there, or comes all the same, is dropped."""
    if not slot.over:
        if slot.task is not None:
            slot.task.cancel()
    elif slot.drop is not None and slot.error is None:
        slot.drop(slot.result)
        slot.drop = None
