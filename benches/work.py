"""What the benchmarks run; importable by workers."""

from __future__ import annotations

from trunkline.agent import Agent
from trunkline.tools.tool import tool
from trunkline.types import Task


@tool
async def lookup(key: str) -> str:
    """Look something up.

    Args:
        key: What to look up.
    """
    return f"the {key} is 42, and here are about two hundred bytes of what a tool says beside it: " + "x" * 120


AGENT = Agent(model="stub", tools=[lookup], system="Use the tool, then answer.", max_turns=4)


def tasks(count: int) -> list[Task]:
    """Questions that differ, so that no tree is another's."""
    return [Task.ask(f"What is the answer to question {i}?", "42", id=f"q{i}") for i in range(count)]
