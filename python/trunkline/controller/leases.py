"""Leases on a run's divisible resources: its budget, slots for requests, and rates."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Protocol

import msgspec

from trunkline.controller.component import Component
from trunkline.llm.config import LLM
from trunkline.llm.limits.token_bucket import limits_of
from trunkline.protocol import messages
from trunkline.protocol.job import parties, slot_kinds
from trunkline.rollout.budget import Amounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline._internal.aio import Timer
    from trunkline.controller.component import Death
    from trunkline.llm.limits.token_bucket import TokenBucket


class LeasedResource(Protocol):
    """A resource that workers lease parts of. Only its division differs: shares, max-min, or a token bucket."""

    def join(self, worker_id: int) -> None:
        """A worker is ready."""

    def request(self, worker_id: int, least: Amounts, want: Amounts) -> None:
        """Grant a worker at least ``least`` as soon as it is there, and up to ``want``."""

    def drawn(self, lease: int, most: Amounts) -> None:
        """Note how much of a lease its worker may have used."""

    def returned(self, worker_id: int, message: messages.LeaseReturn) -> None:
        """Take back what a worker did not use."""

    def leave(self, worker_id: int) -> None:
        """Settle the leases of a worker that is gone."""

    def close(self) -> None:
        """Grant nothing any more."""


class LeaseServer(Component):
    """Leases resources to workers, by the resources' names in messages."""

    handles = (messages.LeaseRequest, messages.LeaseDrawn, messages.LeaseReturn)

    def __init__(self, resources: Mapping[str, LeasedResource]) -> None:
        self._resources = resources
        self._workers: set[int] = set()

    def held(self, worker_id: int) -> int:
        slots = [resource for resource in self._resources.values() if isinstance(resource, RequestSlots)]
        return sum(resource.held(worker_id) for resource in slots) if worker_id in self._workers else 0

    def on_ready(self, worker_id: int, slots: int) -> None:
        self._workers.add(worker_id)
        for resource in self._resources.values():
            resource.join(worker_id)

    def on_message(
        self, worker_id: int, message: messages.LeaseRequest | messages.LeaseDrawn | messages.LeaseReturn
    ) -> None:
        resource = self._resources.get(message.resource)
        if resource is None or worker_id not in self._workers:
            return
        match message:
            case messages.LeaseRequest(_, least, want):
                resource.request(worker_id, least, want)
            case messages.LeaseDrawn(_, lease, most):
                resource.drawn(lease, most)
            case messages.LeaseReturn():
                resource.returned(worker_id, message)

    def on_lost(self, worker_id: int, death: Death) -> None:
        self._workers.discard(worker_id)
        for resource in self._resources.values():
            resource.leave(worker_id)

    def on_end(self) -> None:
        for resource in self._resources.values():
            resource.close()


def leased_limits(
    llms: Mapping[str, object],
    workers: int,
    send: Callable[[int, messages.ToWorker], None],
    clock: Callable[[], float] = time.monotonic,
    later: Callable[[float, Callable[[], None]], Timer] | None = None,
) -> dict[str, LeasedResource]:
    """Return the slots and rates of a run's LLMs, by name; none without worker processes."""
    found: dict[str, LeasedResource] = {}
    for name, llm in llms.items():
        if workers and isinstance(llm, LLM):
            slots = messages.slots_of(name)
            found[slots] = RequestSlots(slots, slot_kinds(llm), parties(llm, workers), send)
            buckets = limits_of(llm.limits.requests_per_minute, llm.limits.tokens_per_minute, clock)
            if any(buckets):
                found[messages.rates_of(name)] = RateAllocator(messages.rates_of(name), *buckets, send, later)
    return found


def max_min_shares(total: int, wishes: Mapping[int, int]) -> dict[int, int]:
    """Divide by max-min fairness; where it does not divide evenly, the last of equal wishes get one more."""
    shares: dict[int, int] = {}
    left = total
    for place, (worker_id, wish) in enumerate(sorted(wishes.items(), key=lambda item: item[1])):
        share = min(wish, left // (len(wishes) - place))
        shares[worker_id] = share
        left -= share
    return shares


class _SlotHolder(msgspec.Struct):
    """What a worker wishes for and holds; ``reclaimed`` were revoked and are not back, ``served`` counts grants."""

    wish: int
    held: int = 0
    reclaimed: int = 0
    served: int = -1


class SlotAllocator:
    """Slots of one kind, divided by max-min fairness; a revoked slot is granted again only once it was returned."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._holders: dict[int, _SlotHolder] = {}
        self._turns = count()

    @property
    def left(self) -> int:
        """Slots that no worker holds."""
        return self.total - sum(holder.held for holder in self._holders.values())

    def held(self, worker_id: int) -> int:
        return self._holders[worker_id].held

    def join(self, worker_id: int, wish: int) -> None:
        self._holders[worker_id] = _SlotHolder(wish)

    def ask(self, worker_id: int, wish: int) -> None:
        """Note how many slots a worker could use, those it holds included."""
        self._holders[worker_id].wish = wish

    def give_back(self, worker_id: int, slots: int) -> None:
        holder = self._holders[worker_id]
        slots = min(slots, holder.held)
        holder.held -= slots
        holder.reclaimed = max(0, holder.reclaimed - slots)

    def leave(self, worker_id: int) -> None:
        """Take all slots of a dead worker back: its sockets are closed, so its requests are over."""
        self._holders.pop(worker_id, None)

    def settle(self) -> dict[int, int]:
        """Divide anew, longest unserved first; return what each worker is granted, or below 0 what it is to return."""
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
        """Each worker's share. An indivisible rest stays where it is, unless there are more workers than slots."""
        if self.total >= len(newest):
            newest = dict(sorted(newest.items(), key=lambda item: item[1].held))
        return max_min_shares(self.total, {worker_id: holder.wish for worker_id, holder in newest.items()})


class RequestSlots:
    """The slots of one LLM: how many requests may be in flight, in the run and at each endpoint."""

    def __init__(
        self, name: str, kinds: Mapping[str, int], parties: int, send: Callable[[int, messages.ToWorker], None]
    ) -> None:
        self.allocators = {kind: SlotAllocator(total) for kind, total in kinds.items()}
        self._name = name
        self._parties = parties
        self._send = send

    def held(self, worker_id: int) -> int:
        return self.allocators["run"].held(worker_id)

    def join(self, worker_id: int) -> None:
        """Grant a new worker an equal part."""
        for allocator in self.allocators.values():
            allocator.join(worker_id, -(-allocator.total // self._parties))
        self._settle()

    def request(self, worker_id: int, least: Amounts, want: Amounts) -> None:
        for kind, wish in want.items():
            self.allocators[kind].ask(worker_id, wish)
        self._settle()

    def drawn(self, lease: int, most: Amounts) -> None:
        """A slot counts as used for as long as it is held."""

    def returned(self, worker_id: int, message: messages.LeaseReturn) -> None:
        for kind, slots in message.unused.items():
            self.allocators[kind].give_back(worker_id, slots)
        self.request(worker_id, {}, message.want)

    def leave(self, worker_id: int) -> None:
        for allocator in self.allocators.values():
            allocator.leave(worker_id)
        self._settle()

    def close(self) -> None:
        """There is nothing to stop."""

    def _settle(self) -> None:
        changes = {kind: allocator.settle() for kind, allocator in self.allocators.items()}
        for worker_id in sorted(set().union(*changes.values())):
            granted = {kind: max(0, change.get(worker_id, 0)) for kind, change in changes.items()}
            revoked = {kind: max(0, -change.get(worker_id, 0)) for kind, change in changes.items()}
            if any(granted.values()):
                self._send(worker_id, messages.LeaseGrant(self._name, granted))
            if any(revoked.values()):
                self._send(worker_id, messages.LeaseRevoke(self._name, revoked))


_SLICE = 0.25
"""Seconds of a rate that all workers together are granted beyond what they need at once."""

_GATHER = 0.05
"""Least seconds between two rounds of grants where all of a rate is used, so that few messages are needed."""


class _Draw(msgspec.Struct):
    worker_id: int
    least: Amounts
    want: Amounts


class RateAllocator:
    """Divides requests and tokens a minute; a worker that wants more waits behind all others, so all have equal parts.

    In any minute workers are granted at most what the buckets let through. What they send beyond that was granted
    before: at most a slice, and what replies took less than was booked for them.
    """

    def __init__(
        self,
        name: str,
        requests: TokenBucket | None,
        tokens: TokenBucket | None,
        send: Callable[[int, messages.ToWorker], None],
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        buckets = {"requests": requests, "tokens": tokens}
        self._buckets = {kind: bucket for kind, bucket in buckets.items() if bucket is not None}
        self._name = name
        self._send = send
        self._later = later
        self._waiting: deque[_Draw] = deque()
        self._workers: set[int] = set()
        self._timer: Timer | None = None
        self._long = False

    def join(self, worker_id: int) -> None:
        self._workers.add(worker_id)

    def request(self, worker_id: int, least: Amounts, want: Amounts) -> None:
        """Grant ``least`` as soon as it is there; the request replaces one of the worker that waits."""
        for draw in self._waiting:
            if draw.worker_id == worker_id:
                draw.least, draw.want = least, want
                break
        else:
            self._waiting.append(_Draw(worker_id, least, want))
        self._serve()

    def drawn(self, lease: int, most: Amounts) -> None:
        """All that was granted counts as used."""

    def returned(self, worker_id: int, message: messages.LeaseReturn) -> None:
        """Take back what a worker did not use; below 0, what it used beyond its grants."""
        for kind, bucket in self._buckets.items():
            bucket.take(-message.unused[kind])
        self._hurry()

    def leave(self, worker_id: int) -> None:
        self._workers.discard(worker_id)
        self._waiting = deque(draw for draw in self._waiting if draw.worker_id != worker_id)
        self._hurry()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._long = False

    def _serve(self) -> None:
        """Grant waiting requests in their order, unless all was granted a moment ago."""
        if self._timer is not None:
            return
        short = False
        while self._waiting:
            draw = self._waiting[0]
            wait = max(bucket.wait(draw.least[kind]) for kind, bucket in self._buckets.items())
            if wait > 0:
                self._again(max(wait, _GATHER))
                return
            granted = self._portion(draw)
            self._waiting.popleft()
            for kind, bucket in self._buckets.items():
                bucket.take(granted[kind])
            self._send(draw.worker_id, messages.LeaseGrant(self._name, granted))
            short = short or any(granted[kind] < want for kind, want in draw.want.items())
        if short:
            # More is wanted than the rate: let some gather.
            self._again(_GATHER)

    def _hurry(self) -> None:
        """Look again soon: the first request may be granted earlier than was expected."""
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

    def _portion(self, draw: _Draw) -> Amounts:
        """The least that a worker needs, or its part of a slice or of what is there, if that is more."""
        part = 1.0
        for kind, bucket in self._buckets.items():
            want = draw.want[kind]
            if want > 0:
                ahead = bucket.rate * _SLICE / max(1, len(self._workers))
                part = min(part, ahead / want, max(0.0, bucket.level) / len(self._waiting) / want)
        return {kind: max(draw.least[kind], int(want * part)) for kind, want in draw.want.items()}
