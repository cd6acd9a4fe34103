"""Agents that know nothing of Trunkline, and models that answer them."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foreign import message as said

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.llm.types import Reply, ReplyChoice, Request, ToolCall
from trunkline.rollout.external.config import External
from trunkline.runner.run import run
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.types import Task

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "integer"}}},
        },
    }
]


class Walker:
    """A model whose moves follow from its seed: it looks at places, and answers with the sum of their numbers."""

    def __init__(self, turns: int = 3) -> None:
        self.turns = turns
        self.bodies: list[dict[str, Any]] = []

    async def complete(self, request: Request) -> Reply:
        body = json.loads(request.body)
        self.bodies.append(body)
        await asyncio.sleep(0)
        seen = [message for message in body["messages"] if message["role"] == "tool"]
        seed = request.seed or 0
        if len(seen) < self.turns:
            place = seed % 7
            calls = [ToolCall("any", "look", json.dumps({"place": place}))]
            return Reply([ReplyChoice(f"I look at {place}.", None, calls, "tool_calls")], 10 * len(seen) + 5, 0, 7)
        total = sum(int(message["content"].split()[-1]) for message in seen)
        return Reply([ReplyChoice(f"<answer>{total + seed % 2}</answer>", None, [], "stop")], 50, 0, 3)


async def walker(client: Any, task: Task) -> str | None:
    """Asks, looks where it is told, and returns the answer."""
    return await walk(client, task)


async def late_walker(client: Any, task: Task) -> str | None:
    """The same, but its prompt says what time it is."""
    return await walk(client, task, lambda: f" It is {time.time_ns()}.")


async def walk(client: Any, task: Task, note: Callable[[], str] = lambda: "") -> str | None:
    messages = [{"role": "system", "content": "Walk." + note()}, *task.messages]
    for _ in range(10):
        reply = await client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content.removeprefix("<answer>").removesuffix("</answer>")
        for call in message.tool_calls:
            place = json.loads(call.function.arguments)["place"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"There is {place * place}"})
    return None


PLAIN = Path(__file__).parent / "agents" / "plain.py"

PAGES = [{"id": f"d{number}", "title": f"Page {number}", "text": f"word{number} " * 3} for number in range(9)]


def search_reply(body: dict[str, Any]) -> dict[str, Any]:
    """A server's reply by its seed: it searches one to three times, then answers with a word of what it found."""
    luck = random.Random(body["seed"])
    seen = [message for message in body["messages"] if message["role"] == "tool"]
    if len(seen) < 1 + luck.randrange(3):
        return said(None, [("search", json.dumps({"query": [f"word{luck.randrange(9)}"]}))])
    return said(f"<answer>{luck.choice(seen[-1]['content'].split())}</answer>")


def run_plain(url: str, out: Path | str, workers: int, folder: Path, **options: Any) -> Any:
    """Run the agent of the standard library over four questions; ``folder`` is for its corpus."""
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in PAGES), "utf-8")
    given: dict[str, Any] = {"strategy": TreeGRPO(trees=2, forks=1, rounds=2), "seed": 5} | options
    effects, on_divergence = given.pop("effects", "folder"), given.pop("on_divergence", "fail")
    env, masks = [f"CORPUS={corpus}", *given.pop("env", ())], given.pop("masks", ())
    command = given.pop("command", shlex.join([sys.executable, "-S", str(PLAIN)]))
    program = External(agent=command, effects=effects, masks=masks, on_divergence=on_divergence, process={"env": env})
    tasks = [Task.ask(f"what is {number}?", id=f"q{number}") for number in range(given.pop("limit", 4))]
    llm, agent = given.pop("llm", None) or LLM(url, max_concurrency=8), given.pop("agent", None) or Agent(model="m")
    return run(agent, tasks, llm=llm, program=program, out=out, workers=workers, **given)


def run_changing(url: str, out: Path | str, workers: int, folder: Path, **options: Any) -> Any:
    """Run it over one question, so that forks differ from the record from their first tool call on, and branch."""
    given: dict[str, Any] = {"strategy": TreeGRPO(trees=1, forks=4, rounds=1), "seed": 4, "limit": 1} | options
    return run_plain(url, out, workers, folder, on_divergence="branch", env=[f"SEEN={out}.seen"], **given)
