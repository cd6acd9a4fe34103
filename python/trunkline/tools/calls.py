"""Which call a tool is running for, and the id that this call has however often it is run."""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Call", "Origin", "calling", "current_call"]


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


class Origin(NamedTuple):
    """The turn that makes calls.

    Attributes:
        seed: Seed of the run.
        task: Id of the task.
        rollout: Number of the rollout in the task's tree.
        path: The rollout's fork path.
        turn: Number of the turn, from 0.
    """

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


_current: Final[ContextVar[Call | None]] = ContextVar("trunkline_call", default=None)


def current_call() -> Call:
    """Return the call that the tool asking is running for; its ``id`` serves as an idempotency key.

    It works in async tools, in the threads of sync ones and in the processes of isolated ones. Calls of a pure tool
    that share one result share the first one's id.

    Raises:
        UsageError: No call of a rollout is running here.
    """
    call = _current.get()
    if call is None:
        raise UsageError("no tool is being called by a rollout here; current_call() is for the inside of a tool")
    return call


class calling:  # noqa: N801 - a function to whoever reads it
    """Let a call be the current one in a ``with`` block."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: Call | None) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._token = _current.set(self._call)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
