"""What a program is given: ask, use, observe."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import msgspec

from trunkline._core import Transcript
from trunkline._internal.old_names import old_method
from trunkline._internal.text import format_error, without_secrets
from trunkline.errors import (
    BeforeToolFailed,
    CallFailed,
    ConfigError,
    EnvironmentFailed,
    LLMError,
    ProgramError,
    ReplayDiverged,
)
from trunkline.llm.messages import encode
from trunkline.rollout.programs.environment import NO_STEP
from trunkline.rollout.programs.replay import as_json, difference, failed, shown
from trunkline.rollout.programs.state import ReplayState
from trunkline.rollout.rollout import usable
from trunkline.rollout.types import Finished
from trunkline.tools.toolbox import Observation
from trunkline.tree.records import Failure, Record, StepMark
from trunkline.tree.views import message_text
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import NodeView
    from trunkline.agent import Agent, CompiledAgent
    from trunkline.llm.dialects.base import Parsed
    from trunkline.llm.types import ReplyChoice, ToolCall
    from trunkline.rollout.environments import Figures
    from trunkline.rollout.programs.executor import ProgramExecutor
    from trunkline.rollout.programs.replay import Journal, ReplaySlot
    from trunkline.rollout.programs.resources import Program
    from trunkline.rollout.rollout import Rollout
    from trunkline.rollout.sampling.turns import AppendedTurn
    from trunkline.tools.tool import Tool
    from trunkline.types import Message, Task


__all__ = ["ContextMessage", "ContextRef", "MessagePieces", "ModelTurn", "ProgramContext"]


class MessagePieces(NamedTuple):
    """A message of a request that is cut into pieces, which the tree holds.

    Attributes:
        pieces: Their numbers in the tree.
    """

    pieces: tuple[int, ...]


class ContextRef(msgspec.Struct, frozen=True, gc=False):
    """All that a request shows a model, as the tree has it.

    Attributes:
        context: Its number in the tree.
    """

    context: int


class ContextMessage(NamedTuple):
    """A message that is on the path.

    Attributes:
        text: What it says.
        node: Its node in the tree.
        ok: Whether the tool that says it ran and returned; true for a message of no tool.
    """

    text: str
    node: int
    ok: bool = True


class ModelTurn:
    """A model turn that was asked for.

    Attributes:
        text: What the model said.
        reasoning: What it thought, where the server returned that beside the text.
        finish: Why it stopped, in the server's word.
        node: Its node in the tree.
        prompt: Prompt tokens, as the server reports them; None where it does not.
        generated: Completion tokens, likewise.
        note: What the program noted of it when it came.
    """

    __slots__ = (
        "_choice", "_compiled", "_read", "_recorded", "finish", "generated", "node", "note", "prompt", "reasoning",
        "text",
    )  # fmt: skip

    def __init__(
        self,
        compiled: CompiledAgent,
        choice: ReplyChoice,
        node: int,
        prompt: int | None,
        generated: int | None,
        note: Any = None,
        recorded: Callable[[CompiledAgent, int], ReplyChoice] | None = None,
    ) -> None:
        self._compiled = compiled
        self._choice = choice
        self._recorded = recorded
        self._read: Parsed | None = None
        self.text = choice.content
        self.reasoning = choice.reasoning
        self.finish = choice.finish
        self.node = node
        self.prompt = prompt
        self.generated = generated
        self.note = note

    @property
    def calls(self) -> Sequence[ToolCall]:
        """Tool calls, as the agent's dialect reads them.

        Raises:
            LLMError: They cannot be read.
        """
        return self._turn().calls

    @property
    def answer(self) -> str | None:
        """The text, where the agent's dialect reads an answer in it.

        Raises:
            LLMError: It cannot be read.
        """
        return self._turn().answer

    def _turn(self) -> Parsed:
        """What the dialect reads in the turn: its tool calls as the tree has them."""
        if self._read is None:
            choice = self._choice if self._recorded is None else self._recorded(self._compiled, self.node)
            self._read = self._compiled.dialect.read(choice)
        return self._read

    def __str__(self) -> str:
        return self.text


class ProgramContext(ReplayState):
    """One try of one task, as a program plays it: ``async def program(rollout)``.

    A program is run again to go on with a rollout elsewhere, or to fork it; it is then given what it was given before,
    and nothing is asked, called or run again. So it must do the same again: it awaits its rollout and nothing else
    (``asyncio.gather``, task groups, timeouts and queues over that are fine), takes chance from ``random``, time
    from ``now``, and everything else that may change from ``call``.

    Args:
        rollout: The rollout.
        executor: Does what it asks for.
        journal: What is on record in its tree.
        program: What it shares with other rollouts of the run.
        seed: The run's seed.

    Attributes:
        task: The task.
        agent: The run's agent.
        turn: Model turns so far.
        step: Turns that something was observed after.
    """

    def __init__(
        self, rollout: Rollout, executor: ProgramExecutor, journal: Journal, program: Program, seed: int
    ) -> None:
        super().__init__(rollout, executor, journal, seed)
        self.task: Task = rollout.task
        self.agent: Agent = program.compiled.agent
        self.turn = 0
        self.step = 0
        self._program = program
        self._asked = 0
        self._moved = False
        self._direct = 0
        self._over: Finished | None = None
        self._since: dict[str, int] = {}
        self._fragments: dict[int, int] = {}

    async def ask(
        self,
        agent: Agent | None = None,
        messages: Sequence[Message | ModelTurn | ContextMessage | MessagePieces] | ContextRef | None = None,
        *,
        note: Callable[[ReplyChoice], Any] | None = None,
        **sampling: Any,
    ) -> ModelTurn:
        """Let a model move. Several may be asked at the same time; their turns follow one another as they were asked.

        Args:
            agent: Who is asked, by its name in the tree: a role. The run's agent when None.
            messages: All that it is shown: chat messages, and what ``ask`` and the others returned. The rollout's
                own path when None.
            note: What it returns of the reply, as JSON holds it, is on record with the turn: ``ModelTurn.note``.
            **sampling: Fields of ``trunkline.Sampling`` that take the place of the agent's.

        Raises:
            LLMError: No usable reply came. That is on record, too; a program may catch it.
        """
        if self._host.stopped:
            self._check()
        if self._over is not None:
            raise self._ended(self._over)
        compiled = self._program.of(self.agent if agent is None else agent, sampling)
        leaf, context = self._leaf, messages.context if type(messages) is ContextRef else self._sent(messages)
        executor, role = self._executor, compiled.agent.name
        with self._replay.place("ask", role) as place:
            step, asked_before = self.step, place.nth - self._since.setdefault(role, place.nth)
            if (record := place.record) is not None:
                return await self._asked_before(compiled, place, record, leaf, context)
            if self._asked >= self.agent.max_turns:
                await self._turn(place)
                self.finish(None, Termination.MAX_TURNS)
            self._asked += 1
            number, compiled = executor.numbered(compiled)
            asked = number, leaf, context, executor.name(compiled.namespace)
            place.data = asked, None
            send = partial(executor.send, compiled, leaf, context, step, asked_before, number, joins=place.joins)
            try:
                pending = await self._turn(place, send, executor.drop)
            except LLMError as error:
                failure = Failure.of(error).encode()
                self._write(place, [], asked, failure)
                raise failed(failure) from error
            choice = pending.choice
            try:
                noted = None if note is None else note(choice)
                kept = None if note is None else as_json(noted, "what is noted of a reply")
                sent = self._path(leaf) if context is None and leaf != self._rollout.leaf else context
                appended = executor.land(pending, sent, place.nth, asked, kept, alone=self._alone(place))
            except BaseException:
                executor.drop(pending)
                raise
            if not appended.first or choice.reasoning is not None:
                # As a replay reads it from the tree.
                choice = executor.recorded(compiled, appended.node)
            later = executor.recorded if choice.tool_calls else None
            return self._model_turn(compiled, appended.node, choice, appended, noted, later)

    async def _asked_before(
        self, compiled: CompiledAgent, place: ReplaySlot, record: Record, leaf: int, context: int | None
    ) -> ModelTurn:
        """Give out a turn that is on record, if it was asked for in the same way."""
        role = compiled.agent.name
        if not record.data:
            await self._turn(place)  # it was given up before it began
        (asked, was_leaf, was_context, how), failure, *noted = record.data
        if record.rollout == self._rollout.id:
            self._executor.passed(asked)
        self._asked += 1
        if context != was_context or (context is None and leaf != was_leaf):
            # The same text may have been cut into other pieces.
            was, now = self._request(was_leaf, was_context), self._request(leaf, context)
            if was != now:
                differs = difference(was, now)
                raise self._ended(ReplayDiverged(f"run again, the program asks {shown(role)} {differs}"))
        if asked and how != self._executor.name(compiled.namespace):
            what = "with another model, sampling or tools"
            raise self._ended(ReplayDiverged(f"run again, the program asks {shown(role)} {what}"))
        await self._turn(place)
        if failure is not None:
            raise failed(failure)
        (node,) = record.nodes
        return self._model_turn(compiled, node, self._executor.recorded(compiled, node), self._core.node(node), *noted)

    def _model_turn(
        self,
        compiled: CompiledAgent,
        node: int,
        choice: ReplyChoice,
        facts: AppendedTurn | NodeView,
        note: Any = None,
        recorded: Callable[[CompiledAgent, int], ReplyChoice] | None = None,
    ) -> ModelTurn:
        self._leaf, self._moved = node, True
        self.turn += 1
        return ModelTurn(compiled, usable(choice), node, facts.prompt, facts.generated, note, recorded)

    async def use(self, agent: Agent | None, reply: ModelTurn) -> list[ContextMessage]:
        """Run the tool calls of a turn at once; what they say is appended in call order.

        Args:
            agent: Whose tools they are. The run's agent when None.
            reply: The turn.

        Returns:
            What each call said, as the model is told; nothing for a turn that calls none.

        Raises:
            BeforeToolFailed: The agent's ``before_tool`` failed, which ends the rollout.
            EnvironmentFailed: The rollout's environment failed, which ends the rollout.
            LLMError: The calls cannot be read.
        """
        self._check_step()
        compiled = self._program.of(self.agent if agent is None else agent, {})
        calls = reply.calls
        if not calls:
            return []
        environment = self._executor.environment
        concerned = environment is not None and environment.concerns(compiled.toolbox, calls)
        with self._replay.place("use", compiled.agent.name) as place:
            if (record := place.record) is not None:
                if environment is not None and concerned:
                    environment.on_record(record, partial(self._executor.calls_of, compiled, calls, record, reply.node))
                await self._turn(place)
                turn, oks, *step = record.data
                if turn != reply.node:
                    what = f"runs calls of another turn at {shown(place.name)}"
                    raise self._ended(ReplayDiverged(f"run again, the program {what}"))
                self._ends(step)
                return self._seen(record.nodes, oks)
            place.ordered = concerned
            number = self._core.node(reply.node).turns - 1
            try:
                seen, said = await self._turn(place, partial(self._executor.run, compiled, calls, number, place))
            except BeforeToolFailed as problem:
                raise self._ended(problem) from None
            nodes = self._executor.observed(compiled, calls, seen, number)
            oks = [one.ok for one in seen]
            told = self._told(said)
            self._write(place, nodes, reply.node, oks, *told)
            self._ends(told, said)
            return self._seen(nodes, oks)

    def _check_step(self) -> None:
        """Refuse to go on with a rollout that is over, or whose environment said that a step was the last."""
        self._check()
        if self._over is not None:
            raise self._ended(self._over)

    def _told(self, said: Figures | EnvironmentFailed) -> list[Any]:
        """Put on record what the environment says of a step, and return it as the record of the calls has it."""
        if isinstance(said, EnvironmentFailed) or said == NO_STEP:
            return []
        reward, ended = said
        if self._rollout.turn:  # it belongs to the latest turn on the path
            mark = StepMark((self._rollout.id, self._rollout.turn - 1), reward, cast("Any", ended))
            self._core.mark(msgspec.json.encode(mark).decode())
        return [reward, ended]

    def _ends(self, told: Sequence[Any], said: Figures | EnvironmentFailed = NO_STEP) -> None:
        """Note that a step was the last one of its rollout; raises how the environment failed."""
        if isinstance(said, EnvironmentFailed):
            raise self._ended(said)
        if told and told[1]:
            self._over = Finished(Termination(told[1]))

    async def observe(
        self, content: str | Message | ContextMessage, role: str = "user", by: str = "", seen: Observation | None = None
    ) -> ContextMessage:
        """Append a message to the path.

        Args:
            content: Its text, or a whole chat message.
            role: The role of a text: ``user``, ``system``, ``developer`` or ``assistant``.
            by: Who says it, for the tree.
            seen: What came of the tool that says it, of ``tool``: then it counts as a tool call.

        Raises:
            ProgramError: It is no message.
        """
        self._check()
        message = self._message({"role": role, "content": content} if isinstance(content, str) else content)
        with self._replay.place("observe", by) as place:
            if (record := place.record) is not None:
                await self._turn(place)
                was = self._core.message(record.nodes[0])
                if was != message:
                    raise self._ended(ReplayDiverged(f"run again, the program observes {difference(was, message)}"))
                (noted,) = self._seen(record.nodes, [True])
                return noted
            await self._turn(place)
            node = self._executor.tell(message, by, seen)
            self._write(place, [node])
            # What is ASCII in a message reads the same in the tree.
            (noted,) = self._seen([node], [True], [content] if type(content) is str and content.isascii() else None)
            return noted

    async def tool(self, tool: Tool[..., Any], /, **arguments: Any) -> Observation:
        """Run a tool of the program's own; nothing is appended to the path, but what it says is on record.

        One that takes the rollout's environment is run when nothing that the program began before is under way.

        Args:
            tool: The tool.
            **arguments: Its arguments, as JSON holds them.

        Returns:
            What it said, or what went wrong.

        Raises:
            EnvironmentFailed: The rollout's environment failed, which ends the rollout.
            ProgramError: The arguments are no JSON, or the tool takes an environment that the rollout does not have.
        """
        toolbox, executor = self._program.toolbox(tool), self._executor
        given = as_json(arguments, f"the arguments of {shown(tool.name)}")
        number, self._direct = self._direct, self._direct + 1
        environment = executor.environment if tool.schema.slot is not None else None
        if environment is not None:
            self._check_step()
        said: Figures | EnvironmentFailed = NO_STEP

        async def run(place: ReplaySlot) -> list[Any]:
            nonlocal said
            seen, said = await executor.direct(tool, toolbox, number, given.decode(), place)
            return [*seen]

        def known(made: list[Any]) -> None:
            executor.known(tool, number, Observation(*made))

        def passed(record: Record) -> None:
            if environment is not None:
                environment.on_record(record, partial(executor.direct_call, toolbox, tool.name, number, given, record))

        made = await self._recorded(
            "tool", tool.name, given, run, known, passed, lambda: self._told(said), ordered=environment is not None
        )
        self._ends(made[3:], said)
        return Observation(*made[:3])

    async def call(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function whose result may differ from time to time; a replay gets the same result without calling it.

        Args:
            function: The function; one that is not ``async`` runs in a thread.
            *args: Its arguments, as JSON holds them.

        Returns:
            What it returned, as JSON gives it back: tuples are lists.

        Raises:
            CallFailed: It raised.
            ProgramError: Arguments or result are no JSON.
        """
        name = str(getattr(function, "__qualname__", type(function).__name__))
        given = as_json(args, f"what {shown(name)} is called with")

        async def run(_: ReplaySlot) -> list[Any]:
            try:
                if asyncio.iscoroutinefunction(function):
                    made = await function(*args)
                else:
                    made = await asyncio.to_thread(function, *args)
            except Exception as error:  # noqa: BLE001 - anybody's code
                return [None, type(error).__name__, without_secrets(format_error(error))]
            return [msgspec.json.decode(as_json(made, f"the result of {shown(name)}")), "", ""]

        made, kind, why = await self._recorded("call", name, given, run)
        if kind:
            raise CallFailed(f"{shown(name)} raised {kind}: {why}", kind)
        return made

    def now(self) -> float:
        """Return the time of day in seconds; a replay gets the same."""
        self._check()
        found = self._replay.time()
        if found is not None:
            return float(found.data[0])
        seconds = time.time()
        self._journal.write(Record(self._rollout.id, "now", "", 0, [seconds], ()))
        return seconds

    def finish(self, answer: str | None, termination: Termination = Termination.ANSWER, reason: str = "") -> NoReturn:
        """End the rollout here; a program that returns ends it with what it returns as its answer.

        Args:
            answer: Its answer, if it has one.
            termination: Why it ends.
            reason: What the record says of it, where the termination does not say it all.
        """
        if self._over is not None and answer is None and termination is Termination.ANSWER:
            termination = self._over.termination
        raise self._ended(self.short() or Finished(termination, answer, reason))

    def _seen(
        self, nodes: Sequence[int], oks: Sequence[bool], texts: Sequence[str] | None = None
    ) -> list[ContextMessage]:
        """What was appended: the path ends there."""
        self._leaf = nodes[-1]
        if self._moved:
            self.step += 1
            self._since.clear()
        self._moved = False
        if texts is None:
            texts = [message_text(msgspec.json.decode(self._core.message(node))) for node in nodes]
        return [ContextMessage(text, node, ok) for text, node, ok in zip(texts, nodes, oks, strict=True)]

    def cut(self, pieces: Sequence[bytes | int]) -> MessagePieces:
        """Make one message for ``ask`` out of pieces, each of which is kept once however many messages have it.

        Args:
            pieces: As ``trunkline.llm.messages.piece`` encodes them, or numbers of such that were cut before.
        """
        fragment = self._core.fragment
        return MessagePieces(tuple(piece if isinstance(piece, int) else fragment(piece) for piece in pieces))

    def transcript(self) -> Transcript:
        """Return where to keep what is said for prompts to come, in pieces of this rollout's tree."""
        return Transcript(self._core)

    talk = old_method("talk", "transcript")

    def _sent(
        self, messages: Sequence[Message | ModelTurn | ContextMessage | MessagePieces] | ContextRef | None
    ) -> int | None:
        """The context that is sent; None for the path."""
        if messages is None:
            return None
        if isinstance(messages, ContextRef):
            return messages.context
        if not isinstance(messages, list | tuple) or not messages:
            raise ProgramError("messages must be a list of chat messages, at least one")
        return self._core.context(self.fragments(messages))

    def fragments(self, messages: Sequence[Message | ModelTurn | ContextMessage | MessagePieces]) -> list[int]:
        """Return the pieces of the tree that some messages are."""
        fragments: list[int] = []
        for message in messages:
            if isinstance(message, MessagePieces):
                fragments += message.pieces
            else:
                fragments.append(self._fragment(message))
        return fragments

    def _fragment(self, message: Message | ModelTurn | ContextMessage) -> int:
        if not isinstance(message, ModelTurn | ContextMessage):
            return self._core.fragment(self._message(message))
        known = self._fragments.get(message.node)
        if known is None:
            known = self._fragments[message.node] = self._core.fragment(self._core.message(message.node))
        return known

    def _message(self, message: Message | ModelTurn | ContextMessage) -> bytes:
        if isinstance(message, ModelTurn | ContextMessage):
            return self._core.message(message.node)
        try:
            return encode(message)
        except ConfigError as problem:
            raise ProgramError(str(problem)) from None

    def _path(self, leaf: int) -> int:
        """The context that the path to a node is."""
        core = self._core
        return core.context([core.fragment(core.message(node)) for node in core.path(leaf)])

    def _request(self, leaf: int, context: int | None) -> bytes:
        """The messages of a request."""
        if context is None:
            return self._core.messages(leaf)
        return self._core.request_context(context, b"[", b"]")
