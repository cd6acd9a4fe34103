"""Why a rollout broke: as an exception says it, as it is recorded, and as it is read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import LLMError, RolloutError
from trunkline.printable import printable, said
from trunkline.types import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Failure", "usage_of"]

_MOST = 1_000_000  # attempts that are believed; a recorded failure is data, and may be damaged


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a rollout broke. A tree keeps it as the JSON that :meth:`encode` writes.

    Attributes:
        kind: The error's class name; empty where another writer left plain text.
        message: What happened; safe to print, whoever wrote it.
        attempts: How often it was tried, from 1.
        retryable: Whether trying again later could succeed.
        blame: What failed: ``endpoint`` and its URL, ``tool``, ``environment``, ``program``, ``worker``, ``rollout``,
            or ``code`` for an exception that nobody foresaw.
        tries: What came of each attempt, a line each, where there was more to say than the message.
        evidence: The beginning of what was answered last, at most 2,000 characters; empty where nothing was.
    """

    kind: str
    message: str
    attempts: int = 1
    retryable: bool = False
    blame: str = ""
    tries: tuple[str, ...] = ()
    evidence: str = ""

    def __post_init__(self) -> None:
        # Here, because a failure is read from files as well as made: no way around it leads to a terminal.
        for name in ("kind", "message", "blame", "evidence"):
            msgspec.structs.force_setattr(self, name, printable(getattr(self, name)))
        msgspec.structs.force_setattr(self, "tries", tuple(map(printable, self.tries)))
        msgspec.structs.force_setattr(self, "attempts", min(max(self.attempts, 1), _MOST))

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception."""
        if isinstance(error, RolloutError):
            # Whoever raised it may have set anything.
            attempts = error.attempts if isinstance(error.attempts, int) else 1
            made = cls(type(error).__name__, said(error, None), attempts, bool(error.retryable), str(error.blame))
            return made.witnessed(error) if isinstance(error, LLMError) else made
        return cls(type(error).__name__, said(error, None), blame="code")

    def witnessed(self, error: LLMError) -> Failure:
        """The same with who was asked, what came of each attempt, and how the last answer began."""
        blame = f"{error.blame} {error.endpoint}".strip()
        # Whoever raised it may have set anything.
        tries = tuple(map(str, error.tries)) if isinstance(error.tries, list | tuple) else ()
        return msgspec.structs.replace(self, blame=blame, tries=tries, evidence=str(error.evidence))

    def encode(self) -> str:
        """Return the failure as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> Failure:
        """Read a rollout's recorded error.

        Args:
            text: What :meth:`encode` wrote, or the plain text of another writer, which becomes the message.
        """
        try:
            return _decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return cls("", text)


_decoder = msgspec.json.Decoder(Failure)


def usage_of(counts: Iterable[int], error: str | None) -> Usage:
    """What the calls of a rollout cost; the attempts of the one that broke it count as retries.

    The core counts what led to a turn. A call that failed for good led to none, and is known from the failure alone.

    Args:
        counts: What the core counted, in the order of :class:`~trunkline.types.Usage`.
        error: The rollout's error, as it was recorded.
    """
    usage = Usage(*counts)
    if error:
        usage.retries += Failure.decode(error).attempts - 1
    return usage
