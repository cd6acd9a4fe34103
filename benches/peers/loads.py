"""The conversations that every client plays, and what it has to find out from each reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from trunkline.tools.tool import Tool, tool

SYSTEM = "Use the tool, then answer."
ANSWER = "<answer>42</answer>"

Play = Callable[[int | None], Awaitable[None]]
"""Plays the conversation with a number to its end and checks its answer; None is one that the stub shall not time."""


@tool(name="lookup")
async def brief(key: str) -> str:
    """Look something up.

    Args:
        key: What to look up.
    """
    return f"the {key} is 42, and here is what a tool says beside it, 250 bytes in all: " + "x" * 175


@tool(name="lookup")
async def page(key: str) -> str:
    """Look something up.

    Args:
        key: What to look up.
    """
    return f"the {key} is 42, and here is a page of text about it: " + "lorem ipsum " * 410


@dataclass(frozen=True)
class Load:
    """One kind of conversation.

    Attributes:
        name: What it is called.
        turns: Model turns: all but the last one call a tool.
        tool: The tool, which gives 250 bytes or 5 KB; None for a conversation of one turn without tools.
        logprobs: Whether each reply brings the log-probabilities of its tokens, whose perplexity is wanted.
        summed: Whether the summary of a whole run is read, and counted.
    """

    name: str
    turns: int
    tool: Tool[Any, Any] | None = brief
    logprobs: bool = False
    summed: bool = False

    @property
    def model(self) -> str:
        """The model's name, which tells the stub how many turns there are."""
        return f"stub-{self.turns}"

    @property
    def options(self) -> dict[str, Any]:
        """Sampling fields of each request."""
        return {"logprobs": True, "top_logprobs": 16} if self.logprobs else {}

    @property
    def fields(self) -> dict[str, Any]:
        """All fields of each request but its messages."""
        tools = {"tools": [self.tool.definition]} if self.tool else {}
        return {"model": self.model, **tools, "seed": 1, **self.options}

    def messages(self, number: int | None) -> list[dict[str, Any]]:
        """The beginning of a conversation, as a list that may grow."""
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question(number)}]


LOADS = {
    load.name: load
    for load in (
        Load("small", 4),
        Load("logprobs", 2, logprobs=True),
        Load("one turn", 1, None, summed=True),
        Load("1 turn", 1, page),
        Load("20 turns", 20, page),
        Load("100 turns", 100, page),
    )
}


def question(number: int | None) -> str:
    """What a conversation asks."""
    return f"What is the answer to question {'that is not timed' if number is None else number}?"


Client = Callable[[str, Load, int], AbstractAsyncContextManager[Play]]
"""Opens a client for a base URL, a load and a number of conversations at once."""


async def play_all(play: Play, numbers: Iterable[int | None], lanes: int) -> None:
    """Play conversations, as many at once as there are lanes."""
    left = iter(numbers)

    async def lane() -> None:
        for number in left:
            await play(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(lanes):
            group.create_task(lane())
