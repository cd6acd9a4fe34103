"""Wanted turns leave as requests, and replies become turns, in passes of the event loop through the core's engine."""

from __future__ import annotations

import asyncio
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import msgspec

from trunkline._core import TurnEngine
from trunkline.agent import CompiledAgent
from trunkline.errors import LLMError
from trunkline.llm.batch.batcher import Batcher
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.receiver import FirstAttempt, RequestLabels
from trunkline.llm.types import Reply, ReplyChoice, ToolCall
from trunkline.rollout.sampling.turns import PendingTurn
from trunkline.rollout.task_budget import Reservation
from trunkline.rollout.types import KeptPrefix, Turn, reply_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trunkline.llm.batch.turn_sender import BatchTurnSender
    from trunkline.llm.http.turn_sender import TurnSender
    from trunkline.llm.receiver import AnsweredDraws, RequestedDraws
    from trunkline.llm.types import LLMClient
    from trunkline.rollout.sampling.inflight import TurnGate, WeightGate
    from trunkline.rollout.sampling.turns import TurnRequest
    from trunkline.rollout.types import TurnSink

    TurnFuture: TypeAlias = asyncio.Future[Any]


class DrawSender(Protocol):
    """Sends draws of one tree that the engine does not send, and is told what requests cost."""

    sink: TurnSink

    def send(self, draws: StateDraws, attempt: FirstAttempt | None) -> None:
        """Send a request in a task of its own."""


class WantedTurn(msgspec.Struct, eq=False):
    """A rollout that waits for its next turn, or a program's for one that is ``pending`` until it goes onto the tree.

    ``key`` is the engine's while the engine has it, else -1.
    """

    sampler: DrawSender
    compiled: CompiledAgent
    rollout: int
    kept: KeptPrefix | None
    reservation: Reservation | None
    pending: PendingTurn | None = None
    turn: TurnFuture = msgspec.field(default_factory=asyncio.Future)
    key: int = -1

    def dropped(self, *, sent: bool) -> None:
        """Settle what was set aside for a turn that is given up."""
        if self.reservation is not None:
            if sent:
                self.reservation.lose()
            else:
                self.reservation.settle({})


class HandedBack(NamedTuple):
    """The outcome of a program's request that the engine does not answer; what came of it when it was sent once."""

    attempt: FirstAttempt | None


class StateDraws(NamedTuple):
    """Consecutive draws of one state: the node, model turns on its path, the first seed, and the rollouts that wait."""

    leaf: int
    turn: int
    seed: int
    wanted: Sequence[WantedTurn]


class TurnDispatcher:
    """Gathers what all rollouts of a worker want of one LLM in a pass of the event loop, and has it sent.

    ``plain`` says that a reply is nothing but read and put on the tree, ``together`` that draws of one state may be one
    request, ``seeded`` that requests have seeds; ``estimated`` is told of an endpoint that counts the tokens of the
    first of several draws alone.

    Plain requests over HTTP and to batch engines are the turn engine's, and so are the turns that they bring. All
    others, and those that brought no turns, go through ``Sampler.send``.
    """

    def __init__(
        self,
        engine: TurnEngine[WantedTurn],
        llm: LLMClient,
        weights: WeightGate,
        turn_gate: TurnGate,
        estimated: Callable[[str], None],
        *,
        plain: bool,
        together: bool,
        seeded: bool,
    ) -> None:
        self.engine = engine
        self._llm = llm
        self._weights = weights
        self._turn_gate = turn_gate
        self._estimated = estimated
        self._seeded = seeded
        self._others = engine.model(True)
        self._plain = engine.model(together)
        self.sender: TurnSender | BatchTurnSender | None = None
        if plain and isinstance(llm, HttpLLM | Batcher):
            self.sender = llm.sender(engine, self._plain, self)
        self._plain_agents: dict[CompiledAgent, int] = {}
        self._other_agents: dict[CompiledAgent, int] = {}
        self._waiting = False

    def want(self, tree: int, wanted: WantedTurn) -> None:
        """Ask for a rollout's next turn at the end of this pass."""
        compiled, sender, weights = wanted.compiled, self.sender, self._weights
        if sender is None or weights.held or wanted.kept is not None:
            agent = self._other_agents.get(compiled)
            if agent is None:
                agent = self._register(compiled, plain=False)
            wanted.key = self.engine.ask(tree, wanted.rollout, agent, wanted, wanted.kept)
            if not self._waiting:
                self._waiting = True
                asyncio.get_running_loop().call_soon(self._send)
            return
        if weights.version is not None:
            compiled = compiled.under(weights.version)
        agent = self._plain_agents.get(compiled)
        if agent is None:
            agent = self._register(compiled, plain=True)
        wanted.key = self.engine.ask(tree, wanted.rollout, agent, wanted)
        if wanted.reservation is not None:
            wanted.reservation.sent = True
        if not sender.asked:
            sender.wake()

    @property
    def takes(self) -> bool:
        """Whether the engine can send what a program asks for."""
        return self.sender is not None and not self._weights.held

    def want_pending(self, tree: int, wanted: WantedTurn, ask: TurnRequest, compiled: CompiledAgent) -> None:
        """Ask for what a program wants at the end of this pass; only where ``takes`` says so."""
        assert self.sender is not None
        agent = self._plain_agents.get(compiled)
        if agent is None:
            agent = self._register(compiled, plain=True)
        place, kind = ask.leaf, 0
        if ask.context is not None:
            place, kind = ask.context, 1
        elif ask.draft is not None:
            place, kind = ask.draft, 2
        wanted.key = self.engine.ask_pending(tree, ask.rollout, place, kind, ask.turn, agent, wanted)
        if wanted.reservation is not None:
            wanted.reservation.sent = True
        if not self.sender.asked:
            self.sender.wake()

    @property
    def stops(self) -> bool:
        """Whether nothing may begin any more."""
        return self._turn_gate.shut

    def give_up(self, wanted: WantedTurn) -> None:
        """Do not ask for a turn that nothing waits for any more."""
        key, wanted.key = wanted.key, -1
        if key < 0:
            return
        if self.sender is None:
            self.engine.give_up(key)
            return
        waiters, sent = self.sender.give_up(key)
        for one in waiters:
            one.dropped(sent=sent)

    def hold(self, *, abort: bool) -> None:
        """Send nothing under these weights any more; with ``abort``, what is on its way is asked for again later."""
        if self.sender is not None:
            self.sender.hold(abort=abort)

    def one_draw_each(self) -> None:
        """Ask for draws one by one from now on."""
        self.engine.one_draw_each(self._plain)

    def labels(self, taken: RequestedDraws) -> RequestLabels:
        """What a request is called by."""
        _, turn, _, (first, *_) = taken
        agent = first.compiled.agent
        if first.pending is None:
            return RequestLabels(agent.model, agent.name, turn, 0, self._seeded)
        ask = first.pending.ask
        return RequestLabels(agent.model, agent.name, ask.step, ask.asked, self._seeded)

    def turned(self, url: str, answers: Sequence[AnsweredDraws]) -> None:
        """Turns are on their trees: hand them to their rollouts."""
        for figures, served, estimated, outcomes, parsed in answers:
            leader, _ = outcomes[0]
            agent = leader.compiled.agent
            if leader.reservation is not None:
                self._pay(reply_of(agent.llm, url, agent.name, figures, served, estimated), outcomes)
            elif leader.pending is None:
                leader.sampler.sink.answered(agent.llm, url, agent.name, figures, served, estimated)
            else:
                leader.pending.answered((agent.llm, url, agent.name, figures, served, estimated))
            if estimated and isinstance(self._llm, HttpLLM):  # a batch engine says what each draw took
                self._estimated(url)
            for wanted, outcome in outcomes:
                wanted.key = -1
                if parsed is not None:
                    wanted.pending.parsed = parsed
                if not wanted.turn.done():
                    wanted.turn.set_result(outcome)
        if self._weights.held:
            self._weights.settle()

    def _pay(self, reply: Reply, outcomes: Sequence[tuple[WantedTurn, object]]) -> None:
        """Note a request whose draws have reservations, and settle them."""
        leader, _ = outcomes[0]
        if leader.pending is None:
            leader.sampler.sink.called(reply)
        else:
            leader.pending.keep(reply)
        for draw, (wanted, _) in enumerate(outcomes):
            if wanted.reservation is not None:
                wanted.reservation.pay(reply, draw)

    def missed(self, taken: RequestedDraws, attempt: FirstAttempt | None) -> None:
        """Send a request in a task of its own, after the attempt that was made."""
        leaf, turn, seed, wanted = taken
        places = []
        for place, one in enumerate(wanted):
            one.key = -1
            if one.turn.done():  # it is cancelled, and its rollout has not been told
                one.dropped(sent=attempt is not None and attempt.made)
                continue
            places.append(place)
            if one.reservation is not None:
                one.reservation.sent = False
        if wanted[0].pending is not None:
            if places:
                wanted[0].turn.set_result(HandedBack(attempt))
            return
        if attempt is not None and len(places) < len(wanted):
            attempt = FirstAttempt(attempt.asked)  # what was sent asked for others, too
        for start, count in runs(places):
            part = StateDraws(leaf, turn, seed + start, wanted[start : start + count])
            wanted[start].sampler.send(part, attempt)
        self._weights.settle()

    def recalled(self, taken: RequestedDraws, seconds: float) -> None:
        """Ask again for what was given up for other weights; what was sent counts as a call."""
        wanted = taken[3][0]
        agent = wanted.compiled.agent
        reply = Reply([], -1, -1, -1, 1, int(seconds * 1e6), endpoint=type(self._llm).__name__)
        reply.agent, reply.llm, reply.ended = agent.name, agent.llm, time.monotonic_ns() // 1000
        wanted.sampler.sink.called(reply)
        for one in taken[3]:
            if one.turn.done():
                one.dropped(sent=True)
        self.missed(taken, None)

    def left(self) -> None:
        """Say so where nothing is on its way any more under weights that are held."""
        self._weights.settle()

    def _register(self, compiled: CompiledAgent, *, plain: bool) -> int:
        agents = self._plain_agents if plain else self._other_agents
        # Weights may change without end: agents are forgotten that nothing can be asked of any more.
        for known, number in [*agents.items()] if plain else ():
            if known.version != compiled.version and self.engine.forget(number):
                del agents[known]
        agent = agents[compiled] = self.engine.agent(
            self._plain if plain else self._others,
            compiled.head,
            compiled.constant,
            compiled.reading,
            compiled.agent.name,
            compiled.namespace,
            self._seeded,
            plain and compiled.greedy,
        )
        return agent

    def _send(self) -> None:
        self._waiting = False
        self.engine.gather(self._others, time.monotonic())
        for taken, _ in self.engine.take(self._others):
            self.missed(taken, None)


def turn_engine() -> TurnEngine[WantedTurn]:
    """Make the engine of a worker."""
    return TurnEngine(ReplyChoice, ToolCall, Turn, LLMError)


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers in ascending ones, as (first, count)."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield found[0], len(found)
