"""Reply bytes to Reply without a tree; recorded turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline._core import OBSERVATION, TURN, read_reply
from trunkline._internal.text import excerpt
from trunkline.errors import ReplyError
from trunkline.llm.messages import is_object
from trunkline.llm.types import Reply, ReplyChoice, ToolCall
from trunkline.tree.views import message_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline._core import CoreTree
    from trunkline.types import Message


def read(data: bytes, first: int = 0, attempts: int = 1, micros: int = 0, most: int | None = None) -> Reply:
    """Read the body of a chat completion; see ``trunkline.llm.types.ReplyReader``."""
    del first
    found = read_reply(data)
    choices = [
        ReplyChoice(choice.content, choice.reasoning, [ToolCall(*call) for call in choice.tool_calls], choice.finish)
        for choice in found.choices[:most]
    ]
    if not choices:
        raise ReplyError("its choices are empty")
    prompt, cached, generated = (
        -1 if count is None else count for count in (found.prompt, found.cached, found.generated)
    )
    return Reply(choices, prompt, cached, generated, attempts, micros, found.served, estimated=found.estimated)


def unusable(error: ReplyError, data: bytes, secret: str | tuple[str, ...] = "") -> str:
    """Why an answer is no reply, with its beginning."""
    begun = data.lstrip()[:1]
    reason = "it is an HTML page; is the base URL right?" if begun == b"<" else excerpt(str(error), 200, secret)
    shown = f": '{excerpt(data, 200, secret)}'" if begun else ""
    return f"the reply is no chat completion: {reason}{shown}"


class _Malformed(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments in a history that are no JSON object stand in it as the text of one."""

    malformed: str


class RecordedStep(NamedTuple):
    """A model turn and what followed it on a path."""

    turn: int
    number: int
    observations: list[int]


def steps(core: CoreTree, path: Sequence[int]) -> Iterator[RecordedStep]:
    step: RecordedStep | None = None
    for node in path:
        facts = core.node(node)
        if facts.kind == TURN:
            if step is not None:
                yield step
            step = RecordedStep(node, facts.turns - 1, [])
        elif facts.kind == OBSERVATION and step is not None:
            step.observations.append(node)
    if step is not None:
        yield step


def recorded(core: CoreTree, turn: int, message: Message | None = None) -> ReplyChoice:
    """A recorded model turn as the choice it came from, as far as its message says, where that is read already."""
    if message is None:
        message = msgspec.json.decode(core.message(turn))
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return ReplyChoice(
        message_text(message),
        core.aside(turn),
        [ToolCall("", call["name"], written(call["arguments"])) for call in calls],
        core.node(turn).finish,
    )


def written(arguments: str) -> str:
    """Return the arguments of a call in a history as the model wrote them."""
    if "malformed" not in arguments and "\\u" not in arguments:
        return arguments
    try:
        written = msgspec.json.decode(arguments, type=_Malformed).malformed
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments
    # Blank arguments mean none, and do not travel like this.
    return arguments if not written.strip() or is_object(written) else written
