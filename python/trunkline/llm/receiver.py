"""What passes between the turn engine, what sends its requests, and those who asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import PendingReply
    from trunkline.errors import TrunklineError
    from trunkline.llm.http.transport import Answer, TransportError
    from trunkline.llm.limits.router import Endpoint

__all__ = [
    "AnsweredDraws",
    "CallFigures",
    "FirstAttempt",
    "RequestLabels",
    "RequestedDraws",
    "TurnReceiver",
    "UnansweredDraws",
]


RequestedDraws: TypeAlias = "tuple[int, int, int, list[Any]]"
"""What a request is for; this alias and the next three are explained at `TurnEngine` in `_core.pyi`."""

CallFigures: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]

AnsweredDraws: TypeAlias = "tuple[CallFigures, str, int, list[tuple[Any, Any]], PendingReply | None]"

UnansweredDraws: TypeAlias = """tuple[
    int, RequestedDraws, tuple[float, float, float], tuple[int, dict[bytes, bytes], bytes] | None, tuple[str, str]
]"""


class FirstAttempt(NamedTuple):
    """A request that brought no turns: what came of it where it was sent, and how long that took.

    ``asked`` is the moment when it was asked for, in monotonic seconds, ``took`` the seconds from sending to the end;
    ``error`` is what a batch engine brought, ``counted`` says that its call is noted with other draws.
    """

    asked: float
    sent: tuple[Endpoint, Answer | TransportError] | None = None
    took: float = 0.0
    error: TrunklineError | None = None
    counted: bool = False

    @property
    def made(self) -> bool:
        """Whether the request was sent."""
        return self.sent is not None or self.error is not None


class RequestLabels(msgspec.Struct, frozen=True, gc=False):
    """What a request is called by: see ``Request``."""

    model: str
    role: str
    step: int = 0
    asked: int = 0
    seeded: bool = True


class TurnReceiver(Protocol):
    """What becomes of requests, for those who asked."""

    @property
    def stops(self) -> bool:
        """Whether nothing may begin any more: what is asked for waits to be given up."""
        ...

    def labels(self, taken: RequestedDraws) -> RequestLabels:
        """What a request is called by."""

    def turned(self, url: str, answers: Sequence[AnsweredDraws]) -> None:
        """The endpoint with this URL, or what else answers, has answered: turns are on their trees."""

    def missed(self, taken: RequestedDraws, attempt: FirstAttempt) -> None:
        """A request is to be sent otherwise."""

    def recalled(self, taken: RequestedDraws, seconds: float) -> None:
        """A request was given up after so many seconds."""

    def left(self) -> None:
        """A request that brought no turns is not on its way any more, and what it says of its endpoint was noted."""
