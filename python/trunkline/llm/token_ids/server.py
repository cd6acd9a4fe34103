"""/tokenize; choice of renderer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec

from trunkline.errors import BadRequest, ConfigError, LLMError
from trunkline.llm.token_ids.base import Suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._internal.text import JSON
    from trunkline.llm.token_ids.base import Renderer, TokenMode
    from trunkline.types import Message


__all__ = ["Post", "ServerRenderer", "renderers"]


_ENCODE = "//tokenize"
_DECODE = "//detokenize"


class Post(Protocol):
    """Posts to the servers of an LLM."""

    async def __call__(self, route: str, body: bytes, key: int = 0) -> bytes:
        """Post a body and return the answer's; see :meth:`trunkline.llm.http.client.HttpLLM.call`."""
        ...


class _TokenizeReply(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]


class _Decoded(msgspec.Struct):
    prompt: str


class ServerRenderer:
    """Renders with ``/tokenize``, so that template and tokenizer are the server's own.

    Args:
        post: Posts to the server.
        model: The model's name there.
    """

    def __init__(self, post: Post, model: str) -> None:
        self._post = post
        self._model = model
        self._suffix = Suffix(partial(self._messages, tools=()))

    async def render(self, messages: Sequence[Message], tools: Sequence[JSON] = ()) -> list[int]:
        """Write a conversation; see :meth:`.base.Renderer.render`."""
        return await self._messages(messages, tools=tools, opened=True)

    async def extend(self, previous: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Write what follows a turn; see :meth:`.base.Renderer.extend`."""
        return await self._suffix.extend(previous, messages)

    async def decode(self, ids: Sequence[int]) -> str:
        """Say what ids spell; see :meth:`.base.Renderer.decode`."""
        body = msgspec.json.encode({"model": self._model, "tokens": list(ids)})
        try:
            data = await self._post(_DECODE, body)
        except BadRequest as error:
            raise ConfigError(f"the server does not decode these ids: {error}") from None
        try:
            return msgspec.json.decode(data, type=_Decoded).prompt
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise LLMError("the answer of /detokenize has no text; use TokenMode(tokenizer=...)") from None

    async def text(self, text: str) -> list[int]:
        """Token ids of a plain text, without special tokens around it.

        Raises:
            ConfigError: The server does not take it.
            LLMError: The server gave no answer.
        """
        return await self._tokens({"prompt": text, "add_special_tokens": False})

    async def _messages(self, messages: Sequence[Message], *, opened: bool, tools: Sequence[JSON]) -> list[int]:
        body: dict[str, JSON] = {"messages": list(messages), "add_generation_prompt": opened}
        if tools:
            body["tools"] = list(tools)
        return await self._tokens(body)

    async def _tokens(self, body: dict[str, JSON]) -> list[int]:
        try:
            data = await self._post(_ENCODE, msgspec.json.encode({"model": self._model, **body}))
        except BadRequest as error:
            raise ConfigError(f"the server does not tokenize this: {error}") from None
        try:
            return msgspec.json.decode(data, type=_TokenizeReply).tokens
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise LLMError("the answer of /tokenize has no list of token ids; use TokenMode(tokenizer=...)") from None


def renderers(mode: TokenMode, post: Post) -> Callable[[str], Renderer]:
    """Return what makes the renderer of a model, by its name at the server.

    Args:
        mode: Says which renderer it is.
        post: Posts to the server.

    Raises:
        ConfigError: A file of the tokenizer cannot be used, or the extra ``tokens`` is not installed.
    """
    if mode.tokenizer is None:
        return lambda model: ServerRenderer(post, model)
    from trunkline.llm.token_ids.local import LocalRenderer  # noqa: PLC0415 - only where it is used

    local = LocalRenderer(mode.tokenizer, mode.template)
    return lambda _model: local
