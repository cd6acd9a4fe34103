"""The outbox: what grew in a worker, on its way into the run file, and how much of it may be in flight."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import astuple

from trunkline._core import deltas
from trunkline._internal.aio import ShrinkableSemaphore
from trunkline._internal.text import scrub, without_secrets
from trunkline.errors import InfrastructureError
from trunkline.llm.pricing import named
from trunkline.llm.types import Reply
from trunkline.protocol.messages import Batch, Delta, Done
from trunkline.rollout.sampling.inflight import UNKNOWN, TraceRecorder
from trunkline.store.derive import rows
from trunkline.store.schema import CallRow, TreeEnding
from trunkline.tree.views import Tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from trunkline.llm.receiver import CallFigures
    from trunkline.rollout.sampling.inflight import Named
    from trunkline.tools.toolbox import Observation

__all__ = ["IN_FLIGHT", "Outbox", "TreeSink"]

IN_FLIGHT = 64
"""Model turns that leave together at the latest, and so many may wait for their acknowledgement unless more is said."""

_FLUSH_AFTER = 0.05
"""Seconds a turn waits for company before its batch leaves."""

_DONE_AFTER = 0.005
"""Seconds that finished tasks wait once they are so many that requests would lack tasks, and the last ones."""

_LARGEST = 1_000_000_000
"""Bytes of the largest delta: SQLite keeps no longer value."""

_BATCH_BYTES = 4 * 1024 * 1024
"""About how large a batch gets before the next one begins."""


_MOST = 10**15
"""The most that is believed of a figure, 30 years in microseconds; anybody's own LLM may say anything."""

_NAME = 200
"""Characters of an endpoint's or an agent's name that are kept."""


@lru_cache
def _name(text: str) -> str:
    # Before the cut, which could leave half of a secret that is not known for one.
    return without_secrets(scrub(text))[:_NAME]


@lru_cache
def _place(llm: str, endpoint: str) -> str:
    return named(llm, without_secrets(scrub(endpoint)))[:_NAME]


def _believed(figure: object, otherwise: int) -> int:
    """A figure, if it can be one; else what stands where it is not known."""
    return figure if type(figure) is int and 0 <= figure <= _MOST else otherwise


_Row = tuple[str, int, int, int, int, int, int, int, int, int, str]
"""The fields of a ``CallRow``."""
_ToolRow = tuple[int, str, bool, int, int]
"""The fields of a ``ToolRow``."""
_INT = {int}
_UNKNOWN = (-1, -1, -1, 1, 0, -1, 0)
"""What stands for prompt, cached and generated tokens, attempts, queue, first byte and microseconds that cannot be."""


def settle(reply: Reply, *, named: bool = True) -> CallRow:
    """Return what a request came to, as it stands in the run file. The one place where a call settles.

    Args:
        reply: What it brought; who asked, and when it ended, are not the LLM's to say.
        named: Whether it says who asked.
    """
    figures = reply.prompt, reply.cached, reply.generated, reply.attempts, reply.queue, reply.first, reply.micros
    plain = {*map(type, figures)} == _INT and min(figures) >= -1 and max(figures) <= _MOST
    if not plain or reply.attempts < 0 or reply.queue < 0 or reply.micros < 0:
        prompt, cached, generated, attempts, queue, first, micros = map(_believed, figures, _UNKNOWN)
    else:
        prompt, cached, generated, attempts, queue, first, micros = figures
    return CallRow(
        _place(reply.llm, reply.endpoint) if type(reply.endpoint) is str else "",
        len(reply.choices) if type(reply.choices) is list else 0,
        prompt,
        cached,
        generated,
        attempts,
        queue,
        first,
        micros,
        reply.ended - micros,
        _name(reply.agent) if named else "",
    )


class TreeSink(msgspec.Struct, eq=False):
    """One task's tree, as far as it was sent. It is the outlet of the task's rollouts.

    Attributes:
        outbox: Where it is sent from.
        index: The task's index in the run.
        tree: The tree.
        seq: How many of its deltas the run file has, or were sent to it.
        recorder: Spans of what its rollouts do; None where nothing is traced.
        ended: Rollouts that had ended by the last delta.
        calls: Calls of models since the last delta; the core empties it when it makes the next one.
        tools: Calls of tools, likewise.
        settled: Whether all calls are rows.
    """

    outbox: Outbox
    index: int
    tree: Tree
    seq: int = 0
    recorder: TraceRecorder | None = None
    ended: int = 0
    turns: int = 0
    calls: list[Reply | _Row] = []
    tools: list[_ToolRow] = []
    settled: bool = True
    done: bool = False
    broke: str | None = None
    ending: TreeEnding = TreeEnding()

    def reserve(self) -> Awaitable[None] | None:
        """Count one more model turn in flight; returns what to wait for where there are too many."""
        return self.outbox.reserve()

    def release(self) -> None:
        """Give back a reservation whose turn did not happen, or waits until others can land."""
        self.outbox.release(1)

    def retake(self) -> None:
        """Take a reservation again that was given back, without waiting."""
        self.outbox.retake()

    def answered(self, llm: str, endpoint: str, agent: str, figures: CallFigures, served: str, estimated: int) -> None:
        """Note what a request of the turn engine cost, whose figures need no check."""
        place = _place(llm, endpoint)
        self.calls.append((place, *figures, _name(agent) if self.outbox.named else ""))
        if served not in self.outbox.served:
            self.outbox.met(served)
        if estimated:
            self.outbox.estimated(place, estimated)

    def called(self, reply: Reply) -> None:
        """Note what a request cost; it settles when it leaves, with the tree's next delta."""
        self.calls.append(reply)
        self.settled = False
        self.outbox.met(reply.served)
        if reply.estimated:
            self.outbox.estimated(reply, _believed(reply.estimated, 0))

    def used(
        self, rollout: int, tools: Collection[str], calls: Iterable[Named], seen: Sequence[Observation], started: int
    ) -> None:
        """Note tool calls that began together."""
        for call, (_, ok, micros) in zip(calls, seen, strict=True):
            self.tools.append((rollout, call.name if call.name in tools else UNKNOWN, not ok, micros, started))
        if self.recorder is not None:
            self.recorder.used(rollout, tools, calls, seen, started)

    def grew(self, size: int = 0, turns: int = 0) -> None:
        """Note that the tree grew by so many bytes and model turns; what merely opens it leaves with its first turn."""
        outbox = self.outbox
        if self.index not in outbox.dirty:
            if not self.seq and not (size or turns or self.calls):
                return
            outbox.dirty[self.index] = self
            if outbox.wait > _FLUSH_AFTER:
                outbox.schedule()
        if turns:
            self.turns += turns
            outbox.turns += turns
        if size or turns:
            outbox.bytes += size
            if outbox.wait and (outbox.turns >= IN_FLIGHT or outbox.bytes >= _BATCH_BYTES):
                outbox.schedule()

    async def durable(self) -> None:
        """Wait until everything that was noted so far is in the run file."""
        await self.outbox.durable()

    def settle(self) -> None:
        """Make rows of the calls that are told of as replies."""
        self.calls[:] = [
            call if isinstance(call, tuple) else astuple(settle(call, named=self.outbox.named)) for call in self.calls
        ]
        self.settled = True

    def take(self, data: bytes, ended: int) -> Delta:
        """The delta of what changed since the last call, given its bytes and how many rollouts have ended."""
        spans = [] if self.recorder is None else self.recorder.take()
        delta = Delta(self.index, self.seq, data, self.turns, ended - self.ended, spans)
        self.seq += 1
        self.turns, self.ended = 0, ended
        return delta


class Outbox:
    """Gathers what grew and sends it in batches; each is in flight until it is acknowledged.

    Args:
        concurrency: Requests that may wait for their reply at once; see ``allow``.
        send: Takes each batch.
        failed: Called with the error when a batch cannot be sent.
        unacknowledged: Turns that may wait for their acknowledgement, beside those that wait for their reply.
        together: Finished tasks that leave together at the latest.
        named: Whether calls say who asked.
        retry_causes: Attempts beyond the first by cause, which others count; what it holds leaves with the next batch.
    """

    def __init__(
        self,
        concurrency: int,
        send: Callable[[Batch], None],
        failed: Callable[[Exception], None],
        unacknowledged: int = IN_FLIGHT,
        together: int = 1,
        *,
        named: bool = True,
        retry_causes: Counter[str] | None = None,
    ) -> None:
        self.named = named
        self._retry_causes: Counter[str] = Counter() if retry_causes is None else retry_causes
        self._send = send
        self._failed = failed
        self._free = ShrinkableSemaphore(concurrency + unacknowledged)
        self.reserve = self._free.acquire
        self._concurrency = concurrency
        self._together = together
        self._finished = 0
        # What waits: trees by their tasks, model turns, bytes, names that servers gave themselves.
        self.dirty: dict[int, TreeSink] = {}
        self.turns = 0
        self.bytes = 0
        self.served: set[str] = {""}
        self._estimated: list[tuple[Reply | str, int]] = []
        self._unacked: dict[int, int] = {}
        self._batches = 0
        self._acked = asyncio.Event()
        self.wait = math.inf  # seconds from the first change on after which it leaves; infinite where nothing is due
        self._timer: asyncio.Handle | None = None
        self._broken: Exception | None = None

    def release(self, turns: int) -> None:
        """Let so many more turns be in flight."""
        self._free.release(turns)

    def retake(self) -> None:
        """Let one turn less be in flight, as soon as others are released."""
        self._free.withdraw(1)

    def allow(self, concurrency: int) -> None:
        """Let so many requests wait for their reply from now on; if they are fewer, as soon as turns are released."""
        more, self._concurrency = concurrency - self._concurrency, concurrency
        if more > 0:
            self._free.release(more)
        else:
            self._free.withdraw(-more)

    def acknowledge(self, batch: int) -> None:
        """Note that a batch is in the run file."""
        self.release(self._unacked.pop(batch, 0))
        self._acked.set()
        self._acked = asyncio.Event()

    async def durable(self) -> None:
        """Send everything that grew, and wait until it is acknowledged.

        Raises:
            InfrastructureError: Something cannot be sent.
        """
        self.flush()
        if self._broken is not None:
            raise InfrastructureError("what grew cannot be sent") from self._broken
        last = self._batches
        while any(batch <= last for batch in self._unacked):
            await self._acked.wait()

    def met(self, served: str) -> None:
        """Note who answered; it leaves with the next batch."""
        self.served.add(served)

    def estimated(self, where: Reply | str, tokens: int) -> None:
        """Note tokens of a reply, or of an endpoint's, that are estimated; they leave with the next batch."""
        self._estimated.append((where, tokens))

    def note(self, sink: TreeSink, *, last: bool = True) -> None:
        """Note that a tree changed; its batch leaves when enough turns, bytes or finished tasks wait, or shortly.

        Args:
            sink: The tree.
            last: Whether no other tree grows.
        """
        self.dirty[sink.index] = sink
        self._finished += sink.done
        if sink.done and (last or self._finished >= self._together):
            if self.wait > _DONE_AFTER:
                self._flush_within(_DONE_AFTER)
        else:
            self.schedule()

    def schedule(self) -> None:
        """Send what waits shortly; if it is enough, after this pass of the event loop, in which more may end."""
        wait = 0.0 if self.turns >= IN_FLIGHT or self.bytes >= _BATCH_BYTES else _FLUSH_AFTER
        if wait < self.wait:
            self._flush_within(wait)

    def flush(self) -> None:
        """Send everything that grew, in as many batches as its size asks for."""
        self.close()
        self.bytes = self._finished = 0
        dirty, self.dirty = list(self.dirty.values()), {}
        grown: list[Delta] = []
        done: list[Done] = []
        size = 0
        try:
            for sink in dirty:
                if not sink.settled:
                    sink.settle()
            grew = deltas([(sink.tree.core, sink.calls, sink.tools) for sink in dirty])
            for sink, (data, ended) in zip(dirty, grew, strict=True):
                if data is not None:
                    if (length := len(data)) > _LARGEST:
                        raise InfrastructureError(
                            f"task {sink.tree.task.id!r} grew by {length} bytes at once, and a run file can hold "
                            f"{_LARGEST}; shorten what its tools return"
                        )
                    grown.append(sink.take(data, ended))
                    size += length
                if sink.done:
                    over = Done(sink.index, *rows(sink.tree.core, sink.broke, sink.ending))
                    done.append(over)
                    for row in over.rollouts:
                        size += 0 if row.answer is None else len(row.answer)
                if size >= _BATCH_BYTES:
                    self._batch(grown, done)
                    grown, done, size = [], [], 0
            self._batch(grown, done)
        except Exception as error:  # noqa: BLE001 - nothing that grew may be dropped in silence
            self._broken = error
            self._failed(error)

    def close(self) -> None:
        """Forget the timer; nothing is sent any more but by ``flush``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.wait = None, math.inf

    def _flush_within(self, seconds: float) -> None:
        self.close()
        self.wait = seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self.flush)

    def _batch(self, grown: list[Delta], done: list[Done]) -> None:
        if not grown and not done:
            return
        self._batches += 1
        turns = 0
        for delta in grown:
            turns += delta.turns
        self._unacked[self._batches] = turns
        self.turns -= turns
        estimated: Counter[str] = Counter()
        for where, tokens in self._estimated:  # the client has said by now which endpoint a reply is of
            estimated[where if isinstance(where, str) else _place(where.llm, where.endpoint)] += tokens
        served = sorted(filter(None, self.served))
        self._send(Batch(self._batches, grown, done, served, dict(estimated), dict(self._retry_causes)))
        self.served, self._estimated = {""}, []
        self._retry_causes.clear()
