"""Renderers: files of a model (tokenizer.json, Jinja template) or the server's /tokenize; the choice between them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, Protocol, TypeVar

import msgspec

from trunkline._internal.text import excerpt, scrub
from trunkline._internal.validation import check_text, type_phrase
from trunkline.errors import BadRequest, ConfigError, EndpointError, LLMError
from trunkline.llm.token_ids.base import ConversationRenderer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline._internal.text import JSON
    from trunkline.llm.token_ids.base import Renderer, TokenMode
    from trunkline.types import Message


class ChatTemplate:
    """A chat template in a sandbox, without files, private attributes, changes to its input or long loops."""

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
            raise ConfigError(f"the chat template cannot be read: {excerpt(str(error))}") from None

    def text(self, messages: Sequence[Message], tools: Sequence[JSON], *, opened: bool) -> str:
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
            said = f"{type(error).__name__}: {excerpt(str(error))}"
            raise ConfigError(f"the chat template does not take this conversation: {said}") from None


def _spoken(message: Message) -> Message:
    """A message as templates expect it: tool arguments as values, no null content."""
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
    """The tag ``generation``, with which templates mark model output; its content is written as it is."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra
    from jinja2.ext import Extension  # noqa: PLC0415

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return Generation


_LARGE: Final = 1 << 14
"""Characters from which on a text is encoded in a thread, so that the event loop runs on; encoding frees the GIL."""

_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class LocalRenderer(ConversationRenderer):
    """Renders with files of a model, as Hugging Face has them. Needs the extra ``tokens``."""

    def __init__(self, tokenizer: str | Path, template: str | Path | None = None) -> None:
        super().__init__()
        path = _found(tokenizer)
        self._tokenizer = _read(path)
        config = _config(path.with_name("tokenizer_config.json"))
        self._template = ChatTemplate(_source(path, template, config), _tokens(config))

    async def decode(self, ids: Sequence[int]) -> str:
        try:
            spelled: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
            raise ConfigError(f"the tokenizer does not decode these ids: {excerpt(str(error))}") from None
        return spelled

    async def _render(self, messages: Sequence[Message], *, opened: bool, tools: Sequence[JSON] = ()) -> list[int]:
        written = self._template.text(messages, tools, opened=opened)
        if len(written) < _LARGE:
            return self._ids(written)
        return await asyncio.to_thread(self._ids, written)

    def _ids(self, written: str) -> list[int]:
        # The template has written the special tokens already.
        try:
            ids: list[int] = self._tokenizer.encode(written, add_special_tokens=False).ids
        except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
            raise ConfigError(f"the tokenizer does not take this conversation: {excerpt(str(error))}") from None
        return ids


def tokens_with(tokenizer: str | Path, *words: str) -> tuple[int, ...]:
    """Find the tokens whose text contains a word, for ``strategies.EntropyTree``. Needs the extra ``tokens``.

    Args:
        tokenizer: Path of a ``tokenizer.json``, or of the folder it is in.
        words: The words; letters count as they are written.

    Returns:
        Their ids, ascending.

    Raises:
        ConfigError: The file is missing or is no tokenizer, the extra is not installed, or a word is empty or no text.
    """
    for word in words:
        if not check_text("tokens_with: a word", word):
            raise ConfigError("tokens_with: a word is empty; every token contains it")
    found = _read(_found(tokenizer))
    spelled = ((token, found.decode([token], skip_special_tokens=False)) for token in found.get_vocab().values())
    return tuple(sorted(token for token, spells in spelled if any(word in spells for word in words)))


def tail_by_tokens(tokenizer: str | Path) -> Callable[[str, int], tuple[str, int]]:
    """A function that cuts a text to its last tokens and counts them."""
    found = _read(_found(tokenizer), "")

    def tail(text: str, most: int) -> tuple[str, int]:
        text = scrub(text)
        while (count := len(spans := found.encode(text, add_special_tokens=False).offsets)) > most:
            # What is cut may be spelt by other tokens than before, and a character by several.
            text = text[max(spans[-most][0], 1) :] if most else ""
        return text, count

    return tail


def _found(tokenizer: str | Path) -> Path:
    path = Path(tokenizer)
    return path / "tokenizer.json" if path.is_dir() else path


def _read(path: Path, where: str = "TokenMode: ") -> Any:
    """Read a ``tokenizer.json``; ``where`` begins the error."""
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError("a local tokenizer needs tokenizers: pip install 'trunkline[tokens]'") from None
    if not path.is_file():
        raise ConfigError(f"{where}tokenizer: there is no file {excerpt(str(path))}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
        what = f"{where}tokenizer: {excerpt(str(path))} is no tokenizer.json"
        raise ConfigError(f"{what}: {excerpt(str(error))}") from None
    # Some files were saved with the limit of a training run.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{excerpt(str(path))} is no tokenizer configuration: {excerpt(str(error))}") from None


def _source(tokenizer: Path, template: str | Path | None, config: dict[str, Any]) -> str:
    beside = tokenizer.with_name("chat_template.jinja")
    path = beside if template is None and beside.is_file() else template
    if path is not None:
        try:
            return Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"TokenMode: template: {excerpt(str(path))} cannot be read: {excerpt(str(error))}"
            ) from None
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("tool_use") or named.get("default")
    if isinstance(found, str):
        return found
    what = "none" if found is None else type_phrase(found)
    raise ConfigError(
        f"there is no chat template beside {excerpt(str(tokenizer))} (tokenizer_config.json has {what}); "
        "give its path as TokenMode(template=...)"
    )


def _tokens(config: dict[str, Any]) -> dict[str, str]:
    """Special tokens by their names; a token is a string or an object with one."""
    found = {}
    for name in _SPECIAL:
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[name] = token
    return found


class Post(Protocol):
    """Posts to the servers of an LLM."""

    async def __call__(self, route: str, body: bytes, key: int = 0) -> bytes:
        """Post a body and return the answer's; see ``trunkline.llm.http.client.HttpLLM.call``."""
        ...


async def _no_server(route: str, body: bytes, key: int = 0) -> bytes:
    raise ConfigError("there is no server that renders; use TokenMode(tokenizer=...)")


_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class _TokenizeReply(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]


class _Decoded(msgspec.Struct):
    prompt: str | None = None
    content: str | None = None


class _Written(msgspec.Struct):
    prompt: str


class ServerRenderer(ConversationRenderer):
    """Renders with ``/tokenize``, so that template and tokenizer are the server's own."""

    def __init__(self, post: Post, model: str) -> None:
        super().__init__()
        self._post = post
        self._model = model

    async def decode(self, ids: Sequence[int]) -> str:
        decoded = await self._asked(
            "//detokenize", {"tokens": list(ids)}, _Decoded, "the server does not decode these ids"
        )
        text = None if decoded is None else decoded.content if decoded.prompt is None else decoded.prompt
        if text is None:
            raise LLMError("the answer of /detokenize has no text; use TokenMode(tokenizer=...)")
        return text

    async def text(self, text: str) -> list[int]:
        """Token ids of a plain text, without special tokens around it."""
        if self.template_apart:
            return await self._tokens({"content": text, "add_special": False, "parse_special": True})
        return await self._tokens({"prompt": text, "add_special_tokens": False})

    async def _render(self, messages: Sequence[Message], *, opened: bool, tools: Sequence[JSON] = ()) -> list[int]:
        body: dict[str, JSON] = {"messages": list(messages), "add_generation_prompt": opened}
        if tools:
            body["tools"] = list(tools)
        if not self.template_apart:
            tokens = await self._tokens(body)
            if tokens:
                return tokens
        written = await self._written(body)
        self.template_apart = True
        return await self._tokens({"content": written, "add_special": True, "parse_special": True})

    async def _written(self, body: dict[str, JSON]) -> str:
        """The text of a conversation, as a server's template writes it."""
        refused = "the server's chat template does not take this conversation"
        try:
            written = await self._asked("//apply-template", body, _Written, refused)
        except EndpointError:
            written = None
        if written is None:
            raise LLMError(
                "/tokenize gives no token ids of messages, and /apply-template no text of them; use "
                "TokenMode(tokenizer=...)"
            )
        return written.prompt

    async def _tokens(self, body: dict[str, JSON]) -> list[int]:
        found = await self._asked("//tokenize", body, _TokenizeReply, "the server does not tokenize this")
        if found is None:
            raise LLMError("the answer of /tokenize has no list of token ids; use TokenMode(tokenizer=...)")
        return found.tokens

    async def _asked(self, route: str, body: dict[str, JSON], kind: type[_Answer], refused: str) -> _Answer | None:
        """The answer of a route; None if it is of another form. A refused request is a ConfigError."""
        try:
            data = await self._post(route, msgspec.json.encode({"model": self._model, **body}))
        except BadRequest as error:
            raise ConfigError(f"{refused}: {error}") from None
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


def renderers(mode: TokenMode, post: Post | None = None) -> Callable[[str], Renderer]:
    """Return a factory of renderers by model name; without ``post`` it needs the mode's ``tokenizer``."""
    if mode.tokenizer is None:
        return lambda model: ServerRenderer(post or _no_server, model)

    local = LocalRenderer(mode.tokenizer, mode.template)
    return lambda _model: local
