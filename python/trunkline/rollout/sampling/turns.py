"""Reply bytes -> turns on the tree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from trunkline._core import append_reply, parse_reply
from trunkline._internal.text import scrub
from trunkline.agent import CompiledAgent
from trunkline.errors import LLMError, ReplyError, RolloutError
from trunkline.llm import own
from trunkline.llm.dialects.builtin import Hermes
from trunkline.llm.request import CHAT
from trunkline.llm.token_ids.base import bad_logprobs, missing_ids
from trunkline.llm.types import Reply, ReplyChoice, ToolCall
from trunkline.rollout.task_budget import Reservation
from trunkline.rollout.types import DrawCallback, Turn, TurnSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline._core import CoreTree, PendingReply, ReplyOptions
    from trunkline.llm.receiver import CallFigures
    from trunkline.llm.token_ids.base import Form, TokenMode


__all__ = ["AppendedTurn", "AskRecord", "PendingTurn", "TokenPrompt", "TurnReader", "TurnRequest", "taken_apart"]


_RAW = Hermes()
"""How models write native calls where no server takes these apart."""


class TokenPrompt(NamedTuple):
    """The body of a request, and what its reply must know.

    Attributes:
        content: The body.
        end: Bytes of it that depend on the draws.
        mode: How the model is asked.
        form: Where it goes and how the reply is read.
        context: The drift of a prompt that is sent as ids, if it drifts.
        parting: What to do with the ids of a prompt that the server makes, or that is a program's; None where it is
            sent as ids.
        kept: What the model goes on from inside a turn: the turn, how many of its tokens, and what they say.
        ids: A program's prompt that is sent as ids.
    """

    content: bytes
    end: int
    mode: TokenMode
    form: Form
    context: int | None
    parting: tuple[str, int] | None
    kept: tuple[int, int, str] | None = None
    ids: list[int] | None = None

    def read(self, compiled: CompiledAgent, choice: ReplyChoice) -> ReplyChoice:
        """A choice as the program is given it."""
        return taken_apart(self.form, compiled, choice)


def taken_apart(form: Form, compiled: CompiledAgent, choice: ReplyChoice) -> ReplyChoice:
    """Read native calls where no server has taken them out of the text."""
    if form.route == CHAT or not compiled.dialect.native or choice.tool_calls:
        return choice
    parsed = _RAW.parse(choice, ())
    choice.content, choice.tool_calls = parsed.answer or "", parsed.calls
    return choice


class TurnReader:
    """Makes turns of the draws of one state: draw i becomes the next turn of rollout i.

    An LLM that receives bytes calls it with them (it is the request's ``ReplyReader``), and
    the reply is read and put on the tree in one step. What another LLM made of its answer comes by ``adopt``.

    Args:
        core: The tree.
        compiled: Who speaks.
        rollouts: Ids of the rollouts, in the order of their draws.
        turn: Model turns on the path so far.
        called: Told of each reply in the step in which its turns go onto the tree, so that none can be sent without it.
            Who answered, and how long it waited, may be filled in by whoever received it, in the same step.
        told: Told of each draw what became of it, as soon as its request is over.

    Attributes:
        found: For each draw its turn, or why there is none; None while neither is known.
    """

    def __init__(
        self,
        core: CoreTree,
        compiled: CompiledAgent,
        rollouts: Sequence[int],
        turn: int,
        called: Callable[[Reply], None],
        told: DrawCallback | None = None,
    ) -> None:
        self.found: list[Turn | RolloutError | None] = [None] * len(rollouts)
        self._core = core
        self._compiled = compiled
        self._rollouts = rollouts
        self._turn = turn
        self._called = called
        self._told = told

    _mode: TokenMode | None = None
    _engine_reading: ReplyOptions | None = None

    def __call__(self, data: bytes, first: int, attempts: int, micros: int, most: int | None = None) -> Reply:
        """Read an answer's bytes; see ``ReplyReader``."""
        reply = self._read(data, first, attempts, micros, most)
        self._tell(reply)
        return reply

    def _read(
        self,
        data: bytes,
        first: int,
        attempts: int,
        micros: int,
        most: int | None,
        reading: ReplyOptions | None = None,
    ) -> Reply:
        """Read an answer's bytes and put its choices on the tree."""
        end = len(self._rollouts) if most is None else first + most
        if self.found[first] is not None:
            raise self._taken_twice(first, end)
        # Draws may be read in any order, each as an answer of its own.
        end = next((place for place in range(first + 1, end) if self.found[place] is not None), end)
        taken, prompt, cached, generated, served, estimated = self._take(
            self._rollouts[first:end], data, attempts, micros, reading
        )
        if not taken:
            raise ReplyError("its choices are empty")
        choices = []
        for place, (content, reasoning, calls, finish, node, size, fault) in enumerate(taken, first):
            choice = self._program_choice(ReplyChoice(content, reasoning, [ToolCall(*call) for call in calls], finish))
            choices.append(choice)
            self.found[place] = LLMError(fault) if fault else Turn(choice, node, size)
        return Reply(choices, prompt, cached, generated, attempts, micros, served, estimated=estimated)

    def _tell(self, reply: Reply) -> None:
        """Tell of a reply: who asked whom for it, and that it is over."""
        agent = self._compiled.agent
        reply.agent, reply.llm = agent.name, agent.llm
        # One clock for all processes of a machine, so that their calls can be compared.
        reply.ended = time.monotonic_ns() // 1000
        self._called(reply)

    def _take(
        self,
        rollouts: Sequence[int],
        data: bytes,
        attempts: int,
        micros: int,
        reading: ReplyOptions | None = None,
        *exact: Any,
    ) -> Any:
        """Read the bytes and put their choices on the tree."""
        compiled = self._compiled
        return append_reply(
            self._core,
            rollouts,
            reading or compiled.reading,
            data,
            compiled.agent.name,
            compiled.namespace,
            self._turn,
            max(0, attempts - 1),
            micros,
            *exact,
        )

    def _program_choice(self, choice: ReplyChoice) -> ReplyChoice:
        """A choice for the program, as the tree's reader has it."""
        return choice

    def adopt(self, reply: object, first: int, n: int, llm: str) -> Reply:
        """Put a reply on the tree that an LLM made itself; one that came by bytes is there already.

        Args:
            reply: What it returned, which may be anything.
            first: Which draw its first choice is.
            n: How many draws were asked for.
            llm: What to call it.

        Raises:
            ConfigError: It is no reply.
        """
        if self.found[first] is not None and isinstance(reply, Reply) and isinstance(reply.choices, list):
            return reply
        checked = own.checked(reply, llm)
        reading, mode = self._engine_reading, self._mode
        attempts, cached = checked.attempts, checked.cached
        for draw in self.missing(first, min(n, len(checked.choices))):
            try:
                if mode is not None:
                    _check_ids(checked, draw, mode, llm)
                self._read(_written(checked, draw, cached), first + draw, attempts, checked.micros, 1, reading)
                if isinstance(self.found[first + draw], Turn):
                    attempts, cached = 1, checked.prompt  # only the first had its prompt computed
            except ReplyError as error:
                self.found[first + draw] = LLMError(str(error))
        checked.endpoint = checked.endpoint or llm
        self._tell(checked)
        return checked

    def missing(self, first: int, n: int) -> list[int]:
        """Which of n draws have neither a turn nor an error yet, counted from ``first``."""
        return [draw for draw, found in enumerate(self.found[first : first + n]) if found is None]

    def fail(self, first: int, n: int, error: RolloutError) -> None:
        """Say why there is no turn of those of n draws that have none, and tell of all."""
        for draw in self.missing(first, n):
            # Each gets an exception of its own, as each adds its own traceback; the attempts stay with one.
            self.found[first + draw] = error.shared() if error in self.found else error
        self.tell(first, n)

    def failed(self, error: RolloutError, first: int, micros: int, llm: str) -> None:
        """Tell of a request that brought nothing, if one was sent: it took attempts and time, whatever it cost.

        Args:
            error: Why.
            first: Which draw it was to begin with.
            micros: Wall time of the whole call in microseconds.
            llm: What to call an LLM that did not say who was asked.
        """
        told = self.found[first] is not None
        if error.attempts and not told:
            endpoint = getattr(error, "endpoint", "") or llm
            self._tell(Reply([], -1, -1, -1, error.attempts, micros, endpoint=endpoint))

    def tell(self, first: int, n: int) -> None:
        """Tell what became of n draws, as far as that is known. To tell it twice does no harm."""
        if self._told is not None:
            for place, outcome in enumerate(self.found[first : first + n], first):
                if outcome is not None:
                    self._told(place, outcome)

    def _taken_twice(self, first: int, end: int) -> LLMError:
        """The conversation has one reply already, and nobody can say which of the two was meant."""
        error = LLMError(
            "the LLM read two answers to one request; one that asks another LLM and may drop its reply must ask with "
            "take=None: msgspec.structs.replace(request, take=None)"
        )
        self.found[first:end] = [error.shared() for _ in self.found[first:end]]
        return error


def _check_ids(reply: Reply, place: int, mode: TokenMode, llm: str) -> None:
    """Refuse a choice with a ReplyError whose every token must be known, and is not."""
    ids, logprobs = reply.choices[place].token_ids, reply.choices[place].logprobs
    fault = bad_logprobs(ids, logprobs) or missing_ids(ids, logprobs, reply.prompt_ids, mode)
    if fault is not None:
        raise ReplyError(f"{llm} returned a choice with {fault}")


def _written(reply: Reply, place: int, cached: int) -> bytes:
    """A choice of a reply as the body of a chat completion, with its share of the tokens."""
    choice, total, parts = reply.choices[place], reply.generated, len(reply.choices)
    generated = total if total < 0 else total * (place + 1) // parts - total * place // parts
    calls = [{"id": c.id, "function": {"name": c.name, "arguments": c.arguments}} for c in choice.tool_calls]
    message = {"content": choice.content, "reasoning": choice.reasoning, "tool_calls": calls}
    usage = {"prompt_tokens": reply.prompt, "prompt_cache_hit_tokens": cached, "completion_tokens": generated}
    written: dict[str, Any] = {"message": message, "finish_reason": choice.finish}
    if choice.token_ids is not None:
        written |= {"token_ids": choice.token_ids, "logprobs": {"token_logprobs": choice.logprobs}}
    body = {"choices": [written], "usage": usage, "prompt_token_ids": reply.prompt_ids}
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub(body))


class TurnRequest(msgspec.Struct):
    """What a program asks for.

    Attributes:
        compiled: Who is asked.
        rollout: The rollout's id.
        leaf: The node whose path is the conversation.
        turn: Model turns on it.
        reservation: What was set aside for it; None where nothing is limited.
        context: What is sent instead of the conversation, as the tree has it.
        step: See ``Request``.
        asked: Likewise.
        draft: A draft of the tree: messages that are sent behind the conversation; None where there are none.
        more: These messages.
    """

    compiled: CompiledAgent
    rollout: int
    leaf: int
    turn: int
    reservation: Reservation | None = None
    context: int | None = None
    step: int = 0
    asked: int = 0
    draft: int | None = None
    more: Sequence[bytes] = ()


AskRecord: TypeAlias = "tuple[int, int, int | None, int]"
"""How a program asked for a turn, as its record has it: turns that it had asked for before, where its path ended, what
it asked to be sent (None for its path), and model and sampling, as the tree knows their name."""


class AppendedTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn that has landed.

    Attributes:
        node: Its node.
        size: Bytes of its message.
        turns: Model turns up to it, itself included.
        first: Whether no other rollout said the same there before.
        prompt: Prompt tokens as first reported there; None where nobody did.
        generated: Completion tokens, likewise.
    """

    node: int
    size: int
    turns: int
    first: bool
    prompt: int | None
    generated: int | None


class PendingTurn(TurnReader):
    """Reads the reply to one draw, so that it is known to be usable, and puts it on a tree later.

    Args:
        compiled: Who speaks.
        ask: What is asked for.
        sink: Told of a request that brought nothing at once, and of the reply in the step in which its turn lands.
    """

    found: list[Turn | RolloutError | None]
    parsed: PendingReply | None = None
    _rollouts = (0,)
    _prompt: TokenPrompt | None = None
    _reply: Reply | None = None
    _call: tuple[str, str, str, CallFigures, str, int] | None = None
    _told: DrawCallback | None = None

    def __init__(self, compiled: CompiledAgent, ask: TurnRequest, sink: TurnSink) -> None:
        self.ask = ask
        self._turn = ask.turn
        self._sink = sink
        self._compiled = compiled
        self._called = sink.called

    def forget(self) -> None:
        """Let go of what is told of requests, which may refer to this."""
        self._called = self._sink.called
        self._told = None

    def begin(
        self,
        compiled: CompiledAgent,
        called: Callable[[Reply], None],
        told: DrawCallback | None,
        prompt: TokenPrompt | None = None,
    ) -> None:
        """Ask for the draw in a request of its own, or again; see ``TurnReader``."""
        self.found = [None]
        self._compiled = compiled
        self._called = called
        self._told = told
        self._prompt = prompt
        if prompt is not None:
            self._mode, self._engine_reading = prompt.mode, prompt.form.engine_reading

    def _take(
        self,
        rollouts: Sequence[int],
        data: bytes,
        attempts: int,
        micros: int,
        reading: ReplyOptions | None = None,
        *_: Any,
    ) -> Any:
        """Read the bytes."""
        prompt = self._prompt
        if prompt is None:
            self.parsed, told = parse_reply(self._compiled.reading, data, self._turn)
        else:
            self.parsed, told = parse_reply(reading or prompt.form.reading, data, self._turn, True, prompt.ids)
        return told

    def _program_choice(self, choice: ReplyChoice) -> ReplyChoice:
        return choice if self._prompt is None else self._prompt.read(self._compiled, choice)

    def answered(self, call: tuple[str, str, str, CallFigures, str, int]) -> None:
        """Keep what a request cost that the engine has read; see ``TurnSink.answered``."""
        self._call = call

    def keep(self, reply: Reply) -> None:
        """Note what a request brought; who answered may be filled in later."""
        if reply.choices:
            self._reply = reply
        else:
            self._sink.called(reply)

    @property
    def choice(self) -> ReplyChoice:
        """What the model said, once it has."""
        (found,) = self.found
        assert isinstance(found, Turn), "who waits for a reply gets one or an error"
        return found.choice

    @property
    def cached(self) -> int | None:
        """Prompt tokens that the server had cached; None where it does not say."""
        cached = -1 if self._reply is None else self._reply.cached
        if self._call is not None:
            _, _, cached, *_ = self._call[3]
        return None if cached < 0 else cached

    def land(
        self,
        core: CoreTree,
        rollout: int,
        sent: int | None,
        nth: int,
        asked: AskRecord,
        note: bytes | None,
        *,
        alone: bool,
    ) -> AppendedTurn:
        """Put the turn on a tree, and the program's record of it, as ``trunkline.tree.records`` has it.

        Args:
            core: The tree.
            rollout: Whose turn it is.
            sent: What was sent, where that is not the rollout's path.
            nth: Turns of the same agent that the program had asked for before.
            asked: How it asked.
            note: What it noted of the reply, as JSON.
            alone: Whether nothing else was under way.
        """
        parsed, reply, compiled = self.parsed, self._reply, self._compiled
        assert parsed is not None
        if reply is not None:
            retries, micros = max(0, reply.attempts - 1), reply.micros
        else:
            assert self._call is not None
            retries, micros = 0, self._call[3][7]
        agent = compiled.agent.name
        drift = None if self._prompt is None else self._prompt.parting
        appended = parsed.append_turn(
            core, rollout, agent, compiled.namespace, sent, retries, micros, nth, *asked, note, alone, drift
        )
        self.drop()
        return AppendedTurn(*appended)

    def drop(self) -> None:
        """Tell of the reply, which lands nowhere."""
        if self._reply is not None:
            self._sink.called(self._reply)
        elif self._call is not None:
            self._sink.answered(*self._call)
