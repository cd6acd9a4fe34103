"""One POST: the seam behind which HTTP stands, and the words for what can go wrong with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Any

__all__ = [
    "BROKE_OFF",
    "CONNECTION_BROKE",
    "CONNECT_LATE",
    "NOT_HTTP",
    "NO_ANSWER",
    "TLS_FAILED",
    "UNKNOWN_HOST",
    "UNTRUSTED",
    "Answer",
    "Body",
    "Headers",
    "Transport",
    "TransportError",
    "closed",
    "late",
    "silent",
    "too_large",
    "unconnected",
]

UNKNOWN_HOST: Final = "its host name is unknown"
CONNECT_LATE: Final = "the connection was not established in time"
CONNECTION_BROKE: Final = "the connection broke"
NO_ANSWER: Final = "the connection was closed before an answer"
BROKE_OFF: Final = "the answer broke off or cannot be decompressed"
NOT_HTTP: Final = "the answer is not HTTP"
UNTRUSTED: Final = "TLS certificate not trusted; see SSL_CERT_FILE"
TLS_FAILED: Final = "TLS failed; is it https there?"

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})
"""Reasons for no connection that say nothing about the other side."""


class TransportError(Exception):
    """No answer came back.

    Args:
        message: What happened, without the URL.
        unreachable: Nothing was listening, or the name is unknown.
        retry: Whether trying again can help.
        timeout: The time for it was over.
    """

    def __init__(self, message: str, *, unreachable: bool = False, retry: bool = True, timeout: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable
        self.retry = retry
        self.timeout = timeout

    @property
    def cause(self) -> str:
        """What retries after it are counted under."""
        return "timeout" if self.timeout else "no connection" if self.unreachable else "connection lost"


Body = bytes | list[bytes]
"""What is posted: one piece, or several one after the other."""


class Headers(Mapping[str, str]):
    """The headers of an answer, looked up without regard to case; of equal names the first counts.

    Args:
        raw: Values by name in lower case.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self.raw = raw

    def __getitem__(self, name: str) -> str:
        return self.raw[name.lower().encode("latin-1", "replace")].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode("latin-1", "replace") in self.raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self.raw)

    def __len__(self) -> int:
        return len(self.raw)


class Answer(NamedTuple):
    """What came back.

    Attributes:
        status: The HTTP status.
        headers: Looked up without regard to case.
        body: All of it.
        first: Seconds from the start of sending to the head of the answer.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    first: float


class Transport(Protocol):
    """Posts bytes and brings bytes back."""

    def post(self, url: str, headers: Mapping[str, str], body: Body, limit: float) -> Coroutine[Any, Any, Answer]:
        """Send one POST and read its whole answer.

        Args:
            url: Where to.
            headers: Everything beyond Host and Content-Length.
            body: The request's body, in one piece or in several.
            limit: Seconds for all of it.

        Raises:
            TransportError: There is no whole answer.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def closed() -> TransportError:
    """The transport was closed, before the request or during it."""
    return TransportError("the client is closed", retry=False)


def late(limit: float) -> TransportError:
    """The time for all of it is over."""
    return TransportError(f"no whole answer within {limit:.3g} s", timeout=True)


def silent(idle: float) -> TransportError:
    """The body does not go on."""
    return TransportError(f"nothing came for {idle:g} s in the middle of the answer", timeout=True)


def too_large(largest: int, announced: int | None = None) -> TransportError:
    """The body is larger than anything that can be a completion."""
    if announced is None:
        return TransportError(f"the answer has more than {largest:,} bytes", retry=False)
    return TransportError(f"the answer has {announced:,} bytes, more than {largest:,}", retry=False)


def unconnected(error: OSError) -> TransportError:
    """No connection came about."""
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return TransportError(f"no connection ({reason})", unreachable=error.errno not in _OURS)
