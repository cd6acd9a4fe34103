"""Tree -> request -> turn; siblings in one request."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from trunkline._core import ROOT
from trunkline.errors import LLMError, RolloutError, copied
from trunkline.llm.request import CHAT
from trunkline.llm.request import draws as ending
from trunkline.llm.response import recorded
from trunkline.llm.types import Request
from trunkline.rollout.sampling.completions import gathered, runs
from trunkline.rollout.sampling.prompt import PromptBuilder
from trunkline.rollout.sampling.token_prompts import TokenTurnReader
from trunkline.rollout.sampling.turns import PendingTurn, TurnReader
from trunkline.rollout.task_budget import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trunkline._core import CoreTree
    from trunkline.agent import CompiledAgent
    from trunkline.llm.types import Reply, ReplyChoice, ToolCall
    from trunkline.rollout.sampling.completions import CompletionClient, CompletionClients
    from trunkline.rollout.sampling.inflight import TraceRecorder
    from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
    from trunkline.rollout.task_budget import Reservation
    from trunkline.rollout.types import DrawCallback, KeptPrefix, Turn, TurnSink


__all__ = ["SampleBatcher", "Sampler", "TurnRequest", "together"]


class TurnRequest(NamedTuple):
    """One rollout's question.

    Attributes:
        compiled: Who is asked.
        rollout: The rollout's id.
        leaf: The node whose path is the conversation.
        turn: Model turns on it.
        seed: Seed of the draw.
        prompt: The conversation in pieces.
        kept: What is kept of a turn that followed the leaf; None where the whole turn is wanted.
        reservation: What was set aside for it; None where nothing is limited.
        context: What is sent instead of the conversation, as the tree has it; only :meth:`Sampler.ask_later` takes one.
        step: See :class:`~trunkline.llm.types.Request`.
        asked: Likewise.
    """

    compiled: CompiledAgent
    rollout: int
    leaf: int
    turn: int
    seed: int
    prompt: PromptBuilder
    kept: KeptPrefix | None = None
    reservation: Reservation | None = None
    context: int | None = None
    step: int = 0
    asked: int = 0

    def follows(self, other: TurnRequest) -> bool:
        """Whether it is for the next draw of the same state."""
        same = self.compiled is other.compiled and self.leaf == other.leaf and self.turn == other.turn
        return same and self.kept == other.kept and self.seed == other.seed + 1


class Sampler:
    """Turns questions into requests, and replies into turns on the tree.

    Args:
        core: The tree.
        task_id: Id of its task.
        client: Who answers; a switchboard where there are several LLMs.
        sink: Where it says what a request cost.
        recorder: Where rollouts note what they do; None where nobody asks.

    Attributes:
        recorder: The same.
        activity: See :class:`CompletionClient`.
        turn_gate: See :class:`CompletionClient`.
        sent: Requests for draws of several rollouts that are out.
    """

    def __init__(
        self,
        core: CoreTree,
        task_id: str,
        client: CompletionClient | CompletionClients,
        sink: TurnSink,
        recorder: TraceRecorder | None = None,
    ) -> None:
        self.name = cache(core.name)
        self.recorder = recorder
        self.activity = client.activity
        self.turn_gate = client.turn_gate
        self.sent: set[asyncio.Task[None]] = set()
        self._core = core
        self._client = client
        self._sink = sink
        # What rollouts of one fork have in common is kept once.
        self._point, self._trunk = ROOT, PromptBuilder(core)
        # The same for every request of this tree, so that they meet the endpoint that holds its prefix.
        self._key = crc32(task_id.encode("utf-8", "surrogatepass"))

    @property
    def inside(self) -> bool:
        """Whether a rollout can fork inside a turn."""
        return self._client.token_prompts is not None and self._client.token_prompts.inside

    def conversation(self, point: int) -> PromptBuilder:
        """Return the conversation up to a fork point, for a rollout that grows from there to go on with."""
        if point != self._point:
            self._point, self._trunk = point, PromptBuilder(self._core)
            self._trunk.to(point)
        return self._trunk.fork()

    def recorded(self, compiled: CompiledAgent, turn: int) -> ReplyChoice:
        """Return a turn of the tree as the program was given it, or would have been."""
        choice, token_prompts = recorded(self._core, turn), self._client.token_prompts
        return choice if token_prompts is None else token_prompts.recorded(compiled, choice)

    def calls(self, compiled: CompiledAgent, turn: int) -> Sequence[ToolCall]:
        """Return the tool calls of a turn; a dialect that cannot read it finds none."""
        try:
            return compiled.dialect.read(self.recorded(compiled, turn)).calls
        except LLMError:
            return ()

    async def ask(self, asks: Sequence[TurnRequest], told: DrawCallback | None = None) -> list[Turn | RolloutError]:
        """Ask for draws of one state, whose seeds follow one another.

        Args:
            asks: Questions that differ in rollout and seed only, in the order of their seeds.
            told: Told of each place in ``asks`` what became of it, without waiting for the others.

        Returns:
            For each of them its turn, which is on the tree, or why there is none.

        Raises:
            EndpointError: The endpoint serves nobody.
        """
        if asks[0].reservation is None:
            return await self._ask(asks, self._sink.called, told)
        with Meter([ask.reservation for ask in asks if ask.reservation is not None], self._sink.called, told) as meter:
            return await self._ask(asks, meter.called, meter.settled)

    async def ask_later(self, ask: TurnRequest) -> PendingTurn:
        """Ask for one draw, which goes onto the tree later.

        Raises:
            LLMError: If no usable reply came.
            EndpointError: The endpoint serves nobody.
        """
        weights = self._client.weights
        while True:
            with await weights.begin():
                return await self._ask_later(ask._replace(compiled=ask.compiled.under(weights.version)))

    async def _ask_later(self, ask: TurnRequest) -> PendingTurn:
        pending, client = (
            PendingTurn(ask.compiled, ask.turn, self._sink.called),
            self._client.of(ask.compiled.agent.llm),
        )
        if ask.reservation is None:
            await client.ask(self._apart(ask, pending), pending)
        else:
            with Meter([ask.reservation], pending.keep, None) as pending.meter:
                await client.ask(self._apart(ask, pending), pending)
        (found,) = pending.found
        if isinstance(found, RolloutError):
            raise found
        return pending

    def _apart(self, ask: TurnRequest, pending: PendingTurn) -> Request:
        """The request for a draw that is parked."""
        end = ending(ask.seed, 1)
        tail = ask.compiled.constant + end
        if ask.context is None:
            content = self._core.request(ask.leaf, ask.compiled.head, tail)
        else:
            content = self._core.request_context(ask.context, ask.compiled.head, tail)
        constant = len(content) - len(end)
        return self._request(ask.compiled, content, 1, ask.seed, constant, pending, ask.step, ask.asked)

    async def _ask(
        self, asks: Sequence[TurnRequest], called: Callable[[Reply], None], told: DrawCallback | None
    ) -> list[Turn | RolloutError]:
        """Ask under the weights in force; what is given up for others is asked again under these."""
        token_prompts, weights = self._client.token_prompts, self._client.weights
        found: list[Turn | RolloutError | None] = [None] * len(asks)
        with await weights.begin() as asked:
            compiled = asks[0].compiled.under(weights.version)
            request, turns = (
                self._plain(compiled, asks, called, told)
                if token_prompts is None
                else await self._exact(token_prompts, compiled, asks, called, told)
            )
            found = turns.found
            await self._client.of(compiled.agent.llm).ask(request, turns)
        if asked.given_up:
            await self._again(asks, found, called, told)
        return [outcome for outcome in found if outcome is not None]

    async def _again(
        self,
        asks: Sequence[TurnRequest],
        found: list[Turn | RolloutError | None],
        called: Callable[[Reply], None],
        told: DrawCallback | None,
    ) -> None:
        """Ask again for the draws that have no outcome."""

        async def once_more(first: int, count: int) -> None:
            tell = None if told is None else lambda place, outcome: told(first + place, outcome)
            found[first : first + count] = await self._ask(asks[first : first + count], called, tell)

        missing = [place for place, outcome in enumerate(found) if outcome is None]
        await gathered(once_more(first, count) for first, count in runs(missing))

    def _plain(
        self,
        compiled: CompiledAgent,
        asks: Sequence[TurnRequest],
        called: Callable[[Reply], None],
        told: DrawCallback | None,
    ) -> tuple[Request, TurnReader]:
        """The request for some draws, with messages."""
        _, _, leaf, turn, seed, said, *_ = asks[0]
        end = ending(seed, len(asks))
        content = said.body(leaf, compiled.head, compiled.constant + end)
        rollouts = [ask.rollout for ask in asks]
        turns = TurnReader(self._core, compiled, rollouts, turn, self.name, called, told)
        constant = _size(content) - len(end)
        return self._request(compiled, content, len(asks), seed, constant, turns, turn), turns

    async def _exact(
        self,
        token_prompts: TokenPromptBuilder,
        compiled: CompiledAgent,
        asks: Sequence[TurnRequest],
        called: Callable[[Reply], None],
        told: DrawCallback | None,
    ) -> tuple[Request, TurnReader]:
        """The request for some draws whose every token will be known."""
        _, _, leaf, turn, seed, said, kept, *_ = asks[0]
        n = len(asks)
        if kept is None:
            prompt = await token_prompts.prompt(self._core, compiled, leaf, said, seed, n)
        else:
            prompt = await token_prompts.within(self._core, compiled, leaf, kept, seed, n)
        rollouts = [ask.rollout for ask in asks]
        turns = TokenTurnReader(prompt, leaf, self._core, compiled, rollouts, turn, self.name, called, told)
        constant = _size(prompt.content) - prompt.end
        return self._request(compiled, prompt.content, n, seed, constant, turns, turn, route=prompt.form.route), turns

    def _request(
        self,
        compiled: CompiledAgent,
        content: bytes | list[bytes],
        n: int,
        seed: int,
        constant: int,
        take: TurnReader,
        step: int,
        asked: int = 0,
        route: str = CHAT,
    ) -> Request:
        """A request of this tree."""
        who = compiled.agent
        return Request(
            content,
            self._key,
            n,
            seed,
            constant,
            compiled.greedy,
            take,
            route,
            compiled.version,
            who.model,
            who.name,
            step,
            asked,
        )


def _size(content: bytes | list[bytes]) -> int:
    return len(content) if isinstance(content, bytes) else sum(map(len, content))


def together(sampler: Sampler, points: Iterable[int]) -> dict[int, SampleBatcher]:
    """Return where more than one draw is taken: these are asked for together, whoever takes them.

    Args:
        sampler: Where the requests go.
        points: Where draws are taken, one after the other.
    """
    return {point: SampleBatcher(sampler) for point, draws in Counter(points).items() if draws > 1}


class _Waiter(NamedTuple):
    ask: TurnRequest
    turn: asyncio.Future[Turn | RolloutError]


class SampleBatcher:
    """First turns of the rollouts of one fork: draws of one state, sent as one request.

    What is asked within one turn of the event loop is gathered. Rollouts whose programs ask at different times, or
    different things, are asked for apart; their seeds, and so their replies, are the same either way.

    Args:
        sampler: Where the requests go.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._waiting: list[_Waiter] = []

    async def ask(self, ask: TurnRequest) -> Turn | RolloutError:
        """Ask one question; see :meth:`Sampler.ask`."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(ask, loop.create_future())
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            loop.call_soon(self._send)
        return await waiter.turn

    def _send(self) -> None:
        """Send what was gathered: a request for each run of draws."""
        waiting, self._waiting = self._waiting, []
        for run in _runs(waiting):
            task = asyncio.get_running_loop().create_task(self._run(run))
            self._sampler.sent.add(task)
            task.add_done_callback(self._sampler.sent.discard)
            _Watch(task, run)

    async def _run(self, run: list[_Waiter]) -> None:
        """Ask for one run, and tell each in it what became of its draw."""

        def told(place: int, outcome: Turn | RolloutError) -> None:
            if not (turn := run[place].turn).done():
                turn.set_result(outcome)

        try:
            await self._sampler.ask([waiter.ask for waiter in run], told)
        except Exception as error:  # noqa: BLE001 - it is raised again where the rollouts wait
            for waiter in run:
                if not waiter.turn.done():
                    # Each gets an exception of its own, as each adds its own traceback.
                    waiter.turn.set_exception(copied(error))


class _Watch:
    """Gives a run up when nobody waits for it any more."""

    def __init__(self, task: asyncio.Task[None], run: Sequence[_Waiter]) -> None:
        self._task = task
        self._waiting = len(run)
        self._stopped = False
        for waiter in run:
            waiter.turn.add_done_callback(self._over)

    def _over(self, turn: asyncio.Future[Turn | RolloutError]) -> None:
        self._waiting -= 1
        self._stopped |= turn.cancelled()
        if self._stopped and not self._waiting:
            self._task.cancel()


def _runs(waiting: list[_Waiter]) -> Iterator[list[_Waiter]]:
    """Cut what waits into runs of equal questions with consecutive seeds, leaving out who was cancelled meanwhile."""
    live = [waiter for waiter in waiting if not waiter.turn.done()]
    live.sort(key=lambda waiter: (waiter.ask.leaf, waiter.ask.seed))
    run = live[:1]
    for waiter in live[1:]:
        if not waiter.ask.follows(run[-1].ask):
            yield run
            run = []
        run.append(waiter)
    if run:
        yield run
