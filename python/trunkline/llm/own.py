"""LLMs of a user's own: ``complete`` may be sync, and returns a reply in one of several forms."""

from __future__ import annotations

import inspect
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.aio import in_thread
from trunkline._internal.text import describe_error, scrub
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError, LLMError, ReplyError
from trunkline.llm.response import read, unusable
from trunkline.llm.types import Reply

if TYPE_CHECKING:
    from trunkline.llm.types import Request

_FORMS: Final = "a trunkline.Reply, a chat completion as a dict or as bytes of JSON, or a text"


async def complete(llm: Any, request: Request) -> Reply:
    """Ask an LLM; ConfigError for what is no form of a reply, LLMError for a form that holds no usable reply."""
    start = time.perf_counter_ns()
    made = await (in_thread(partial(llm.complete, request)) if is_sync(llm) else llm.complete(request))
    return received(made, llm, request, start)


def is_sync(llm: Any) -> bool:
    """Whether calls of an LLM are made in threads."""
    return not inspect.iscoroutinefunction(getattr(llm, "complete", None))


def received(made: object, llm: Any, request: Request, start: int) -> Reply:
    """Read what an LLM returned for a request that was sent at this reading of ``time.perf_counter_ns``."""
    if isinstance(made, Reply):
        return made
    name = type(llm).__name__
    data = _body(made, name)
    try:
        reply = (request.take or read)(data, 0, 1, (time.perf_counter_ns() - start) // 1000)
    except ReplyError as error:
        raise LLMError(f"{name}: {unusable(error, data)}") from None
    reply.endpoint = reply.endpoint or name
    return reply


def _body(made: object, name: str) -> bytes:
    """Return the body of a chat completion."""
    if isinstance(made, bytes):
        return bytes(made)
    if isinstance(made, str):
        message = {"role": "assistant", "content": scrub(str.__str__(made))}
        return msgspec.json.encode({"choices": [{"message": message, "finish_reason": "stop"}]})
    # A server's error that is passed on is a turn's fault.
    if isinstance(made, dict) and ("choices" in made or "error" in made):
        try:
            return msgspec.json.encode(made)
        except Exception as error:  # noqa: BLE001 - values of any class
            raise LLMError(f"{name}.complete() returned a dict that is no JSON: {describe_error(error)}") from None
    kind = "a dict without choices" if isinstance(made, dict) else f"an object of type {type(made).__name__}"
    raise ConfigError(f"{name}.complete() returned {short_repr(made)}, {kind}; it may return {_FORMS}")
