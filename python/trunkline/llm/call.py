"""One call while it is under way: what it asks, what it has tried, and how much time it has left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.llm.classify import Verdict
    from trunkline.llm.endpoint import Endpoint
    from trunkline.llm.retry import Backoff
    from trunkline.llm.transport import Body

__all__ = ["Call", "Reader"]

UNREACHED_ATTEMPTS: Final = 4
"""Attempts where no endpoint has ever answered: a late start is waited for, a wrong URL is named soon."""

UNUSABLE_ATTEMPTS: Final = 2
"""Attempts that may end in a body that is no completion, before the call is given up."""

_TRIES: Final = 20
"""Attempts that a failure tells of, the last ones."""

_WHOLE: Final = 4
"""What an attempt counts. One that was told to come later, or only found a server still down, counts 1: it says
nothing against the request, and with five retries a minute of 429s or of a restarting server must be survived."""


T = TypeVar("T")
_Read_co = TypeVar("_Read_co", covariant=True)


class Reader(Protocol[_Read_co]):
    """Reads an answer; :class:`.protocol.Take` is one that makes replies."""

    def __call__(self, data: bytes, first: int, attempts: int, micros: int) -> _Read_co:
        """Read a body; see :class:`.protocol.Take`."""
        ...


class Call(Generic[T]):
    """The state of one call.

    Args:
        route: See :attr:`.protocol.Request.route`.
        body: What is posted.
        key: The tree's key.
        n: Draws it asks for.
        headers: What is sent with it.
        take: Reads the answer.
        start: The present, in monotonic seconds.
        backoff: How it may be repeated.

    Attributes:
        attempts: Requests sent so far.
        left: Seconds that attempts, backoff and closed endpoints may still take.
        busy: Seconds that its requests were under way, all together.
        last: Seconds of the last of them.
        spent: Tokens it took in the end; None while not known.
        asked: Base URL of the endpoint that was asked last; empty before.
        avoid: The endpoint that failed it last.
        verdict: What came of the last attempt.
        tries: What came of each attempt that brought nothing, a line each; the last ones of many.
        evidence: The beginning of what was answered last.
    """

    __slots__ = (
        "_backoff",
        "_strikes",
        "_unusable",
        "asked",
        "attempts",
        "avoid",
        "body",
        "busy",
        "evidence",
        "headers",
        "key",
        "last",
        "left",
        "n",
        "route",
        "spent",
        "start",
        "take",
        "tries",
        "verdict",
    )

    def __init__(
        self,
        route: str,
        body: Body,
        key: int,
        n: int,
        headers: Mapping[str, str],
        take: Reader[T],
        start: float,
        backoff: Backoff,
    ) -> None:
        self.route = route
        self.body = body
        self.key = key
        self.n = n
        self.headers = headers
        self.take = take
        self.start = start
        self.left = backoff.deadline
        self.busy = self.last = 0.0
        self.spent: int | None = None
        self.attempts = 0
        self.asked = ""
        self.avoid: Endpoint | None = None
        self.verdict: Verdict | None = None
        self.tries: list[str] = []
        self.evidence = ""
        self._backoff = backoff
        self._strikes = self._unusable = 0

    def took(self, seconds: float) -> None:
        """Note how long a request was under way."""
        self.last = seconds
        self.busy += seconds
        self.left -= seconds

    def tried(self, verdict: Verdict, evidence: str = "") -> None:
        """Write down what came of an attempt that brought nothing.

        Args:
            verdict: What it means.
            evidence: The beginning of what was answered, if anything was.
        """
        self.tries = [*self.tries[1 - _TRIES :], f"{self.attempts}: {verdict.message} ({self.last:.2f} s)"]
        self.evidence = evidence

    def failed(self, verdict: Verdict, *, waiting: bool, unusable: bool) -> None:
        """Note an attempt that brought nothing.

        Args:
            verdict: Why.
            waiting: Whether it was told to come later, or found a server still down.
            unusable: Whether it brought a body that is no completion.
        """
        self.verdict = verdict
        self._strikes += 1 if waiting else _WHOLE
        self._unusable += unusable

    def over(self, *, reached: bool, endpoints: int) -> bool:
        """Whether it has had all its attempts.

        Args:
            reached: Whether any endpoint has ever answered.
            endpoints: How many there are.
        """
        if not reached and self.attempts >= max(UNREACHED_ATTEMPTS, endpoints):
            return True
        return self._strikes > _WHOLE * (self._backoff.attempts - 1) or self._unusable >= UNUSABLE_ATTEMPTS
