"""The requests of a turn engine, answered by a batch engine."""

from __future__ import annotations

import asyncio
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from trunkline._internal.text import excerpt
from trunkline.errors import LLMError, ReplyError
from trunkline.llm.batch.completion import ENDPOINT, Completion, PendingPrompt, Prompt, answer_body
from trunkline.llm.receiver import FirstAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import TurnEngine
    from trunkline.errors import TrunklineError
    from trunkline.llm.receiver import RequestLabels, TurnReceiver

__all__ = ["BatchTurnSender"]


class PromptQueue(Protocol):
    """Where prompts wait for a batch.

    Attributes:
        engine_name: What to call the engine.
        largest: Completions of one prompt at most.
        expects: Whether a prompt comes in this pass of the event loop or the next, so that no batch may leave.
    """

    engine_name: str
    largest: int
    expects: bool

    def put(self, prompt: Prompt, labels: RequestLabels, told: Callable[[], None]) -> PendingPrompt:
        """Let a prompt wait for its batch; ``told`` is called when its outcomes are there."""
        ...

    def drop(self, parts: Sequence[PendingPrompt]) -> None:
        """Take prompts back that nothing waits for."""


class _PromptsOut:
    """A request whose prompts are in the queue or in calls of the engine."""

    __slots__ = ("_done", "_left", "asked", "flight", "parts")

    def __init__(self, flight: int, asked: float, prompts: int, done: Callable[[_PromptsOut], None]) -> None:
        self.flight = flight
        self.asked = asked
        self.parts: list[PendingPrompt] = []
        self._left = prompts
        self._done = done

    @property
    def sent(self) -> float:
        """When the last of its prompts went into a call, in monotonic seconds; that it was asked where none did."""
        sent = self.asked
        for part in self.parts:
            sent = max(sent, part.sent)
        return sent

    def told(self) -> None:
        """One of its prompts has its outcomes."""
        self._left -= 1
        if not self._left:
            self._done(self)


class BatchTurnSender:
    """Puts the requests of a model into the queue of a batch engine, and makes turns of all that a call brings at once.

    Args:
        engine: The turn engine.
        model: The engine's number of the model.
        queue: Where prompts wait for a batch.
        receiver: Told what becomes of requests.
    """

    def __init__(self, engine: TurnEngine[Any], model: int, queue: PromptQueue, receiver: TurnReceiver) -> None:
        self.in_flight = 0
        self.asked = False
        self._engine = engine
        self._model = model
        self._queue = queue
        self._receiver = receiver
        self._out: dict[int, _PromptsOut] = {}
        self._over: list[_PromptsOut] = []

    def wake(self) -> None:
        """Hand over at the end of this pass what rollouts ask for."""
        self.asked = self._queue.expects = True
        asyncio.get_running_loop().call_soon(self._send)

    def give_up(self, ask: int) -> tuple[Sequence[Any], bool]:
        """A rollout does not wait any more: what waited for a request that ends with it, and whether it was sent."""
        waiters, flight = self._engine.give_up(ask)
        if flight is None:
            return waiters, False
        self._drop(flight)
        waiters = [waiter for taken, _ in self._engine.release(flight) for waiter in taken[3]]
        self._receiver.left()
        return waiters, True

    def hold(self, *, abort: bool) -> None:
        """Hand back what is not in the queue, and with ``abort`` what is there and in calls."""
        now = time.monotonic()
        self._engine.gather(self._model, now)
        for taken, asked in self._engine.take(self._model):
            self._receiver.missed(taken, FirstAttempt(asked))
        for flight in list(self._out) if abort else ():
            self._drop(flight)
            (first, asked), *others = self._engine.release(flight)
            self._receiver.recalled(first, now - asked)
            for taken, since in others:
                self._receiver.missed(taken, FirstAttempt(since))

    def _drop(self, flight: int) -> None:
        self.in_flight -= 1
        self._queue.drop(self._out.pop(flight).parts)

    def _send(self) -> None:
        self.asked = self._queue.expects = False
        if self._receiver.stops:
            return
        now, largest = time.monotonic(), self._queue.largest
        for flight, key, taken, body in self._engine.hand(self._model, now):
            labels, n = self._receiver.labels(taken), len(taken[3])
            request = self._out[flight] = _PromptsOut(flight, now, -(-n // largest), self._done)
            self.in_flight += 1
            for first in range(0, n, largest):
                seed = taken[2] + first if labels.seeded else None
                prompt = Prompt(body, key, min(largest, n - first), seed)
                request.parts.append(self._queue.put(prompt, labels, request.told))

    def _done(self, request: _PromptsOut) -> None:
        """Make turns of a request once all that comes in this pass is there."""
        if not self._over:
            asyncio.get_running_loop().call_soon(self._land)
        self._over.append(request)

    def _land(self) -> None:
        # What was given up meanwhile is not out any more.
        # The number of one may be another's by now.
        over = [request for request in self._over if self._out.get(request.flight) is request]
        self._over = []
        for request in over:
            del self._out[request.flight]
        waiting: dict[int, tuple[_PromptsOut, list[Completion]]] = {}
        for request in over:
            self._split(request, waiting)
        while waiting:
            waiting = self._answer(waiting)
        # After the first step of tasks that take up what failed.
        asyncio.get_running_loop().call_soon(self._left, len(over))

    def _left(self, count: int) -> None:
        self.in_flight -= count
        self._receiver.left()

    def _split(self, request: _PromptsOut, waiting: dict[int, tuple[_PromptsOut, list[Completion]]]) -> None:
        """Fail draws that failed; the others of a request wait to become turns, those that are neighbours at once."""
        outcomes: list[Any] = []
        for each in request.parts:
            outcomes += each.outcomes or ()
        flight = request.flight
        if {*map(type, outcomes)} == {Completion}:
            waiting[flight] = request, outcomes
            return
        left = len(outcomes)
        for completed, group in groupby(outcomes, lambda outcome: isinstance(outcome, Completion)):
            draws: list[Any] = list(group)
            part = flight if len(draws) == left else self._engine.split(flight, len(draws))
            left -= len(draws)
            if completed:
                waiting[part] = request, draws
            else:
                error = next((one for one in draws if not isinstance(one, LLMError)), draws[0])
                # The call is noted with its completions, if it brought any.
                self._fail(part, request, error, counted=len(draws) < len(outcomes))

    def _answer(
        self, waiting: dict[int, tuple[_PromptsOut, list[Completion]]]
    ) -> dict[int, tuple[_PromptsOut, list[Completion]]]:
        """Make turns of completions; returns those that are to be read one by one, as they cannot be read together."""
        now, answers, refused = time.monotonic(), [], []
        for flight, (request, draws) in waiting.items():
            try:
                answers.append((flight, answer_body(draws), request.sent))
            except ReplyError as error:
                refused.append((flight, str(error)))
        turned, unread, unsent = self._engine.answer(answers, now)
        self._receiver.turned(ENDPOINT, turned)
        for taken, asked in unsent:
            self._receiver.missed(taken, FirstAttempt(asked))
        again: dict[int, tuple[_PromptsOut, list[Completion]]] = {}
        for flight, reason in refused + unread:
            request, draws = waiting[flight]
            if len(draws) == 1:
                words = f"{self._queue.engine_name} returned a completion that cannot be read: {excerpt(reason)}"
                self._fail(flight, request, LLMError(words))
            else:
                parts = [self._engine.split(flight, 1) for _ in draws[1:]]
                again |= {part: (request, [draw]) for part, draw in zip([*parts, flight], draws, strict=True)}
        return again

    def _fail(self, flight: int, request: _PromptsOut, error: TrunklineError, *, counted: bool = False) -> None:
        """Hand a request back with what went wrong."""
        took = time.monotonic() - request.asked
        (first, asked), *others = self._engine.release(flight)
        self._receiver.missed(first, FirstAttempt(asked, None, took, error, counted))
        for taken, since in others:
            self._receiver.missed(taken, FirstAttempt(since))
