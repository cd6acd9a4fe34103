"""An agent with a tool, tasks and a reward for untrained models, whose replies are random characters.

Workers import it, so it imports no framework.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

import trunkline as tl
from trunkline.llm.dialects.base import Definition
from trunkline.llm.types import ReplyChoice, ToolCall
from trunkline.types import Message


class Chatter:
    """A dialect for random text: two replies of three look something up, the others are answers."""

    native = False

    def prompt(self, tools: Sequence[Definition]) -> str:
        return ""

    def sampling(self, given: tl.Sampling) -> tl.Sampling:
        return given

    def parse(self, choice: ReplyChoice, tools: Sequence[Definition]) -> tl.llms.Parsed:
        if number(choice.content) % 3:
            return tl.llms.Parsed(calls=[ToolCall("", "look", json.dumps({"at": number(choice.content) % 7}))])
        return tl.llms.Parsed(answer=choice.content or "nothing")

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        return {"role": "user", "content": text}


def number(text: str) -> int:
    """A number that differs with a text, and is the same in each process."""
    return zlib.crc32(text.encode("utf-8", "replace"))


@tl.tool
def look(at: int) -> str:
    """Look something up.

    Args:
        at: Where.
    """
    return f"there is {at * at}"


def lengthy(trajectory: tl.Trajectory) -> float | None:
    """Reward an answer at random, and leave one of five unscored."""
    worth = number(trajectory.answer or "")
    return None if worth % 5 == 0 else worth % 11 / 10


def agent(most: int = 12) -> tl.Agent:
    """The agent."""
    return tl.Agent(
        model="tiny",
        tools=[look],
        max_turns=4,
        dialect=Chatter(),
        sampling=tl.Sampling(max_tokens=most, temperature=1.0),
    )


def tasks(count: int) -> list[tl.Task]:
    """Questions."""
    return [tl.Task.ask(f"What is the capital of {number(str(one)) % 97}?", id=f"q{one}") for one in range(count)]
