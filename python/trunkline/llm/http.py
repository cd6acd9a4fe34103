"""Chat completions over HTTP: endpoints, attempts and limits tied together."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from trunkline.errors import EndpointError, LLMError, ReplyError, RolloutError
from trunkline.llm.classify import Site, Verdict, classify, embedded_status
from trunkline.llm.protocol import Reply
from trunkline.llm.reply import read, unusable
from trunkline.llm.retry import Backoff
from trunkline.llm.switch import SwitchTransport
from trunkline.llm.text import without_key
from trunkline.llm.transport import Answer, Transport, TransportError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trunkline.llm.protocol import Request

__all__ = ["HttpLLM"]

UNREACHED_ATTEMPTS = 4
"""Attempts at an endpoint that has never answered: a late start is waited for, a wrong URL is named soon."""

UNUSABLE_ATTEMPTS = 2
"""Attempts that may end in a body that is no completion, before the call is given up."""


class _Endpoint:
    __slots__ = ("good", "reached", "site", "url")

    def __init__(self, base_url: str, key_env: str, secret: str) -> None:
        self.url = f"{base_url.rstrip('/')}/chat/completions"
        self.site = Site(urlsplit(self.url)._replace(query="", fragment="").geturl(), key_env, secret)
        self.reached = False
        self.good = False


class HttpLLM:
    """A model behind one or more OpenAI-compatible base URLs.

    A request goes to the endpoint its key chooses and, when that one is down, to the next one.

    Args:
        base_urls: Base URLs, ``/chat/completions`` left out.
        key: The bearer key, or None to send none.
        key_env: Name of the environment variable it came from, for messages.
        headers: Further headers of each request; they win over ours.
        max_concurrency: Most requests in flight at once; the others wait without a deadline.
        timeout: Seconds for one attempt.
        siblings: Whether draws of one state are asked for in one request.
        backoff: How a failing call is repeated.
        transport: What posts; a :class:`SwitchTransport` when None. It is closed with this object.
        sleep: Waits between attempts.
        draw: Jitter, from 0 to 1.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        key: str | None = None,
        *,
        key_env: str = "OPENAI_API_KEY",
        headers: Mapping[str, str] | None = None,
        max_concurrency: int = 256,
        timeout: float = 600.0,
        siblings: bool = True,
        backoff: Backoff | None = None,
        transport: Transport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoints = [_Endpoint(url, key_env, key or "") for url in base_urls]
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._headers.update(headers or {})
        self._slots = asyncio.Semaphore(max_concurrency)
        self._timeout = timeout
        self.siblings = siblings
        self._backoff = backoff or Backoff()
        self._transport = transport or SwitchTransport(max_concurrency)
        self._sleep = sleep
        self._draw = draw
        self._clock = clock

    def __repr__(self) -> str:
        return f"HttpLLM({', '.join(endpoint.site.url for endpoint in self._endpoints)})"

    async def complete(self, request: Request) -> Reply:
        """Complete one request; see :meth:`trunkline.llm.protocol.LLM.complete`.

        Raises:
            LLMError: No usable reply within the attempts and the deadline, or the request itself was refused.
            EndpointError: The endpoint serves nobody: wrong key, model, quota or URL, or it cannot be
                reached.
        """
        start = self._clock()
        left = self._backoff.deadline
        turn = request.key
        attempts = unusable = 0
        while True:
            endpoint = self._endpoints[turn % len(self._endpoints)]
            attempts += 1
            outcome, spent = await self._attempt(endpoint, request, min(self._timeout, left), attempts, start)
            if isinstance(outcome, Reply):
                return outcome
            verdict = outcome
            left -= spent
            unusable += verdict.kind is _UnusableError
            allowed = self._backoff.attempts
            if not endpoint.reached and len(self._endpoints) == 1:
                allowed = min(allowed, UNREACHED_ATTEMPTS)
            if not verdict.retry or attempts >= allowed or unusable >= UNUSABLE_ATTEMPTS:
                self._give_up(verdict, endpoint, attempts)
            wait = self._backoff.delay(attempts, verdict.after, self._draw)
            if wait >= left:
                why = f"{verdict.message}; the deadline of {self._backoff.deadline:g} s is near"
                self._give_up(verdict._replace(message=why), endpoint, attempts)
            await self._sleep(wait)
            left -= wait
            if verdict.after is None:
                turn += 1

    async def close(self) -> None:
        """Close every connection; may be called more than once."""
        await self._transport.close()

    async def _attempt(
        self, endpoint: _Endpoint, request: Request, limit: float, attempts: int, start: float
    ) -> tuple[Reply | Verdict, float]:
        """Send once: a reply or what to do instead, and the seconds it took once it had a slot."""
        async with self._slots:
            begun = self._clock()
            try:
                answer = await self._transport.post(endpoint.url, self._headers, request.body, limit)
            except TransportError as error:
                kind = EndpointError if error.unreachable and not endpoint.reached else LLMError
                message = f"{endpoint.site.url} gave no answer: {error}"
                return Verdict(kind, message, error.retry), self._clock() - begun
            spent = self._clock() - begun
        endpoint.reached = True
        verdict = classify(answer.status, answer.headers, answer.body, endpoint.site)
        if verdict is not None:
            return verdict, spent
        try:
            reply = (request.take or read)(answer.body, 0, attempts, int((self._clock() - start) * 1e6))
        except ReplyError as error:
            return self._unusable(endpoint, answer, error), spent
        endpoint.good = True
        reply.endpoint = endpoint.site.url
        reply.first = int(answer.first * 1e6)
        return reply, spent

    @staticmethod
    def _unusable(endpoint: _Endpoint, answer: Answer, error: ReplyError) -> Verdict:
        status, headers, data, _ = answer
        inside = embedded_status(data)
        if inside is not None:
            verdict = classify(inside, headers, data, endpoint.site)
            if verdict is not None:
                return verdict
        message = f"{endpoint.site.url} answered {status}, but {unusable(error, data, endpoint.site.secret)}"
        if data.lstrip()[:1] == b"<" and not endpoint.good:
            return Verdict(EndpointError, message)
        return Verdict(_UnusableError, message, retry=True)

    @staticmethod
    def _give_up(verdict: Verdict, endpoint: _Endpoint, attempts: int) -> NoReturn:
        message = verdict.message if attempts == 1 else f"{verdict.message} (after {attempts} attempts)"
        if verdict.kind is EndpointError and verdict.retry:
            message += "; is a server running there, and is the base URL right?"
        message = without_key(message, endpoint.site.secret)
        if issubclass(verdict.kind, RolloutError):
            kind = LLMError if verdict.kind is _UnusableError else verdict.kind
            raise kind(message, attempts=attempts, retryable=verdict.retry)
        raise verdict.kind(message)


class _UnusableError(LLMError):
    """A body that is no completion; raised as :class:`LLMError`, told apart as it is repeated less often."""
