"""How many calls of the interpreter a turn of a program or a team takes: counted, so the same on every machine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

import pytest
from plays import play

from trunkline.agent import Agent
from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request
from trunkline.rollout.programs.context import ProgramContext
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay

REPLY = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "so be it"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3},
}
MOST = 265
"""Calls of a row at most, those of the test's model and sink included: there were 241, and 700 in earlier versions."""

ROLES = [Agent(model="m", name=name) for name in "abc"]


class Bytes:
    """Answers each request with the same bytes, one turn of the loop later."""

    siblings = False

    async def complete(self, request: Request) -> Reply:
        await asyncio.sleep(0)
        return (request.take or read)(json.dumps(REPLY).encode(), 0, 1, 5)

    async def close(self) -> None: ...


Plays = Callable[[ProgramContext], Awaitable[str]]


def one_by_one(rows: int) -> Plays:
    async def program(rollout: ProgramContext) -> str:
        for _ in range(rows):
            await rollout.ask(ROLES[0], [*rollout.task.messages])
        return "done"

    return program


def together(rows: int) -> Plays:
    async def program(rollout: ProgramContext) -> str:
        for _ in range(rows // 3):
            await asyncio.gather(*(rollout.ask(role, [*rollout.task.messages]) for role in ROLES))
        return "done"

    return program


class Pair(Team):
    """Two at once, and one who hears them."""

    rows: int = 3
    left = Role(prompt="Left of {question}.{context}")
    right = Role(prompt="Right of {question}.{context}")
    judge = Role(prompt="Judge {question} by {context}")

    async def play(self, rollout: TeamPlay) -> str:
        for _ in range(self.rows // 3):
            await asyncio.gather(rollout.ask(self.left), rollout.ask(self.right))
            await rollout.ask(self.judge)
        return "done"


def calls(program: Plays) -> int:
    """Calls of Python and C functions, from Python, of a whole rollout."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        grown = asyncio.run(play(program, Bytes(), max_turns=1000))
    finally:
        sys.setprofile(before)
    assert grown.end[0] == "answer", grown.end
    return count


def pair(rows: int) -> Plays:
    return Pair(model="m", max_turns=1000, rows=rows)


@pytest.mark.parametrize("make", [one_by_one, together, pair])
def test_a_row_takes_few_calls(make: Callable[[int], Plays]):
    calls(make(3))
    assert (calls(make(90)) - calls(make(30))) / 60 <= MOST
