"""Why a rollout broke, read back from what was recorded."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from trunkline.types import Usage

__all__ = ["Broken", "broken", "usage_of"]

_MOST = 1_000_000  # attempts that are believed; a recorded failure is data, and may be damaged


class Broken(NamedTuple):
    """What is known of a rollout's failure.

    Attributes:
        message: What happened. It may quote a model or a server: escape it before printing.
        attempts: How often it was tried.
    """

    message: str
    attempts: int = 1


class _Recorded(msgspec.Struct):
    message: str
    attempts: int = 1


_decoder = msgspec.json.Decoder(_Recorded)


def broken(error: str | None) -> Broken | None:
    """Read the error of a rollout.

    Args:
        error: JSON with ``message`` and ``attempts``, as a session records it, or the plain text of another writer.

    Returns:
        The failure; None if there was none.
    """
    if not error:
        return None
    try:
        found = _decoder.decode(error)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Broken(error)
    return Broken(found.message, min(max(found.attempts, 1), _MOST))


def usage_of(counts: tuple[int, ...], error: str | None) -> Usage:
    """What the calls of a rollout cost; the attempts of the one that broke it count as retries.

    The core counts what led to a turn. A call that failed for good led to none, and is known from the failure alone.

    Args:
        counts: What the core counted.
        error: The rollout's error, as it was recorded.
    """
    usage = Usage(*counts)
    failure = broken(error)
    if failure is not None:
        usage.retries += failure.attempts - 1
    return usage
