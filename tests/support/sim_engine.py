"""The simulator's models as a batch engine in this process: the same replies as from its server, without HTTP."""

from __future__ import annotations

import asyncio

import msgspec

from trunkline.llm.batch.completion import Prompt
from trunkline.sim.server.options import Settings
from trunkline.sim.server.requests import ChatRequest, decode
from trunkline.sim.server.service import Service


class SimEngine:
    """Generates lists of prompts, and keeps every prompt of every call."""

    def __init__(self) -> None:
        self.batches: list[list[Prompt]] = []
        self._service = Service(Settings())

    def generate(self, prompts: list[Prompt]) -> list[object]:
        """One completion a prompt; a list of them where a prompt asks for several."""
        self.batches.append(list(prompts))
        return [self._complete(prompt) for prompt in prompts]

    def _complete(self, prompt: Prompt) -> object:
        request = msgspec.structs.replace(
            decode(prompt.body, ChatRequest), n=prompt.n, seed=prompt.seed, return_token_ids=True
        )
        answer = self._service.chat(request)
        found = [self._completion(choice, answer.usage) for choice in answer.choices]
        return found[0] if prompt.n == 1 else found

    @staticmethod
    def _completion(choice: dict, usage: dict) -> dict:
        message = choice["message"]
        own = usage | {"completion_tokens": len(choice["token_ids"])}
        calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
        return {
            "text": message["content"] or "",
            "reasoning": message.get("reasoning_content"),
            "finish": choice["finish_reason"],
            "tool_calls": calls,
            "usage": own,
        }


class AsyncSimEngine(SimEngine):
    """The same as a coroutine, which lets others go on in the middle of a batch."""

    async def generate(self, prompts: list[Prompt]) -> list[object]:
        """See :meth:`SimEngine.generate`."""
        self.batches.append(list(prompts))
        found = []
        for prompt in prompts:
            await asyncio.sleep(0)
            found.append(self._complete(prompt))
        return found
