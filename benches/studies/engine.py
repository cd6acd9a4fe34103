"""The simulator's models as an LLM of this process: what its server answers, without a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import BadRequest, LLMError
from trunkline.llm.request import CHAT, COMPLETIONS
from trunkline.llm.response import read
from trunkline.sim.server.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    decode,
)
from trunkline.sim.server.service import Service

if TYPE_CHECKING:
    from trunkline.llm.types import Reply, Request
    from trunkline.sim.server.options import Settings
    from trunkline.sim.server.service import Answer

__all__ = ["SimLLM"]

_ENCODE = msgspec.json.Encoder().encode


class SimLLM:
    """Answers as a server with these settings would, byte for byte, usage and cached prompt tokens included.

    Args:
        settings: What the server would be told at start. Latency does not apply.

    Attributes:
        metrics: What it counts of prompts and replies.

    Raises:
        ConfigError: The preset or a dial does not exist.
    """

    siblings = True

    def __init__(self, settings: Settings) -> None:
        self._service = Service(settings)
        self.metrics = self._service.metrics

    async def complete(self, request: Request) -> Reply:
        """Complete one request.

        Raises:
            BadRequest: What the server would refuse.
            LLMError: A failure that the settings ask for.
        """
        start = time.perf_counter_ns()
        try:
            self._service.maybe_fail(request.body)
            answer = self._answer(request)
        except ApiError as refusal:
            raise _error(refusal) from None
        whole = {**answer.head, "choices": answer.choices, "usage": answer.usage, **answer.extra}
        take = request.take or read
        return take(_ENCODE(whole), 0, 1, (time.perf_counter_ns() - start) // 1000)

    async def call(self, route: str, body: bytes, key: int = 0) -> bytes:
        """Say which ids a conversation has, or what ids spell, as the server's ``/tokenize`` and ``/detokenize`` do.

        Args:
            route: ``//tokenize`` or ``//detokenize``.
            body: What would be posted.
            key: Chooses one of several servers, of which there is none.

        Raises:
            BadRequest: What the server would refuse.
        """
        try:
            if route == "//tokenize":
                return _ENCODE(self._service.tokenize(decode(body, TokenizeRequest)))
            return _ENCODE(self._service.detokenize(decode(body, DetokenizeRequest)))
        except ApiError as refusal:
            raise _error(refusal) from None

    def _answer(self, request: Request) -> Answer:
        if request.route == CHAT:
            return self._service.chat(decode(request.body, ChatRequest))
        if request.route == COMPLETIONS:
            return self._service.complete(decode(request.body, CompletionRequest))
        raise ApiError(404, f"route: {request.route} is not answered without a server; use {CHAT} or {COMPLETIONS}")

    async def close(self) -> None:
        """Nothing is held."""


def _error(refusal: ApiError) -> LLMError:
    """What an HTTP client would raise."""
    kind = BadRequest if 400 <= refusal.status < 500 and refusal.status != 429 else LLMError
    return kind(str(refusal))
