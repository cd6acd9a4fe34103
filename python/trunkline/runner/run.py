"""run, arun and stream: execute a prepared run in a loop or a thread, with signals and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import uvloop

from trunkline._internal.aio import LoopTask, LoopThread, close_loop, in_a_loop, wait_uninterrupted
from trunkline.observability.live import showing
from trunkline.runner.broken import report
from trunkline.runner.plan import PreparedRun
from trunkline.runner.worker_pool import WorkerPool
from trunkline.store.reader import RunReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import FrameType

    from trunkline.agent import Agent
    from trunkline.runner.options import Options, TaskSource
    from trunkline.runner.result import Run
    from trunkline.team.team import Team
    from trunkline.tree.views import Tree


class CompletionStream:
    """Starts a run and yields the id of each task once its tree is complete, then raises the run's error."""

    def __init__(self, plan: PreparedRun, loop_thread: LoopThread | None) -> None:
        self._plan = plan
        self._loop_thread = loop_thread
        self._loop = asyncio.get_running_loop()
        self._box: asyncio.Queue[str | None] = asyncio.Queue()
        self._run = LoopTask(self._loop, self._tell()) if loop_thread is None else loop_thread.send(self._tell())

    def __aiter__(self) -> CompletionStream:
        return self

    async def __anext__(self) -> str:
        done = await self._box.get()
        if done is None:
            await self._run.ended()
            raise StopAsyncIteration
        return done

    async def close(self) -> None:
        """Stop the run and wait for its end, even if cancelled meanwhile."""
        self._stop()
        with suppress(Exception):
            await self._run.ended()

    def _stop(self) -> None:
        stop = partial(self._plan.controller.stop, at_once=True)
        if self._loop_thread is None:
            stop()
        elif not self._run.over:
            self._loop_thread.call(stop)

    async def _tell(self) -> None:
        finished = self._plan.controller.finished
        running = asyncio.ensure_future(self._plan.execute())
        # A run that fails before its controller begins finishes nothing.
        running.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while (tasks := await finished.get()) is not None:
                for done in tasks:
                    self._post(done)
        except asyncio.CancelledError:
            running.cancel()
            raise
        finally:
            try:
                await wait_uninterrupted(running, running.cancel)
                running.result()
            finally:
                self._post(None)

    def _post(self, done: str | None) -> None:
        with suppress(RuntimeError):  # the caller's loop is closed
            self._loop.call_soon_threadsafe(self._box.put_nowait, done)


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal.

    Args:
        signum: The signal.
        run: What had grown by then, if anything had.
    """

    def __init__(self, signum: int, run: Run | None) -> None:
        kept = "nothing had grown yet"
        if run is not None:
            kept = f"what has grown is in {run.path}; go on with: trunkline resume {shlex.quote(str(run.path))}"
        super().__init__(f"stopped by {signal.Signals(signum).name}; {kept}")
        self.signum = signum
        self.run = run


def run(agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]) -> Run:
    """Run an agent over tasks and wait until every tree is complete.

    Ctrl-C stops the run and keeps its trees: requests and tool calls in flight have ``grace`` seconds to return. A
    second one does not wait for them. Inside a running event loop, as in a notebook, the run has a thread of its own.

    Args:
        agent: The agent or team that plays.
        tasks: The problems; their ids must be unique. None for those of an earlier run that is continued.
        **options: See ``trunkline.runs.Options``.

    Raises:
        UsageError: If something in the call cannot be done; nothing was sent and no file is left.
        EndpointError: If the endpoint refuses every request.
        InfrastructureError: If workers or the run file fail.
        Interrupted: On SIGINT or SIGTERM, after the run file was closed.
        RunFailed: If more rollouts broke than ``fail_on_error`` allows, after the run file was closed.
    """
    plan, result = run_to_end(agent, tasks, options)
    _report(plan, result)
    return result


def run_to_end(agent: Agent | Team, tasks: TaskSource | None, options: Options) -> tuple[PreparedRun, Run]:
    """Run like ``run``, with no error and no warning for rollouts that broke."""
    with _planned(agent, tasks, options) as (plan, loop_thread):
        if plan.over:
            return plan, plan.result()
        if loop_thread is not None:
            return plan, _drive_in(loop_thread, plan)
        if not in_a_loop():
            return plan, _drive(plan)
        with contextlib.closing(LoopThread("trunkline-run")) as own:
            return plan, _drive_in(own, plan)


def _report(plan: PreparedRun, result: Run) -> None:
    """Raise RunFailed or warn where rollouts broke."""
    if plan.suspect:
        report(result, plan.threshold)


async def arun(agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]) -> Run:
    """Like ``run``, in the running event loop. Cancelling it ends every process it started.

    What it raises is the same; on a pool the run is led from the pool's thread, and its processes stay.
    """
    with _planned(agent, tasks, options) as (plan, loop_thread):
        if loop_thread is None:
            result = await plan.execute()
        else:
            result = await loop_thread.send(plan.execute()).ended()
    _report(plan, result)
    return result


async def stream(
    agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]
) -> AsyncIterator[Tree]:
    """Like ``arun``, yielding each task's tree as soon as it is complete, read from the run file when it is wanted.

    Of a run that is resumed, trees that were complete come first. Closing the iterator, as
    ``contextlib.aclosing`` does, or cancelling what iterates, stops the run and waits until it has ended.
    """
    with _planned(agent, tasks, options) as (plan, loop_thread):
        if plan.over:
            for tree in plan.result():
                yield tree
            _report(plan, plan.result())
            return
        completions = CompletionStream(plan, loop_thread)
        try:
            for before in plan.finished:
                yield _tree(plan, before)
            async for done in completions:
                yield _tree(plan, done)
        finally:
            await completions.close()
    _report(plan, plan.result())


@contextlib.contextmanager
def _planned(
    agent: Agent | Team, tasks: TaskSource | None, options: Options
) -> Iterator[tuple[PreparedRun, LoopThread | None]]:
    """Provide a prepared run, and the loop thread of its pool if it has one; the pool is locked meanwhile."""
    pool = options.get("pool")
    with showing(options.get("progress"), options.get("watch")) as watch:
        if watch is not None:
            options = {**options, "watch": watch}
        if not isinstance(pool, WorkerPool):
            yield PreparedRun(agent, tasks, **options), None
            return
        with pool.lend():
            known: Options = {"policy_version": pool.weights}
            plan = PreparedRun(agent, tasks, **(known | options))
            if not plan.over:
                pool.lead(plan.controller)
            yield plan, pool.loop_thread


def _tree(plan: PreparedRun, task_id: str) -> Tree:
    with RunReader.open(plan.path) as reader:
        return reader.tree(task_id)


def _drive(plan: PreparedRun) -> Run:
    loop = uvloop.new_event_loop()
    main = loop.create_task(plan.execute())
    caught: list[int] = []

    def stop(signum: int) -> None:
        caught.append(signum)
        if len(caught) <= 2:
            loop.call_soon_threadsafe(plan.controller.stop if len(caught) == 1 else main.cancel)

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        stop(signum)
        if len(caught) == 2:
            # In place, because a tool that runs in this process may be blocking the loop. A third one would only keep
            # us from closing the run file.
            raise KeyboardInterrupt

    plan.interrupt = partial(_interrupt, caught, stop)
    with _handling(on_signal):
        try:
            loop.run_until_complete(main)
        except (asyncio.CancelledError, KeyboardInterrupt):
            if not caught:
                raise
        finally:
            close_loop(loop)
    _check_interrupted(caught, plan)
    return main.result()


def _interrupt(caught: list[int], stop: Callable[[int], None], at_once: bool) -> None:
    """What the control socket asks for: the same as one signal, or with ``at_once`` as two."""
    while len(caught) < 1 + at_once:
        stop(signal.SIGINT)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals that end a process, unless they are ignored; restore the earlier handlers afterwards."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) != signal.SIG_IGN:
                before[signum] = signal.signal(signum, handler)
    try:
        yield
    finally:
        for handled, old in before.items():
            # None stands for a handler that was not made in Python and cannot be put back.
            signal.signal(handled, signal.SIG_DFL if old is None else old)


def _drive_in(loop_thread: LoopThread, plan: PreparedRun) -> Run:
    """Run in a loop thread and wait for it here, where signals are handled."""
    task = loop_thread.send(plan.execute())
    caught: list[int] = []

    def stop(signum: int) -> None:
        plan.controller.stop_soon(at_once=bool(caught))
        caught.append(signum)

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        stop(signum)

    plan.interrupt = partial(_interrupt, caught, stop)
    with _handling(on_signal):
        try:
            result = task.wait()
        except asyncio.CancelledError:
            if not caught:
                raise
        except BaseException:
            task.cancel()
            raise
    _check_interrupted(caught, plan)
    return result


def _check_interrupted(caught: list[int], plan: PreparedRun) -> None:
    if caught:
        raise Interrupted(caught[0], plan.result() if plan.path.exists() else None)
