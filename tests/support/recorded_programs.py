"""Programs whose records ``tests/fixtures/programs`` keeps, and the model that they asked.

``make.py`` there says how the records were made. What the programs do may not change: they are run again over them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import zlib
from collections.abc import Sequence
from typing import Any

from places import TESTS
from plays import Actors

from trunkline.agent import Agent
from trunkline.errors import BadRequest, CallFailed, LLMError
from trunkline.llm.types import ToolCall
from trunkline.rollout.programs.context import ProgramContext
from trunkline.tools.tool import tool

FILE = TESTS / "fixtures" / "programs" / "records.json"


@tool
async def look(what: str) -> str:
    """Look something up.

    Args:
        what: What to look up.
    """
    return f"seen {what}"


A, B, C, D = (Agent(model=name, name=name, tools=[look]) for name in "abcd")


def says(messages: list[dict[str, Any]], model: str) -> Any:
    """A call of the tool, a refusal, or how much was said before."""
    told = str(messages[-1]["content"])
    if "look it up" in told:
        return ToolCall("", "look", json.dumps({"what": model}))
    return BadRequest("no") if "refuse" in told else f"{model} after {len(messages)}"


class Voices(Actors):
    """Answers after as many turns of the loop as the model's letter says; late who says so, and a hurried one never."""

    def __init__(self) -> None:
        super().__init__(says, lambda model: {"a": 7, "b": 3, "c": 0, "d": 40}[model])

    async def complete(self, request: Any) -> Any:
        if b"quick!" in request.body:
            await asyncio.Event().wait()
        if b"late" in request.body:
            await asyncio.sleep(0.05)
        return await super().complete(request)


def words(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def hurried(rollout: ProgramContext) -> str:
    """Gives a role up by a timeout, twice, and asks it again."""
    for _ in range(2):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await rollout.ask(B, words("quick!"))
        await rollout.ask(A)
    return (await rollout.ask(B)).text


async def sleepers(rollout: ProgramContext) -> str:
    """Observes after a sleep, beside a role that is late."""

    async def later() -> None:
        await asyncio.sleep(0.01)
        await rollout.observe("a moment later")
        await asyncio.sleep(0.01)
        await rollout.observe("and again")

    said, _ = await asyncio.gather(rollout.ask(A, words("late")), later())
    await asyncio.sleep(0.001)
    return said.text + (await rollout.ask(C)).text


async def groups(rollout: ProgramContext) -> str:
    """A group one of whose members fails, and a role that is waited for beside one that is given up for it."""
    with contextlib.suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for role, text in ((A, "first"), (B, "refuse"), (D, "third"), (C, "fourth")):
                group.create_task(rollout.ask(role, words(text)))
    asks = [asyncio.create_task(rollout.ask(role, words("race"))) for role in (D, A, B)]
    done, left = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return " ".join([*(task.result().text for task in done), (await rollout.ask(B)).text])


async def nested(rollout: ProgramContext) -> str:
    """Lines of thought in lines of thought, whose turns interleave."""

    async def line(depth: int, role: Agent) -> str:
        first = await rollout.ask(role)
        if not depth:
            return first.text
        below = await asyncio.gather(*(line(depth - 1, one) for one in (A, C)))
        await rollout.observe(f"{role.name} {depth} {rollout.random.random():.3f} {len(''.join(below))}", by=role.name)
        return (await rollout.ask(role, words(below[0]))).text

    return " ".join(await asyncio.gather(line(2, A), line(1, B)))


async def queued(rollout: ProgramContext) -> str:
    """Two workers on one queue."""
    queue: asyncio.Queue[Agent] = asyncio.Queue()
    said: list[str] = []

    async def work() -> None:
        while True:
            role = await queue.get()
            said.append((await rollout.ask(role)).text)
            queue.task_done()

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(2)]
        for role in (A, B, C, B, A):
            queue.put_nowait(role)
        await queue.join()
        for worker in workers:
            worker.cancel()
    return " ".join(said)


async def everything(rollout: ProgramContext) -> str:
    """All that can be on record."""
    rollout.now()
    said = await rollout.ask(A, words("look it up"))
    (seen,) = await rollout.use(A, said)
    number, direct = await asyncio.gather(rollout.call(len, "four"), rollout.tool(look, what="it"))
    with contextlib.suppress(LLMError):
        await rollout.ask(C, words("refuse"))
    with contextlib.suppress(CallFailed):
        await rollout.call(int, "no number")
    rollout.now()
    last = await rollout.ask(B, temperature=rollout.random.random())
    return f"{seen.text} {number} {direct.text} {last.text} {rollout.turn} {rollout.step}"


PROGRAMS = {one.__name__: one for one in (hurried, sleepers, groups, nested, queued, everything)}


def packed(deltas: Sequence[bytes]) -> list[str]:
    """Deltas as a file of JSON holds them."""
    return [base64.b64encode(zlib.compress(delta)).decode() for delta in deltas]


def unpacked(deltas: Sequence[str]) -> list[bytes]:
    return [zlib.decompress(base64.b64decode(delta)) for delta in deltas]
