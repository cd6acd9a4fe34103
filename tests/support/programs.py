"""Programs of tests that cross to workers."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from trunkline.agent import Agent
from trunkline.llm.request import Sampling
from trunkline.rollout.programs.context import ProgramContext

SCOUTS = [Agent(model="m", name=name, system="") for name in ("north", "south", "east")]


async def panel(rollout: ProgramContext) -> str:
    """Three scouts at once, in two rounds, and the lead, who hears them all."""
    for _ in range(2):
        heard = await asyncio.gather(*(rollout.ask(scout) for scout in SCOUTS))
        await rollout.observe(" ".join(one.text for one in heard), by="desk")
    number = await rollout.call(os.getpid)
    return (await rollout.ask(rollout.agent, [*rollout.task.messages, *heard])).text + ("" if number else "?")


def die_once(mark: str) -> str:
    """End this process as a crash does, the first time."""
    path = Path(mark)
    if mark and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


async def mortal(rollout: ProgramContext) -> str:
    """The panel, in a process that dies once."""
    for number in range(3):
        heard = await asyncio.gather(*(rollout.ask(scout) for scout in SCOUTS))
        await rollout.call(die_once, rollout.task.metadata.get(str(number), ""))
        await rollout.observe(" ".join(one.text for one in heard), by="desk")
    return (await rollout.ask(rollout.agent, [*rollout.task.messages, *heard])).text


TELLERS = [Agent(model="toy", name=name, sampling=Sampling(max_tokens=300)) for name in ("one", "two")]


async def exact_mortal(rollout: ProgramContext) -> str:
    """Two with conversations of their own, side by side, and one who is shown the path; the process dies once."""
    heard = ""
    for number in range(3):
        asked = [{"role": "user", "content": f"round {number}: {heard}"}]
        told = await asyncio.gather(*(rollout.ask(one, asked) for one in TELLERS))
        await rollout.call(die_once, rollout.task.metadata.get(str(number), ""))
        heard = " ".join(one.text for one in told)
        await rollout.observe(heard, by="desk")
    return (await rollout.ask(TELLERS[0])).text
