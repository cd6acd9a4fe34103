"""Somebody's client where an LLM is: `openai.AsyncOpenAI` or `AsyncAzureOpenAI`, used as its owner set it up.

Each request goes through the client's own `post`: raw body in, raw answer out. Its transport, authentication,
hooks, timeouts and retries hold, and its response models are never built. `openai` is not imported here.
"""

from __future__ import annotations

import inspect
import re
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from urllib.parse import quote, urlsplit

import msgspec

from trunkline.errors import ConfigError, EndpointError, LLMError, ReplyError, RolloutError
from trunkline.llm.classify import Site, Verdict, classify, embedded_status
from trunkline.llm.reply import read, unusable
from trunkline.llm.text import excerpt

if TYPE_CHECKING:
    from trunkline.llm.protocol import LLM, Reply, Request

__all__ = ["ClientLLM", "as_llm"]

# With this header the SDK hands back the response itself instead of building its models.
_RAW: Final = {"X-Stainless-Raw-Response": "true", "Content-Type": "application/json"}
_MODEL: Final = re.compile(rb'^\{"model":("(?:[^"\\]|\\.)*")')
_PATH: Final = "/chat/completions"


def as_llm(candidate: object) -> LLM:
    """Take what a user gave as an LLM.

    Args:
        candidate: Something with ``async complete(request)``, or an ``AsyncOpenAI`` or ``AsyncAzureOpenAI``
            client.

    Raises:
        ConfigError: It is neither; the message says what would do.
    """
    complete = getattr(candidate, "complete", None)
    if callable(complete) and not isinstance(candidate, type):
        if not inspect.iscoroutinefunction(complete):
            raise ConfigError(f"{type(candidate).__name__}.complete must be an async function")
        return cast("LLM", candidate)
    if isinstance(candidate, type) or not hasattr(candidate, "chat") or not hasattr(candidate, "base_url"):
        raise ConfigError(
            f"{type(candidate).__name__} is no LLM: give trunkline.LLM(url), an openai.AsyncOpenAI client, "
            "or an object with async complete(request)"
        )
    return ClientLLM(candidate)


class ClientLLM:
    """A model behind somebody's OpenAI client. Closing it leaves the client open: it is its owner's.

    Args:
        client: The client.

    Raises:
        ConfigError: It is a blocking client.
    """

    siblings = True

    def __init__(self, client: Any) -> None:
        post = getattr(client, "post", None)
        if not inspect.iscoroutinefunction(post):
            raise ConfigError(f"{type(client).__name__} blocks; give its async form, for example openai.AsyncOpenAI")
        self._client = client
        self._post = post
        # Before `content` existed, bytes were passed as `body`.
        self._body = "content" if "content" in inspect.signature(post).parameters else "body"
        self._azure = hasattr(client, "_azure_deployment") or "Azure" in type(client).__name__
        parts = urlsplit(str(client.base_url))
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        secret = getattr(client, "api_key", None)
        self._base_url = shown.rstrip("/")
        self._site = Site(shown.rstrip("/") + _PATH, "", secret if isinstance(secret, str) else "")
        self._reached = False

    def __repr__(self) -> str:
        return f"ClientLLM({type(self._client).__name__} {self._site.url})"

    async def complete(self, request: Request) -> Reply:
        """Complete one request; see :meth:`trunkline.llm.protocol.LLM.complete`.

        Raises:
            LLMError: The client's own retries brought no usable reply, or the request was refused.
            EndpointError: The endpoint serves nobody.
        """
        start = time.perf_counter_ns()
        try:
            raw = await self._post(
                self._path(request.body),
                cast_to=object,
                options={"headers": _RAW},
                **{self._body: request.body},
            )
        except Exception as error:  # noqa: BLE001 - a client's transport and hooks may raise anything
            self._translate(error)
        self._reached = True
        attempts = 1 + int(getattr(raw, "retries_taken", 0))
        data = raw.content
        try:
            reply = (request.take or read)(data, 0, attempts, (time.perf_counter_ns() - start) // 1000)
        except ReplyError as error:
            inside = embedded_status(data)
            verdict = None if inside is None else classify(inside, raw.headers, data, self._site)
            message = f"{self._site.url} answered, but {unusable(error, data, self._site.secret)}"
            self._fail(verdict or Verdict(LLMError, message, retry=True), attempts)
        reply.endpoint = self._base_url
        return reply

    async def close(self) -> None:
        """Do nothing: the client belongs to whoever made it."""

    def _path(self, body: bytes) -> str:
        # Azure's client reads the deployment from the body's model, but only from a body it encodes itself.
        if not self._azure or "/deployments" in urlsplit(str(self._client.base_url)).path:
            return _PATH
        found = _MODEL.match(body)
        if found is None:
            return _PATH
        return f"/deployments/{quote(msgspec.json.decode(found.group(1), type=str), safe='')}{_PATH}"

    def _translate(self, error: Exception) -> NoReturn:
        """Raise what an exception of the client means here."""
        retries = getattr(self._client, "max_retries", 0)
        tried = 1 + (retries if isinstance(retries, int) else 0)
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None)
        if response is not None and isinstance(status, int):
            self._reached = True
            verdict = classify(status, response.headers, response.content, self._site)
            if verdict is not None:
                self._fail(verdict, tried if verdict.retry else 1)
        kind = type(error).__name__
        said = excerpt(str(error), 200, self._site.secret)
        cause = "" if error.__cause__ is None else f" ({excerpt(str(error.__cause__), 200, self._site.secret)})"
        if kind in {"APIConnectionError", "APITimeoutError"}:
            unreached = kind == "APIConnectionError" and not self._reached
            message = f"{self._site.url} gave no answer: {said}{cause}"
            self._fail(Verdict(EndpointError if unreached else LLMError, message, retry=True), tried)
        if kind in {"OpenAIError", "OAuthError", "SubjectTokenProviderError", "MutuallyExclusiveAuthError"}:
            self._fail(Verdict(EndpointError, f"the client cannot send: {said}{cause}"), 1)
        self._fail(Verdict(LLMError, f"the client failed with {kind}: {said}{cause}"), 1)

    @staticmethod
    def _fail(verdict: Verdict, attempts: int) -> NoReturn:
        message = verdict.message if attempts == 1 else f"{verdict.message} (after {attempts} attempts)"
        if issubclass(verdict.kind, RolloutError):
            raise verdict.kind(message, attempts=attempts, retryable=verdict.retry) from None
        raise verdict.kind(message) from None
