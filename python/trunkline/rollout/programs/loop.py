"""The event loop of one program: deterministic, without I/O, and run step by step on the loop of its worker."""

from __future__ import annotations

import asyncio
import heapq
import re
from asyncio import events
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from trunkline._internal.text import format_error
from trunkline.errors import ProgramError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from contextvars import Context

__all__ = ["REMEDY", "ProgramLoop", "ProgramTask", "ProgramTimer", "misuse"]

_OTHERS: Final = re.compile("different (event )?loop")
"""What asyncio says of a future or a lock of another loop."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

REMEDY: Final = "a program awaits its rollout alone; put everything else into a function: await rollout.call(function)"


class ProgramTask(asyncio.Task[T]):
    """A task of a program. Its hash is its number, so that sets of tasks have the same order in every process."""

    __slots__ = ("_number",)

    def __init__(self, coro: Coroutine[Any, Any, T], loop: ProgramLoop, number: int, **given: Any) -> None:
        self._number = id(self)  # asyncio keeps the tasks of all programs in one set, where equal hashes would be slow
        super().__init__(coro, loop=loop, **given)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class _Callback(asyncio.Handle):
    """A callback that is due."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args: tuple[Any, ...] = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'cancelled' if self._cancelled else self._callback!r}>"


class ProgramTimer(_Callback, asyncio.TimerHandle):
    """A callback that is due later.

    Attributes:
        number: How many timers of the loop were made before.
        due: When it is due by the worker's clock.
    """

    __slots__ = ("_timers", "due", "number")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
        timers: dict[int, ProgramTimer],
        number: int,
        when: float,
        due: float,
    ) -> None:
        super().__init__(callback, args, context)
        self._timers = timers
        self._when = when
        self.number = number
        self.due = due

    def when(self) -> float:
        """Return when it is due by the loop's time."""
        return self._when

    def cancel(self) -> None:
        self._timers.pop(self.number, None)
        super().cancel()


class ProgramLoop(asyncio.AbstractEventLoop):
    """Runs the callbacks of one program when ``run`` is called, and fires a timer when ``fire`` is.

    Its time stands still but for timers: one that fires sets it to the time for which the timer was made.

    Args:
        worker: The loop of the worker.
    """

    def __init__(self, worker: asyncio.AbstractEventLoop) -> None:
        self.tasks: list[ProgramTask[Any]] = []
        self.ready: deque[_Callback] = deque()
        self._worker = worker
        self._time = 0.0
        self._timers: dict[int, ProgramTimer] = {}
        self.by_due: list[tuple[float, int]] = []
        self._timers_made = 0
        self._tasks_made = 0
        self._prune_at = 64
        self._closed = False

    def run(self, most: int) -> int:
        """Run callbacks until none is ready, at most so many; return how many were run. The worker's loop must run.

        Raises:
            SystemExit: A callback raised it, as every error that ends an event loop.
        """
        ready, left = self.ready, most
        events._set_running_loop(self)
        try:
            while ready and left:
                left -= 1
                handle = ready.popleft()
                callback = handle._callback
                if callback is None:
                    continue
                try:
                    handle._context.run(callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - it is reported, as event loops do
                    about = {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
                    self.call_exception_handler(about)
        finally:
            events._set_running_loop(self._worker)
        return most - left

    def unfinished(self) -> list[ProgramTask[Any]]:
        """Return the tasks that are not done."""
        return [task for task in self.tasks if not task.done()]

    def timer(self, number: int) -> ProgramTimer | None:
        """Return a timer that has neither fired nor been cancelled."""
        return self._timers.get(number)

    def due(self) -> ProgramTimer | None:
        """Return the timer that is due first by the worker's clock."""
        heap = self.by_due
        while heap and heap[0][1] not in self._timers:
            heapq.heappop(heap)
        return self._timers[heap[0][1]] if heap else None

    def earliest(self) -> ProgramTimer | None:
        """Return the timer that is due first by the loop's time."""
        return min(self._timers.values(), key=lambda timer: (timer.when(), timer.number), default=None)

    def fire(self, timer: ProgramTimer) -> None:
        """Make a timer's callback ready."""
        del self._timers[timer.number]
        self._time = max(self._time, timer.when())
        self.ready.append(timer)

    def close(self) -> None:
        """Drop what is left; nothing can be scheduled any more."""
        self._closed = True
        self.ready.clear()
        self._timers.clear()
        for task in self.unfinished():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.clear()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _Callback(callback, args, copy_context() if context is None else context)
        self.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        due, number = self._worker.time() + max(0.0, when - self._time), self._timers_made
        own = copy_context() if context is None else context
        timer = self._timers[number] = ProgramTimer(callback, args, own, self._timers, number, when, due)
        self._timers_made += 1
        heap = self.by_due
        if len(heap) > 64 + 2 * len(self._timers):
            heap[:] = sorted((left.due, left.number) for left in self._timers.values())
        else:
            heapq.heappush(heap, (due, number))
        return timer

    def time(self) -> float:
        return self._time

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **given: Any) -> ProgramTask[Any]:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        task = ProgramTask(coro, self, self._tasks_made, **given)
        self._tasks_made += 1
        tasks = self.tasks
        tasks.append(task)
        if len(tasks) >= self._prune_at:
            tasks[:] = self.unfinished()
            self._prune_at = 64 + 2 * len(tasks)
        return task

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed

    get_debug = staticmethod(bool)
    """Debugging is off, which asyncio asks of its loop for each future without a call into Python."""

    def set_debug(self, enabled: bool) -> None:
        """Debugging is off."""

    def get_task_factory(self) -> None:
        return None

    def get_exception_handler(self) -> Any:
        return self._worker.get_exception_handler()

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._worker.default_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._worker.call_exception_handler(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Timers remove themselves."""

    def finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an asynchronous generator that the program has dropped."""
        if not self._closed:
            self.create_task(generator.aclose())


def _refusal(name: str) -> Callable[..., Any]:
    def refused(self: ProgramLoop, *args: Any, **given: Any) -> Any:
        used = "asyncio.to_thread and run_in_executor" if name == "run_in_executor" else f"the event loop's {name}"
        raise ProgramError(f"{used} cannot be used here: {REMEDY}")

    return refused


for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(ProgramLoop):
        setattr(ProgramLoop, _name, _refusal(_name))


def misuse(error: BaseException) -> ProgramError | None:
    """Return what a program did wrong, where an error or one of a group says so; None for other errors."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(misuse, error.exceptions)), None)
    if isinstance(error, RuntimeError) and _OTHERS.search(format_error(error)) is not None:
        return ProgramError(f"the program awaits something of another event loop, but {REMEDY}")
    return error if isinstance(error, ProgramError) else None
