"""Draws of one state that are asked for at the same time, gathered into one request."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trunkline.errors import copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trunkline.errors import RolloutError
    from trunkline.rollout.desk import Ask, Desk
    from trunkline.rollout.turns import Turn

__all__ = ["Siblings", "together"]


def together(desk: Desk, points: Iterable[int]) -> dict[int, Siblings]:
    """Return where more than one draw is taken: these are asked for together, whoever takes them.

    Args:
        desk: Where the requests go.
        points: Where draws are taken, one after the other.
    """
    return {point: Siblings(desk) for point, draws in Counter(points).items() if draws > 1}


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
        waiting, self._waiting = self._waiting, []
        for run in _runs(waiting):
            task = asyncio.get_running_loop().create_task(self._run(run))
            self._desk.sent.add(task)
            task.add_done_callback(self._desk.sent.discard)
            _Watch(task, run)

    async def _run(self, run: list[_Waiter]) -> None:
        """Ask for one run, and tell each in it what became of its draw."""

        def told(place: int, outcome: Turn | RolloutError) -> None:
            if not (turn := run[place].turn).done():
                turn.set_result(outcome)

        try:
            await self._desk.ask([waiter.ask for waiter in run], told)
        except Exception as error:  # noqa: BLE001 - it is raised again where the rollouts wait
            for waiter in run:
                if not waiter.turn.done():
                    # Each gets an exception of its own, as each adds its own traceback.
                    waiter.turn.set_exception(copied(error))


class _Watch:
    """Gives a run up when nobody waits for it any more."""

    def __init__(self, task: asyncio.Task[None], run: Sequence[_Waiter]) -> None:
        self._task = task
        self._waiting = len(run)
        self._stopped = False
        for waiter in run:
            waiter.turn.add_done_callback(self._over)

    def _over(self, turn: asyncio.Future[Turn | RolloutError]) -> None:
        self._waiting -= 1
        self._stopped |= turn.cancelled()
        if self._stopped and not self._waiting:
            self._task.cancel()


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
