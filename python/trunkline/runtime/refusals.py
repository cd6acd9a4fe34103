"""When refused requests mean that the run itself is wrong, and not its questions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trunkline import errors
from trunkline.errors import InfrastructureError, TrunklineError

if TYPE_CHECKING:
    from trunkline.runtime.wire import Fatal

__all__ = ["Refusals", "reported"]

_ENOUGH = 10
"""So many first requests refused alike, and none answered, stop a run."""

_VARYING = re.compile(r"[0-9a-f]{8}[0-9a-f-]*|\d+", re.IGNORECASE)
"""Request ids, counts and times in an error message: two refusals that differ in these alone are the same."""


class Refusals:
    """Counts the requests that were refused while none has been answered.

    One question that an endpoint dislikes is refused once a try, so refusals of as many questions are asked for, as far
    as the run may hand out.

    Args:
        tasks: How many tasks the run may hand out.
    """

    def __init__(self, tasks: int) -> None:
        self._questions = min(_ENOUGH, tasks)
        self._refused: set[int] = set()
        self._kinds: set[str] = set()
        self._count = 0
        self._first = ""

    def note(self, task: int, message: str) -> None:
        """Note one refused request.

        Args:
            task: The task's index.
            message: How it was refused.
        """
        self._first = self._first or message
        self._count += 1
        self._refused.add(task)
        if len(self._kinds) < _ENOUGH:
            self._kinds.add(_VARYING.sub("#", message))

    @property
    def verdict(self) -> str | None:
        """Why the run makes no sense, or None while that is not certain."""
        if self._count < _ENOUGH or len(self._refused) < self._questions or len(self._kinds) != 1:
            return None
        return f"the first {_ENOUGH} requests were all refused alike: {self._first}"


def reported(fatal: Fatal) -> TrunklineError:
    """Make the error that a worker reported."""
    kind = getattr(errors, fatal.kind, None)
    if isinstance(kind, type) and issubclass(kind, TrunklineError):
        return kind(fatal.message)
    return InfrastructureError(fatal.message)
