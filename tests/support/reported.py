"""A model that writes reports by a rule, and trees to report on."""

from __future__ import annotations

import asyncio
import json
import re

import msgspec

from trunkline.errors import LLMError
from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request

FAILED_CALL = "the model is away"


class Scribe:
    """Answers each request with ``report N``, N counting from 1, and keeps what it was asked.

    Args:
        fails: A request that shows this text fails.
        silent: A request that shows this text is answered with nothing.
        together: How many requests must be there at once before the first is answered.
    """

    siblings = True

    def __init__(self, *, fails: str = "\0", silent: str = "\0", together: int = 1) -> None:
        self.asked: list[str] = []
        self.closed = False
        self._fails = fails
        self._silent = silent
        self._together = together
        self._enough = asyncio.Event()

    async def complete(self, request: Request) -> Reply:
        """Answer."""
        messages = msgspec.json.decode(request.body)["messages"]
        assert [message["role"] for message in messages] == ["system", "user"]
        text = messages[1]["content"]
        self.asked.append(text)
        number = len(self.asked)
        if number >= self._together:
            self._enough.set()
        await self._enough.wait()
        if self._fails in text:
            raise LLMError(FAILED_CALL)
        said = "" if self._silent in text else f"report {number}"
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return read(json.dumps({"choices": [choice], "usage": usage}).encode(), 0, 1, 1)

    async def close(self) -> None:
        """Note it."""
        self.closed = True


def thoughts(text: str) -> list[str]:
    """What a request shows as thoughts, in order."""
    return re.findall(r"^## Thought\n  (.*)$", text, re.MULTILINE)


def record(text: str) -> str | None:
    """The record so far that a request shows."""
    found = re.search(r"^# Record so far\n  (.*)$", text, re.MULTILINE)
    return None if found is None else found[1]
