"""LLMs of a user's own: ``complete`` may be sync, and returns a reply in one of several forms."""

from __future__ import annotations

import inspect
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.aio import in_thread
from trunkline._internal.text import describe_error, format_error, scrub
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError, LLMError, ReplyError
from trunkline.llm.batch.completion import listed
from trunkline.llm.response import read, unusable
from trunkline.llm.types import Reply

if TYPE_CHECKING:
    from trunkline.llm.types import Request

_MOST: Final = 2**31
"""A number of tokens or attempts from here on counts as not reported."""

_LONGEST: Final = 10**15
"""Microseconds that are believed, 30 years of them."""

_FORMS: Final = "a trunkline.Reply, a chat completion as a dict or as bytes of JSON, or a text"


async def complete(llm: Any, request: Request) -> Reply:
    """Ask an LLM; ConfigError for what is no reply, LLMError for a server's error that it passes on."""
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
        if _is_refusal(data):
            raise LLMError(f"{name}: {unusable(error, data)}") from None
        raise ConfigError(
            f"{name}.complete() returned {short_repr(made)}, which is no chat completion: {format_error(error)}; "
            f"it may return {_FORMS}; where a server answers this, raise trunkline.errors.LLMError, which ends one "
            "rollout"
        ) from None
    reply.endpoint = reply.endpoint or name
    return reply


def checked(reply: object, name: str) -> Reply:
    """Return a reply that a tree can take; ConfigError for one that is no `Reply` with choices."""
    try:
        # Ids may be numpy arrays or tensors.
        plain = msgspec.to_builtins(reply, enc_hook=listed) if isinstance(reply, Reply) else None
        if plain is not None and isinstance(plain["micros"], float):
            plain["micros"] = int(plain["micros"])
        found = None if plain is None else msgspec.convert(plain, Reply)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code, in the values and their conversion to lists
        raise _bad_reply(reply, name, error) from None
    if found is None or not found.choices:
        raise _bad_reply(reply, name)
    found.served, found.endpoint = scrub(found.served), scrub(found.endpoint)
    found.attempts = max(0, found.attempts) if found.attempts < _MOST else 1
    found.micros = found.micros if 0 <= found.micros <= _LONGEST else 0
    for field in ("prompt", "cached", "generated"):
        if not -1 <= getattr(found, field) < _MOST:
            setattr(found, field, -1)
    found.estimated = min(max(0, found.estimated), max(0, found.generated))
    return found


def _bad_reply(reply: object, name: str, error: BaseException | None = None) -> ConfigError:
    choices = getattr(reply, "choices", None)
    if isinstance(reply, Reply) and not isinstance(choices, list | tuple):
        fault = f"whose choices are {short_repr(choices)}"
    elif error is None:
        fault = "which has no choice"
    else:
        # A message of msgspec: what it expected, and the path to it.
        what, _, path = format_error(error).replace("`", "").partition(" - at $.")
        fault = f"of which {path} cannot be used: {what[:1].lower()}{what[1:]}" if path else f"with {what}"
    return ConfigError(
        f"{name}.complete() returned a Reply, {fault}; give a list of at least one choice, "
        "Reply([ReplyChoice(text)]), or return the text itself"
    )


def _is_refusal(data: bytes) -> bool:
    """Whether a body is a server's error that was passed on, which is a turn's fault."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("error") is not None


def _body(made: object, name: str) -> bytes:
    """Return the body of a chat completion."""
    if isinstance(made, bytes):
        return bytes(made)
    if isinstance(made, str):
        message = {"role": "assistant", "content": scrub(str.__str__(made))}
        return msgspec.json.encode({"choices": [{"message": message, "finish_reason": "stop"}]})
    if isinstance(made, dict) and ("choices" in made or "error" in made):
        try:
            return _encoded(made)
        except Exception as error:  # noqa: BLE001 - values of any class
            fault = f"a dict that is no JSON: {describe_error(error)}"
    else:
        fault = "a dict without choices" if isinstance(made, dict) else f"an object of type {type(made).__name__}"
    raise ConfigError(f"{name}.complete() returned {short_repr(made)}, {fault}; it may return {_FORMS}")


def _encoded(made: dict[Any, Any]) -> bytes:
    try:
        return msgspec.json.encode(made)
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub(made))
