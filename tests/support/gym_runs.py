"""Agents, a program and a team that play an environment of Gymnasium, and a model that plays by chance."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
from foreign import message

import trunkline as tl
from trunkline.rollout.programs.context import ProgramContext
from trunkline.team.team import TeamPlay
from trunkline.tools.gym import GymEnvironment

TASKS = [tl.Task.ask("Play.", id=f"t{number}") for number in range(2)]
TASKS.append(msgspec.structs.replace(tl.Task.ask("Play.", id="seeded"), metadata={"seed": 3}))


async def loop(rollout: ProgramContext) -> str | None:
    """Look, and then let the model act until it does not."""
    (look, _) = rollout.agent.tools
    seen = await rollout.tool(look)
    await rollout.observe(seen.text, by="look", seen=seen)
    while await rollout.use(None, turn := await rollout.ask()):
        pass
    return turn.text


class Players(tl.Team, frozen=True, kw_only=True):
    """One role looks, and two act by turns."""

    one = tl.Role(prompt=None)
    other = tl.Role(prompt=None)

    async def play(self, rollout: TeamPlay) -> str | None:
        """Act by turns."""
        await rollout.observe(self.members["one"].agent.tools[0])
        while await rollout.use(said := await rollout.ask(self.one if rollout.turn % 2 else self.other)):
            pass
        return said


def team(kind: type[GymEnvironment]) -> Players:
    """The players of an environment."""
    roles = {name: {"tools": list(kind.tools)} for name in ("one", "other")}
    return Players(model="m", roles=roles, environment=kind, max_turns=6)


def reply(body: dict) -> dict:
    """Takes an action that the tool's schema allows, or two, or looks; seldom answers."""
    (schema,) = [one["function"]["parameters"] for one in body["tools"] if one["function"]["name"] == "step"]
    choices = []
    for index in range(body.get("n") or 1):
        luck = random.Random(body["seed"] + index)
        calls = [
            ("step", json.dumps({"action": drawn(schema["properties"]["action"], luck)}))
            for _ in range(luck.choice([1, 1, 2]))
        ]
        if luck.random() < 0.2:
            calls = [("look", "{}")]
        said = message("done") if luck.random() < 0.1 else message(None, calls)
        choices.append(said["choices"][0] | {"index": index})
    return said | {"choices": choices}


def drawn(schema: dict, luck: random.Random) -> Any:
    """An action, by its schema."""
    match schema["type"]:
        case "integer":
            return luck.randint(schema["minimum"], schema["maximum"])
        case "string":
            return luck.choice(["north", "south", "east", "west"] if schema["maxLength"] > 1 else list("treaunkbchlfo"))
        case _:
            return {name: drawn(one, luck) for name, one in schema["properties"].items()}


def played(url: str, kind: type[GymEnvironment], how: str, workers: int, out: Path, size: int = 0) -> tl.Run:
    """Play all tasks; with a size, in environments of a pool of that size."""
    options: dict[str, Any] = {
        "llm": url,
        "strategy": tl.TreeGRPO(trees=2, forks=2, rounds=1),
        "seed": 5,
        "workers": workers,
        "out": out,
    }
    made: Any = tl.EnvironmentPool(kind, size=size) if size else kind
    if how == "team":
        return tl.run(msgspec.structs.replace(team(kind), environment=made), TASKS, **options)
    agent = tl.Agent(model="m", tools=kind.tools, environment=made, max_turns=6)
    return tl.run(agent, TASKS, program=loop if how == "program" else None, **options)


def check(rollout: tl.Trajectory, kind: type[GymEnvironment], seed: int) -> None:
    """Play a rollout's actions again on an environment of its own."""

    async def play() -> None:
        environment = kind()
        environment.task_seed = seed
        await environment.fresh(rollout.tree.task)
        calls: list[Any] = []
        earned: float | None = None
        for node in rollout.nodes:
            said: Any = node.message
            calls += [one["function"] for one in said.get("tool_calls") or ()]
            if said["role"] != "tool":
                continue
            call = calls.pop(0)
            text = node.text
            if call["name"] == "look":
                assert text == environment._said
            elif text != "Error: the episode is over.":
                assert text == environment.act(json.loads(call["arguments"])["action"])
            if not calls and (step := await environment.stepped()) is not None:
                earned = (earned or 0) + (step[0] or 0)
        facts = await environment.final_info()
        assert rollout.final_info == facts
        assert rollout.reward == earned if earned is not None else rollout.reward != rollout.reward
        if facts["terminated"] or facts["truncated"]:
            ends = tl.Termination.ANSWER if facts["terminated"] else tl.Termination.MAX_TURNS
            assert (rollout.termination, rollout.answer) == (ends, None)
        await environment.close()

    asyncio.run(play())
