"""Programs and a team whose rollouts work on an environment, and what must come of it; importable by workers.

The environment is a ledger of words: each call adds one and reads them all, so that every observation tells the state.
What a step is worth is a function of the words.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from pathlib import Path
from typing import Any
from zlib import crc32

from foreign import message
from walking import SnappedWalk, Walk

from trunkline._core import CoreTree
from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.rollout.programs.context import ProgramContext
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay
from trunkline.tools.tool import tool
from trunkline.tree.records import Record, Records
from trunkline.tree.views import Trajectory, message_text
from trunkline.types import UNSCORED, Task, Termination


def step_of(words: list[str]) -> tuple[float | None, bool, bool] | None:
    """What a ledger says of a step after these words."""
    luck = crc32(" ".join(words).encode())
    return None if luck % 5 == 0 else (None if luck % 3 == 0 else luck % 7 / 7, luck % 13 == 0, luck % 17 == 0)


class Ledger(Walk):
    """A list of words that begins with the task's id; forks by replay."""

    async def fresh(self, task: Task) -> None:
        self.words, self.open = [task.id], True

    async def stepped(self) -> tuple[float | None, bool, bool] | None:
        return step_of(self.words)


class SnappedLedger(Ledger, SnappedWalk):
    """The same with snapshots."""


class OneSnapLedger(SnappedLedger):
    """The same with one snapshot a tree, so that most states are replayed from the prompt or in part."""

    snapshots = 1


@tool
async def add(what: str, ledger: Ledger) -> str:
    """Add a word, and read all of them.

    Args:
        what: The word.
    """
    await asyncio.sleep(0)  # another call has its chance to be first
    ledger.words.append(what)
    return " ".join(ledger.words)


@tool
async def ask_around(what: str) -> str:
    """Ask elsewhere, which changes no ledger.

    Args:
        what: What to ask.
    """
    return f"heard {what}"


def entries(trajectory: Trajectory, environment: Ledger) -> float:
    """A reward that looks at the ledger, which must be open."""
    assert environment.open
    return len(environment.words) + len(trajectory.answer or "") / 1000


def told(core: CoreTree, record: Record) -> list[str]:
    """What calls on a ledger said, of one record."""
    if record.given_up:
        return []
    if record.kind == "tool":
        return [record.data[2]] if record.key == "add" else []
    if record.kind != "use":
        return []
    texts = [message_text(json.loads(core.message(node))) for node in record.nodes]
    return [text for text in texts if not text.startswith("heard")]


def check(trajectory: Trajectory, task: str, *, scored: bool = True) -> None:
    """Compare a rollout with a plain list of words."""
    core, words, turn, end = trajectory.tree.core, [task], 0, (False, False)
    sums: dict[int, list[float]] = {}
    for record in Records(core).of(trajectory.id):
        turn += record.kind == "ask" and bool(record.nodes)
        assert not (record.kind == "ask" and any(end) and record.alone), "a turn after the last step"
        for text in told(core, record):
            words.append(text.rpartition(" ")[2])
            assert text == " ".join(words)
        concerned = record.kind == "use" or (record.kind == "tool" and record.key == "add")
        step = step_of(words) if concerned and not record.given_up else None
        if step is not None:
            end = (end[0] or step[1], end[1] or step[2])
            if step[0] is not None and turn:
                sums.setdefault(turn - 1, []).append(step[0])
    given = [sum(sums[number]) if number in sums else math.nan for number in range(turn)]
    assert repr(trajectory.step_rewards) == repr(given)
    if trajectory.termination in UNSCORED:
        return
    assert trajectory.final_info == {"words": words}
    assert trajectory.termination is not Termination.ANSWER or trajectory.answer is not None or end[0] or not any(end)
    if scored:
        assert trajectory.reward == len(words) + len(trajectory.answer or "") / 1000


async def panel(rollout: ProgramContext) -> str:
    """The lead and a scribe add words by turns, and at the same time; the program adds some itself."""
    scribe = Agent(model="scribe", name="scribe", tools=[add, ask_around], environment=rollout.agent.environment)
    for number in range(3):
        lead, other = await asyncio.gather(rollout.ask(), rollout.ask(scribe))
        await asyncio.gather(rollout.use(None, lead), rollout.use(scribe, other))
        seen = await rollout.tool(add, what=f"p{number}")
        await rollout.observe(seen.text, by="add", seen=seen)
    return (await rollout.ask()).text


class Desk(Team, frozen=True, kw_only=True):
    """A writer, whose calls run, and a reader, after whom the program adds a word."""

    writer = Role(prompt=None, tools=(add, ask_around))
    reader = Role(prompt="{question} {context}")

    environment: Any = Ledger

    async def play(self, rollout: TeamPlay) -> str | None:
        """Write and read by turns."""
        said = ""
        for _ in range(3):
            await rollout.use(await rollout.ask(self.writer))
            said = await rollout.ask(self.reader)
            await rollout.observe(add, said.split(" ")[-1])
        return said


def reply(body: dict) -> dict:
    """Calls a tool or two, as the seed says, where it has tools; else says a word."""
    choices = []
    for index in range(body.get("n") or 1):
        luck = random.Random(body["seed"] + index)
        word = luck.choice("abcdef")
        calls = [("add", json.dumps({"what": word}))] * luck.choice([1, 1, 2])
        calls += [("ask_around", json.dumps({"what": word}))] * luck.choice([0, 1])
        said = message(None, calls) if body.get("tools") and luck.random() < 0.8 else message(f"well {word}")
        choices.append(said["choices"][0] | {"index": index})
    return said | {"choices": choices}


def run_here(url: str, out: Path | str, name: str, workers: int, resume: bool = False) -> Run:
    """Run the panel or the desk over six tasks."""
    tasks = [Task.ask(f"what is {number}?", id=f"q{number}") for number in range(4)]
    options: dict[str, Any] = {
        "llm": LLM(url, max_concurrency=8),
        "strategy": TreeGRPO(trees=2, forks=2, rounds=2),
        "reward": entries,
        "seed": 11,
        "out": out,
        "workers": workers,
        "resume": resume,
    }
    if name == "panel":
        lead = Agent(model="m", tools=[add, ask_around], environment=OneSnapLedger)
        return run(lead, tasks, program=panel, **options)
    return run(Desk(model="m"), tasks, **options)
