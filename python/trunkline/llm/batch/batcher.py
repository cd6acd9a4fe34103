"""The batcher: gathers requests and sends them to a batch engine, together and each exactly once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from trunkline.bounds import shown
from trunkline.errors import (
    BadRequest,
    ContentFiltered,
    ContextTooLong,
    InfrastructureError,
    LLMError,
    TrunklineError,
    UsageError,
)
from trunkline.llm.completion import ENDPOINT, Taken, completions, reply_of
from trunkline.llm.lanes import Lanes
from trunkline.llm.prompt import prompts
from trunkline.llm.queues import Part, Queues
from trunkline.llm.text import without_secrets
from trunkline.printable import printable, said

if TYPE_CHECKING:
    from trunkline.llm.batch import BatchLLM
    from trunkline.llm.protocol import Reply, Request
    from trunkline.llm.queues import Queue

__all__ = ["Batcher"]

_QUIET: Final = 8
"""Turns of the event loop without a new request after which nobody who was about to ask is still on the way."""

_LEAVE_WITHIN: Final = 2.0
"""Seconds that a cancelled engine has to end."""

_WORDS: Final = 1000
"""Characters that are kept of what an engine's exception says."""

_KINDS: Final = (BadRequest, ContextTooLong, ContentFiltered, LLMError)


class Batcher:
    """A batch engine as the LLM of one event loop. :meth:`_due` says when a batch leaves.

    Args:
        settings: The engine, and how it is to be used.

    Attributes:
        lanes: What the rollouts do that ask here; one that does not say so is not waited for.
        siblings: Whether it is asked for several draws at once.
        max_concurrency: Turns that a run keeps waiting or in batches.
    """

    def __init__(self, settings: BatchLLM) -> None:
        self.lanes = Lanes(self._stir, core=settings.core_masks)
        self.siblings = settings.supports_n
        self.max_concurrency = settings.max_concurrency
        self._settings = settings
        self._engine = settings.engine
        self._queues = Queues(fuse=settings.fuse_calls, regroup=settings.regroup)
        self._arrived = 0
        self._calls: dict[asyncio.Task[None], set[Part]] = {}
        self._free_since = 0.0
        self._looking = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"Batcher({self._settings!r})"

    async def complete(self, request: Request) -> Reply:
        """Complete one request; see :meth:`trunkline.llm.protocol.LLM.complete`.

        Raises:
            LLMError: The engine failed, or gave no completion for a draw of this request; the others have been read.
        """
        if self._closed:
            raise LLMError(f"{self._engine.name} is closed")
        loop = asyncio.get_running_loop()
        start, clock = loop.time(), time.perf_counter_ns()
        largest = self._settings.max_batch if self._settings.supports_n else 1
        queue, parts = self._queues.of(request), []
        for prompt in prompts(request, largest):
            self._arrived += 1
            parts.append(part := Part(prompt, loop.create_future(), queue, self._arrived, start))
            queue.add(part)
        self._stir()
        try:
            outcomes = [await part.outcome for part in parts]
        except asyncio.CancelledError:
            self._drop(parts)
            raise
        sent = max(part.sent for part in parts)
        taken = Taken((time.perf_counter_ns() - clock) // 1000, max(0, sent - clock) // 1000)
        try:
            return reply_of(request, outcomes, taken, self._engine.name)
        except LLMError as error:
            error.endpoint = ENDPOINT
            raise

    async def close(self) -> None:
        """Fail what waits and cancel what the engine still does. May be called more than once."""
        self._closed = True
        self._set_timer(None)
        for queue in self._queues:
            for part in queue.take(queue.weight):
                part.fail(LLMError(f"{self._engine.name} is closed"))
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=_LEAVE_WITHIN)

    def _stir(self) -> None:
        """Something has changed: see whether a batch is due, once all that is ready to run has run."""
        if not self._looking and not self._closed and any(self._queues):
            self._looking = True
            asyncio.get_running_loop().call_soon(self._settle, _QUIET, self._arrived)

    def _settle(self, quiet: int, arrived: int) -> None:
        """Let the loop turn until nothing new arrives: rollouts that one reply woke ask one after the other."""
        if arrived != self._arrived:
            quiet = _QUIET
        if quiet and not any(queue.weight >= self._settings.max_batch for queue in self._queues):
            asyncio.get_running_loop().call_soon(self._settle, quiet - 1, self._arrived)
            return
        self._looking = False
        self._look()

    def _look(self) -> None:
        """Send what is due, and come back when the next batch may be."""
        self._set_timer(None)
        loop = asyncio.get_running_loop()
        while len(self._calls) < self._settings.calls and not self._closed:
            waiting = [(self._due(queue), queue.first.number, queue) for queue in self._queues]
            if not waiting:
                return
            due, _, queue = min(waiting)
            if due > loop.time():
                self._set_timer(loop.call_at(due, self._look))
                return
            if not self.lanes.running:
                self._queues.call()
            self._send(queue, loop)

    def _due(self, queue: Queue) -> float:
        """When a batch of a queue leaves. A wait while the engine is busy costs nothing, and does not count."""
        since = max(queue.first.arrived, self._free_since)
        if queue.called or queue.weight >= self._settings.max_batch:
            return since
        if self.lanes.running:
            return since + self._settings.max_wait
        if self.lanes.away:
            return since + min(self._settings.tool_wait, self._settings.max_wait)
        return since

    def _send(self, queue: Queue, loop: asyncio.AbstractEventLoop) -> None:
        """Hand the prompts of a queue that have waited longest to the engine."""
        batch = queue.take(self._settings.max_batch)
        call = loop.create_task(self._run(batch))
        sent = time.perf_counter_ns()
        for part in batch:
            part.call, part.sent = call, sent
        self._calls[call] = set(batch)
        call.add_done_callback(self._over)

    async def _run(self, batch: list[Part]) -> None:
        """Have a batch generated, and give each part what came of it."""
        name = self._engine.name
        try:
            results = await self._engine.generate([part.prompt for part in batch])
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) is not None and own.cancelling():
                raise
            fault: BaseException = LLMError(f"{name} was cancelled from within", retryable=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is anybody's code
            fault = error
        else:
            if isinstance(results, list | tuple) and len(results) == len(batch):
                for part, result in zip(batch, results, strict=True):
                    part.settle(completions(result, part.prompt.n, name))
                return
            given = f"{len(results)} of them" if isinstance(results, list | tuple) else shown(results)
            fault = LLMError(f"{name} must return a list of {len(batch)} results for as many prompts, not {given}")
        for part in batch:
            part.fail(_translated(fault, name))

    def _over(self, call: asyncio.Task[None]) -> None:
        """A call has ended, and the engine is free again. If it was cancelled, its parts have no outcome yet."""
        for part in self._calls.pop(call):
            part.fail(LLMError(f"{self._engine.name} was stopped", retryable=True))
        self._free_since = call.get_loop().time()
        self._stir()

    def _drop(self, parts: list[Part]) -> None:
        """Forget parts whose rollout was cancelled, and stop a call that nobody waits for any more, if that can be."""
        for part in parts:
            if not part.queue.drop(part) and part.call in self._calls:
                wanted = self._calls[part.call]
                wanted.discard(part)
                if not wanted and self._engine.cancels:
                    part.call.cancel()

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer


def _translated(error: BaseException, name: str) -> TrunklineError:
    """What an engine's exception means. Each rollout gets one of its own: raising an exception changes it."""
    if isinstance(error, InfrastructureError | UsageError):
        return error
    # Secrets go first: one that the cut splits could not be told any more.
    words = printable(without_secrets(said(error, None)), _WORDS)
    if not isinstance(error, LLMError):
        return LLMError(f"{name} raised {type(error).__name__}: {words}", retryable=True)
    # One that is derived from these may be made in any way, and not say everything.
    kind = next(kind for kind in _KINDS if isinstance(error, kind))
    return kind(words, attempts=getattr(error, "attempts", 1), retryable=getattr(error, "retryable", False))
