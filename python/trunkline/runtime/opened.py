"""The LLMs of one engine, open: each has its own limits, and is let go of with the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from trunkline.llm.batch import BatchLLM
from trunkline.llm.names import MAIN
from trunkline.llm.renderer.choose import renderers
from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.draws import Draws
from trunkline.rollout.exact import Exact
from trunkline.rollout.switchboard import Switchboard
from trunkline.rollout.underway import Underway
from trunkline.runtime.borrower import Borrower
from trunkline.runtime.lenders import for_llm
from trunkline.runtime.outbox import IN_FLIGHT

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.cache import Cache
    from trunkline.llm.http import HttpLLM
    from trunkline.llm.protocol import LLM
    from trunkline.rollout.weights import Weights
    from trunkline.runtime.job import Job
    from trunkline.runtime.llms import AnyLLM
    from trunkline.runtime.wire import Allot, FromWorker, Grant, Reclaim

__all__ = ["OpenLLMs", "room", "unacknowledged"]

_LIVE_CONCURRENCY = 64
"""Requests in flight at once through a live LLM that has no ``max_concurrency`` of its own."""


def room(job: Job) -> int:
    """Return how many requests an engine may have in flight, at all LLMs, if all engines have equal parts."""
    return sum(_part(llm, job.parties) for llm in job.llms.values())


def unacknowledged(job: Job) -> int:
    """Return how many turns may wait for the run file: all of a batch do, and are to be in the next."""
    return max(IN_FLIGHT, sum(llm.max_concurrency for llm in job.llms.values() if isinstance(llm, BatchLLM)))


def _part(llm: AnyLLM, parties: int) -> int:
    most: int = getattr(llm, "max_concurrency", _LIVE_CONCURRENCY)
    return -(-most // max(1, parties))


class OpenLLMs:
    """The LLMs of an engine.

    Args:
        job: Whose they are.
        cache: Answers to look up and to keep; None for none.
        weights: The version of the weights that they are asked under.
        send: Takes each message for the controller.
        resized: Called with how many requests may be in flight at all of them, whenever that has changed.

    Attributes:
        llms: The LLMs by their names.
        draws: Who asks them.
    """

    def __init__(
        self,
        job: Job,
        cache: Cache | None,
        weights: Weights,
        send: Callable[[FromWorker], None],
        resized: Callable[[int], None],
    ) -> None:
        self._job = job
        self._send = send
        self._resized = resized
        self._borrowers: dict[str, Borrower] = {}
        self._slots = {name: _part(llm, job.parties) for name, llm in job.llms.items()}
        self.llms: dict[str, LLM] = {}
        try:
            for name, llm in job.llms.items():
                self.llms[name] = self._open(name, llm)
        except BaseException:
            self.give_back()
            raise
        underway = Underway()
        draws = {
            name: Draws(llm, cache, _exact(job.llms[name], llm), weights, name=name, underway=underway)
            for name, llm in self.llms.items()
        }
        self.draws: Draws | Switchboard = draws[MAIN] if set(draws) == {MAIN} else Switchboard(draws, job.agent.llm)

    def take(self, message: Grant | Reclaim | Allot) -> None:
        """Take a message of the controller about slots or rates."""
        self._borrowers[message.llm].take(message)

    def give_back(self) -> None:
        """Ask for slots and rates no more."""
        for borrower in self._borrowers.values():
            borrower.close()

    async def drain(self, grace: float) -> None:
        """Let what is out come back, and nothing out any more.

        Args:
            grace: Seconds to wait at most.
        """
        spoken_to = [cast("HttpLLM", self.llms[name]) for name, llm in self._job.llms.items() if _is_spec(llm)]
        for llm in spoken_to:
            llm.hold()
        await self.draws.underway.drained(grace, lambda: sum(llm.waiting for llm in spoken_to))

    async def close(self) -> None:
        """Let go of those that were opened here."""
        ours = [self.llms[name] for name, llm in self._job.llms.items() if isinstance(llm, EndpointSpec | BatchLLM)]
        await asyncio.gather(*(llm.close() for llm in ours))

    def _open(self, name: str, llm: AnyLLM) -> LLM:
        """Open an LLM; where its limits are shared, it gets slots and rates on loan."""
        if isinstance(llm, EndpointSpec) and self._job.parties:

            def send(message: FromWorker) -> None:
                self._send(for_llm(name, message))

            borrower = Borrower(llm, self._job.parties, send, lambda slots: self._hold(name, slots))
            self._borrowers[name] = borrower
            return borrower.llm
        return llm.open() if isinstance(llm, EndpointSpec | BatchLLM) else llm

    def _hold(self, name: str, slots: int) -> None:
        """Note how many slots of an LLM are held."""
        self._slots[name] = slots
        self._resized(sum(self._slots.values()))


def _is_spec(llm: AnyLLM) -> bool:
    return isinstance(llm, EndpointSpec)


def _exact(given: AnyLLM, llm: LLM) -> Exact | None:
    """What makes prompts of token ids, where these are asked for."""
    mode = given.tokens if isinstance(given, EndpointSpec) else None
    return None if mode is None else Exact(mode, renderers(mode, cast("HttpLLM", llm).call))
