"""Request bodies and their validation, with errors in the OpenAI form."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

__all__ = ["ApiError", "ChatRequest", "CompletionRequest", "DetokenizeRequest", "Request", "TokenizeRequest", "decode"]

Request = TypeVar("Request", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `\$\.?([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")


class ApiError(Exception):
    """A refused request: status, message, the field at fault, a code for programs, OpenAI's type, headers."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


class StreamOptions(msgspec.Struct):
    """``stream_options``: whether the last chunk carries usage."""

    include_usage: bool | None = None


class _Sampled(msgspec.Struct, kw_only=True):
    model: str
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    seed: int | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=16)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    include_stop_str_in_output: bool | None = None

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stop = self.stop or ()
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in stops or self.stop == "":
            raise ApiError(400, "stop: a stop string cannot be empty", param="stop")
        return stops


class ChatRequest(_Sampled, kw_only=True):
    """The body of ``/v1/chat/completions``; unknown fields are ignored, as real servers do."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    continue_final_message: bool | None = None

    def limit(self) -> int | None:
        """Most tokens to generate, if the request says."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Sampled, kw_only=True):
    """The body of ``/v1/completions``."""

    prompt: str | list[Any]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    echo: bool | None = None

    def prompts(self) -> list[str | list[int]]:
        """The prompts: one text, several texts, one list of token ids, or several such lists."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and all(_is_id(item) for item in prompt):
            return [prompt]
        if prompt and all(isinstance(item, str) for item in prompt):
            return list(prompt)
        if prompt and all(isinstance(item, list) and item and all(map(_is_id, item)) for item in prompt):
            return list(prompt)
        raise ApiError(400, "prompt: expected text, token ids, or a list of one of these", param="prompt")


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``/tokenize``: a prompt, or messages with tools."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``/detokenize``."""

    tokens: list[int]
    model: str | None = None


def decode(body: bytes, kind: type[Request]) -> Request:
    """Read a request body.

    Raises:
        ApiError: The body is not JSON, or a field, which is named, is missing or wrong.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        missing = _MISSING.search(text)
        param = place[1] if place else (missing[1] if missing else None)
        what = _PLACE.sub("", text)
        message = f"{param}: {what}" if param else what
        raise ApiError(400, message, param=param, code="invalid_value") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
