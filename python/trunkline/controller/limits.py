"""Slots and rates, max-min fair."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from trunkline.controller.component import Component
from trunkline.llm.config import EndpointSpec
from trunkline.llm.limits.token_bucket import limits_of
from trunkline.protocol.job import parties
from trunkline.protocol.messages import (
    Amount,
    RateGrant,
    RateRequest,
    RateReturn,
    SlotGrant,
    SlotRequest,
    SlotReturn,
    SlotRevoke,
    for_llm,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline._internal.aio import Timer
    from trunkline.controller.component import Death
    from trunkline.llm.limits.token_bucket import TokenBucket
    from trunkline.protocol.messages import ToWorker


__all__ = ["LimitLeaseServer", "LimitLeaseServers", "RateAllocator", "SlotAllocator", "max_min_shares"]


def max_min_shares(total: int, wishes: Mapping[int, int]) -> dict[int, int]:
    """Divide by max-min fairness: small wishes are granted whole, and large ones share what is left equally.

    Args:
        total: What there is.
        wishes: Who wants how much. Where it does not divide evenly, the last of equal wishes get one more.
    """
    shares: dict[int, int] = {}
    left = total
    for place, (worker_id, wish) in enumerate(sorted(wishes.items(), key=lambda item: item[1])):
        share = min(wish, left // (len(wishes) - place))
        shares[worker_id] = share
        left -= share
    return shares


class _SlotHolder(msgspec.Struct):
    """One engine.

    Attributes:
        wish: How many slots it could use.
        held: How many it holds, those that it was told to give back among them.
        reclaimed: How many it was told to give back, and has not yet.
        served: When it was granted something last, as a number that grows.
    """

    wish: int
    held: int = 0
    reclaimed: int = 0
    served: int = -1


class SlotAllocator:
    """Slots of one kind.

    What is lent and what is left are always all there is. An engine keeps what it holds until somebody else has less
    than a fair share and wants more; a slot changes hands only when its request is over.

    Args:
        total: How many there are.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._holders: dict[int, _SlotHolder] = {}
        self._turns = count()

    @property
    def left(self) -> int:
        """Slots that nobody holds."""
        return self.total - sum(holder.held for holder in self._holders.values())

    def held(self, worker_id: int) -> int:
        """Slots that an engine holds."""
        return self._holders[worker_id].held

    def join(self, worker_id: int, wish: int) -> None:
        """Note an engine, and what it is to have at first."""
        self._holders[worker_id] = _SlotHolder(wish)

    def ask(self, worker_id: int, wish: int) -> None:
        """Note how many slots an engine could use, those it holds among them."""
        self._holders[worker_id].wish = wish

    def give_back(self, worker_id: int, slots: int) -> None:
        """Take slots back, reclaimed or not."""
        holder = self._holders[worker_id]
        slots = min(slots, holder.held)
        holder.held -= slots
        holder.reclaimed = max(0, holder.reclaimed - slots)

    def leave(self, worker_id: int) -> None:
        """Take everything back from an engine that is gone: its requests are over, since its sockets are closed."""
        self._holders.pop(worker_id, None)

    def settle(self) -> dict[int, int]:
        """Lend what is left to whom it is due; return what each engine gets, or less than 0 for what it is to return.

        Who was granted nothing for longest comes first.
        """
        newest = dict(sorted(self._holders.items(), key=lambda item: -item[1].served))
        shares = self._shares(newest)
        changes: dict[int, int] = {}
        left, short = self.left, 0
        for worker_id, holder in reversed(newest.items()):
            lacking = max(0, shares[worker_id] - holder.held)
            granted = min(lacking, left)
            if granted:
                left -= granted
                holder.held += granted
                holder.served = next(self._turns)
                changes[worker_id] = granted
            short += lacking - granted
        short -= sum(holder.reclaimed for holder in newest.values())
        for worker_id, holder in newest.items():
            taken = min(short, holder.held - holder.reclaimed - shares[worker_id])
            if taken > 0:
                holder.reclaimed += taken
                short -= taken
                changes[worker_id] = -taken
        return changes

    def _shares(self, newest: dict[int, _SlotHolder]) -> dict[int, int]:
        """What is due to each. What cannot be divided stays where it is, but for a slot that several take in turns."""
        if self.total >= len(newest):
            newest = dict(sorted(newest.items(), key=lambda item: item[1].held))
        return max_min_shares(self.total, {worker_id: holder.wish for worker_id, holder in newest.items()})


_SLICE = 0.25
"""Seconds of a rate that all engines together are given ahead of what they need at once."""

_GATHER = 0.05
"""Seconds at least from one portion to the next where all is taken as it flows, so that few messages are needed."""


class _Draw(msgspec.Struct):
    """What an engine waits for: at least so much, and at most so much, of requests and tokens."""

    worker_id: int
    least: Amount
    most: Amount


class RateAllocator:
    """Portions rates out, first come first served, a slice of time ahead.

    Who was given something and wants more comes again after all others who wait, so all who are short have equal parts.
    In any minute engines are given at most what the buckets let through; what they send in it beyond that they were
    given before, and that is no more than a slice, and replies that took less than was set aside for them.

    Args:
        requests: What requests are taken from; None where they are not limited.
        tokens: What tokens are taken from; likewise.
        give: Takes a seat, requests and tokens for it.
        later: Calls a function after so many seconds; the running loop's ``call_later`` when None.
    """

    def __init__(
        self,
        requests: TokenBucket | None,
        tokens: TokenBucket | None,
        give: Callable[[int, int, int], None],
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        self._buckets = (requests, tokens)
        self._give = give
        self._later = later
        self._waiting: deque[_Draw] = deque()
        self._workers: set[int] = set()
        self._timer: Timer | None = None
        self._long = False

    def join(self, worker_id: int) -> None:
        """Note an engine."""
        self._workers.add(worker_id)

    def draw(self, worker_id: int, least: Amount, most: Amount) -> None:
        """Give an engine something as soon as the least it needs is there; in the place of what it waits for now."""
        for draw in self._waiting:
            if draw.worker_id == worker_id:
                draw.least, draw.most = least, most
                break
        else:
            self._waiting.append(_Draw(worker_id, least, most))
        self._serve()

    def refund(self, requests: int, tokens: int) -> None:
        """Take back what an engine did not use; less than 0 is what it used beyond what it had."""
        for bucket, amount in zip(self._buckets, (requests, tokens), strict=True):
            if bucket is not None:
                bucket.take(-amount)
        self._hurry()

    def leave(self, worker_id: int) -> None:
        """Forget an engine that is gone: what it was given counts as used."""
        self._workers.discard(worker_id)
        self._waiting = deque(draw for draw in self._waiting if draw.worker_id != worker_id)
        self._hurry()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._long = False

    def _serve(self) -> None:
        """Give to those who wait, in their order, unless all was taken a moment ago."""
        if self._timer is not None:
            return
        short = False
        while self._waiting:
            wait = self._wait(self._waiting[0].least)
            if wait > 0:
                self._again(max(wait, _GATHER))
                return
            given = self._portion(self._waiting[0])
            draw = self._waiting.popleft()
            for bucket, amount in zip(self._buckets, given, strict=True):
                if bucket is not None:
                    bucket.take(amount)
            self._give(draw.worker_id, *given)
            short = short or given[0] < draw.most[0] or given[1] < draw.most[1]
        if short:
            # More is wanted than flows: let something gather.
            self._again(_GATHER)

    def _hurry(self) -> None:
        """Look again soon: what the first one waits for may be there earlier than it seemed."""
        if self._long:
            self.close()
            self._again(_GATHER)

    def _again(self, seconds: float) -> None:
        self._long = seconds > _GATHER
        later = self._later or asyncio.get_running_loop().call_later
        self._timer = later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self._long = False
        self._serve()

    def _portion(self, draw: _Draw) -> Amount:
        """What an engine gets: the least it needs, or its part of a slice, or its part of what is there, if more."""
        part = 1.0
        for bucket, most in zip(self._buckets, draw.most, strict=True):
            if bucket is not None and most > 0:
                ahead = bucket.rate * _SLICE / max(1, len(self._workers))
                part = min(part, ahead / most, max(0.0, bucket.level) / len(self._waiting) / most)
        least, more = draw.least, draw.most
        return max(least[0], int(more[0] * part)), max(least[1], int(more[1] * part))

    def _wait(self, amount: Amount) -> float:
        return max((b.wait(a) for b, a in zip(self._buckets, amount, strict=True) if b is not None), default=0.0)


class LimitLeaseServer:
    """Lends engines in other processes the slots and rates of a run. An engine in this process has its own.

    Args:
        llm: Whose limits.
        workers: How many engines there are to be in other processes.
        send: Takes a seat and a message for it.
    """

    def __init__(self, llm: object, workers: int, send: Callable[[int, ToWorker], None]) -> None:
        self._send = send
        self._workers: set[int] = set()
        self._stocks: list[SlotAllocator] = []
        self._rates: RateAllocator | None = None
        if workers and isinstance(llm, EndpointSpec):
            self._parties = parties(llm, workers)
            self._open(llm)

    def held(self, worker_id: int) -> int:
        """How many requests of an engine may be in flight."""
        return self._stocks[0].held(worker_id) if self._stocks and worker_id in self._workers else 0

    def add_worker(self, worker_id: int) -> None:
        """Note that an engine is up, and lend it an equal part."""
        self._workers.add(worker_id)
        for allocator in self._stocks:
            allocator.join(worker_id, -(-allocator.total // self._parties))
        if self._rates is not None:
            self._rates.join(worker_id)
        self._settle()

    def take(self, worker_id: int, message: SlotRequest | SlotReturn | RateRequest | RateReturn) -> None:
        """Take a message about slots or rates."""
        if worker_id not in self._workers:
            return
        match message:
            case SlotRequest(slots):
                for allocator, wish in zip(self._stocks, slots, strict=True):
                    allocator.ask(worker_id, wish)
                self._settle()
            case SlotReturn(slots, wishes):
                for allocator, back, wish in zip(self._stocks, slots, wishes, strict=True):
                    allocator.give_back(worker_id, back)
                    allocator.ask(worker_id, wish)
                self._settle()
            case RateRequest(least, most) if self._rates is not None:
                self._rates.draw(worker_id, least, most)
            case RateReturn(requests, tokens) if self._rates is not None:
                self._rates.refund(requests, tokens)

    def lost(self, worker_id: int) -> None:
        """Take back what an engine held that is gone; what it drew of the rates counts as used."""
        self._workers.discard(worker_id)
        for allocator in self._stocks:
            allocator.leave(worker_id)
        if self._rates is not None:
            self._rates.leave(worker_id)
        self._settle()

    def close(self) -> None:
        """Stop every timer."""
        if self._rates is not None:
            self._rates.close()

    def _open(self, llm: EndpointSpec) -> None:
        """Take up everything that is limited."""
        most, each = llm.max_concurrency, llm.limits.endpoint_concurrency
        self._stocks.append(SlotAllocator(most))
        if each is not None and each < most:
            self._stocks += [SlotAllocator(each) for _ in llm.base_urls]
        requests, tokens = limits_of(llm.limits.requests_per_minute, llm.limits.tokens_per_minute)
        if requests is not None or tokens is not None:
            self._rates = RateAllocator(requests, tokens, self._allot)

    def _settle(self) -> None:
        """Send everybody what is due to him, and ask for what is due to others."""
        changes = [allocator.settle() for allocator in self._stocks]
        for worker_id in sorted(set().union(*changes)):
            slots = [change.get(worker_id, 0) for change in changes]
            if any(more > 0 for more in slots):
                self._send(worker_id, SlotGrant([max(0, more) for more in slots]))
            if any(more < 0 for more in slots):
                self._send(worker_id, SlotRevoke([max(0, -more) for more in slots]))

    def _allot(self, worker_id: int, requests: int, tokens: int) -> None:
        self._send(worker_id, RateGrant(requests, tokens))


class LimitLeaseServers(Component):
    """Lends engines what the LLMs of a run are limited by; see :class:`LimitLeaseServer`.

    Args:
        llms: The LLMs by their names.
        workers: How many engines there are to be in other processes.
        send: Takes a seat and a message for it.
    """

    handles = (SlotRequest, SlotReturn, RateRequest, RateReturn)

    def __init__(self, llms: Mapping[str, object], workers: int, send: Callable[[int, ToWorker], None]) -> None:
        self._servers = {name: LimitLeaseServer(llm, workers, _sender(name, send)) for name, llm in llms.items()}

    def held(self, worker_id: int) -> int:
        """How many requests of an engine may be in flight, at all LLMs."""
        return sum(server.held(worker_id) for server in self._servers.values())

    def on_ready(self, worker_id: int, slots: int) -> None:
        """Note that an engine is up."""
        for server in self._servers.values():
            server.add_worker(worker_id)

    def on_message(self, worker_id: int, message: SlotRequest | SlotReturn | RateRequest | RateReturn) -> None:
        """Take a message about slots or rates."""
        self._servers[message.llm].take(worker_id, message)

    def on_lost(self, worker_id: int, death: Death) -> None:
        """Take back what an engine held that is gone."""
        for server in self._servers.values():
            server.lost(worker_id)

    def on_end(self) -> None:
        """Stop every timer."""
        for server in self._servers.values():
            server.close()


def _sender(llm: str, send: Callable[[int, ToWorker], None]) -> Callable[[int, ToWorker], None]:
    return lambda worker_id, message: send(worker_id, for_llm(llm, message))
