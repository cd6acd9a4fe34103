"""The front door: ``run`` for scripts and notebooks, ``arun`` and ``stream`` for code that has an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import threading
from typing import TYPE_CHECKING, Any, Unpack

import uvloop

from trunkline.runtime.plan import Plan
from trunkline.store.reader import RunReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from types import FrameType

    from trunkline.rollout.agent import Agent
    from trunkline.runtime.options import Options
    from trunkline.runtime.result import Run
    from trunkline.tree.tree import Tree
    from trunkline.types import Task

__all__ = ["Interrupted", "arun", "run", "stream"]

_CLOSE_WITHIN = 4.0
"""Seconds that cancelled work has to end before its loop is closed over it."""


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


def run(agent: Agent, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> Run:
    """Run an agent over tasks and wait until every tree is complete.

    Ctrl-C stops the run and keeps what has grown: requests and tool calls that are out have ``grace`` seconds to come
    back. A second one does not wait for them. Inside a running event loop, as
    in a notebook, the run goes on in a thread of its own.

    Args:
        agent: Who plays.
        tasks: The problems; their ids must be unique. None for those of an earlier run that is continued.
        **options: See :class:`trunkline.runtime.options.Options`.

    Raises:
        UsageError: If something in the call cannot be done; nothing was sent and no file is left.
        EndpointError: If the endpoint serves nobody.
        InfrastructureError: If workers or the run file fail.
        Interrupted: On SIGINT or SIGTERM, after the run file was closed.
    """
    plan = Plan(agent, tasks, **options)
    if plan.over:
        return plan.result()
    return _drive_in_thread(plan) if _in_a_loop() else _drive(plan)


async def arun(agent: Agent, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> Run:
    """Like :func:`run`, in the running event loop. Cancelling it ends every process it started."""
    return await Plan(agent, tasks, **options).execute()


async def stream(agent: Agent, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> AsyncIterator[Tree]:
    """Like :func:`arun`, yielding each task's tree as soon as it is complete. Closing the iterator stops the run.

    Of a run that is resumed, trees that were complete come first.
    """
    plan = Plan(agent, tasks, **options)
    if plan.over:
        for tree in plan.result():
            yield tree
        return
    running = asyncio.ensure_future(plan.execute())
    try:
        for before in plan.finished:
            yield _tree(plan, before)
        while (done := await plan.controller.finished.get()) is not None:
            yield _tree(plan, done)
        await running
    finally:
        plan.controller.stop(at_once=True)
        await asyncio.gather(running, return_exceptions=True)


def _tree(plan: Plan, task_id: str) -> Tree:
    with RunReader.open(plan.path) as reader:
        return reader.tree(task_id)


def _in_a_loop() -> bool:
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _drive(plan: Plan) -> Run:
    """Run in a loop of our own; signals become requests to stop where this thread may handle them."""
    loop = uvloop.new_event_loop()
    main = loop.create_task(plan.execute())
    caught: list[int] = []

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        caught.append(signum)
        if len(caught) == 1:
            loop.call_soon_threadsafe(plan.controller.stop)
        elif len(caught) == 2:
            # In place, because a tool that runs in this process may be blocking the loop. A third one would only keep
            # us from closing the run file.
            loop.call_soon_threadsafe(main.cancel)
            raise KeyboardInterrupt

    with _handling(on_signal):
        try:
            loop.run_until_complete(main)
        except (asyncio.CancelledError, KeyboardInterrupt):
            if not caught:
                raise
        finally:
            _close(loop)
    if caught:
        raise Interrupted(caught[0], plan.result() if plan.path.exists() else None)
    return main.result()


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle what asks a process to end, unless the caller ignores it; the caller's own handlers come back after."""
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


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop within seconds, whatever somebody's code still does in it."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_CLOSE_WITHIN))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _drive_in_thread(plan: Plan) -> Run:
    """Run beside somebody's running loop, in a thread that lives as long as the run.

    Workers die with the thread that started them, which is why it must not end before they do.
    """
    outcome: list[Run | BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            outcome.append(_drive(plan))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            outcome.append(error)
        finally:
            over.set()

    caught: list[int] = []

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        plan.controller.stop_soon(at_once=bool(caught))
        caught.append(signum)

    with _handling(on_signal):
        threading.Thread(target=work, name="trunkline-run").start()
        over.wait()
    if caught:
        raise Interrupted(caught[0], plan.result() if plan.path.exists() else None)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
