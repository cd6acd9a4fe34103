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


def even(call: tl.tools.ToolRequest) -> tl.tools.ToolRequest | str:
    """Refuse multiples of 3, and make other odd numbers even."""
    if (number := call.arguments.get("number", 1)) % 3 == 0:
        return "no"
    if "number" in call.arguments:
        call.arguments["number"] = number + number % 2
    return call


def played(
    url: str, servers: tl.MCP, workers: int, out: Path, tasks: int = 2, *, hook: Any = None, **options: Any
) -> tl.Run:
    """Play some tasks, forking in the middle unless a strategy is given."""
    agent = tl.Agent(model="m", tools=[servers], max_turns=5, before_tool=hook)
    given: dict[str, Any] = {"strategy": tl.TreeGRPO(trees=2, forks=2, rounds=1), "fail_on_error": 100} | options
    return tl.run(agent, TASKS[:tasks], llm=url, seed=5, workers=workers, out=out, **given)


def check(tree: tl.Tree) -> None:
    """Add up again what each rollout added, as its hook decided."""
    for rollout in tree.rollouts:
        total, turn, calls = 0, -1, []
        decided = {(one.turn, one.index): one for one in rollout.tool_decisions}
        for node in rollout.nodes:
            said: Any = node.message
            turn += said["role"] == "assistant"
            made = [json.loads(one["function"]["arguments"]) for one in said.get("tool_calls") or ()]
            calls += [(decided.get((turn, index)), given) for index, given in enumerate(made)]
            if said["role"] == "tool":
                decision, given = calls.pop(0)
                refusal = decision and decision.refusal
                total += 0 if refusal else ((decision and decision.arguments) or given).get("number", 0)
                assert node.text == (refusal or f"total {total}")
