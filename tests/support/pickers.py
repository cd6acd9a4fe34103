"""Models that pick among answers, for tests: a script of replies, with every request kept."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable

from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request

_CANDIDATE = re.compile(r'<candidate number="(\d+)" tries="(\d+)">\n<answer>(.*?)</answer>(.*?)</candidate>', re.DOTALL)


class Scripted:
    """Replies with what a function makes of the last message; an exception that it returns is raised.

    Args:
        say: From the system's and the user's message to the reply.
    """

    def __init__(self, say: Callable[[str, str], str | Exception]) -> None:
        self.say = say
        self.asked: list[dict] = []
        self.closed = 0
        self.flying = self.most = 0

    async def complete(self, request: Request) -> Reply:
        body = json.loads(request.body)
        self.asked.append(body)
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(0)
        self.flying -= 1
        said = self.say(body["messages"][0]["content"], body["messages"][-1]["content"])
        if isinstance(said, Exception):
            raise said
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2}
        return read(json.dumps({"choices": [choice], "usage": usage}).encode(), 0, 1, 5)

    async def close(self) -> None:
        self.closed += 1


def menu(prompt: str) -> dict[str, str]:
    """The answers that a prompt offers, by number."""
    return {match[1]: match[3] for match in _CANDIDATE.finditer(prompt)}


def shown(prompt: str) -> dict[str, str]:
    """What a prompt shows of each answer, by answer."""
    return {match[3]: match[4] for match in _CANDIDATE.finditer(prompt)}


def alike(one: str, other: str) -> bool:
    """Whether two answers are letters, for aggregators."""
    return len(one) == len(other) == 1
