"""Draws of one state that are asked for at the same time, gathered into one request."""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.errors import RolloutError
    from trunkline.rollout.desk import Ask, Desk
    from trunkline.rollout.turns import Turn

__all__ = ["Siblings"]


class _Waiter(NamedTuple):
    ask: Ask
    turn: asyncio.Future[Turn | RolloutError]


class Siblings:
    """First turns of the rollouts of one fork: draws of one state, sent as one request.

    What is asked within one turn of the event loop is gathered. Rollouts whose programs ask at different times, or
    different things, are asked for apart; their seeds, and so their replies, are the same either way.

    Args:
        desk: Where the requests go.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: list[_Waiter] = []
        self._sent: set[asyncio.Task[None]] = set()

    async def ask(self, ask: Ask) -> Turn | RolloutError:
        """Ask one question; see :meth:`Desk.ask`."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(ask, loop.create_future())
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            loop.call_soon(self._send)
        return await waiter.turn

    def _send(self) -> None:
        """Send what was gathered: a request for each run of draws."""
        loop = asyncio.get_running_loop()
        waiting, self._waiting = self._waiting, []
        for run in _runs(waiting):
            task = loop.create_task(self._run(run))
            self._sent.add(task)
            task.add_done_callback(self._sent.discard)
            for waiter in run:
                waiter.turn.add_done_callback(partial(_abandon, task, run))

    async def _run(self, run: list[_Waiter]) -> None:
        """Ask for one run, and tell everybody in it."""
        try:
            outcomes = await self._desk.ask([waiter.ask for waiter in run])
        except Exception as error:  # noqa: BLE001 - it is raised again where the rollouts wait
            for waiter in run:
                if not waiter.turn.done():
                    waiter.turn.set_exception(copy.copy(error))
            return
        for waiter, outcome in zip(run, outcomes, strict=True):
            if not waiter.turn.done():
                waiter.turn.set_result(outcome)


def _runs(waiting: list[_Waiter]) -> Iterator[list[_Waiter]]:
    """Cut what waits into runs of equal questions with consecutive seeds, leaving out who was cancelled meanwhile."""
    live = [waiter for waiter in waiting if not waiter.turn.done()]
    live.sort(key=lambda waiter: (waiter.ask.leaf, waiter.ask.seed))
    run = live[:1]
    for waiter in live[1:]:
        if not waiter.ask.follows(run[-1].ask):
            yield run
            run = []
        run.append(waiter)
    if run:
        yield run


def _abandon(task: asyncio.Task[None], run: list[_Waiter], _: object) -> None:
    """Give a request up when nobody waits for it any more."""
    if all(waiter.turn.cancelled() for waiter in run):
        task.cancel()
