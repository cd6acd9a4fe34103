"""The front door: ``run`` for scripts and notebooks, ``arun`` and ``stream`` for code that has an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Unpack

import uvloop

from trunkline.runtime.plan import Options, Plan
from trunkline.store.runfile import RunReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from trunkline.rollout.agent import Agent
    from trunkline.runtime.result import Run
    from trunkline.tree.tree import Tree
    from trunkline.types import Task

__all__ = ["Interrupted", "arun", "run", "stream"]


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal; what had grown by then is in its file.

    Args:
        signum: The signal.
        path: The run file.
    """

    def __init__(self, signum: int, path: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}; what has grown is in {path}")
        self.signum = signum
        self.path = path


def run(agent: Agent, tasks: Iterable[Task], **options: Unpack[Options]) -> Run:
    """Run an agent over tasks and wait until every tree is complete.

    Ctrl-C stops the run and keeps what has grown; a second one does not wait for it. Inside a running event loop, as
    in a notebook, the run goes on in a thread of its own.

    Args:
        agent: Who plays.
        tasks: The problems; their ids must be unique.
        **options: See :class:`trunkline.runtime.plan.Options`.

    Raises:
        UsageError: If something in the call cannot be done; nothing was sent and no file is left.
        EndpointError: If the endpoint serves nobody.
        InfrastructureError: If workers or the run file fail.
        Interrupted: On SIGINT or SIGTERM, after the run file was closed.
    """
    plan = Plan(agent, tasks, **options)
    return _drive_in_thread(plan) if _in_a_loop() else _drive(plan)


async def arun(agent: Agent, tasks: Iterable[Task], **options: Unpack[Options]) -> Run:
    """Like :func:`run`, in the running event loop. Cancelling it ends every process it started."""
    return await Plan(agent, tasks, **options).execute()


async def stream(agent: Agent, tasks: Iterable[Task], **options: Unpack[Options]) -> AsyncIterator[Tree]:
    """Like :func:`arun`, yielding each task's tree as soon as it is complete. Closing the iterator stops the run."""
    plan = Plan(agent, tasks, **options)
    running = asyncio.ensure_future(plan.execute())
    try:
        while (done := await plan.controller.finished.get()) is not None:
            with RunReader.open(plan.path) as reader:
                tree = reader.tree(done)
            yield tree
        await running
    finally:
        plan.controller.stop()
        await asyncio.gather(running, return_exceptions=True)


def _in_a_loop() -> bool:
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _drive(plan: Plan) -> Run:
    """Run in a loop of our own; signals become requests to stop where this thread may handle them."""
    caught: list[int] = []

    async def guarded() -> Run:
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        assert own is not None

        def on_signal(signum: int) -> None:
            if caught:
                own.cancel()
            caught.append(signum)
            plan.controller.stop()

        handled = []
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(signum, on_signal, signum)
                handled.append(signum)
        try:
            return await plan.execute()
        finally:
            for signum in handled:
                loop.remove_signal_handler(signum)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(guarded())
    except asyncio.CancelledError:
        if not caught:
            raise
    if caught:
        raise Interrupted(caught[0], plan.path)
    return result


def _drive_in_thread(plan: Plan) -> Run:
    """Run beside somebody's running loop, in a thread that lives as long as the run.

    Workers die with the thread that started them, which is why it must not end before they do.
    """
    outcome: list[Run | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_drive(plan))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=work, name="trunkline-run")
    thread.start()
    interrupt: KeyboardInterrupt | None = None
    while thread.is_alive():
        with contextlib.suppress(KeyboardInterrupt):
            thread.join()
            continue
        interrupt = Interrupted(signal.SIGINT, plan.path)
        plan.controller.stop_soon()
    if interrupt is not None:
        raise interrupt
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
