"""The hook ``before_tool``: it is given each call of a model before it runs, and may refuse or change it."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import excerpt, format_error, without_secrets
from trunkline._internal.validation import short_repr
from trunkline.errors import BeforeToolFailed, ConfigError
from trunkline.tools.calls import Call, bounded
from trunkline.tools.executor import Raised, UserCodeRunner
from trunkline.tools.schema import BadArguments
from trunkline.tools.tool import gives_awaitable
from trunkline.tree.records import DecisionMark
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trunkline.tools.calls import Origin
    from trunkline.tools.tool import Tool

_SECONDS: Final = 60.0
"""Seconds that the hook may take for a call."""

_encoder: Final = msgspec.json.Encoder(order="deterministic")


class ToolRequest(msgspec.Struct, kw_only=True):
    """A call that a model makes, as ``before_tool`` is given it.

    Attributes:
        name: The tool's name.
        arguments: Its arguments as JSON has them, checked and converted, without those that the model left out.
        task: The rollout's task.
        call: The call's id and place: rollout, turn, and index in the turn.
    """

    name: str
    arguments: dict[str, Any]
    task: Task
    call: Call


def check_before_tool(hook: Any) -> None:
    """Refuse what cannot be called with a call; ConfigError."""
    try:
        inspect.signature(hook).bind(None)
    except TypeError:
        raise ConfigError(
            f"before_tool must be a function of one call, def before_tool(call), not {short_repr(hook)}"
        ) from None
    except ValueError:
        pass  # a builtin without a signature


class ToolReview:
    """Asks the hook about the calls of one turn, and keeps its decisions by their index."""

    def __init__(self, hook: Callable[[ToolRequest], Any], task: Task) -> None:
        self.decisions: dict[int, DecisionMark] = {}
        self._hook = hook
        self._task = task

    async def ask(
        self, tool: Tool[..., Any], arguments: str, origin: Origin, index: int, user_code: UserCodeRunner
    ) -> DecisionMark | None:
        """Return the decision on a call: None to run it as it is, and where it will fail by its arguments.

        Raises:
            BeforeToolFailed: The hook raised, took too long, or returned neither a call nor a text.
        """
        try:
            given = tool.schema.as_json(arguments)
        except BadArguments:
            return None
        call, before = origin.call(index), _encoder.encode(given)
        request = ToolRequest(name=tool.name, arguments=given, task=self._task, call=call)
        place = f"before_tool, called for {tool.name} in turn {call.turn},"
        try:
            said = await user_code.run(partial(self._hook, request), gives_awaitable(self._hook), _SECONDS)
        except (TimeoutError, RuntimeError) as error:
            why = f"did not return within {_SECONDS:g} s" if isinstance(error, TimeoutError) else format_error(error)
            raise BeforeToolFailed(f"{place} {why}") from None
        if isinstance(said, Raised):
            what = f"{type(said.error).__name__}: {without_secrets(format_error(said.error))}"
            raise BeforeToolFailed(f"{place} raised {what}") from said.error
        where = call.rollout, call.turn, index
        if isinstance(said, str) and said:
            mark: DecisionMark | None = DecisionMark(where, bounded(str.__str__(said)))
        elif isinstance(said, ToolRequest) and said.name == tool.name:
            changed = _arguments(said, tool, place)
            mark = None if changed == before else DecisionMark(where, arguments=changed.decode())
        elif isinstance(said, ToolRequest):
            raise BeforeToolFailed(
                f"{place} returned a call of {short_repr(said.name)}: it may change arguments, not the tool; "
                "return a text to refuse the call"
            )
        else:
            raise BeforeToolFailed(
                f"{place} returned {excerpt(short_repr(said), 100)}: return the call, changed or not, or a text that "
                "refuses it"
            )
        if mark is not None:
            self.decisions[index] = mark
        return mark

    def marks(self) -> Iterator[str]:
        """Yield the marks that put the decisions on record, in call order."""
        for index in sorted(self.decisions):
            yield msgspec.json.encode(self.decisions[index]).decode()


def _arguments(said: ToolRequest, tool: Tool[..., Any], place: str) -> bytes:
    """Return the arguments that the hook gave as JSON; raises BeforeToolFailed where they do not fit the tool."""
    try:
        if not isinstance(said.arguments, dict):
            raise BadArguments(f"they are {short_repr(said.arguments)}, and no dict")
        text = _encoder.encode(said.arguments)
        tool.schema.decode(text.decode())
    except (BadArguments, TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise BeforeToolFailed(f"{place} returned arguments that do not fit: {format_error(error)}") from None
    return text
