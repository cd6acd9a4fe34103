"""Status and body -> retry, fail or stop; backoff."""

from __future__ import annotations

import random
import re
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from trunkline._internal.text import excerpt
from trunkline._internal.validation import check_float, check_int
from trunkline.errors import BadRequest, ContentFiltered, ContextTooLong, EndpointError, LLMError, TrunklineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["REFUSALS", "Backoff", "Outcome", "RequestContext", "classify", "embedded_status", "retry_after"]


REFUSALS: Final = 10
"""Refusals in a row (wrong key, path or model, spent quota) after which a server that has served before is given up."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How a failing call is repeated. All times are seconds.

    Attributes:
        attempts: Most requests for one call, the first included.
        base: Ceiling of the first wait; it doubles with each attempt.
        cap: Largest ceiling.
        after_cap: Most that a server's ``Retry-After`` is believed.
        deadline: Most that the attempts and waits of one call may take together.
    """

    attempts: int = 6
    base: float = 0.5
    cap: float = 30.0
    after_cap: float = 120.0
    deadline: float = 3600.0

    def __post_init__(self) -> None:
        check_int("attempts", self.attempts, 1)
        for name in ("base", "cap", "after_cap", "deadline"):
            check_float(name, getattr(self, name), 0, unit="seconds")

    def delay(self, attempt: int, after: float | None = None, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait before the next attempt.

        Without a wish of the server, a uniform draw below the ceiling of this attempt (full jitter). With
        one, that time and up to a tenth more, so that callers told the same moment do not come back at once.

        Args:
            attempt: Attempts made so far, from 1.
            after: What the server asked for.
            draw: Gives a number from 0 to 1.
        """
        if after is not None:
            return min(after, self.after_cap) * (1.0 + 0.1 * draw())
        return min(self.cap, self.base * 2.0 ** min(attempt - 1, 60)) * draw()


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Read how long a server asks to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date.

    Args:
        headers: Answer headers; the mapping must not mind case.
        now: The wall clock, seconds since the epoch.

    Returns:
        Seconds, or None if there is no wish or none that makes sense (negative, no number, a past date).
    """
    millis = headers.get("retry-after-ms")
    if millis is not None:
        value = _seconds(millis)
        if value is not None:
            return value / 1000
    text = headers.get("Retry-After")
    if text is None:
        return None
    value = _seconds(text)
    if value is not None:
        return value
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    wait = moment.timestamp() - now()
    return wait if wait >= 0 else None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 else None


RETRYABLE: Final = frozenset({408, 409, 425, 429})
_QUOTA: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "insufficient_balance", "account_deactivated"}
)
_FILTERS: Final = frozenset(
    {"content_filter", "content_policy_violation", "data_inspection_failed", "responsibleaipolicyviolation"}
)
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"})
# OpenAI and vLLM; vLLM's engine; SGLang, twice; llama.cpp; TGI; Anthropic; Gemini.
_TOO_LONG: Final = re.compile(
    r"maximum context length|longer than the maximum model length|longer than the model'?s context length"
    r"|exceeds the (?:maximum allowed|model'?s maximum context) length|exceeds? the available context size"
    r"|`inputs` tokens \+ `max_new_tokens` must be|prompt is too long"
    r"|input token count .{0,40}exceeds the maximum number of tokens",
    re.IGNORECASE,
)
# llama.cpp, three times; Ollama. The request holds its seed, so the same draw fails in the same way again.
_UNREADABLE: Final = re.compile(
    r"does not match the expected .{0,60}format|empty grammar stack after accepting|failed to parse input"
    r"|error parsing tool call",
    re.IGNORECASE,
)
_GATEWAY: Final = frozenset({502, 503, 504, *range(520, 531)})
"""Statuses of what stands before a server, or of a server that loads or is overloaded."""

_RAISED: Final = b"Internal Server Error"
_FILTERED: Final = re.compile(r"content[ _]management policy|content[ _]filter|flagged (?:by|for)", re.IGNORECASE)
_LARGEST: Final = 1 << 20


class RequestContext(NamedTuple):
    """Where a request went, as far as an error may say it.

    Attributes:
        url: The URL without userinfo and query.
        key_env: Name of the environment variable that holds the key; empty when another client holds it.
        secret: The key itself, or all that is secret, so that it can be taken out of what a server echoes.
    """

    url: str
    key_env: str = ""
    secret: str | tuple[str, ...] = ""


class Outcome(NamedTuple):
    """What to do about an answer that is not a reply.

    Attributes:
        kind: Class of the error, should it be raised.
        message: One sentence, safe to print.
        retry: Whether asking again can help.
        after: Seconds the server asked to wait, or None.
        status: The status of the answer; 0 where there was none.
        down: Whether the answer says that the server does not serve, rather than that it failed at this request.
    """

    kind: type[TrunklineError]
    message: str
    retry: bool = False
    after: float | None = None
    status: int = 0
    down: bool = False

    @property
    def own(self) -> bool:
        """Whether a server that is up failed at this request."""
        return self.status >= 500 and not self.down


class _Problem(NamedTuple):
    message: str
    codes: frozenset[str]
    param: str
    named: bool = False
    """Whether the server itself said what went wrong: as JSON, or as web frameworks do where a handler raised."""


def classify(status: int, headers: Mapping[str, str], body: bytes, context: RequestContext) -> Outcome | None:
    """Decide what an answer means.

    Args:
        status: The HTTP status.
        headers: Answer headers; looked up case-insensitively by the mapping itself.
        body: The body as received.
        context: Where the request went.

    Returns:
        None for a success, whose body must then be decoded, else a verdict.
    """
    if 200 <= status < 300:
        return None
    return _outcome(status, headers, body, context)._replace(status=status)


def _outcome(status: int, headers: Mapping[str, str], body: bytes, context: RequestContext) -> Outcome:
    """What an answer means that is no success."""
    if 300 <= status < 400:
        return Outcome(EndpointError, _redirected(status, headers, context))
    problem = _problem(body, context.secret)
    said = f"{context.url} answered {status}" + (f" ({problem.message})" if problem.message else "")
    if problem.codes & _QUOTA or "exceeded your current quota" in problem.message:
        return Outcome(EndpointError, f"{said}: the quota of {_key(context)} is used up")
    if 400 <= status < 500 and status not in RETRYABLE:
        return _refused(status, problem, said, context)
    if status >= 500 and _UNREADABLE.search(problem.message):
        advice = (
            "the server could not read the model's reply: --dialect hermes (dialect='hermes') leaves that to Trunkline"
        )
        return Outcome(LLMError, f"{said}: {advice}")
    if status in RETRYABLE or status >= 500:
        down = status == 408 or (status >= 500 and (status in _GATEWAY or not problem.named))
        return Outcome(LLMError, said, retry=True, after=retry_after(headers), down=down)
    return Outcome(LLMError, f"{said}, which is no answer to a request")


def embedded_status(body: bytes) -> int | None:
    """The status that an error object inside a 200 stands for, or None if the body is none.

    Gateways answer 200 before they have asked the model and then have only the body to say that it failed.
    """
    value = _json(body)
    if not isinstance(value, dict) or value.get("choices") or not value.get("error"):
        return None
    error = value["error"]
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isascii() and code.isdecimal():
        code = int(code[:4])
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def _refused(status: int, problem: _Problem, said: str, context: RequestContext) -> Outcome:
    """A 4xx that asking again cannot change."""
    if status in {400, 413, 422} and (problem.codes & _TOO_LONG_CODES or _TOO_LONG.search(problem.message)):
        return Outcome(ContextTooLong, f"the conversation no longer fits the model: {said}")
    if status in {400, 403, 422} and (problem.codes & _FILTERS or _FILTERED.search(problem.message)):
        return Outcome(ContentFiltered, f"the provider withheld the reply: {said}")
    advice = _advice(status, problem, context)
    if advice:
        return Outcome(EndpointError, f"{said}: {advice}")
    return Outcome(BadRequest, f"the request was refused: {said}")


def _advice(status: int, problem: _Problem, context: RequestContext) -> str:
    """What to do about a status that will be the same for every request; empty for all others."""
    key = _key(context)
    match status:
        case 401:
            return f"check {key}"
        case 402:
            return f"the account of {key} must be paid for"
        case 403:
            return f"{key} may not use this model or endpoint"
        case 404 | 405:
            about = "model_not_found" in problem.codes or "model" in (
                problem.param,
                *problem.message.lower().split(),
            )
            if about:
                return "the endpoint does not serve this model; check its name"
            return "there are no chat completions at this path; check the base URL"
        case _:
            return ""


def _redirected(status: int, headers: Mapping[str, str], context: RequestContext) -> str:
    try:
        target = urlsplit(headers.get("Location", "")).hostname or urlsplit(context.url).hostname or ""
    except ValueError:
        target = "somewhere unreadable"
    return (
        f"{context.url} answered {status} and points to {excerpt(target, 100, context.secret)}: "
        "redirects are not followed with a key; give the final base URL"
    )


def _key(context: RequestContext) -> str:
    return f"the key in the environment variable {context.key_env}" if context.key_env else "the key"


def _json(body: bytes) -> object:
    if len(body) > _LARGEST:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _problem(body: bytes, secret: str | tuple[str, ...]) -> _Problem:
    """Find the message and codes in any of the shapes that servers give an error."""
    value = _json(body)
    if not isinstance(value, dict):
        text = "" if body.lstrip()[:1] == b"<" else excerpt(body.strip(), 200, secret)
        return _Problem(text, frozenset(), "", named=body.strip() == _RAISED)
    error = value.get("error")
    inner = error if isinstance(error, dict) else value
    message = ""
    for told in (inner.get("message"), error, inner.get("detail"), value.get("message")):
        if isinstance(told, str):
            message = message or told
    if not message and inner.get("detail"):
        message = msgspec.json.encode(inner["detail"]).decode()
    named = [inner.get("code"), inner.get("type"), value.get("code"), value.get("type")]
    nested = inner.get("innererror")
    if isinstance(nested, dict):
        named.append(nested.get("code"))
    codes = frozenset(name.lower() for name in named if isinstance(name, str))
    param = inner.get("param")
    return _Problem(excerpt(message, 300, secret), codes, param if isinstance(param, str) else "", bool(message))
