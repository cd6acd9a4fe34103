"""When a run closes: it begins no task any more once its time is over, or its budget has nothing left for somebody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from trunkline.runtime.spent import NOTHING, Spent
from trunkline.runtime.treasury import Treasury
from trunkline.runtime.wire import Cut, Drawn, Repaid, Want
from trunkline.store.funds import BUDGET, ESTIMATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trunkline.runtime.job import Job
    from trunkline.runtime.wire import ToWorker
    from trunkline.store.schema import CallRow
    from trunkline.store.writer import RunWriter

__all__ = ["Closing"]


class Closing:
    """Keeps a run within its budget and its time. Without either it does nothing.

    Args:
        job: What the run does.
        send: Takes a seat and a message for it.
        cut: Takes what ends all growth, once the time is over.
        spent: What the run had spent before, where it goes on; asked for only where there is a budget.
    """

    def __init__(
        self,
        job: Job,
        send: Callable[[int, ToWorker], None],
        cut: Callable[[Cut], None],
        spent: Callable[[], Spent] = lambda: NOTHING,
    ) -> None:
        budget = job.budget
        self._seconds = None if budget is None else budget.seconds
        self._treasury = None
        if budget is not None and budget.limits:
            self._treasury = Treasury(budget, job.prices, send, spent())
        self._noted: Mapping[str, int] = {}
        self._cut = cut
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    @property
    def word(self) -> str | None:
        """``deadline`` or ``budget`` once no task is begun any more."""
        if self._expired:
            return "deadline"
        return "budget" if self._treasury is not None and self._treasury.closed is not None else None

    @property
    def lent(self) -> bool:
        """Whether engines have leases."""
        return self._treasury is not None and self._treasury.lent

    def start(self) -> None:
        """Let the run's time begin."""
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def seat(self, seat: int) -> None:
        """Note that an engine is up."""
        if self._treasury is not None:
            self._treasury.seat(seat)

    def take(self, seat: int, message: Want | Drawn | Repaid) -> None:
        """Take a message about leases."""
        if self._treasury is None:
            return
        match message:
            case Want(least):
                self._treasury.want(seat, least)
            case Drawn(lease, most):
                self._treasury.drawn(lease, most)
            case Repaid(lease, spent, estimated):
                self._treasury.repaid(lease, spent, estimated)

    def committed(self, seat: int, calls: Iterable[CallRow]) -> None:
        """Note calls of an engine that are in the file."""
        if self._treasury is not None:
            self._treasury.committed(seat, calls)

    def lost(self, seat: int) -> None:
        """Take back what a dead engine had."""
        if self._treasury is not None:
            self._treasury.lost(seat)

    def wind_down(self) -> None:
        """Lend nothing any more."""
        if self._treasury is not None:
            self._treasury.stop()

    def close(self) -> None:
        """Forget the time."""
        if self._timer is not None:
            self._timer.cancel()

    def note(self, writer: RunWriter) -> None:
        """Note in the run file what nobody measured, where that has changed: whoever goes on with the run must know."""
        if self._treasury is not None and (estimated := self._treasury.estimated) != self._noted:
            writer.note(ESTIMATED, dict(estimated))
            self._noted = estimated

    def report(self, writer: RunWriter) -> None:
        """Note in the run file what the budget came to; leases that never came back count as those of the dead do."""
        if self._treasury is not None:
            writer.note(BUDGET, msgspec.to_builtins(self._treasury.report()))
            self.note(writer)

    def _expire(self) -> None:
        self._expired = True
        self._cut(Cut("deadline", f"deadline: {self._seconds:g} s for the run"))
