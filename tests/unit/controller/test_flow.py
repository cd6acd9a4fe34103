"""Rates on loan: what all engines send in a minute, that they use what there is, and that everybody gets his part."""

from __future__ import annotations

import random
from collections import deque

import pytest
from limit_leases import Timers

from trunkline.controller.leases import _SLICE, RateAllocator
from trunkline.llm.limits.token_bucket import limits_of
from trunkline.llm.types import Limits
from trunkline.protocol import messages
from trunkline.worker.leases import RateLeases

DELAY = 0.003
"""Seconds of a message."""


class Sender:
    """An engine that wants to send so many requests a second.

    Args:
        rates: What it was allotted.
        wants: Requests a second.
        cost: From a number of draws to (what is set aside for a request, what its reply takes).
    """

    def __init__(self, rates: RateLeases, time: Timers, wants: float, latency: float, cost) -> None:
        self.rates, self.time, self.wants, self.latency, self.cost = rates, time, wants, latency, cost
        self.queue: deque[tuple[int, int]] = deque()
        self.sent: list[tuple[float, int, int]] = []
        rates.waiting = lambda: len(self.queue)
        self._more()
        self._tick()

    def _more(self) -> None:
        if len(self.queue) < 200:
            self.queue.append(self.cost())
        self.pump()
        self.time.later(1 / self.wants, self._more)

    def _tick(self) -> None:
        self.rates.unused()
        self.time.later(0.25, self._tick)

    def pump(self) -> None:
        while self.queue:
            booked, spent = self.queue[0]
            if self.rates.acquire(1, booked) > 0:
                return
            self.queue.popleft()
            self.sent.append((self.time.now, booked, spent))
            self.time.later(self.latency, lambda more=spent - booked: self._settle(more))

    def _settle(self, more: int) -> None:
        self.rates.acquire(0, more)
        self.pump()


class Office:
    """A flow and its engines."""

    def __init__(self, limits: Limits, wants: list[float], latency: float, cost) -> None:
        self.time = Timers()
        buckets = limits_of(limits.requests_per_minute, limits.tokens_per_minute, self.time)
        self.flow = RateAllocator("rates", *buckets, self._give, self.time.later)
        self.senders: list[Sender] = []
        for worker_id, want in enumerate(wants):
            self.flow.join(worker_id)
            rates = RateLeases("rates", limits, lambda message, worker_id=worker_id: self._send(worker_id, message))
            self.senders.append(Sender(rates, self.time, want, latency, cost))

    def _send(self, worker_id: int, message: object) -> None:
        match message:
            case messages.LeaseRequest("rates", least, want):
                self.time.later(DELAY, lambda: self.flow.request(worker_id, least, want))
            case messages.LeaseReturn("rates"):
                self.time.later(DELAY, lambda: self.flow.returned(worker_id, message))
            case _:
                raise AssertionError(message)

    def _give(self, worker_id: int, message: messages.LeaseGrant) -> None:
        def arrive() -> None:
            self.senders[worker_id].rates.granted(message)
            self.senders[worker_id].pump()

        self.time.later(DELAY, arrive)

    def run(self, seconds: float) -> list[tuple[float, int, int]]:
        while self.time.pop(seconds):
            pass
        return sorted(sent for sender in self.senders for sent in sender.sent)


UNEQUAL = [0.2, 0.5, 1, 2, 5, 10, 50, 200]


@pytest.mark.parametrize("minute", [30, 600, 6000])
def test_eight_engines_of_unequal_demand_use_what_requests_there_are_and_no_more(minute: int):
    office = Office(Limits(requests_per_minute=minute), UNEQUAL, 2.0, lambda: (0, 0))
    seconds = 600 if minute < 6000 else 150
    sent = office.run(seconds)
    rate = minute / 60
    wanted = min(rate, sum(UNEQUAL))
    assert len(sent) >= 0.95 * seconds * wanted
    burst = max(1.0, rate)
    for begin, *_ in sent[:: max(1, len(sent) // 200)]:
        through = sum(begin <= moment < begin + 60 for moment, *_ in sent)
        assert through <= 60 * rate + burst + rate * _SLICE + 1
    for sender, want in zip(office.senders, UNEQUAL, strict=True):
        assert len(sender.sent) >= 0.9 * seconds * min(want, rate / len(UNEQUAL)) - 1


def test_tokens_that_replies_did_not_take_are_used_by_others():
    dice = random.Random(5)
    office = Office(Limits(tokens_per_minute=600_000), UNEQUAL, 4.0, lambda: (4000, dice.choice([200, 400, 900, 3900])))
    sent = office.run(600)
    rate, burst = 10_000, 50_000
    spent = sum(tokens for _, _, tokens in sent)
    assert spent >= 0.95 * 600 * rate
    for begin, *_ in sent[::20]:
        through = sum(tokens for moment, _, tokens in sent if begin <= moment < begin + 60)
        flying = sum(booked for moment, booked, _ in sent if begin - 4 <= moment < begin)
        assert through <= 60 * rate + burst + flying + rate * _SLICE + 4000
    for sender, want in zip(office.senders, UNEQUAL, strict=True):
        due = min(want, rate / len(UNEQUAL) / 4000)
        assert len(sender.sent) >= 0.8 * 600 * due - 1


def test_replies_that_take_more_than_was_set_aside_are_paid_before_anything_else_is_sent():
    office = Office(Limits(tokens_per_minute=60_000), [5.0, 5.0], 1.0, lambda: (100, 1000))
    sent = office.run(600)
    spent = sum(tokens for _, _, tokens in sent)
    assert 0.95 * 600_000 <= spent <= 600_000 + 5_000 + 10 * 1000 + 5_000


def test_a_request_that_is_larger_than_the_burst_goes_when_all_is_there_and_others_wait_for_it():
    office = Office(Limits(tokens_per_minute=6000), [1.0], 1.0, lambda: (2000, 2000))
    assert [moment for moment, *_ in office.run(70)] == pytest.approx([DELAY * 2, 20, 40, 60], abs=1.0)


def test_messages_are_few_however_fast_requests_are():
    office = Office(Limits(requests_per_minute=60_000), [1000.0, 1000.0], 0.1, lambda: (0, 0))
    count = [0]
    inner = office.flow._send

    def counted(*given: object) -> None:
        count[0] += 1
        inner(*given)

    office.flow._send = counted
    sent = office.run(20)
    assert len(sent) >= 0.95 * 20_000
    assert count[0] <= len(sent) / 8
