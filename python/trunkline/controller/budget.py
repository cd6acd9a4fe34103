"""Run ledger, leases, deadline."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline._core import CoreTree, Ledger, Refusal
from trunkline.controller.component import Component
from trunkline.llm.pricing import price_at
from trunkline.protocol.messages import (
    CutTasks,
    LeaseDenied,
    LeaseDrawn,
    LeaseGrant,
    LeaseRequest,
    LeaseReturn,
    LeaseRevoke,
)
from trunkline.rollout.budget import Amounts, cost, format_refusal
from trunkline.store.derive import rows
from trunkline.store.reader import RunReader
from trunkline.store.stats.summary import BUDGET, ESTIMATED, BudgetReport, estimated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trunkline.controller.component import Death
    from trunkline.llm.pricing import Price
    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import Batch, ToWorker
    from trunkline.rollout.budget import Budget
    from trunkline.store.schema import CallRow, RolloutRow
    from trunkline.store.state import RunProgress
    from trunkline.store.writer import RunWriter


__all__ = ["NOTHING", "RunBudget", "RunLimits", "RunSpending", "cost_of_call", "spent_in", "spent_so_far"]


class RunSpending(NamedTuple):
    """What was spent.

    Attributes:
        amounts: All of it.
        estimated: The part of it that nobody measured.
    """

    amounts: Amounts
    estimated: Amounts


NOTHING: Final = RunSpending({}, {})
"""What a run has spent that begins."""


def cost_of_call(call: CallRow, prices: Mapping[str, Price]) -> Amounts:
    """Return what a call in the file did cost; nothing if it came out of a cache."""
    if not call.attempts:
        return {}
    if not call.reported:
        return {"calls": max(1, call.draws)}
    price = price_at(prices, call.endpoint)
    cached = min(max(0, call.cached), call.prompt)
    return {
        "calls": max(1, call.draws),
        "prompt": call.prompt,
        "generated": call.generated,
        "tokens": call.prompt + call.generated,
        "micro_dollars": 0 if price is None else cost(price, call.prompt, cached, call.generated),
    }


def spent_in(path: Path, prices: Mapping[str, Price], progress_so_far: RunProgress) -> RunSpending:
    """Return what a run has spent that goes on in its file.

    Args:
        path: The file.
        prices: Prices by base URL.
        progress_so_far: What the file held when it was opened to go on.
    """
    taken = {task: row.rollouts for task, row in progress_so_far.taken.items()}
    with RunReader.open(path) as reader:
        grown = _grown(reader, progress_so_far.begun)
        own = (row for task, row in grown if row.rollout >= taken.get(task, 0))
        calls = (call for _, call in reader.calls())
        return spent_so_far(calls, own, prices, estimated(reader.meta), ended=progress_so_far.state != "running")


def _grown(reader: RunReader, begun: Sequence[int]) -> Iterator[tuple[int, RolloutRow]]:
    """Yield the rollouts of finished tasks, and then those of tasks that were begun and are not finished."""
    unfinished = set(begun)
    yield from (pair for pair in reader.rollouts() if pair[0] not in unfinished)
    for task in begun:
        core = CoreTree()
        for data in reader.deltas(task):
            core.apply(data)
        yield from ((task, row) for row in rows(core)[1])


def spent_so_far(
    calls: Iterable[CallRow],
    rollouts: Iterable[RolloutRow],
    prices: Mapping[str, Price],
    noted: Mapping[str, int] | None = None,
    *,
    ended: bool,
) -> RunSpending:
    """Return what a run has spent, from the rows of its file.

    Args:
        calls: Its calls.
        rollouts: Its rollouts, those of unfinished trees among them; none that an earlier run had begun.
        prices: Prices by base URL.
        noted: What was noted in it of what nobody measured, which is in no row.
        ended: Whether it did so the last time. Where it did not, each rollout that still grows may have had a turn in
            flight: it is charged a call like the others, as an estimate.
    """
    amounts: Counter[str] = Counter()
    guessed = Counter(noted or {})
    for call in calls:
        amounts.update(cost_of_call(call, prices))
    growing = 0
    for row in rollouts:
        amounts.update(rollouts=1, tools=row.tools)
        growing += row.termination is None
    if not ended:
        number = max(1, amounts["calls"])
        usual = {name: -(-amounts[name] // number) for name in ("prompt", "generated", "tokens", "micro_dollars")}
        guessed.update({name: growing * each for name, each in ({"calls": 1} | usual).items()})
    return RunSpending(dict(amounts + guessed), dict(+guessed))


class _BudgetLease(msgspec.Struct):
    """A lease that is out."""

    worker_id: int
    drawn: Amounts = {}
    recalled: bool = False


class RunBudget:
    """Lends out a run's budget.

    Leases are equal parts of what is left, so they shrink as the limit comes near; who needs more than is left waits
    until the leases that are out have come back, and is denied only then.

    Args:
        budget: The budget.
        prices: Prices by base URL.
        send: Takes a seat and a message for it.
        spent: What the run had spent before, where it goes on.

    Attributes:
        refused: How often something was not paid for.
        closed: The ledger's words when somebody was denied first: nothing new is begun from then on.
    """

    def __init__(
        self,
        budget: Budget,
        prices: Mapping[str, Price],
        send: Callable[[int, ToWorker], None],
        spent: RunSpending = NOTHING,
    ) -> None:
        self.refused = 0
        self.closed: str | None = None
        self._budget = budget
        self._prices = prices
        self._send = send
        self._ledger = Ledger(budget.limits, *spent)
        self._estimated: Counter[str] = Counter()
        self._leases: dict[int, _BudgetLease] = {}
        self._wants: deque[tuple[int, Amounts]] = deque()
        self._committed: dict[int, Counter[str]] = {}
        self._workers: set[int] = set()
        self._over = False

    @property
    def leases_out(self) -> bool:
        """Whether leases are out."""
        return bool(self._leases)

    def add_worker(self, worker_id: int) -> None:
        """Note that an engine is up: there are two parts for each."""
        self._workers.add(worker_id)

    def want(self, worker_id: int, least: Amounts) -> None:
        """Lend an engine something, as soon as there is so much."""
        if not self._over:
            self._wants.append((worker_id, least))
            self._serve()

    def stop(self) -> None:
        """Lend nothing any more: the run is winding down."""
        self._over = True
        self._wants.clear()

    def drawn(self, lease: int, most: Amounts) -> None:
        """Note how much of a lease an engine may have drawn."""
        if lease in self._leases:
            self._leases[lease].drawn = most

    def repaid(self, lease: int, spent: Amounts, estimated: Amounts) -> None:
        """Take a lease back."""
        held = self._leases.pop(lease, None)
        if held is None:
            return
        self._ledger.take_back(lease, spent)
        self._estimated.update(estimated)
        # What is left of it are calls of leases that are still out.
        self._committed.get(held.worker_id, Counter()).subtract(Counter(spent) - Counter(estimated))
        self._serve()

    def committed(self, worker_id: int, calls: Iterable[CallRow]) -> None:
        """Note calls of an engine that are in the file."""
        known = self._committed.setdefault(worker_id, Counter())
        for call in calls:
            known.update(cost_of_call(call, self._prices))

    def lost(self, worker_id: int) -> None:
        """Take the leases of a dead engine back: what is in the file is spent, and the rest of what it drew may be."""
        self._workers.discard(worker_id)
        self._wants = deque(want for want in self._wants if want[0] != worker_id)
        durable = +self._committed.pop(worker_id, Counter())
        for lease in [number for number, held in self._leases.items() if held.worker_id == worker_id]:
            drawn = Counter(self._leases.pop(lease).drawn)
            # A lease is charged with what it can have paid for; the last of a seat's leases has the rest.
            known = (
                durable if not any(held.worker_id == worker_id for held in self._leases.values()) else durable & drawn
            )
            durable = durable - known
            self._ledger.settle_lost(lease, dict(known), dict(drawn - known))
        self._serve()

    @property
    def estimated(self) -> Counter[str]:
        """The part of what was spent that nobody measured."""
        return self._estimated + Counter(self._ledger.estimated)

    def report(self) -> BudgetReport:
        """What the run's budget came to, for the run file; leases that are still out will not come back."""
        self.stop()
        for worker_id in {held.worker_id for held in self._leases.values()}:
            self.lost(worker_id)
        ledger, estimated = self._ledger, self.estimated
        spent, overshoot = ledger.spent, ledger.overshoot
        return BudgetReport(
            limits=ledger.limits,
            spent={name: spent[name] for name in ledger.limits},
            estimated={name: estimated[name] for name in ledger.limits},
            overshoot={name: overshoot[name] for name in ledger.limits},
            refused=self.refused,
            closed=self.closed,
        )

    def _serve(self) -> None:
        """Lend to everybody who waits and for whom there is enough."""
        waiting, self._wants = self._wants, deque()
        for worker_id, least in waiting:
            lease = self._ledger.lease(2 * max(1, len(self._workers)), dict(least))
            if not isinstance(lease, Refusal):
                number, ledger = lease
                self._leases[number] = _BudgetLease(worker_id)
                self._send(worker_id, LeaseGrant(number, ledger.limits))
            elif self._leases:
                self._wants.append((worker_id, least))
            else:
                self.refused += 1
                reason = f"run budget: {format_refusal(lease)}"
                self.closed = self.closed or reason
                self._send(worker_id, LeaseDenied(reason))
        if self._wants:
            self._recall()

    def _recall(self) -> None:
        for held in self._leases.values():
            if not held.recalled:
                held.recalled = True
                self._send(held.worker_id, LeaseRevoke())


class RunLimits(Component):
    """Keeps a run within its budget and its time. Without either it does nothing.

    Args:
        job: What the run does.
        send: Takes a seat and a message for it.
        cut: Takes what ends all growth, once the time is over.
        spent: What the run had spent before, where it goes on; asked for only where there is a budget.
    """

    handles = (LeaseRequest, LeaseDrawn, LeaseReturn)

    def __init__(
        self,
        job: Job,
        send: Callable[[int, ToWorker], None],
        cut: Callable[[CutTasks], None],
        spent: Callable[[], RunSpending] = lambda: NOTHING,
    ) -> None:
        budget = job.budget
        self._seconds = None if budget is None else budget.seconds
        self._run_budget = None
        if budget is not None and budget.limits:
            self._run_budget = RunBudget(budget, job.prices, send, spent())
        self._noted: Mapping[str, int] = {}
        self._cut = cut
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    @property
    def word(self) -> str | None:
        """``deadline`` or ``budget`` once no task is begun any more."""
        if self._expired:
            return "deadline"
        return "budget" if self._run_budget is not None and self._run_budget.closed is not None else None

    @property
    def leases_out(self) -> bool:
        """Whether engines have leases."""
        return self._run_budget is not None and self._run_budget.leases_out

    def start(self) -> None:
        """Let the run's time begin."""
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def on_ready(self, worker_id: int, slots: int) -> None:
        if self._run_budget is not None:
            self._run_budget.add_worker(worker_id)

    def on_message(self, worker_id: int, message: LeaseRequest | LeaseDrawn | LeaseReturn) -> None:
        if self._run_budget is None:
            return
        match message:
            case LeaseRequest(least):
                self._run_budget.want(worker_id, least)
            case LeaseDrawn(lease, most):
                self._run_budget.drawn(lease, most)
            case LeaseReturn(lease, spent, estimated):
                self._run_budget.repaid(lease, spent, estimated)

    def on_commit(self, worker_id: int, batch: Batch, seconds: float) -> None:
        if self._run_budget is not None:
            self._run_budget.committed(worker_id, (call for delta in batch.deltas for call in delta.calls))

    def on_lost(self, worker_id: int, death: Death) -> None:
        if self._run_budget is not None:
            self._run_budget.lost(worker_id)

    def wind_down(self) -> None:
        """Lend nothing any more."""
        if self._run_budget is not None:
            self._run_budget.stop()

    def on_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, writer: RunWriter) -> None:
        """Note in the run file what nobody measured, where that has changed: whoever goes on with the run must know."""
        if self._run_budget is not None and (estimated := self._run_budget.estimated) != self._noted:
            writer.note(ESTIMATED, dict(estimated))
            self._noted = estimated

    def report(self, writer: RunWriter) -> None:
        """Note in the run file what the budget came to; leases that never came back count as those of the dead do."""
        if self._run_budget is not None:
            writer.note(BUDGET, msgspec.to_builtins(self._run_budget.report()))
            self.note(writer)

    def _expire(self) -> None:
        self._expired = True
        self._cut(CutTasks("deadline", f"deadline: {self._seconds:g} s for the run"))
