"""Wanted draws to requests, and replies to turns on the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec

from trunkline._core import CoreTree
from trunkline.errors import LLMError, RolloutError, copied
from trunkline.llm.request import CHAT
from trunkline.llm.request import draws as ending
from trunkline.llm.response import recorded
from trunkline.llm.types import Request
from trunkline.rollout.sampling.completions import CompletionClient, CompletionClients, gathered
from trunkline.rollout.sampling.dispatcher import HandedBack, StateDraws, WantedTurn, runs
from trunkline.rollout.sampling.inflight import TraceRecorder
from trunkline.rollout.sampling.token_prompts import TokenTurnReader
from trunkline.rollout.sampling.turns import PendingTurn, TurnReader, TurnRequest
from trunkline.rollout.task_budget import Meter
from trunkline.rollout.types import TurnSink
from trunkline.types import Message, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.agent import CompiledAgent
    from trunkline.llm.receiver import FirstAttempt
    from trunkline.llm.types import Reply, ReplyChoice, ToolCall
    from trunkline.rollout.sampling.dispatcher import TurnFuture
    from trunkline.rollout.types import DrawCallback, Turn


__all__ = ["Sampler"]


class Sampler(msgspec.Struct, eq=False):
    """Turns questions into requests, and replies into turns on the tree.

    Attributes:
        core: The tree.
        task: Its task.
        client: Who answers; a switchboard where there are several LLMs.
        sink: Where it says what a request cost.
        recorder: Where rollouts note what they do; None where nothing is traced.
        seed: The run's.
        sent: Requests that are out.
    """

    core: CoreTree
    task: Task
    client: CompletionClient | CompletionClients
    sink: TurnSink
    recorder: TraceRecorder | None = None
    seed: int = 0
    sent: Collection[asyncio.Task[None]] = ()
    _tree: int | None = None

    @property
    def inside(self) -> bool:
        """Whether a rollout can fork inside a turn."""
        return self.client.token_prompts is not None and self.client.token_prompts.inside

    def recorded(self, compiled: CompiledAgent, turn: int, message: Message | None = None) -> ReplyChoice:
        """Return a turn of the tree, whose message may be read, as the program was given it, or would have been."""
        choice = recorded(self.core, turn, message)
        if self.client.token_prompts is None:
            return choice
        token_prompts = self.client.of(compiled.agent.llm).token_prompts
        return choice if token_prompts is None else token_prompts.recorded(compiled, choice)

    def calls(self, compiled: CompiledAgent, turn: int) -> Sequence[ToolCall]:
        """Return the tool calls of a turn; a dialect that cannot read it finds none."""
        try:
            return compiled.dialect.read(self.recorded(compiled, turn)).calls
        except LLMError:
            return ()

    def want(self, wanted: WantedTurn) -> TurnFuture:
        """Ask for a rollout's next turn, together with other draws of its state; returns what to wait for."""
        dispatcher = self.client.dispatcher or self.client.of(wanted.compiled.agent.llm).dispatcher
        dispatcher.want(self._opened(), wanted)
        return wanted.turn

    def _opened(self) -> int:
        """Return the engine's number of the tree."""
        if self._tree is not None:
            return self._tree
        # The key is the same for every request of this tree, so that they meet the endpoint that holds its prefix.
        task = self.task.id.encode("utf-8", "surrogatepass")
        self._tree = tree = self.client.engine.open(self.core, self.seed, task, crc32(task))
        return tree

    def give_up(self, wanted: WantedTurn) -> None:
        """Do not ask for a turn that nothing waits for any more."""
        if wanted.key < 0:
            return
        self.client.of(wanted.compiled.agent.llm).dispatcher.give_up(wanted)

    def close(self) -> None:
        """Ask for nothing more."""
        if self._tree is not None:
            self.client.engine.close(self._tree)
            self._tree = None

    def send(self, draws: StateDraws, attempt: FirstAttempt | None) -> None:
        """Send a request in a task, which is cancelled once nothing waits for any of its draws."""
        task = asyncio.get_running_loop().create_task(self._run(draws, attempt))
        sent = self.sent if isinstance(self.sent, set) else set[asyncio.Task[None]]()
        self.sent = sent
        sent.add(task)
        task.add_done_callback(sent.discard)
        _Watch(task, draws.wanted)

    async def _run(self, draws: StateDraws, attempt: FirstAttempt | None) -> None:
        wanted = draws.wanted

        def told(place: int, outcome: Turn | RolloutError) -> None:
            if not (turn := wanted[place].turn).done():
                turn.set_result(outcome)

        try:
            await self.ask(draws, told, attempt)
        except Exception as error:  # noqa: BLE001 - it is raised again where the rollouts wait
            for one in wanted:
                if not one.turn.done():
                    # Each gets an exception of its own, as each adds its own traceback.
                    one.turn.set_exception(copied(error))

    async def ask(
        self, draws: StateDraws, told: DrawCallback | None = None, attempt: FirstAttempt | None = None
    ) -> list[Turn | RolloutError]:
        """Ask for draws of one state.

        Args:
            draws: The state, and what waits for the draws.
            told: Told of each place in ``draws.wanted`` what became of it, without waiting for the others.
            attempt: What came of the request when it was sent once; None where it was not.

        Returns:
            For each of them its turn, which is on the tree, or why there is none.

        Raises:
            EndpointError: No endpoint serves.
        """
        pending = draws.wanted[0].pending
        called = self.sink.called if pending is None else pending.keep
        reservations = [one.reservation for one in draws.wanted if one.reservation is not None]
        if not reservations:
            return await self._ask(draws, called, told, attempt)
        with Meter(reservations, called, told) as meter:
            return await self._ask(draws, meter.called, meter.settled, attempt)

    async def ask_later(self, ask: TurnRequest) -> PendingTurn:
        """Ask for one draw, which goes onto the tree later.

        Raises:
            LLMError: If no usable reply came.
            EndpointError: The endpoint serves nobody.
        """
        compiled, version = ask.compiled, self.client.weights.version
        if version is not None:
            compiled = compiled.under(version)
        pending = PendingTurn(compiled, ask, self.sink)
        wanted = WantedTurn(self, ask.compiled, ask.rollout, None, ask.reservation, pending)
        dispatcher = self.client.of(compiled.agent.llm).dispatcher
        found: Turn | RolloutError | HandedBack = _NOT_SENT
        try:
            if dispatcher.takes:
                dispatcher.want_pending(self._opened(), wanted, ask, compiled)
                found = await wanted.turn
            if isinstance(found, HandedBack):
                seed = self.client.engine.seed(self._opened(), ask.rollout, ask.turn)
                (found,) = await self.ask(StateDraws(ask.leaf, ask.turn, seed, [wanted]), None, found.attempt)
                pending.forget()
            else:
                pending.found = [found]
            if isinstance(found, RolloutError):
                raise found
        except BaseException:
            self.give_up(wanted)
            pending.forget()
            pending.drop()  # a reply that came was a call, though it is of no use
            raise
        return pending

    async def _ask(
        self,
        draws: StateDraws,
        called: Callable[[Reply], None],
        told: DrawCallback | None,
        attempt: FirstAttempt | None = None,
    ) -> list[Turn | RolloutError]:
        """Ask under the weights in force; what is given up for others is asked again under these."""
        weights = self.client.weights
        found: list[Turn | RolloutError | None] = [None] * len(draws.wanted)
        sent_under, sent = weights.version, attempt is not None and attempt.made
        with await weights.begin(sent=sent) as asked:
            if sent and weights.version != sent_under:
                attempt = None
            compiled = draws.wanted[0].compiled.under(weights.version)
            request, turns = await self._request(compiled, draws, called, told)
            found = turns.found
            await self.client.of(compiled.agent.llm).ask(request, turns, attempt)
        if asked.given_up:
            await self._again(draws, found, called, told)
        return [outcome for outcome in found if outcome is not None]

    async def _again(
        self,
        draws: StateDraws,
        found: list[Turn | RolloutError | None],
        called: Callable[[Reply], None],
        told: DrawCallback | None,
    ) -> None:
        """Ask again for the draws that have no outcome."""

        async def once_more(first: int, count: int) -> None:
            tell = None if told is None else lambda place, outcome: told(first + place, outcome)
            part = draws._replace(seed=draws.seed + first, wanted=draws.wanted[first : first + count])
            found[first : first + count] = await self._ask(part, called, tell)

        missing = [place for place, outcome in enumerate(found) if outcome is None]
        await gathered(once_more(first, count) for first, count in runs(missing))

    async def _request(
        self, compiled: CompiledAgent, draws: StateDraws, called: Callable[[Reply], None], told: DrawCallback | None
    ) -> tuple[Request, TurnReader]:
        """The request for some draws, and what reads its reply."""
        leaf, step, seed, wanted = draws
        core, n, who = self.core, len(wanted), compiled.agent
        end = ending(seed, n)
        tail, size, asked, route = compiled.constant + end, len(end), 0, CHAT
        pending, token_prompts = wanted[0].pending, self.client.of(who.llm).token_prompts
        ids = [one.rollout for one in wanted]
        rest = core, compiled, ids, step, called, told
        turns: TurnReader
        if pending is not None:
            turns, context, step, asked = pending, pending.ask.context, pending.ask.step, pending.ask.asked
            prompt, draft = None, pending.ask.draft
            if token_prompts is not None:
                prompt = await token_prompts.program(core, compiled, leaf, context, seed, draft)
            pending.begin(compiled, called, told, prompt)
            if prompt is not None:
                content, size, route = prompt.content, prompt.end, prompt.form.route
            elif context is not None:
                content = core.request_context(context, compiled.head, tail)
            elif draft is not None:
                content = core.request_draft(draft, compiled.head, tail)
            else:
                content = core.request(leaf, compiled.head, tail)
        elif token_prompts is None:
            turns = TurnReader(*rest)
            content = core.request(leaf, compiled.head, tail)
        else:
            if (kept := wanted[0].kept) is None:
                prompt = await token_prompts.prompt(core, compiled, leaf, seed, n)
            else:
                prompt = await token_prompts.within(core, compiled, leaf, kept, seed, n)
            turns = TokenTurnReader(prompt, leaf, *rest)
            content, size, route = prompt.content, prompt.end, prompt.form.route
        constant, greedy, version = len(content) - size, compiled.greedy, compiled.version
        task = self.task.id
        key = crc32(task.encode("utf-8", "surrogatepass"))
        request = Request(
            content, key, n, seed, constant, greedy, turns, route, version, who.model, who.name, step, asked, task, ids
        )
        return request, turns


_NOT_SENT: Final = HandedBack(None)


class _Watch:
    """Gives a request up when nothing waits for it any more."""

    def __init__(self, task: asyncio.Task[None], wanted: Sequence[WantedTurn]) -> None:
        self._task = task
        self._waiting = len(wanted)
        self._stopped = False
        for one in wanted:
            one.turn.add_done_callback(self._over)

    def _over(self, turn: asyncio.Future[Turn | RolloutError]) -> None:
        self._waiting -= 1
        self._stopped |= turn.cancelled()
        if self._stopped and not self._waiting:
            self._task.cancel()
