"""N draws of one request, cache, single-flight, several LLMs."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from trunkline._internal.text import format_error
from trunkline._internal.text import redact as hide_secrets
from trunkline.errors import BadRequest, LLMError, ReplyError, RolloutError, TrunklineError
from trunkline.llm import own
from trunkline.llm.batch.activity import UNREAD, Activity
from trunkline.llm.batch.batcher import Batcher
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.pricing import MAIN
from trunkline.llm.request import GENERATE, part, tap, unseeded
from trunkline.llm.types import Reply
from trunkline.rollout.sampling.dispatcher import TurnDispatcher, runs, turn_engine
from trunkline.rollout.sampling.inflight import TurnGate, WeightGate
from trunkline.scoring.rewards.grading import cancelled

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence

    from trunkline._core import TurnEngine
    from trunkline.llm.cache import Cache, Key
    from trunkline.llm.receiver import FirstAttempt
    from trunkline.llm.types import LLMClient, Request
    from trunkline.rollout.sampling.dispatcher import WantedTurn
    from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
    from trunkline.rollout.sampling.turns import TurnReader


logger = logging.getLogger(__name__)

__all__ = ["CompletionClient", "CompletionClients", "SharedRequest", "SingleFlight", "gathered"]


_SAMPLE = 256
"""Bytes of a body that tell most requests apart before whole bodies are compared."""


class SharedRequest:
    """A request on its way.

    Attributes:
        done: Set when there is an outcome, or there will be none.
        outcome: The reply or why there is none; None while it is out, and when whoever sent it was cancelled.
        data: The bytes of the answer, where the LLM received any.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.done = asyncio.Event()
        self.outcome: Reply | RolloutError | None = None
        self.data: bytes | None = None

    def keep(self, _first: int, _count: int, data: bytes) -> None:
        """Note the bytes of the answer."""
        self.data = data


class SingleFlight:
    """Finds a request that is out and equal to another but for its draws: same body up to ``Request.constant``."""

    def __init__(self) -> None:
        self._out: dict[tuple[str, int, bytes, str | None], list[SharedRequest]] = {}

    def find(self, request: Request) -> SharedRequest | None:
        """Return the flight that has what a request asks for."""
        single_flight = self._out.get(_key(request))
        if not single_flight:
            return None
        start = request.body[: request.constant]
        return next((shared for shared in single_flight if shared.body.startswith(start)), None)

    @contextmanager
    def lead(self, request: Request) -> Iterator[SharedRequest]:
        """Let others find a request while it is out; it lands at the end of the block."""
        key, shared = _key(request), SharedRequest(request.body)
        single_flight = self._out.setdefault(key, [])
        single_flight.append(shared)
        try:
            yield shared
        finally:
            single_flight.remove(shared)
            if not single_flight:
                self._out.pop(key, None)
            shared.done.set()


def _key(request: Request) -> tuple[str, int, bytes, str | None]:
    """What is quick to compare: among others the middle of the body, as all bodies of an agent end alike."""
    end = request.constant
    return request.route, end, request.body[end // 2 : min(end // 2 + _SAMPLE, end)], request.weights


T = TypeVar("T")

_CACHE = "cache"
"""The endpoint of a reply that was kept: no server is asked for it."""


class CompletionClient:
    """Asks one LLM for draws, for all trees of a worker.

    Args:
        llm: Who answers.
        cache: Answers to look up and to keep; None for none.
        token_prompts: Makes prompts whose every token is known; None where tokens do not matter.
        weights: The version of the weights that is asked under; none when None.
        name: The LLM's name, where there are several.
        turn_gate: Where to note what was sent; a list of its own when None.
        engine: Gathers wanted turns; one of its own when None.
        send_seed: Whether what is sent has a seed.

    Attributes:
        token_prompts: The same.
        weights: The same.
        gathers: Whether the LLM wants to know what rollouts do.
        turn_gate: What was sent and has not come back; tool calls too.
        activity: Where rollouts say whether they run, ask or are in a tool; for an LLM that wants to know (a batcher).
    """

    def __init__(
        self,
        llm: LLMClient,
        cache: Cache | None = None,
        token_prompts: TokenPromptBuilder | None = None,
        weights: WeightGate | None = None,
        *,
        name: str = MAIN,
        turn_gate: TurnGate | None = None,
        engine: TurnEngine[WantedTurn] | None = None,
        send_seed: bool = True,
    ) -> None:
        activity = getattr(llm, "activity", None)
        self.gathers = isinstance(activity, Activity)
        self.activity = activity if isinstance(activity, Activity) else UNREAD
        self.turn_gate = turn_gate or TurnGate()
        self.token_prompts = token_prompts
        self.weights = weights or WeightGate()
        self.llm = llm
        self.together = bool(getattr(llm, "siblings", False))
        self.send_seed = send_seed
        self._key = name
        self._name = type(llm).__name__
        self._sync = own.is_sync(llm)
        self._cache = cache
        self._shared = SingleFlight()
        self.engine = turn_engine() if engine is None else engine
        self.dispatcher = TurnDispatcher(
            self.engine,
            llm,
            self.weights,
            self.turn_gate,
            self.one_draw_each,
            plain=cache is None and token_prompts is None,
            together=self.together,
            seeded=send_seed,
        )
        self.weights.dispatchers.append(self.dispatcher)
        self.turn_gate.dispatchers.append(self.dispatcher)

    def of(self, _llm: str) -> CompletionClient:
        """Return who asks an LLM: there is one. See ``CompletionClients``."""
        return self

    async def ask(self, request: Request, turns: TurnReader, attempt: FirstAttempt | None = None) -> None:
        """Get every draw of a request, and put it on the tree.

        Args:
            request: The request; ``turns`` is its reader.
            turns: Where the draws go; afterwards it has a turn or an error of each.
            attempt: What came of it when it was sent once; None where it was not.

        Raises:
            EndpointError: The endpoint serves nobody.
        """
        if self._cache is not None:
            await self._cached(self._cache, request, turns)
        else:
            await self._fresh(request, turns, 0, attempt)

    async def _fresh(
        self, request: Request, turns: TurnReader, first: int, attempt: FirstAttempt | None = None
    ) -> None:
        """Get draws that are in no cache; in the request they count from 0, on the tree from ``first``."""
        if request.greedy:
            await self._greedy(request, turns, first, attempt)
        else:
            await self._send(request, turns, first, attempt)

    async def _cached(self, cache: Cache, request: Request, turns: TurnReader) -> None:
        """Look every draw up, and ask for runs of those that are missing."""
        key = cache.key(request, self._key)
        for draw in range(request.n):
            start = time.perf_counter_ns()
            data = cache.get(key, draw)
            if data is not None:
                with suppress(ReplyError):  # What another version kept and this one cannot read is asked for again.
                    kept = turns(data, draw, 0, _micros(start), 1)
                    kept.endpoint, kept.llm = _CACHE, MAIN
        turns.tell(0, request.n)
        asked = []
        for start, count in runs(turns.missing(0, request.n)):
            keep = partial(_keep, cache, key, start, turns)
            asked.append(self._fresh(tap(part(request, start, count), keep), turns, start))
        await gathered(asked)

    async def _greedy(
        self, request: Request, turns: TurnReader, first: int, attempt: FirstAttempt | None = None
    ) -> None:
        """Ask once for what temperature 0 makes equal, whoever else asks for it meanwhile."""
        start = time.perf_counter_ns()
        shared = self._shared.find(request) if attempt is None or not attempt.made else None
        if shared is None:
            with self._shared.lead(request) as shared:
                alone = tap(part(request, 0, 1), shared.keep)
                shared.outcome = await self._send(alone, turns, first, attempt)
                if attempt is not None and attempt.made:
                    await asyncio.sleep(0)  # those that shared the attempt ask in this pass
        else:
            await shared.done.wait()
        outcome = shared.outcome
        if outcome is None:
            # Whoever led was stopped; one of those who waited leads now.
            await self._greedy(request, turns, first)
        elif isinstance(outcome, RolloutError):
            turns.fail(first, request.n, outcome.shared())
        else:
            for draw in turns.missing(first, request.n):
                self._share(shared, outcome, request, turns, first, draw, _micros(start))
            turns.tell(first, request.n)

    def _share(
        self,
        shared: SharedRequest,
        reply: Reply,
        request: Request,
        turns: TurnReader,
        first: int,
        draw: int,
        micros: int,
    ) -> None:
        """Give a draw what came of an equal one; nothing was sent for it."""
        if shared.data is not None:
            again = (request.take or turns)(shared.data, draw, 0, micros, 1)
            again.endpoint = reply.endpoint
        else:
            again = msgspec.structs.replace(reply, attempts=0, micros=micros, queue=0, first=-1)
            turns.adopt(again, first + draw, 1, self._name)

    async def _send(
        self, request: Request, turns: TurnReader, first: int, attempt: FirstAttempt | None = None
    ) -> Reply | RolloutError:
        """Send a request, whose draws count from ``first`` on, and return what came of its first draw."""
        n = request.n
        # SGLang gives every completion of one request the same seed.
        apart = request.route == GENERATE or (self.token_prompts is not None and self.token_prompts.one_by_one)
        if n > 1 and (attempt is None or not attempt.made) and (apart or not self.together):
            return await self._one_by_one(request, turns, first, range(n))
        start = time.perf_counter_ns() - (0 if attempt is None else int(attempt.took * 1e9))
        try:
            reply = turns.adopt(await self._complete(request, attempt), first, n, self._name)
        except RolloutError as error:
            if attempt is None or not attempt.counted:
                turns.failed(error, first, _micros(start), self._name)
            if isinstance(error, LLMError) and 1 < n == len(turns.missing(first, n)):
                if isinstance(error, BadRequest):
                    return await self._refused(request, turns, first)
                if error.separable:
                    return await self._one_by_one(request, turns, first, range(n))
            turns.fail(first, n, error)
            return error
        except asyncio.CancelledError:
            if self.weights.aborting:
                turns.failed(LLMError("given up for other weights"), first, _micros(start), self._name)
            raise
        if reply.estimated:
            # Its usage is that of the first draw alone; that of a request for one draw is right.
            self.one_draw_each(reply.endpoint)
        turns.tell(first, n)
        missing = turns.missing(first, n)
        if missing:
            # The server takes no notice of n; what it gave are the first draws.
            self._alone()
            await self._one_by_one(request, turns, first, missing)
        return reply

    def _alone(self) -> None:
        """Ask for draws one by one from now on."""
        self.together = False
        self.dispatcher.one_draw_each()

    def one_draw_each(self, endpoint: str) -> None:
        """Ask for draws one by one from now on, as an endpoint reports the tokens of the first alone."""
        if self.together:
            self._alone()
            logger.warning(
                "%s reports for several completions of one request the tokens of the first; those of the others were "
                "estimated, and each is asked for alone from now on",
                endpoint,
            )

    async def _refused(self, request: Request, turns: TurnReader, first: int) -> Reply | RolloutError:
        """Find out whether a request was refused because of its n: then the first draw alone is answered."""
        alone = await self._one_by_one(request, turns, first, [0])
        if isinstance(alone, BadRequest):
            turns.fail(first, request.n, alone)
            return alone
        if not isinstance(alone, RolloutError):
            self._alone()
        await self._one_by_one(request, turns, first, range(1, request.n))
        return alone

    async def _one_by_one(
        self, request: Request, turns: TurnReader, first: int, draws: Sequence[int]
    ) -> Reply | RolloutError:
        """Send a request for each of some draws, at once, and return what came of the first."""
        outcomes = await gathered(self._send(part(request, draw, 1), turns, first + draw) for draw in draws)
        return outcomes[0]

    async def _complete(self, request: Request, attempt: FirstAttempt | None) -> Reply:
        """Ask the LLM. Whatever somebody's own LLM raises ends the rollouts that asked, and no other."""
        try:
            await self.turn_gate.enter()
            with self.turn_gate.request():
                request = request if self.send_seed else unseeded(request)
                if attempt is not None and isinstance(self.llm, HttpLLM | Batcher):
                    return await self.llm.resume(request, attempt)
                if self._sync:
                    return await own.complete(self.llm, request)
                start = time.perf_counter_ns()
                made = await self.llm.complete(request)
                return made if type(made) is Reply else own.received(made, self.llm, request, start)
        except TrunklineError:
            raise
        except asyncio.CancelledError:
            if cancelled():
                raise
            raise LLMError(f"{self._name} was cancelled from within") from None
        except Exception as error:
            message = hide_secrets(format_error(error))
            raise LLMError(f"{self._name} raised {type(error).__name__}: {message}") from error


async def gathered(work: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Do things at once, and gather what they return in their order."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as problems:
        raise problems.exceptions[0] from None
    return [task.result() for task in tasks]


def _keep(cache: Cache, key: Key, start: int, turns: TurnReader, place: int, n: int, data: bytes) -> None:
    """Keep an answer whose choices became turns; what is of no use now is of none later."""
    first = start + place
    if not any(isinstance(found, RolloutError) for found in turns.found[first : first + n]):
        cache.keep(key, start, place, n, data)


def _micros(start: int) -> int:
    return (time.perf_counter_ns() - start) // 1000


class CompletionClients:
    """Several LLMs where one could be: see ``CompletionClient``, whose place it takes.

    Args:
        clients: Who asks each LLM, by its name; they share what is underway, and the weights.
        main: Which of them the run's agent asks.

    Attributes:
        token_prompts: As of the one that the run's agent asks.
        weights: As of all.
        turn_gate: As of all.
        activity: Where rollouts say what they do, and whom they ask.
    """

    dispatcher = None  # each has its own

    def __init__(self, clients: Mapping[str, CompletionClient], main: str) -> None:
        self._clients = dict(clients)
        first = clients[main]
        self.token_prompts = first.token_prompts
        self.weights = first.weights
        self.turn_gate = first.turn_gate
        self.engine = first.engine
        read = {name: one.activity for name, one in clients.items() if isinstance(one.activity, Activity)}
        several = Activity(llms=read) if read else UNREAD
        self.activity = several if len(clients) > 1 else first.activity

    def of(self, llm: str) -> CompletionClient:
        """Return who asks an LLM.

        Args:
            llm: Its name.
        """
        return self._clients[llm]
