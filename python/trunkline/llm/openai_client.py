"""A user's OpenAI client as an LLM: raw bodies through the client's own ``post``, so that its settings hold."""

from __future__ import annotations

import inspect
import re
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from urllib.parse import quote, urlsplit

import msgspec

from trunkline._internal.aio import PerLoopSemaphore
from trunkline._internal.text import excerpt
from trunkline._internal.validation import check_int, check_that
from trunkline.errors import ConfigError, EndpointError, LLMError, ReplyError
from trunkline.llm.http.outcome import REFUSALS, Outcome, RequestContext, classify, embedded_status
from trunkline.llm.pricing import one_price
from trunkline.llm.response import read, unusable
from trunkline.llm.token_ids.base import engine_mode

if TYPE_CHECKING:
    from trunkline.llm.pricing import Price
    from trunkline.llm.types import LLMClient, Reply, Request


# With this header the SDK hands back the response itself instead of building its models.
_RAW: Final = {"X-Stainless-Raw-Response": "true", "Content-Type": "application/json"}
_MODEL: Final = re.compile(rb'^\{"model":("(?:[^"\\]|\\.)*")')
_PATH: Final = "/chat/completions"


def as_llm(candidate: object) -> LLMClient:
    """Check a user's LLM; an OpenAI client is wrapped."""
    complete = getattr(candidate, "complete", None)
    if callable(complete) and not isinstance(candidate, type):
        if hasattr(candidate, "max_concurrency"):
            check_int(f"{type(candidate).__name__}.max_concurrency", candidate.max_concurrency, 1)
        one_price(f"{type(candidate).__name__}.price", getattr(candidate, "price", None))
        engine_mode(f"{type(candidate).__name__}.tokens", getattr(candidate, "tokens", None))
        return cast("LLMClient", candidate)
    if not _is_client(candidate):
        raise ConfigError(
            f"{type(candidate).__name__} is no LLM: give trunkline.LLM(url), an openai.AsyncOpenAI client, "
            "a batch engine as trunkline.BatchLLM(engine), or an object with complete(request)"
        )
    return ClientLLM(candidate)


class ClientLLM:
    """A model behind a user's OpenAI client; ``trunkline.llms.ClientLLM``. Closing it leaves the client to its owner.

    Args:
        client: The client.
        max_concurrency: Most requests in flight at once; the others wait without a deadline. It should not exceed what
            the client's own pool of connections holds, or requests wait there, and its timeouts run.
        price: What tokens cost; None where that is not known.

    Raises:
        ConfigError: It is a blocking client, or no client, or the number or the price makes no sense.
    """

    siblings = True

    def __init__(self, client: Any, *, max_concurrency: int = 64, price: Price | None = None) -> None:
        check_that(_is_client(client), "ClientLLM: client must be an openai.AsyncOpenAI client", client)
        post = getattr(client, "post", None)
        if not inspect.iscoroutinefunction(post):
            raise ConfigError(f"{type(client).__name__} blocks; give its async form, for example openai.AsyncOpenAI")
        self.max_concurrency = check_int("ClientLLM: max_concurrency", max_concurrency, 1)
        self.price = one_price("ClientLLM: price", price)
        self._slots = PerLoopSemaphore(self.max_concurrency)
        self._client = client
        self._post = post
        # Before `content` existed, bytes were passed as `body`.
        self._body = "content" if "content" in inspect.signature(post).parameters else "body"
        self._azure = hasattr(client, "_azure_deployment") or "Azure" in type(client).__name__
        parts = urlsplit(str(client.base_url))
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        secret = getattr(client, "api_key", None)
        self._base_url = url.rstrip("/")
        self._context = RequestContext(url.rstrip("/") + _PATH, "", secret if isinstance(secret, str) else "")
        self._reached = self._good = False
        self._refusals = 0

    def __repr__(self) -> str:
        return f"ClientLLM({type(self._client).__name__} {self._context.url})"

    async def complete(self, request: Request) -> Reply:
        """Complete one request; see ``trunkline.llm.types.LLM.complete``.

        Raises:
            LLMError: The client's own retries brought no usable reply, or the request was refused.
            EndpointError: The endpoint serves no rollout.
        """
        start = time.perf_counter_ns()
        async with self._slots.here():
            queue = (time.perf_counter_ns() - start) // 1000
            raw = await self._send(request.body)
        attempts = 1 + int(getattr(raw, "retries_taken", 0))
        data = raw.content
        try:
            reply = (request.take or read)(data, 0, attempts, (time.perf_counter_ns() - start) // 1000)
        except ReplyError as error:
            context = self._context_of(raw.http_request)
            inside = embedded_status(data)
            outcome = None if inside is None else classify(inside, raw.headers, data, context)
            message = f"{context.url} answered, but {unusable(error, data, context.secret)}"
            self._fail(outcome or Outcome(LLMError, message, retry=True), attempts)
        self._good, self._refusals = True, 0
        reply.endpoint = self._base_url
        reply.queue = queue
        return reply

    async def close(self) -> None:
        """Do nothing: the client belongs to its maker."""

    async def _send(self, body: bytes) -> Any:
        """Post a body through the client, and return its raw answer."""
        try:
            raw = await self._post(self._path(body), cast_to=object, options={"headers": _RAW}, **{self._body: body})
        except Exception as error:  # noqa: BLE001 - a client's transport and hooks may raise anything
            self._translate(error)
        self._reached = True
        return raw

    def _context_of(self, request: Any) -> RequestContext:
        """The URL and key of a request; token providers and hooks may have changed the key."""
        headers = getattr(request, "headers", {})
        for name in ("Authorization", "api-key", "x-api-key"):
            if sent := headers.get(name, "").rpartition(" ")[2]:
                return self._context._replace(secret=sent)
        return self._context

    def _path(self, body: bytes) -> str:
        # Azure's client reads the deployment from the body's model, but only from a body it encodes itself.
        if not self._azure or "/deployments" in urlsplit(str(self._client.base_url)).path:
            return _PATH
        found = _MODEL.match(body)
        if found is None:
            return _PATH
        return f"/deployments/{quote(msgspec.json.decode(found.group(1), type=str), safe='')}{_PATH}"

    def _translate(self, error: Exception) -> NoReturn:
        """Raise the error that an exception of the client stands for."""
        retries = getattr(self._client, "max_retries", 0)
        tried = 1 + (retries if isinstance(retries, int) else 0)
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None)
        context = self._context_of(_request_of(error))
        if response is not None and isinstance(status, int):
            self._reached = True
            outcome = classify(status, response.headers, response.content, context)
            if outcome is not None:
                self._fail(outcome, tried if outcome.retry else 1)
        kind = type(error).__name__
        said = excerpt(str(error), 200, context.secret)
        cause = "" if error.__cause__ is None else f" ({excerpt(str(error.__cause__), 200, context.secret)})"
        if kind in {"APIConnectionError", "APITimeoutError"}:
            unreached = kind == "APIConnectionError" and not self._reached
            message = f"{context.url} gave no answer: {said}{cause}"
            self._fail(Outcome(EndpointError if unreached else LLMError, message, retry=True), tried)
        if kind in {"OpenAIError", "OAuthError", "SubjectTokenProviderError", "MutuallyExclusiveAuthError"}:
            self._fail(Outcome(EndpointError, f"the client cannot send: {said}{cause}"), 1)
        self._fail(Outcome(LLMError, f"the client failed with {kind}: {said}{cause}"), 1)

    def _fail(self, outcome: Outcome, attempts: int) -> NoReturn:
        if outcome.kind is EndpointError:
            self._refusals += 1
            if self._good and self._refusals < REFUSALS:
                outcome = outcome._replace(kind=LLMError, retry=True)
        message = outcome.message if attempts == 1 else f"{outcome.message} (after {attempts} attempts)"
        if issubclass(outcome.kind, LLMError):
            error = outcome.kind(message, attempts=attempts, retryable=outcome.retry, endpoint=self._base_url)
            error.separable = outcome.own
            raise error from None
        raise outcome.kind(message) from None


def _is_client(candidate: object) -> bool:
    """Whether something looks like a client of OpenAI's SDK, blocking or not."""
    return not isinstance(candidate, type) and hasattr(candidate, "chat") and hasattr(candidate, "base_url")


def _request_of(error: Exception) -> object:
    """The request of a client's exception, if it has one."""
    try:
        return getattr(error, "request", None)
    except RuntimeError:  # exceptions of httpx raise it where they know of none
        return None
