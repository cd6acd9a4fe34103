"""Ids of tool calls, the current call, and results and errors as text for the model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextvars import ContextVar
from hashlib import blake2b
from struct import pack
from typing import Final

import msgspec

from trunkline._internal.text import excerpt, message_of, scrub
from trunkline.errors import ToolError, UsageError


class Call(msgspec.Struct, frozen=True):
    """One call of a tool.

    Attributes:
        id: 32 hexadecimal digits, a function of the run's seed, the task, the rollout's fork path, the turn and the
            call's place in it. A call that is run again after a crash has the same; no other call of a run has it.
            Another run with the same seed and tasks has the same ids again.
        task: Id of the task.
        rollout: Number of the rollout in the task's tree.
        turn: Model turn that made the call, from 0.
        index: Place among the calls of that turn, from 0.
    """

    id: str
    task: str
    rollout: int
    turn: int
    index: int


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The turn that makes calls: the run's seed, the task, the rollout's number and fork path, the turn's number."""

    seed: int
    task: str
    rollout: int
    path: Sequence[int]
    turn: int

    def call(self, index: int) -> Call:
        """Return the turn's call with an index."""
        where = (*self.path, self.turn, index)
        key = pack(f"<q{len(where) + 1}I", self.seed, len(where), *where) + self.task.encode("utf-8", "surrogatepass")
        digest = blake2b(key, digest_size=16, person=b"trunkline call")
        return Call(digest.hexdigest(), self.task, self.rollout, self.turn, index)


CallPlace = tuple[Origin, int]
"""The turn that makes a call, and the call's index in it; its id is made where it is wanted."""

CURRENT: Final[ContextVar[Call | CallPlace | None]] = ContextVar("trunkline_call", default=None)


def current_call() -> Call:
    """Return the call that the tool asking is running for; its ``id`` serves as an idempotency key.

    It works in async tools, in the threads of sync ones and in the processes of isolated ones. Calls of a pure tool
    that share one result share the first one's id.

    Raises:
        UsageError: No call of a rollout is running here.
    """
    call = call_at(CURRENT.get())
    if call is None:
        raise UsageError("no tool is being called by a rollout here; current_call() is for the inside of a tool")
    return call


def call_at(place: Call | CallPlace | None) -> Call | None:
    """Return the call at a place."""
    return place[0].call(place[1]) if isinstance(place, tuple) else place


class calling:  # noqa: N801 - it reads as a function
    """Let a call be the current one in a ``with`` block."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: Call | None) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._token = CURRENT.set(self._call)

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._token)


LIMIT: Final = 100_000
"""Characters of an observation that are kept unless a toolbox says otherwise."""

_MESSAGE: Final = 2_000


def as_text(value: object, limit: int = LIMIT) -> str:
    """Turn a tool's result into an observation: a string stays, None is empty, all else becomes JSON; bounded."""
    if value is None:
        return ""
    if isinstance(value, str):
        return bounded(str.__str__(value), limit)  # methods of a class derived from it are the tool's code
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("the tool returned bytes, which are not text; decode them with .decode()")
    try:
        try:
            text = msgspec.json.encode(value).decode()
        except UnicodeEncodeError:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        kind = type(value).__name__
        raise TypeError(f"the tool returned {kind}, which is neither text nor JSON; return a str or dict") from error
    return bounded(text, limit)


def bounded(text: str, limit: int = LIMIT) -> str:
    """Cut a text that is too long, with a note; replace NUL and lone surrogates, which servers refuse."""
    total = len(text)
    if total > limit:
        text = f"{text[:limit]}\n[cut: the first {limit:,} of {total:,} characters]"
    text = scrub(text)
    return text.replace("\0", "\ufffd") if "\0" in text else text


def describe(name: str, error: BaseException) -> str:
    """Say what a tool raised; the text of a ``ToolError`` is for the model as it is."""
    message = message_of(error) or ""
    if isinstance(error, ToolError):
        return message
    message = excerpt(message, _MESSAGE)
    kind = type(error).__name__
    return f"Error: {name} failed with {kind}: {message}" if message else f"Error: {name} failed: {kind}"


_BYTE: Final = re.compile(r"\(byte (\d+)\)")


def fault(text: str, error: str) -> str:
    """Say where a text without lone surrogates stops being JSON, from the error that msgspec raised for it."""
    reason = error.removeprefix("JSON is malformed: ")
    if "truncated" in reason:
        return f"they end too early, after '{excerpt(text[-30:], 60)}'"
    byte = _BYTE.search(reason)
    if byte is None:
        return excerpt(reason, 120)
    at = int(byte.group(1))
    near = text.encode()[max(0, at - 20) : at + 20]
    return f"{reason[: byte.start()].strip()} at byte {at}, near '{excerpt(near, 60)}'"


def unreadable(text: str) -> str:
    """Say why a text is no tool call: it is no JSON, or JSON that names no tool."""
    text = scrub(text)
    try:
        msgspec.json.decode(text)
    except RecursionError:
        return "it is nested too deeply"
    except (msgspec.DecodeError, UnicodeError) as error:
        return f"its contents are not valid JSON: {fault(text, str(error))}"
    return 'it must be an object with the tool\'s "name" and its "arguments"'
