"""What one agent asks becomes turns of its rollout: answered from the record first, then by the model."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._core import TURN, call_ids, parts_digest
from trunkline._internal.aio import raised_by_user_code
from trunkline._internal.text import excerpt, without_secrets
from trunkline.errors import (
    BadRequest,
    ConfigError,
    ContentFiltered,
    ContextTooLong,
    LLMError,
    ReplayDiverged,
    RolloutError,
    TreeError,
)
from trunkline.gateway.canonical import forms
from trunkline.gateway.formats.chat import quoted
from trunkline.gateway.types import AgentReply, RequestRefused
from trunkline.llm.messages import encode
from trunkline.rollout.external.conversations import NOTHING_ASKED, Conversations
from trunkline.rollout.external.exchange import CallDraw, CallNote, Exchange, at_most, name_calls
from trunkline.rollout.programs.replay import difference, failed
from trunkline.rollout.rollout import usable
from trunkline.rollout.types import Finished
from trunkline.scoring.notes import ExternalCalls
from trunkline.tree.records import Failure, Record
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from trunkline.agent import CompiledAgent
    from trunkline.gateway.canonical import RequestMasks
    from trunkline.gateway.server import GatewayCall
    from trunkline.gateway.types import AgentRequest
    from trunkline.rollout.external.conversations import MatchedRequest
    from trunkline.rollout.external.resources import ExternalProgram
    from trunkline.rollout.programs.executor import ProgramExecutor
    from trunkline.rollout.programs.replay import Journal
    from trunkline.rollout.rollout import Rollout
    from trunkline.types import Message

_MOST_WAYS: Final = 1_000
"""Different tools and sampling parameters that an agent may ask with."""

_PATIENCE: Final = 30.0
"""Seconds that an unknown request waits for others that the record has beside it."""


class AgentSession:
    """Serves the agent of one rollout.

    Args:
        rollout: The rollout.
        executor: Asks for its turns.
        journal: What is on record in its tree.
        program: What rollouts of the worker share.
        masks: What requests are compared without.

    Attributes:
        ended: Comes true with what ends the rollout, where that is not the agent's own end.
        refused: Requests that are not offered.
        replayed: Calls that were answered from the record.
        masked: Those of them whose requests differ in what masks cover.
        rewritten: Calls whose request has replies, and continues no earlier conversation.
        beside: Calls that were not alone in flight.
        equal: How many calls on record it repeated before it asked something else, where it did.
        last: The text of the latest reply.
        failure: Why the latest call got no reply; None where it got one.
    """

    def __init__(
        self,
        rollout: Rollout,
        executor: ProgramExecutor,
        journal: Journal,
        program: ExternalProgram,
        masks: RequestMasks,
    ) -> None:
        self.ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.refused = self.replayed = self.masked = self.rewritten = self.beside = 0
        self.equal = 0
        self.last = ""
        self.failure: LLMError | None = None
        self._rollout = rollout
        self._executor = executor
        self._core = executor.core
        self._journal = journal
        self._program = program
        self._conversations = Conversations(executor.core, masks)
        self._masks = masks
        records = [record for record in journal.of(rollout.id) if record.kind == "ask"]
        self._records = {_place(record): record for record in records}
        self._left = self._records.copy()
        self._again = int(bool(records))
        self._short = False
        self._next = journal.drawn(rollout.id)
        self._ways: set[str] = set()
        self._asking: tuple[AgentRequest, CompiledAgent, list[bytes]] | None = None
        self._counts: dict[bytes, int] = {}
        self._exchanges: dict[bytes, list[Exchange]] = {}
        self._responses: dict[str, Sequence[int]] = {}
        self._flying: dict[Exchange, None] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._tasks: dict[Exchange, asyncio.Task[None]] = {}
        self._turns = 0
        self._recorded = len(records)
        self._path: list[int] | None = None
        self._tail: list[tuple[bytes, int]] = []
        self._spoken = 0.0

    def answer(self, request: AgentRequest, call: GatewayCall) -> None:
        """Reply to a request, now or later.

        Raises:
            RequestRefused: It cannot be sent, or the rollout is over.
        """
        if self.ended.done():  # nothing more reaches the tree
            raise over(self.ended.result())
        try:
            messages = self._expanded(request) if request.previous else request.messages
            compiled, said = self._asked_by(request)
            asked = self._conversations.read(messages)
        except ConfigError as problem:
            self.refused += 1
            raise RequestRefused(without_secrets(str(problem))) from None
        key = parts_digest([asked.key, *said])
        exchange = self._repeated(key, call)
        if exchange is None:
            self._begin(key, request, asked, compiled, call)
        else:
            exchange.join(call)

    def _asked_by(self, request: AgentRequest) -> tuple[CompiledAgent, list[bytes]]:
        """The agent that asks, and what of the request besides its messages is part of the key."""
        known = self._asking
        if (
            known is not None
            and known[0].sampling is request.sampling
            and known[0].tools is request.tools
            and known[0].model == request.model
            and known[0].n == request.n
        ):
            return known[1:]
        compiled = self._program.asking(request)
        self._ways.add(compiled.namespace)
        if len(self._ways) > _MOST_WAYS:
            self._ways.discard(compiled.namespace)
            raise ConfigError(f"a rollout asks with at most {_MOST_WAYS:,} different tools and sampling parameters")
        said = [compiled.namespace.encode("utf-8", "surrogatepass"), str(request.n).encode()]
        if self._program.external.roles:
            said.append(compiled.agent.name.encode("utf-8", "surrogatepass"))
        self._asking = request, compiled, said
        return compiled, said

    @property
    def calls(self) -> ExternalCalls:
        """What is known of the agent's calls."""
        diverged = int(self._short or (self.ended.done() and isinstance(self.ended.result(), ReplayDiverged)))
        return ExternalCalls(
            self._again, diverged, self.replayed, self.masked, self.rewritten, self.beside, self.refused
        )

    def stop(self, end: BaseException) -> None:
        """Refuse everything from now on, as the rollout ends; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(end)
        refusal = over(self.ended.result())
        for one in self._exchanges.values():
            for exchange in one:
                exchange.end(refusal)

    async def close(self) -> None:
        """Give up what is in flight, and drop the replies that came to nothing."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for exchange in self._flying:
            self._drop(exchange)
        self._flying.clear()
        self._exchanges.clear()

    def unasked(self) -> ReplayDiverged | None:
        """Return what is wrong where the agent ended before it asked all that is on record."""
        if not self._left:
            return None
        self._short = True
        return self._differs(f"ends where its record has {len(self._left)} more calls")

    def _expanded(self, request: AgentRequest) -> list[Message]:
        earlier = self._responses.get(request.previous)
        if earlier is None:
            self.refused += 1
            shown = excerpt(request.previous, 80)
            raise RequestRefused(f"Previous response with id '{shown}' not found.", 400, "previous_response_not_found")
        core = self._core
        messages: list[Message] = msgspec.json.decode(core.request_context(core.context(earlier), b"[", b"]"))
        leading = [message for message in request.messages if message["role"] in {"system", "developer"}]
        if leading:  # instructions are not carried over
            messages = [message for message in messages if message["role"] not in {"system", "developer"}]
        rest = [message for message in request.messages if message["role"] not in {"system", "developer"}]
        return [*leading, *messages, *rest]

    def _repeated(self, key: bytes, call: GatewayCall) -> Exchange | None:
        """Find the exchange that a request asks for again."""
        known = self._exchanges.get(key)
        if known is None:
            return None
        for exchange in known:
            if call.key and exchange.idempotency == call.key:
                return exchange
        abandoned = next((exchange for exchange in known if exchange.abandoned), None)
        return known[-1] if abandoned is None and call.attempts else abandoned

    def _begin(
        self,
        key: bytes,
        request: AgentRequest,
        asked: MatchedRequest,
        compiled: CompiledAgent,
        call: GatewayCall,
    ) -> None:
        draws = []
        for _ in range(request.n):
            number = self._counts.get(key, 0)
            self._counts[key] = number + 1
            ids = call_ids(key, number)
            record = self._left.get((ids[0], number)) if self._left else None
            draws.append(CallDraw(number, ids, compiled, record))
        exchange = Exchange(key, request.model, asked, draws, call)
        self._exchanges.setdefault(key, []).append(exchange)
        if draws[0].record is None:
            # With a name, none is made for it.
            self._tasks[exchange] = asyncio.get_running_loop().create_task(self._work(exchange), name="call")
        else:
            try:
                self._replay(exchange)
                self._finish(exchange)
            except Exception as error:  # noqa: BLE001 - it ends the rollout
                self.stop(error)

    async def _work(self, exchange: Exchange) -> None:
        """Bring an exchange to its end."""
        try:
            while self._left:
                await self._known_first(exchange)
            if self.ended.done():
                return  # another request, which came beside it, has ended the rollout
            self._check_fork(exchange)
            await self._ask(exchange)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not raised_by_user_code(error, asyncio.current_task()):
                raise
            self.stop(error)
        finally:
            del self._tasks[exchange]

    async def _known_first(self, exchange: Exchange) -> None:
        """Wait until what the record has beside an unknown request was asked; a request in its place has diverged."""
        record = next(iter(self._left.values()))
        if not record.alone:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            if (await asyncio.wait((waiting,), timeout=_PATIENCE))[0]:
                return
        raise self._diverged(record, exchange.asked)

    def _diverged(self, record: Record, asked: MatchedRequest) -> ReplayDiverged:
        was, now = (
            b"\n".join(forms(messages, self._masks)) for messages in (self._recorded_messages(record), asked.messages)
        )
        differs = "with another model, sampling or tools" if was == now else difference(was, now)
        return self._differs(f"asks {differs}; masks cover what may differ")

    def _differs(self, does: str) -> ReplayDiverged:
        """What is wrong with an agent that does something else than the first call on record that it has not made."""
        first = next(iter(self._left), None)
        self.equal = len(self._records) if first is None else [*self._records].index(first)
        return ReplayDiverged(f"the agent, run again, {does}")

    def _check_fork(self, exchange: Exchange) -> None:
        """Refuse to continue a fork in whose state the agent asks something else than it did before."""
        record, self._next = self._next, None
        if record is not None and _note(record).messages != exchange.asked.key.hex():
            raise self._diverged(record, exchange.asked)

    def _replay(self, exchange: Exchange) -> None:
        """Take an exchange's draws from the record."""
        if any(draw.record is None for draw in exchange.draws):
            raise self._differs("asks for more choices of a call than its record has")
        for draw in exchange.draws:
            record = draw.record
            assert record is not None
            del self._left[_place(record)]
            (asked, _, _, _), failure, _ = record.data
            if record.rollout == self._rollout.id:
                self._executor.passed(asked)
            self.replayed += 1
            if _note(record).raw != exchange.asked.raw.hex():
                self.masked += 1
                fragments = [self._core.fragment(encode(one)) for one in self._recorded_messages(record)]
                exchange.asked.fragments = fragments
            if failure is not None:
                draw.error = failed(failure)
            else:
                facts = self._core.node(record.nodes[-1])
                draw.facts = record.nodes[-1], facts.prompt, facts.generated, facts.turns
                draw.said = self._core.message(record.nodes[-1])
                draw.fragment = self._core.fragment(draw.said)
                note = _note(record)
                draw.cached, draw.at = note.cached, note.at
        self._count(exchange)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def _count(self, exchange: Exchange) -> None:
        self.rewritten += exchange.asked.rewritten and self._turns > 0
        self._turns += len(exchange.draws)

    def _recorded_messages(self, record: Record) -> list[Message]:
        """The messages that a recorded call was sent with."""
        (_, leaf, context, _), *_ = record.data
        text = self._core.messages(leaf) if context is None else self._core.request_context(context, b"[", b"]")
        found: list[Message] = msgspec.json.decode(text)
        return found

    async def _ask(self, exchange: Exchange) -> None:
        """Ask the model for an exchange's draws; they land once nothing is in flight."""
        draws = exchange.draws
        if self._turns + len(draws) > self._program.compiled.agent.max_turns:
            raise Finished(Termination.MAX_TURNS)
        self._count(exchange)
        joins = bool(self._flying)
        exchange.alone = not joins and len(draws) == 1
        for other in self._flying:
            other.alone = False
        self._flying[exchange] = None
        try:
            self._prepare(exchange)
            if len(draws) == 1:
                await self._send(exchange, draws[0], joins=joins)
            else:
                await _all_or_none([self._send(exchange, draw, joins=joins) for draw in draws])
        except BaseException:
            del self._flying[exchange]
            self._drop(exchange)
            if exchange.alone and not self.ended.done():
                self._observe(exchange, exchange.missing)
            raise
        finally:
            if exchange.draft is not None:
                self._core.forget_draft(exchange.draft)
        exchange.ready = True
        self._land()

    def _prepare(self, exchange: Exchange) -> None:
        """Decide what is sent. Its messages are appended once it lands: which call came first counts for nothing."""
        if self._path is None:
            self._path = self._read_path()
        asked = exchange.asked
        if self._spoken:
            exchange.micros = int((time.monotonic() - self._spoken) * 1e6)
        exchange.missing = self._missing(asked)
        new = [asked.fragments[place] for place in exchange.missing]
        exchange.leaf = self._rollout.leaf
        if asked.fragments != [*self._path, *new]:
            exchange.context = self._core.context(asked.fragments)
        elif new:
            exchange.draft = self._core.draft(exchange.leaf, new)

    def _read_path(self) -> list[int]:
        """The fragments of the rollout's path; notes those behind its last turn."""
        core = self._core
        nodes = core.path(self._rollout.leaf)
        path = [core.fragment(core.message(node)) for node in nodes]
        behind = max((place for place, node in enumerate(nodes, 1) if core.node(node).kind == TURN), default=0)
        messages = [msgspec.json.decode(core.message(node)) for node in nodes]
        self._tail = list(zip(forms(messages, self._masks), path, strict=True))[behind:]
        return path

    def _missing(self, asked: MatchedRequest) -> list[int]:
        """The messages behind the last reply that a request holds which the path lacks; the others are as on record."""
        messages, forms_of = asked.read.messages, asked.read.forms
        first = asked.known
        if not first:
            spoken = (place for place in range(asked.size, 0, -1) if messages[place - 1]["role"] == "assistant")
            first = next(spoken, 0)
        if not self._tail:
            return [*range(first, asked.size)]
        missing: list[int] = []
        there = [*self._tail]
        for place in range(first, asked.size):
            form = forms_of[place]
            if (found := next((one for one in there if one[0] == form), None)) is None:
                missing.append(place)
            else:
                there.remove(found)
                asked.fragments[place] = found[1]  # as it is on record, whatever a mask covers
        return missing

    def _observe(self, exchange: Exchange, missing: Sequence[int]) -> None:
        """Append the messages of a request that the path lacks."""
        assert self._path is not None
        core, rollout, asked, micros = self._core, self._rollout, exchange.asked, exchange.micros
        agent = self._executor.name(exchange.draws[0].compiled.agent.name)
        for place in missing:
            message = asked.encoded[place - asked.known]
            if asked.read.messages[place]["role"] == "tool":
                rollout.leaf = core.observe(rollout.id, message, agent, micros, False)
                rollout.tool_calls += 1
                micros = 0
            else:
                rollout.leaf = core.tell(rollout.id, message, agent)
            self._path.append(asked.fragments[place])
            self._tail.append((asked.read.forms[place], asked.fragments[place]))
            self._executor.has_grown = True

    async def _send(self, exchange: Exchange, draw: CallDraw, *, joins: bool) -> None:
        """Ask for one draw."""
        executor = self._executor
        draw.asked, draw.compiled = executor.numbered(draw.compiled)
        number = draw.turn - self._rollout.start
        try:
            asked = exchange.asked
            new = [] if exchange.draft is None else [asked.encoded[place - asked.known] for place in exchange.missing]
            draw.pending = await executor.send(
                draw.compiled,
                exchange.leaf,
                exchange.context,
                0,
                0,
                number,
                exchange.draft,
                new,
                joins=joins,
            )
            executor.let_others()
        except LLMError as error:
            draw.error = error

    def _land(self) -> None:
        """Put the replies of all calls in flight on the tree, in the order of their keys, once all are there.

        Those that continue the path come first.
        """
        flying = [*self._flying]
        if len(flying) > 1:
            if not all(exchange.ready for exchange in flying):
                return
            flying.sort(key=_order)
            flying.sort(key=lambda one: one.context is not None)
        self._flying.clear()
        for exchange in flying:
            self._append(exchange)
        self._executor.flush()
        self._rollout.activity.leave()
        self._spoken = time.monotonic()
        for exchange in flying:
            self._finish(exchange)

    def _append(self, exchange: Exchange) -> None:
        """Append a call's turns with their records."""
        executor, rollout, core = self._executor, self._rollout, self._core
        self.beside += not exchange.alone
        goes_on, missing, fragments = rollout.leaf == exchange.leaf, exchange.missing, exchange.asked.fragments
        if not goes_on:
            before = [*fragments]
            missing = self._missing(exchange.asked)
            fragments[:] = before  # what a mask covers on the path by now was not sent
        self._observe(exchange, missing)
        if exchange.draft is not None and goes_on:
            exchange.leaf = rollout.leaf
        elif exchange.draft is not None:
            exchange.context = core.context(exchange.asked.fragments)
        assert self._path is not None
        for draw in exchange.draws:
            name = draw.compiled.agent.name
            asked = draw.asked, exchange.leaf, exchange.context, executor.name(draw.compiled.namespace)
            draw.cached = None if draw.pending is None else draw.pending.cached
            messages, raw = exchange.asked.key.hex(), exchange.asked.raw.hex()
            draw.at = int(time.time())
            note = CallNote(draw.key, draw.number, messages, raw, draw.at, draw.cached)
            nth, self._recorded = self._recorded, self._recorded + 1
            if draw.pending is None:
                assert draw.error is not None
                failure = Failure.of(draw.error).encode()
                data = asked, failure, msgspec.to_builtins(note)
                record = Record(rollout.id, "ask", name, nth, data, (), "alone" if exchange.alone else "")
                self._journal.write(record)
                executor.has_grown = True
                continue
            sent = exchange.context
            if sent is None and exchange.leaf != rollout.leaf:
                sent = core.context(exchange.asked.fragments)
            executor.count_again()
            appended = executor.land(draw.pending, sent, nth, asked, msgspec.json.encode(note), alone=exchange.alone)
            draw.facts = appended.node, appended.prompt, appended.generated, appended.turns
            draw.said = core.message(appended.node)
            draw.fragment = core.fragment(draw.said)
            self._path.append(draw.fragment)
            self._tail = []

    def _finish(self, exchange: Exchange) -> None:
        """Give out a call's reply, or the error of a call without one."""
        choices, said = [], []
        generated: int | None = 0
        asked, draws = exchange.asked, exchange.draws
        # The tree has all of it, and an agent may make thousands of calls.
        exchange.asked, exchange.draws, exchange.missing = NOTHING_ASKED, (), ()
        try:
            for draw in draws:
                if draw.error is not None:
                    raise draw.error
                assert draw.facts is not None
                node, _, count, turns = draw.facts
                message = msgspec.json.decode(draw.said)
                choice = usable(self._executor.recorded(draw.compiled, node, message))
                name_calls(choice, message, turns - 1)
                choices.append(choice)
                generated = None if count is None or generated is None else generated + count
                said.append(self._conversations.ended(asked, quoted(choice), draw.fragment))
        except LLMError as error:
            self.failure = error
            exchange.end(_told(error))
            return
        self.failure = None
        self.last = choices[-1].content
        first = draws[0]
        prompt = None if first.facts is None else first.facts[1]
        reply = AgentReply(
            id=first.reply,
            created=first.at,
            model=exchange.model,
            choices=choices,
            prompt=prompt,
            cached=at_most(first.cached, prompt),
            generated=generated,
        )
        self._responses[reply.id] = said[0]
        exchange.end(reply)

    def _drop(self, exchange: Exchange) -> None:
        for draw in exchange.draws:
            if draw.pending is not None:
                self._executor.count_again()
                self._executor.drop(draw.pending)
                draw.pending = None


async def _all_or_none(sending: Sequence[Coroutine[object, object, None]]) -> None:
    """Send all draws of a call; where one fails, none of the others is in flight any more."""
    tasks = [asyncio.ensure_future(one) for one in sending]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


def _order(exchange: Exchange) -> tuple[bytes, int]:
    return exchange.key, exchange.draws[0].number


def _note(record: Record) -> CallNote:
    try:
        return msgspec.convert(record.data[2], CallNote)
    except (msgspec.ValidationError, IndexError) as problem:
        raise TreeError(f"the record of a call is damaged: {problem}") from None


def _place(record: Record) -> tuple[str, int]:
    note = _note(record)
    return note.key, note.equal


def _told(error: LLMError) -> RequestRefused:
    """What the agent is told of a call to which no usable reply came."""
    shown = without_secrets(excerpt(str(error), 300))
    if isinstance(error, ContextTooLong):
        return RequestRefused(shown, 400, "context_length_exceeded")
    if isinstance(error, ContentFiltered):
        return RequestRefused(shown, 400, "content_filter")
    return RequestRefused(shown, 400 if isinstance(error, BadRequest) else 500)


def over(end: BaseException) -> RequestRefused:
    """What the agent is told once its rollout is over."""
    why = without_secrets(excerpt(str(end), 300)) if isinstance(end, Finished | RolloutError) else "the run stops"
    return RequestRefused(f"the rollout is over: {why}; a retry is useless", 429, "insufficient_quota")
