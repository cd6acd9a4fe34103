"""The chat template: messages and tools to prompt text and token ids, and back.

A prompt is a run of ``<|im_start|>role ... <|im_end|>`` blocks and an open assistant block. A reply is one raw text,
``<think>...</think>`` then content then ``<tool_call>`` blocks, and returns into history character for character, so
that the ids of the next prompt extend the sampled ones.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline.errors import ConfigError
from trunkline.sim.model.tokenizer import default_bpe

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Call",
    "Conversation",
    "Message",
    "Tool",
    "digest",
    "encoded",
    "opening",
    "parse_ids",
    "parts",
    "render",
    "response",
    "thinking_in",
    "tools_from",
    "tools_in",
]

_SAID: Final = frozenset({"tool_calls", "reasoning_content", "reasoning"})
ROLES: Final = ("system", "developer", "user", "assistant", "tool")

_THINK: Final = re.compile(r"\A\s*<think>\n?(.*?)(?:\n?</think>\n?|\Z)", re.DOTALL)
_CALL: Final = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_CALL_BODY: Final = re.compile(
    r'\{\s*"name":\s*"((?:[^"\\]|\\.)*+)"\s*(?:,\s*"arguments":\s*(.*?)\s*)?\}?\Z', re.DOTALL
)
_RESPONSE: Final = re.compile(r"\A<tool_response>\n(.*)\n</tool_response>\Z", re.DOTALL)
_TOOLS: Final = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_ENCODE: Final = msgspec.json.Encoder().encode


class Message(NamedTuple):
    """A message of the template; of a reply, the raw text."""

    role: str
    text: str


class Tool(NamedTuple):
    """A tool of the request: its name and the JSON schemas of its parameters."""

    name: str
    properties: dict[str, Any]


class Call(NamedTuple):
    """A tool call; ``arguments`` is the generated text, which need not be JSON."""

    name: str
    arguments: str


class Parts(NamedTuple):
    """The thinking, the content and the calls of a raw reply."""

    thinking: str | None
    content: str
    calls: tuple[Call, ...]


class Conversation(NamedTuple):
    """The input of a model; ``opened`` is text to continue, ``calling`` is ``auto``, ``none`` or ``required``."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    opened: str = ""
    calling: str = "auto"

    def said(self, *roles: str) -> str:
        """The texts of all messages of these roles."""
        return "\n".join([message.text for message in self.messages if message.role in roles])


class Encoded(NamedTuple):
    """The token ids of a message with its markup, and its digest."""

    ids: tuple[int, ...]
    digest: bytes


def render(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), *, drop_thinking: bool = False
) -> tuple[Message, ...]:
    """Write messages of the OpenAI form in the template; the tools' definitions become part of the system message.

    A user's message that is a tool response in the template's own form counts as a tool's.

    Raises:
        ConfigError: A message cannot be rendered; the text begins with the field at fault.
    """
    out: list[Message] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            raise ConfigError(f"messages[{index}].role: expected one of {', '.join(ROLES)}, got {role!r}")
        text = _content(message, index)
        if role == "assistant":
            text = _assistant(message, text, index, drop_thinking=drop_thinking)
        elif role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
        elif role == "user" and response(text) is not None:
            role = "tool"
        elif role == "developer":
            role = "system"
        out.append(Message(role, text))
    if tools:
        lines = "\n".join(_ENCODE(tool).decode() for tool in tools)
        text = (
            "# Tools\n\nReply with one JSON object with name and arguments inside <tool_call></tool_call> "
            f"for each call. These are the tools:\n<tools>\n{lines}\n</tools>"
        )
        if out and out[0].role == "system":
            out[0] = Message("system", f"{out[0].text}\n\n{text}")
        else:
            out.insert(0, Message("system", text))
    return tuple(out)


def response(text: str) -> str | None:
    """The tool's result in a text that is a tool response; else None."""
    match = _RESPONSE.match(text)
    return None if match is None else match[1]


def tools_from(definitions: Sequence[dict[str, Any]]) -> tuple[Tool, ...]:
    """Read tool definitions of the OpenAI form.

    Raises:
        ConfigError: A definition has no function with a name.
    """
    out = []
    for index, definition in enumerate(definitions):
        function = definition.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ConfigError(f"tools[{index}].function.name: expected a string")
        schema = function.get("parameters")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        out.append(Tool(function["name"], properties if isinstance(properties, dict) else {}))
    return tuple(out)


@lru_cache(maxsize=256)
def tools_in(text: str) -> tuple[Tool, ...]:
    """The tool definitions in a system message, one a line between ``<tools>`` tags."""
    match = _TOOLS.search(text)
    if match is None:
        return ()
    try:
        return tools_from([msgspec.json.decode(line) for line in match[1].splitlines()])
    except (ConfigError, msgspec.DecodeError, AttributeError):
        return ()


@lru_cache(maxsize=4096)
def encoded(message: Message) -> Encoded:
    """Token ids and digest of a message, kept for the next request with the same history."""
    bpe = default_bpe()
    start, end = bpe.special["<|im_start|>"], bpe.special["<|im_end|>"]
    body = bpe.encode(f"{message.role}\n")
    ids = (start, *body, *bpe.encode(message.text), end, *bpe.encode("\n"))
    text = f"{message.role}\n{message.text}".encode("utf-8", "replace")
    return Encoded(ids, hashlib.blake2b(text, digest_size=16).digest())


def opening(opened: str = "") -> list[int]:
    """Token ids that open the reply: the assistant's markup and the text to continue."""
    bpe = default_bpe()
    return [bpe.special["<|im_start|>"], *bpe.encode("assistant\n"), *bpe.encode(opened)]


def digest(conversation: Conversation) -> bytes:
    """A digest of the conversation, equal in every process."""
    state = hashlib.blake2b(digest_size=16)
    for message in conversation.messages:
        state.update(encoded(message).digest)
    state.update(f"{conversation.calling}\n{conversation.opened}".encode("utf-8", "replace"))
    return state.digest()


def parse_ids(ids: Sequence[int]) -> Conversation:
    """Read a prompt back: the inverse of ``render``, ``encoded`` and ``opening``.

    Only real control tokens end a message, whatever its text spells. Without any, the prompt is one user message.
    """
    bpe = default_bpe()
    start, end = bpe.special["<|im_start|>"], bpe.special["<|im_end|>"]
    if start not in ids:
        return Conversation((Message("user", bpe.decode(ids).decode("utf-8", "replace")),))
    blocks: list[list[int]] = []
    for token in ids:
        if token == start:
            blocks.append([])
        elif blocks:
            blocks[-1].append(token)
    messages = []
    opened = ""
    for number, block in enumerate(blocks):
        closed = end in block
        body = block[: block.index(end)] if closed else block
        role, _, text = bpe.decode(body).decode("utf-8", "replace").partition("\n")
        if number == len(blocks) - 1 and not closed and role == "assistant":
            opened = text
        else:
            messages.append(Message(role if role in ROLES else "user", text))
    tools = tools_in(messages[0].text) if messages and messages[0].role == "system" else ()
    return Conversation(tuple(messages), tools, opened)


def thinking_in(raw: str) -> re.Match[str] | None:
    """The thinking that opens a raw reply, with its tags; one that was never closed extends to the end."""
    return _THINK.match(raw) if "<think>" in raw else None


@lru_cache(maxsize=4096)
def parts(raw: str) -> Parts:
    """Divide a raw reply; markup that was never closed extends to the end."""
    opened = thinking_in(raw)
    thinking = opened[1] if opened else None
    rest = raw[opened.end() :] if opened else raw
    calls = []
    for match in _CALL.finditer(rest):
        body = _CALL_BODY.match(match[1])
        if body is not None:
            calls.append(Call(_unquote(body[1]), body[2] if body[2] is not None else "{}"))
    if not calls:
        return Parts(thinking, rest, ())
    return Parts(thinking, rest[: rest.index("<tool_call>")], tuple(calls))


def call_text(call: Call) -> str:
    """A call in the model's own form."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments}}}\n</tool_call>'


def _unquote(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _content(message: dict[str, Any], index: int) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        # An assistant may have said nothing, in words: null, or no content beside calls or thinking.
        if message.get("role") == "assistant" and ("content" in message or _SAID.intersection(message)):
            return ""
        state = "is null" if "content" in message else "is missing"
        raise ConfigError(f"messages[{index}].content: {state}; expected text or a list of parts")
    if isinstance(content, list):
        pieces = []
        for place, part in enumerate(content):
            text = part.get("text") if isinstance(part, dict) else None
            if not isinstance(text, str):
                raise ConfigError(f"messages[{index}].content[{place}]: only parts of type text are supported")
            pieces.append(text)
        return "".join(pieces)
    raise ConfigError(f"messages[{index}].content: expected text or a list of parts")


def _assistant(message: dict[str, Any], content: str, index: int, *, drop_thinking: bool) -> str:
    thinking = message.get("reasoning_content") or message.get("reasoning")
    if drop_thinking:
        thinking = None
        if match := thinking_in(content):
            content = content[match.end() :]
    if isinstance(thinking, str) and "<think>" not in content:
        content = f"<think>\n{thinking}\n</think>\n{content}"
    calls = message.get("tool_calls")
    if not calls:
        return content
    if not isinstance(calls, list):
        raise ConfigError(f"messages[{index}].tool_calls: expected a list")
    texts = []
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ConfigError(f"messages[{index}].tool_calls[{place}].function.name: expected a string")
        arguments = function.get("arguments", "{}")
        if not isinstance(arguments, str):
            raise ConfigError(f"messages[{index}].tool_calls[{place}].function.arguments: expected a string")
        texts.append(call_text(Call(function["name"], arguments)))
    return content + "\n".join(texts)
