"""Helpers for asyncio: uninterrupted waits, interruptible sleep, semaphores, an event loop in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import math
import signal
import threading
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar

import uvloop

from trunkline._internal.text import describe_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


async def wait_uninterrupted(future: asyncio.Future[Any], stop: Callable[[], object] = lambda: None) -> None:
    """Wait for a future to its end, call ``stop`` at each cancel meanwhile, and raise the cancel afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
        except GeneratorExit:
            # The caller's loop is gone.
            stop()
            raise
    if cancelled is not None:
        # Retrieved, so that asyncio does not report it.
        _ = future.cancelled() or future.exception()
        raise cancelled


async def off_the_loop(function: Callable[[], object]) -> None:
    """Call a function in a thread; in this one if the interpreter ends and starts none any more."""
    try:
        running = asyncio.get_running_loop().run_in_executor(None, function)
    except RuntimeError:
        function()
    else:
        await running


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function that may never return in a daemon thread of its own; what ends threads is a RuntimeError."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Callable[[], T]] = loop.create_future()

    def settle(outcome: Callable[[], T]) -> None:
        if not future.done():
            future.set_result(outcome)

    def work() -> None:
        try:
            value = function()
            outcome = lambda: value  # noqa: E731
        except BaseException as problem:  # noqa: BLE001
            outcome = partial(_raise, problem)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, outcome)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="trunkline-call", daemon=True).start()
    return (await future)()


def _raise(problem: BaseException) -> NoReturn:
    if isinstance(problem, Exception):
        raise problem
    raise RuntimeError(f"it raised {type(problem).__name__}") from problem


def in_a_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def current_task() -> asyncio.Task[Any] | None:
    """Return the task that runs; None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def raised_by_user_code(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether an error other than a cancel was raised by user code, which ``task`` called, and not by a signal."""
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as in a worker
    if isinstance(error, GeneratorExit):
        return current_task() is task  # else the coroutine is closed as it is collected
    return True


_contained: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("trunkline_contained", default=False)


def contain_tasks() -> None:
    """Let no task that the running task starts, nor theirs, end the event loop: SystemExit is a RuntimeError there."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop.get_task_factory(), _ContainingFactory):
        loop.set_task_factory(_ContainingFactory(loop.get_task_factory()))
    _contained.set(True)


class _ContainingFactory:
    def __init__(self, earlier: Any) -> None:
        self._make = earlier or (lambda loop, coro, **given: asyncio.Task(coro, loop=loop, **given))

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **given: Any) -> Any:
        return self._make(loop, _ContainedCoroutine(coro) if _contained.get() else coro, **given)


class _ContainedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine whose SystemExit is a RuntimeError, and its KeyboardInterrupt where no signal raised it."""

    def __init__(self, coro: Any) -> None:
        self._coro = coro

    def __getattr__(self, name: str) -> Any:  # cr_frame and the like, which anyio reads
        return getattr(self._coro, name)

    def __await__(self) -> Any:
        return (yield from self._coro.__await__())

    def send(self, value: Any) -> Any:
        return self._step(self._coro.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coro.throw, *error)

    def close(self) -> None:
        self._coro.close()

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        try:
            return step(*given)
        except (SystemExit, KeyboardInterrupt) as problem:
            if not raised_by_user_code(problem, None):
                raise
            raise RuntimeError(f"it raised {describe_error(problem)}") from problem


class Timer(Protocol):
    """A call that an event loop, or a test's clock, makes later."""

    def cancel(self) -> None:
        """Cancel the call."""


class InterruptibleSleep:
    """Lets one task wait for a time that ``wake`` may cut short."""

    def __init__(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._sleep = sleep
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Wait until woken, or some seconds; return whether the time has passed."""
        self._future = future = asyncio.get_running_loop().create_future()
        timer = None if seconds == math.inf else asyncio.ensure_future(self._sleep(max(0.0, seconds)))
        try:
            await asyncio.wait([future] if timer is None else [future, timer], return_when=asyncio.FIRST_COMPLETED)
            return timer is not None and timer.done()
        finally:
            future.cancel()
            if timer is not None:
                timer.cancel()


class ShrinkableSemaphore:
    """Counts free permits; unlike ``asyncio.Semaphore`` it can shrink, and a release does not visit every waiter."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    def acquire(self) -> Awaitable[None] | None:
        """Take one, first come, first served; returns None where it is taken, else what to wait for."""
        if self._free > 0:
            self._free -= 1
            return None
        return self._acquired()

    async def _acquired(self) -> None:
        if self._free > 0:  # it became free before anything waited
            self._free -= 1
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                self.release(1)  # it was granted, and will not be used
            raise

    def release(self, count: int) -> None:
        """Add permits; waiters get them at once."""
        self._free += count
        while self._free > 0 and self._waiting:
            mine = self._waiting.popleft()
            if not mine.done():
                self._free -= 1
                mine.set_result(None)

    def withdraw(self, count: int) -> None:
        """Remove permits; taken ones as soon as they are released."""
        self._free -= count


class PerLoopSemaphore:
    """A semaphore of a size for each event loop: each run may have a loop of its own, in a thread of its own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._here = threading.local()

    def here(self) -> asyncio.Semaphore:
        """Return the semaphore of the running loop."""
        loop = asyncio.get_running_loop()
        if getattr(self._here, "loop", None) is not loop:
            self._here.loop, self._here.semaphore = loop, asyncio.Semaphore(self._size)
        semaphore: asyncio.Semaphore = self._here.semaphore
        return semaphore


T = TypeVar("T")


class SharedTasks(Generic[T]):
    """Runs equal work once (single-flight): calls with one key wait for one task, which ends with its last waiter."""

    def __init__(self) -> None:
        self._joinable: dict[bytes, _SharedTask[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    def __contains__(self, key: bytes) -> bool:
        return key in self._joinable

    async def run(self, key: bytes, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a key's work. A cancel leaves the task to other callers; the last one's cancels it."""
        shared = self._joinable.get(key)
        if shared is None:
            task = asyncio.get_running_loop().create_task(work())
            shared = self._joinable[key] = _SharedTask(task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                del self._joinable[key]
                await _cancelled([shared.task])

    async def close(self) -> None:
        """Cancel all work and wait for its end."""
        await _cancelled(list(self._tasks))


class _SharedTask(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


_CLOSE_WITHIN = 4.0
"""Seconds that cancelled work has to end before its loop is closed over it."""


class LoopTask(Generic[T]):
    """Work in another thread's loop. It is over when it has ended, cancelled or not, and not before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[None, None, T]) -> None:
        self._loop = loop
        self._over: Future[asyncio.Task[T]] = Future()
        self._over.set_running_or_notify_cancel()
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._begin, work)

    @property
    def over(self) -> bool:
        return self._over.done()

    def cancel(self) -> None:
        if not self.over:
            self._loop.call_soon_threadsafe(self._cancel)

    def wait(self) -> T:
        """Block this thread until it is over; return or raise the work's result."""
        return self._over.result().result()

    async def ended(self) -> T:
        """Wait in any loop until it is over. A cancel is passed on, and raised after the end."""
        await wait_uninterrupted(asyncio.wrap_future(self._over), self.cancel)
        return self._over.result().result()

    def _begin(self, work: Coroutine[None, None, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._over.set_result)

    def _cancel(self) -> None:
        assert self._task is not None
        # One tick later: work that was cancelled before its first step would never have a chance to clean up.
        self._loop.call_soon(self._task.cancel)


class LoopThread:
    """A thread that runs an event loop until ``close``; the kernel ends child processes it started with it."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._guard = threading.Lock()
        self._tasks: set[LoopTask[Any]] = set()
        # A daemon: it must not keep an interpreter that wants to end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, work: Coroutine[None, None, T]) -> LoopTask[T]:
        """Start work there, from any thread."""
        task = LoopTask(self._loop, work)
        with self._guard:
            self._tasks = {one for one in self._tasks if not one.over} | {task}
        return task

    def call(self, step: Callable[[], object]) -> None:
        """Call a function there soon, from any thread."""
        self._loop.call_soon_threadsafe(step)

    def close(self, last: Coroutine[None, None, None] | None = None) -> None:
        """Cancel the work that is left, run ``last`` when it has ended, and end the thread."""
        if threading.current_thread() is self._thread:
            # It cannot wait for itself.
            task = self._loop.create_task(self._finish(last))
            task.add_done_callback(lambda _: self._loop.stop())
            return
        try:
            LoopTask(self._loop, self._finish(last)).wait()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _finish(self, last: Coroutine[None, None, None] | None) -> None:
        with self._guard:
            left = [task for task in self._tasks if not task.over]
        for task in left:
            task.cancel()
        await asyncio.gather(*(task.ended() for task in left), return_exceptions=True)
        if last is not None:
            await last

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            close_loop(self._loop)


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop within seconds, even if user code in it does not end."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_CLOSE_WITHIN))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
