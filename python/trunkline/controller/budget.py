"""A run's budget and its time: the ledger, leases on it, the deadline."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline._core import Ledger, Refusal
from trunkline.controller.component import Component
from trunkline.llm import pricing
from trunkline.protocol.messages import RUN_BUDGET, CutTasks, LeaseGrant, LeaseReturn, LeaseRevoke
from trunkline.rollout.budget import Amounts, format_refusal
from trunkline.store.derive import rebuilt, rows
from trunkline.store.reader import RunReader
from trunkline.store.stats.summary import BUDGET, ESTIMATED, BudgetReport, estimated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trunkline.llm.pricing import Price
    from trunkline.protocol.messages import Batch, ToWorker
    from trunkline.rollout.budget import Budget
    from trunkline.store.schema import CallRow, RolloutRow
    from trunkline.store.state import RunProgress
    from trunkline.store.writer import RunWriter


class RunSpending(NamedTuple):
    """Spent amounts, and the part of them that was not measured."""

    amounts: Amounts
    estimated: Amounts


NOTHING: Final = RunSpending({}, {})
"""The spending of a new run."""


def cost_of_call(call: CallRow, prices: Mapping[str, Price]) -> Amounts:
    """Return what a call in the run file cost; nothing for one that a cache answered."""
    if not call.attempts:
        return {}
    if not call.reported:
        return {"calls": max(1, call.draws)}
    return {
        "calls": max(1, call.draws),
        "prompt": call.prompt,
        "generated": call.generated,
        "tokens": call.prompt + call.generated,
        "micro_dollars": pricing.cost_of_call(prices, call.endpoint, call.prompt, call.cached, call.generated),
    }


def spent_in(path: Path, prices: Mapping[str, Price], progress_so_far: RunProgress) -> RunSpending:
    """Return what a run has spent that is continued in its file, given the file's state when it was opened."""
    taken = {task: row.rollouts for task, row in progress_so_far.taken.items()}
    with RunReader.open(path) as reader:
        grown = _grown(reader, progress_so_far.begun)
        own = (row for task, row in grown if row.rollout >= taken.get(task, 0))
        calls = (call for _, call in reader.calls())
        return spent_so_far(calls, own, prices, estimated(reader.meta), ended=progress_so_far.state != "running")


def _grown(reader: RunReader, begun: Sequence[int]) -> Iterator[tuple[int, RolloutRow]]:
    """Yield the rollouts of finished tasks, then those of begun ones."""
    unfinished = set(begun)
    yield from (pair for pair in reader.rollouts() if pair[0] not in unfinished)
    for task in begun:
        yield from ((task, row) for row in rows(rebuilt(reader.deltas(task)))[1])


def spent_so_far(
    calls: Iterable[CallRow],
    rollouts: Iterable[RolloutRow],
    prices: Mapping[str, Price],
    noted: Mapping[str, int] | None = None,
    *,
    ended: bool,
) -> RunSpending:
    """Return what a run has spent, from rows of its file that no earlier run had begun, and what it noted as estimated.

    Unless it ``ended`` in order, each growing rollout may have had a turn in flight, and is charged an average call as
    an estimate.
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
    """A lease that a worker holds."""

    worker_id: int
    drawn: Amounts = {}
    revoked: bool = False


class RunBudget:
    """A run's budget, leased in equal parts of what is left, two for each worker, so that leases shrink near the limit.

    A worker that needs more than is left waits until all leases were returned, and is denied only then. ``closed`` is
    the ledger's reason for the first of ``refused`` denials: no task is begun after it.
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
        self._requests: deque[tuple[int, Amounts]] = deque()
        self._committed: dict[int, Counter[str]] = {}
        self._workers: set[int] = set()
        self._over = False

    @property
    def leases_out(self) -> bool:
        return bool(self._leases)

    def join(self, worker_id: int) -> None:
        self._workers.add(worker_id)

    def request(self, worker_id: int, least: Amounts, want: Amounts) -> None:
        """Grant a lease of ``least`` or more, as soon as there is so much."""
        if not self._over:
            self._requests.append((worker_id, least))
            self._serve()

    def drawn(self, lease: int, most: Amounts) -> None:
        if lease in self._leases:
            self._leases[lease].drawn = most

    def returned(self, worker_id: int, message: LeaseReturn) -> None:
        held = self._leases.pop(message.lease, None)
        if held is None:
            return
        self._ledger.take_back(message.lease, message.used)
        self._estimated.update(message.estimated)
        # The other committed calls of the worker are those of leases that it still holds.
        measured = Counter(message.used) - Counter(message.estimated)
        self._committed.get(held.worker_id, Counter()).subtract(measured)
        self._serve()

    def committed(self, worker_id: int, calls: Iterable[CallRow]) -> None:
        known = self._committed.setdefault(worker_id, Counter())
        for call in calls:
            known.update(cost_of_call(call, self._prices))

    def leave(self, worker_id: int) -> None:
        """Settle a dead worker's leases: its calls in the run file as spent, what else it drew as estimated."""
        self._workers.discard(worker_id)
        self._requests = deque(request for request in self._requests if request[0] != worker_id)
        durable = +self._committed.pop(worker_id, Counter())
        for lease in [number for number, held in self._leases.items() if held.worker_id == worker_id]:
            drawn = Counter(self._leases.pop(lease).drawn)
            # A lease is charged with what it can have paid for; the worker's last one has the rest.
            more = any(held.worker_id == worker_id for held in self._leases.values())
            known = durable & drawn if more else durable
            durable = durable - known
            self._ledger.settle_lost(lease, dict(known), dict(drawn - known))
        self._serve()

    def close(self) -> None:
        self._over = True
        self._requests.clear()

    @property
    def estimated(self) -> Counter[str]:
        """The part of the spent amounts that was not measured."""
        return self._estimated + Counter(self._ledger.estimated)

    def report(self) -> BudgetReport:
        """Return the spent budget for the run file; leases that workers still hold are settled as lost."""
        self.close()
        for worker_id in {held.worker_id for held in self._leases.values()}:
            self.leave(worker_id)
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
        """Answer the requests for which there is enough; revoke all leases for those that wait."""
        requests, self._requests = self._requests, deque()
        for worker_id, least in requests:
            lease = self._ledger.lease(2 * max(1, len(self._workers)), dict(least))
            if not isinstance(lease, Refusal):
                number, ledger = lease
                self._leases[number] = _BudgetLease(worker_id)
                self._send(worker_id, LeaseGrant(RUN_BUDGET, ledger.limits, number))
            elif self._leases:
                self._requests.append((worker_id, least))
            else:
                self.refused += 1
                reason = f"run budget: {format_refusal(lease)}"
                self.closed = self.closed or reason
                self._send(worker_id, LeaseGrant(RUN_BUDGET, {}, denied=reason))
        if self._requests:
            for held in self._leases.values():
                if not held.revoked:
                    held.revoked = True
                    self._send(held.worker_id, LeaseRevoke(RUN_BUDGET))


class RunLimits(Component):
    """Ends a run whose budget or time is used up (``cut`` takes the message for that), and notes its spending."""

    def __init__(self, seconds: float | None, budget: RunBudget | None, cut: Callable[[CutTasks], None]) -> None:
        self._seconds = seconds
        self._budget = budget
        self._noted: Mapping[str, int] = {}
        self._cut = cut
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    @property
    def word(self) -> str | None:
        """``deadline`` or ``budget`` once no task is begun any more because of it."""
        if self._expired:
            return "deadline"
        return "budget" if self._budget is not None and self._budget.closed is not None else None

    @property
    def leases_out(self) -> bool:
        return self._budget is not None and self._budget.leases_out

    def start(self) -> None:
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def on_commit(self, worker_id: int, batch: Batch, seconds: float) -> None:
        if self._budget is not None:
            self._budget.committed(worker_id, (call for delta in batch.deltas for call in delta.calls))

    def on_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def wind_down(self) -> None:
        if self._budget is not None:
            self._budget.close()

    def note(self, writer: RunWriter) -> None:
        """Note estimated amounts in the run file where they have changed; a run that is continued needs them."""
        if self._budget is not None and (estimated := self._budget.estimated) != self._noted:
            writer.note(ESTIMATED, dict(estimated))
            self._noted = estimated

    def report(self, writer: RunWriter) -> None:
        if self._budget is not None:
            writer.note(BUDGET, msgspec.to_builtins(self._budget.report()))
            self.note(writer)

    def _expire(self) -> None:
        self._expired = True
        self._cut(CutTasks("deadline", f"deadline: {self._seconds:g} s for the run"))
