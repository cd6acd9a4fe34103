"""How one agent speaks with its model: a dialect bound to tools and sampling, and guarded where it is a user's own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trunkline.bounds import shown, text
from trunkline.errors import ConfigError, LLMError, TrunklineError
from trunkline.llm import messages
from trunkline.llm.dialects import catalog
from trunkline.llm.dialects.dialect import MOST_CALLS, Parsed
from trunkline.llm.dialects.native import Native
from trunkline.llm.protocol import ToolCall
from trunkline.llm.request import Sampling
from trunkline.llm.text import scrub
from trunkline.printable import said
from trunkline.store.redact import redact as hide_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.protocol import Choice
    from trunkline.tools.tool import Tool
    from trunkline.types import Message

__all__ = ["Speech"]

T = TypeVar("T")

_TOOL_FIELDS: Final = {"role", "tool_call_id", "content"}


class Speech:
    """A dialect with the tools and the sampling of one agent.

    Args:
        dialect: Its name, or the dialect.
        tools: The agent's tools.
        sampling: What the agent asks for.

    Attributes:
        native: Whether tool definitions go along in the ``tools`` field of requests.
        prompt: What the system prompt says about tools; empty for nothing.
        sampling: What is sent.
        mark: What tells this dialect from others in a merge namespace; empty for the native one.

    Raises:
        ConfigError: There is no such dialect, or it cannot be spoken with these tools.
    """

    def __init__(self, dialect: object, tools: Sequence[Tool], sampling: Sampling) -> None:
        self._dialect = catalog.find(dialect)
        self._name = catalog.label(self._dialect)
        self._tools = [tool.definition for tool in tools]
        self.native = self._dialect.native
        if not isinstance(self.native, bool):
            raise ConfigError(f"dialect {self._name}: native must be true or false, not {shown(self.native)}")
        self.prompt = text(f"dialect {self._name}: prompt", self._ask(ConfigError, "prompt", str, self._tools))
        self.sampling = self._ask(ConfigError, "sampling", Sampling, sampling)
        digest = hashlib.blake2b(self.prompt.encode(), digest_size=8).hexdigest()
        self.mark = "" if isinstance(self._dialect, Native) else f" dialect:{self._name}:{digest}"

    def opening(self, system: str, conversation: Sequence[Message]) -> list[bytes]:
        """Encode the messages that a tree begins with.

        What the dialect says about tools goes to the end of the system prompt: the agent's own, else the task's, else
        it is one.

        Args:
            system: The agent's system prompt; none when empty.
            conversation: The task's messages.
        """
        first, *rest = conversation
        if self.prompt and not system and first.get("role") == "system" and isinstance(first.get("content"), str):
            merged = {**first, "content": _joined(str(first["content"]), self.prompt)}
            return [messages.encode(message) for message in (merged, *rest)]
        full = _joined(system, self.prompt)
        return [*([messages.system(full)] if full else []), *map(messages.encode, conversation)]

    def read(self, choice: Choice) -> Parsed:
        """Read a reply.

        Raises:
            LLMError: The server made tool calls of its own, which nobody asked it for; or a user's dialect failed.
        """
        if choice.tool_calls and not self.native:
            raise LLMError(
                f"the server parsed tool calls itself, although the dialect {self._name} sends no tools: switch its "
                "tool parser off, or use dialect='native'"
            )
        found = self._ask(LLMError, "parse", Parsed, choice, self._tools)
        if not _typed(found):
            raise LLMError(f"dialect {self._name}: parse returned wrong types: {shown(found)}")
        if len(found.calls) > MOST_CALLS:
            return Parsed(problem=f"Error: this turn makes more than {MOST_CALLS} tool calls; none was run.")
        if not found.calls and found.answer is None and not found.problem:
            raise LLMError(f"dialect {self._name}: parse returned neither calls nor an answer nor a problem")
        # A dialect that reads JSON can make answers that no text can hold.
        return found if found.answer is None else Parsed(found.calls, scrub(found.answer), found.problem)

    def observation(self, call: ToolCall, result: str, id: str) -> bytes:
        """Encode the message that brings a call's result back.

        Raises:
            LLMError: A user's dialect failed.
        """
        message: Message = self._ask(LLMError, "observe", dict, call, result, id)
        if message.keys() == _TOOL_FIELDS and message["role"] == "tool":
            answers, content = message["tool_call_id"], message["content"]
            if isinstance(answers, str) and isinstance(content, str):
                return messages.tool(answers, content)
        try:
            return messages.encode(message)
        except ConfigError as error:
            raise LLMError(f"dialect {self._name}: observe returned no message: {error}") from None

    def _ask(self, error: type[TrunklineError], method: str, kind: type[T], *given: Any) -> T:
        """Call a method of the dialect, which may be anybody's code.

        Raises:
            TrunklineError: Of class ``error``: the method raised, or returned what it must not.
        """
        try:
            found = getattr(self._dialect, method)(*given)
        except error:
            raise
        except Exception as problem:
            what = hide_secrets(said(problem))
            raise error(f"dialect {self._name}: {method} raised {type(problem).__name__}: {what}") from problem
        if not isinstance(found, kind):
            raise error(f"dialect {self._name}: {method} must return a {kind.__name__}, not {shown(found)}")
        return found


def _typed(found: Parsed) -> bool:
    """Whether the fields of a user's own struct hold what they say; nobody checked it when it was made."""
    calls: object = found.calls
    return (
        isinstance(calls, list)
        and all(isinstance(call, ToolCall) for call in calls)
        and all(isinstance(text, str) for call in calls for text in (call.name, call.arguments))
        and isinstance(found.answer, str | None)
        and isinstance(found.problem, str)
    )


def _joined(*parts: str) -> str:
    """Join the parts of a system prompt that say anything."""
    return "\n\n".join(part for part in parts if part)
