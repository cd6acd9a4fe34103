"""The simulator's models as an LLM of this process: what its server answers, without a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import BadRequest, LLMError
from trunkline.llm.reply import read
from trunkline.llm.request import CHAT, COMPLETIONS
from trunkline.sim.server.requests import ApiError, ChatRequest, CompletionRequest, decode
from trunkline.sim.server.service import Service

if TYPE_CHECKING:
    from trunkline.llm.protocol import Reply, Request
    from trunkline.sim.server.service import Answer
    from trunkline.sim.server.settings import Settings

__all__ = ["SimLLM"]

_ENCODE = msgspec.json.Encoder().encode


class SimLLM:
    """Answers as a server with these settings would, byte for byte, usage and cached prompt tokens included.

    Args:
        settings: What the server would be told at start. Latency does not apply.

    Raises:
        ConfigError: The preset or a dial does not exist.
    """

    siblings = True

    def __init__(self, settings: Settings) -> None:
        self._service = Service(settings)

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
            kind = BadRequest if 400 <= refusal.status < 500 and refusal.status != 429 else LLMError
            raise kind(str(refusal)) from None
        whole = {**answer.head, "choices": answer.choices, "usage": answer.usage, **answer.extra}
        take = request.take or read
        return take(_ENCODE(whole), 0, 1, (time.perf_counter_ns() - start) // 1000)

    def _answer(self, request: Request) -> Answer:
        if request.route == CHAT:
            return self._service.chat(decode(request.body, ChatRequest))
        if request.route == COMPLETIONS:
            return self._service.complete(decode(request.body, CompletionRequest))
        raise ApiError(404, f"route: {request.route} is not answered without a server; use {CHAT} or {COMPLETIONS}")

    async def close(self) -> None:
        """Nothing is held."""
