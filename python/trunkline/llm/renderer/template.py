"""Chat templates: Jinja as Hugging Face's tokenizers carry it, in a sandbox, since anybody may have written it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from trunkline.errors import ConfigError
from trunkline.llm.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.types import JSON, Message

__all__ = ["Template"]

_SHOWN: Final = 200


class Template:
    """A chat template.

    It may read messages and tools and write text; it reaches no attribute that Python keeps private, changes nothing it
    is given, and has no file, no module and no loop of more than 100,000 rounds.

    Args:
        source: The Jinja source.
        tokens: Special tokens by name, for example ``bos_token``.

    Raises:
        ConfigError: It is no template, or Jinja is not installed.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        try:
            import jinja2  # noqa: PLC0415 - an extra
            from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
        except ImportError:
            raise ConfigError("a chat template needs jinja2: pip install 'trunkline[tokens]'") from None
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation()]
        )
        # What transformers gives to templates.
        sandbox.filters["tojson"] = _tojson
        sandbox.globals["raise_exception"] = _raise
        sandbox.globals["strftime_now"] = time.strftime
        self._tokens = dict(tokens)
        try:
            self._template = sandbox.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template cannot be read: {excerpt(str(error), _SHOWN)}") from None

    def text(self, messages: Sequence[Message], tools: Sequence[JSON], *, opened: bool) -> str:
        """Write a conversation.

        Args:
            messages: What was said, in the OpenAI form.
            tools: Tool definitions in the OpenAI form.
            opened: Whether what opens the model's turn is wanted.

        Raises:
            ConfigError: The template refuses them, or breaks.
        """
        try:
            return str(
                self._template.render(
                    messages=[_spoken(message) for message in messages],
                    tools=list(tools) or None,
                    documents=None,
                    add_generation_prompt=opened,
                    **self._tokens,
                )
            )
        except Exception as error:  # noqa: BLE001 - a template may break in any way
            said = f"{type(error).__name__}: {excerpt(str(error), _SHOWN)}"
            raise ConfigError(f"the chat template does not take this conversation: {said}") from None


def _spoken(message: Message) -> Message:
    """A message as templates expect it: arguments of tool calls as values, no null content."""
    spoken = dict(message)
    if spoken.get("content") is None:
        spoken["content"] = ""
    calls = spoken.get("tool_calls")
    if isinstance(calls, list):
        spoken["tool_calls"] = [_called(call) for call in calls]
    return spoken


def _called(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Templates name these, and transformers has them in this order.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: object) -> NoReturn:
    raise ValueError(str(message))


def _generation() -> type:
    """The tag ``generation``, by which templates mark what a model says: its content is written as it is."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra
    from jinja2.ext import Extension  # noqa: PLC0415

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return Generation
