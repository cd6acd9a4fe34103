"""Runs whose agent has the tools of an MCP server, and a model that calls them by chance; importable by workers."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from foreign import message

import trunkline as tl
from trunkline.rollout.programs.context import ProgramContext

SUPPORT = Path(__file__).parent
RAW = [sys.executable, "-I", "-S", str(SUPPORT / "mcp_raw.py")]
TASKS = [tl.Task.ask("Count.", id=f"t{number}") for number in range(2)]


def raw(kind: str = "plain", name: str = "raw", **env: str) -> dict[str, Any]:
    """The server in raw lines, as a file has it."""
    return {name: {"command": RAW[0], "args": [*RAW[1:], kind], "env": env}}


def reply(body: dict) -> dict:
    """Adds one or two numbers, or looks; seldom answers."""
    choices = []
    for index in range(body.get("n") or 1):
        luck = random.Random(body["seed"] + index)
        calls = [("add", json.dumps({"number": luck.randrange(100)})) for _ in range(luck.choice([1, 1, 2]))]
        if luck.random() < 0.3:
            calls = [("look", "{}")]
        said = message("done") if luck.random() < 0.1 else message(None, calls)
        choices.append(said["choices"][0] | {"index": index})
    return said | {"choices": choices}


async def loop(rollout: ProgramContext) -> str | None:
    """Let the model act until it does not."""
    while await rollout.use(None, turn := await rollout.ask()):
        pass
    return turn.text


def played(url: str, servers: tl.MCP, workers: int, out: Path, tasks: int = 2, **options: Any) -> tl.Run:
    """Play some tasks, forking in the middle unless a strategy is given."""
    agent = tl.Agent(model="m", tools=[servers], max_turns=5)
    given: dict[str, Any] = {"strategy": tl.TreeGRPO(trees=2, forks=2, rounds=1), "fail_on_error": 100} | options
    return tl.run(agent, TASKS[:tasks], llm=url, seed=5, workers=workers, out=out, **given)


def check(tree: tl.Tree) -> None:
    """Add up again what each rollout added."""
    for rollout in tree.rollouts:
        total, calls = 0, []
        for node in rollout.nodes:
            said: Any = node.message
            calls += [one["function"] for one in said.get("tool_calls") or ()]
            if said["role"] == "tool":
                call = calls.pop(0)
                total += json.loads(call["arguments"]).get("number", 0)
                assert node.text == f"total {total}"
