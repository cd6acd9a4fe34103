"""Queues of a batch engine: prompts that can be in one call wait in one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from trunkline.errors import TrunklineError
    from trunkline.llm.completion import Completion
    from trunkline.llm.prompt import Prompt
    from trunkline.llm.protocol import Request

    Outcomes = list[Completion | TrunklineError]

__all__ = ["Part", "Queue", "Queues"]


class Part:
    """A prompt on its way, and what will come of it: an outcome for each of its draws.

    Args:
        prompt: The prompt.
        outcome: What will come of it.
        queue: Where it waits until it is sent.
        number: How many parts came before it.
        arrived: When it came, by the loop's clock, as timers are.

    Attributes:
        call: What it was sent with; None while it waits.
        sent: When that was, in nanoseconds of the clock that times calls.
    """

    __slots__ = ("arrived", "call", "number", "outcome", "prompt", "queue", "sent")

    def __init__(
        self, prompt: Prompt, outcome: asyncio.Future[Outcomes], queue: Queue, number: int, arrived: float
    ) -> None:
        self.prompt = prompt
        self.outcome = outcome
        self.queue = queue
        self.number = number
        self.arrived = arrived
        self.call: asyncio.Task[None] | None = None
        self.sent = 0

    def settle(self, outcomes: Outcomes) -> None:
        """Tell what came of it; the first counts."""
        if not self.outcome.done():
            self.outcome.set_result(outcomes)

    def fail(self, error: TrunklineError) -> None:
        """Tell why nothing came of any of its draws."""
        self.settle([error] * self.prompt.n)


class Queue:
    """Parts that wait for the same thing, in the order in which they came.

    Attributes:
        weight: Completions that they ask for.
        called: Whether everybody waited when one of the queues was sent: this one follows, whoever runs by then.
    """

    __slots__ = ("_parts", "called", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self.called = False
        self._parts: dict[Part, None] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def first(self) -> Part:
        """Who has waited longest."""
        return next(iter(self._parts))

    def add(self, part: Part) -> None:
        """Let one wait."""
        self._parts[part] = None
        self.weight += part.prompt.n

    def drop(self, part: Part) -> bool:
        """Let one wait no more; False if it does not wait here."""
        if part not in self._parts:
            return False
        del self._parts[part]
        self.weight -= part.prompt.n
        self.called = self.called and bool(self._parts)
        return True

    def take(self, most: int) -> list[Part]:
        """Take out those that have waited longest, with at most so many completions."""
        batch: list[Part] = []
        for part in self._parts:
            most -= part.prompt.n
            if most < 0:
                break
            batch.append(part)
        for part in batch:
            self.drop(part)
        self.called = False
        return batch


class Queues:
    """All queues. One holds prompts of one model.

    Args:
        fuse: Whether roles of one model share a queue.
        regroup: Whether rows share it that have come to different steps.
    """

    def __init__(self, *, fuse: bool, regroup: bool) -> None:
        self._fuse = fuse
        self._regroup = regroup
        self._queues: dict[tuple[str, str, int], Queue] = {}

    def of(self, request: Request) -> Queue:
        """Return where a request waits."""
        key = request.model, "" if self._fuse else request.role, 0 if self._regroup else request.step
        queue = self._queues.get(key)
        if queue is None:
            # Roles and steps come and go; looking at those in which nobody waits would cost more and more.
            self._queues = {there: other for there, other in self._queues.items() if other}
            queue = self._queues[key] = Queue()
        return queue

    def __iter__(self) -> Iterator[Queue]:
        """Those in which somebody waits."""
        return (queue for queue in self._queues.values() if queue)

    def call(self) -> None:
        """Everybody waits, so that nobody can join: whoever is in a queue now is not kept by those who go on first."""
        for queue in self:
            queue.called = True
