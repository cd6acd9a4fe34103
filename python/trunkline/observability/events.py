"""Events of a run as data: one struct for each kind (``trunkline.observability``)."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from trunkline._internal.text import JSON, redact

VERSION: Final = 1
"""The version of the events. Fields and kinds may be added in one version; none changes its meaning or is removed."""


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Something that happened in a run; the base of all kinds, whose name is the field ``kind`` in JSON.

    Attributes:
        version: The version of the events, now 1.
        time: Seconds since 1970: when the latest call ended that is in the same record of the run file, or the time of
            the record before where it has no call.
    """

    version: int = VERSION
    time: float = 0.0

    @property
    def kind(self) -> str:
        """The name of the kind, such as ``turn``."""
        return str(self.__struct_config__.tag)

    def as_json(self, *, redacted: bool = True) -> str:
        """Return the event as one line of JSON without a line break; all but printable ASCII is escaped in it.

        Args:
            redacted: Whether what looks like a key is taken out of texts.
        """
        data: JSON = msgspec.to_builtins(self)
        return json.dumps(redact(data) if redacted else data, separators=(",", ":")).replace("\x7f", "\\u007f")


class RunStarted(RunEvent, frozen=True, kw_only=True, tag="run_started"):
    """The first event of a stream.

    Attributes:
        run: Name of the run file.
        tasks: Tasks in the run.
        agent: Name of the agent.
        model: Name of its model.
        seed: The run's seed; None where the file has none.
    """

    run: str
    tasks: int
    agent: str = ""
    model: str = ""
    seed: int | None = None


class TaskEvent(RunEvent, frozen=True, kw_only=True):
    """An event of a task; a base of others.

    Attributes:
        task: Id of the task.
    """

    task: str


class MessageEvent(TaskEvent, frozen=True, kw_only=True, tag="message"):
    """A message that no model and no tool said: of the task's prompt, of a program, of a strategy.

    Attributes:
        rollout: Number of the rollout on whose path it stands first; None for a message of the prompt.
        node: Number of its node in the tree.
        parent: The node before it; 0, the empty root, for the first one.
        role: Its role, such as ``user``.
        text: Its text.
        agent: The agent that it is of; empty for none.
        cut: Characters that were cut off the texts of the event.
    """

    rollout: int | None
    node: int
    parent: int
    role: str
    text: str
    agent: str = ""
    cut: int = 0


class RolloutEvent(TaskEvent, frozen=True, kw_only=True):
    """An event of a rollout; a base of others.

    Attributes:
        rollout: Number of the rollout in its tree, from 0.
    """

    rollout: int


class RolloutStarted(RolloutEvent, frozen=True, kw_only=True, tag="rollout_started"):
    """A rollout begins before the first turn: at the prompt, or behind messages that follow it.

    Attributes:
        node: The node behind which its first turn is asked.
        path: Its fork path, which names it whatever the order of arrival: turn, draw, turn, draw, and so on.
        subgroup: The initial chain that it counts for.
    """

    node: int
    path: tuple[int, ...]
    subgroup: int


class RolloutForked(RolloutEvent, frozen=True, kw_only=True, tag="fork"):
    """A rollout begins behind a turn of another one.

    Attributes:
        parent: The rollout whose state it continues; None where the tree does not say.
        node: The node behind which its next turn is asked: of the state that it shares, or of a message that is put in
            there, whose event follows.
        turn: Model turns up to there.
        path: As for ``RolloutStarted``.
        subgroup: As for ``RolloutStarted``.
    """

    parent: int | None
    node: int
    turn: int
    path: tuple[int, ...]
    subgroup: int


class RequestedCall(msgspec.Struct, frozen=True):
    """A tool call as a model wrote it.

    Attributes:
        id: The id that its result names.
        name: The tool's name.
        arguments: The arguments, as the text that the model wrote.
    """

    id: str
    name: str
    arguments: str


class TurnEvent(RolloutEvent, frozen=True, kw_only=True, tag="turn"):
    """A model turn of a rollout.

    Attributes:
        node: Number of its node; equal turns of several rollouts share one.
        parent: The node before it.
        turn: Which turn on the rollout's path it is, from 0.
        text: What the model said. Calls of a dialect that writes them into the text are in it.
        reasoning: What it said aside; empty for nothing.
        tool_calls: The tool calls in its message.
        finish: Why the model stopped, in the server's word.
        agent: The agent or role that asked.
        weights: The version of the weights; None where unknown.
        prompt: Prompt tokens as the server reported them; None where it did not.
        generated: Generated tokens, likewise.
        cut: Characters that were cut off the texts of the event.
    """

    node: int
    parent: int
    turn: int
    text: str
    reasoning: str = ""
    tool_calls: tuple[RequestedCall, ...] = ()
    finish: str = ""
    agent: str = ""
    weights: str | None = None
    prompt: int | None = None
    generated: int | None = None
    cut: int = 0


class ToolCallEvent(RolloutEvent, frozen=True, kw_only=True, tag="tool_call"):
    """A tool call that ran in the worker; what an agent of another framework ran itself is in none.

    Attributes:
        tool: The tool's name; ``(unknown)`` for one that a model made up.
        failed: Whether it failed.
        started: When it began, in seconds since 1970.
        seconds: How long it took, waiting for its turn included.
    """

    tool: str
    failed: bool
    started: float
    seconds: float


class ObservationEvent(RolloutEvent, frozen=True, kw_only=True, tag="observation"):
    """A result that a rollout's model is shown.

    Attributes:
        node: Number of its node.
        parent: The node before it.
        call: The id of the call in the turn before that it answers; empty where it names none.
        text: The result.
        agent: The agent that is shown it.
        cut: Characters that were cut off the texts of the event.
    """

    node: int
    parent: int
    call: str
    text: str
    agent: str = ""
    cut: int = 0


class ErrorEvent(RunEvent, frozen=True, kw_only=True, tag="error"):
    """Something broke.

    Attributes:
        source: ``rollout``, ``task`` where a whole task was given up, or ``run`` for workers, such as one that died.
        error: Class of the error; for the run, ``died``, ``hung``, ``recycled``, ``quarantined``, ``stale`` or
            ``given up``.
        message: What happened, without control characters.
        task: Id of the task; None where none is concerned.
        rollout: Number of the rollout, likewise.
        cut: Characters that were cut off the message.
    """

    source: str
    error: str
    message: str
    task: str | None = None
    rollout: int | None = None
    cut: int = 0


class RolloutEnded(RolloutEvent, frozen=True, kw_only=True, tag="rollout_ended"):
    """A rollout ended. It comes again, with ``retried``, when the rollout was asked again later.

    Attributes:
        node: Its last node.
        termination: Why it ended, a word of ``trunkline.Termination``.
        answer: Its answer; None if it gave none.
        why: What cut it or broke it, without control characters; empty for others.
        turns: Model turns on its path, shared ones included.
        calls: Model calls of its own; tokens and tool calls, too, are its own.
        prompt: Prompt tokens.
        generated: Generated tokens.
        tools: Tool calls.
        cut: Characters that were cut off the texts of the event.
    """

    node: int
    termination: str
    answer: str | None
    why: str
    turns: int
    calls: int
    prompt: int
    generated: int
    tools: int
    cut: int = 0


class ScorePart(msgspec.Struct, frozen=True):
    """A part of a score.

    Attributes:
        reward: Name of the reward.
        value: Its value; None if it gave none.
        weight: What it counts in the score; 0 beside it, None for an earlier reward.
        why: What the reward says of it, without control characters.
    """

    reward: str
    value: float | None
    weight: float | None
    why: str


class ScoreEvent(RolloutEvent, frozen=True, kw_only=True, tag="score"):
    """A rollout that ended was scored, or scored again: the latest one holds.

    Attributes:
        reward: The reward; None where it has none.
        parts: The parts of it, if it has parts.
    """

    reward: float | None
    parts: tuple[ScorePart, ...] = ()


class TaskEnded(TaskEvent, frozen=True, kw_only=True, tag="task_ended"):
    """A task is finished, or given up: its tree is complete.

    Attributes:
        ended: ``finished``, ``settled``, ``enough``, ``budget``, ``deadline`` or ``broken``.
        rollouts: Rollouts in its tree.
        nodes: Nodes in its tree, the empty root included.
        digest: Digest of the tree.
    """

    ended: str
    rollouts: int
    nodes: int
    digest: str


class RunEnded(RunEvent, frozen=True, kw_only=True, tag="run_ended"):
    """The last event of a stream.

    Attributes:
        state: How the run ended: ``done``, ``exhausted``, ``budget``, ``deadline``, ``interrupted``, ``failed``;
            ``killed`` where its process ended without a word; ``running`` where it is under way and was not followed.
        tasks: Tasks in the run.
        finished: Of these, tasks that are finished.
    """

    state: str
    tasks: int
    finished: int


class EventsDropped(RunEvent, frozen=True, kw_only=True, tag="dropped"):
    """Events that a slow consumer was not given, as it had asked for.

    Attributes:
        count: How many, since the event before.
    """

    count: int


KINDS: Final = tuple(
    str(kind.__struct_config__.tag)
    for kind in (
        RunStarted, MessageEvent, RolloutStarted, RolloutForked, TurnEvent, ToolCallEvent, ObservationEvent,
        ErrorEvent, RolloutEnded, ScoreEvent, TaskEnded, RunEnded, EventsDropped,
    )
)  # fmt: skip
"""The names of all kinds."""
