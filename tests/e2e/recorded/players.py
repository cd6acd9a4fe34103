"""What the users of recorded runs have in modules of their own: tools, programs, teams. Workers import it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from notebook import Paper

import trunkline as tl

MARK = "RECORDED_MARK"
"""Variable of the environment that names a file; the process that makes it ends as in a crash."""


@tl.tool(name="look")
async def failing(what: str) -> str:
    """Look something up, unless it is w1.

    Args:
        what: What to look up.
    """
    if what == "w1":
        raise tl.ToolError("w1 is nowhere")
    return f"seen {what}"


@tl.tool(name="look")
def in_a_thread(what: str) -> str:
    """Look something up, and break over w2.

    Args:
        what: What to look up.
    """
    if what == "w2":
        raise ValueError("no w2")
    return f"seen {what} " * 40


@tl.tool(name="look", side_effects=True)
async def effective(what: str) -> str:
    """Change something.

    Args:
        what: What to change.
    """
    return f"changed {what}"


@tl.tool(name="look", pure=True)
async def pure(what: str) -> str:
    """Look something up that never changes.

    Args:
        what: What to look up.
    """
    return f"always {what}"


@tl.tool(name="look")
async def mortal(what: str) -> str:
    """Look something up in a process that ends over w1, the first time.

    Args:
        what: What to look up.
    """
    die_once(what == "w1")
    return f"seen {what}"


def die_once(now: bool = True) -> str:
    """End this process as a crash does, once in a run."""
    mark = Path(os.environ[MARK])
    if now and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@tl.tool(name="look", side_effects=True)
async def fatal(what: str) -> str:
    """Change something, in a process that ends meanwhile.

    Args:
        what: What to change.
    """
    die_once()
    return f"changed {what}"


class Fixed(Paper):
    """A notebook without snapshots that may not be written again."""

    replay = False


class Missing(Paper):
    """A notebook that one task has not."""

    async def fresh(self, task: tl.Task) -> None:
        if task.id == "q1":
            raise OSError("no paper")
        await super().fresh(task)


def in_parts(trajectory: tl.Trajectory) -> dict[str, object]:
    """A reward with parts, and a reason."""
    return {"reward": trajectory.answer == "1", "turns": trajectory.turns, "why": "a rule"}


def breaks(trajectory: tl.Trajectory) -> float:
    """A reward that breaks over some answers."""
    return 1 / int(trajectory.answer or "0")


SCOUTS = [tl.Agent(model="m", name=name, system=f"You are {name}.") for name in ("north", "south", "east")]


async def together(rollout: tl.programs.ProgramContext) -> str:
    """Three scouts at once, twice, with chance of the program's own between; then the lead, who hears them."""
    heard: list[Any] = []
    for _ in range(2):
        heard = await asyncio.gather(*(rollout.ask(scout) for scout in SCOUTS))
        await rollout.observe(f"{' '.join(one.text for one in heard)} {rollout.random.randrange(100)}", by="desk")
    return (await rollout.ask(messages=[*rollout.task.messages, *heard], temperature=0.5)).text


async def in_a_group(rollout: tl.programs.ProgramContext) -> str:
    """Scouts in task groups, one in the other, with pauses of the event loop in between."""

    async def scout(number: int) -> str:
        for _ in range(number):
            await asyncio.sleep(0)
        first = await rollout.ask(SCOUTS[number])
        async with asyncio.TaskGroup() as inner:
            more = [inner.create_task(rollout.ask(SCOUTS[number], [first, _user(f"{n}")])) for n in range(2)]
        return " ".join(one.result().text for one in more)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(scout(number)) for number in range(3)]
    await rollout.observe(" ".join(task.result() for task in tasks))
    return (await rollout.ask()).text


async def first_of(rollout: tl.programs.ProgramContext) -> str:
    """Asks two scouts, keeps the one that replies first, and cancels the other."""
    asked = [asyncio.ensure_future(rollout.ask(scout)) for scout in SCOUTS[:2]]
    done, left = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    (heard,) = (task.result() for task in asked if task in done)
    await rollout.observe(f"heard {heard.text}")
    return (await rollout.ask()).text


async def tooled(rollout: tl.programs.ProgramContext) -> str:
    """The agent's tools by its turns, a tool of the program's own, functions, and time."""
    for _ in range(2):
        turn = await rollout.ask()
        if not turn.calls:
            return turn.answer or ""
        await rollout.use(None, turn)
    seen = await rollout.tool(failing, what="w1")
    began = rollout.now()
    length = await rollout.call(len, seen.text)
    await rollout.observe(f"{seen.ok} {length} {rollout.now() >= began}", role="user", by="clerk", seen=seen)
    try:
        await rollout.call(int, "no number")
    except tl.errors.CallFailed as problem:
        await rollout.observe({"role": "system", "content": str(problem)})
    return (await rollout.ask(note=lambda choice: {"letters": len(choice.content)})).text


async def dies(rollout: tl.programs.ProgramContext) -> str:
    """Scouts at once, in a process that ends once in between."""
    for _ in range(2):
        heard = await asyncio.gather(*(rollout.ask(scout) for scout in SCOUTS))
        await rollout.call(die_once)
        await rollout.observe(" ".join(one.text for one in heard), by="desk")
    return (await rollout.ask()).text


async def refused(rollout: tl.programs.ProgramContext) -> str:
    """Asks for what is refused, and goes on; one try in some breaks, and one ends itself."""
    try:
        await rollout.ask(temperature=9.0)
    except tl.errors.LLMError as problem:
        await rollout.observe(f"{type(problem).__name__}: go on")
    text = (await rollout.ask()).text
    luck = rollout.random.random()
    if luck < 0.3:
        raise ValueError("not today")
    if luck < 0.6:
        rollout.finish(None, tl.Termination.FILTERED, "chance")
    return text


async def many_turns(rollout: tl.programs.ProgramContext) -> str:
    """Asks until its turns are over."""
    while True:
        turn = await rollout.ask()
        await rollout.observe(f"and {turn.text}?")


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
