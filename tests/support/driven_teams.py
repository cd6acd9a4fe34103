"""Teams whose way depends on what models say, and a model that says the same to the same question, however it comes."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from zlib import crc32

import trunkline as tl
from trunkline.llm.batch.completion import Prompt
from trunkline.team.team import RoleReply, TeamPlay

WORDS = ("APPROVE", "no", "go on", "perhaps", "{context}", "\\boxed{4}")


def says(messages: list[dict[str, Any]], seed: int) -> str:
    """What the model says."""
    number = crc32(json.dumps(messages).encode()) ^ seed
    return f"{WORDS[number % len(WORDS)]} {number % 97}"


class Rowed:
    """The model as a batch engine, which keeps the models and the size of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[set[str], int]] = []

    def generate(self, prompts: list[Prompt]) -> list[str]:
        """Answer a list of prompts."""
        self.calls.append(({prompt.model for prompt in prompts}, len(prompts)))
        return [says(prompt.messages, prompt.seed) for prompt in prompts]


async def served(body: dict[str, Any]) -> dict[str, Any]:
    """The model as a server, whose answers come in no order that is known before."""
    text = says(body["messages"], body["seed"])
    await asyncio.sleep(crc32(text.encode()) % 13 / 1000)
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"model": body["model"], "choices": [choice]}


class Review(tl.Team):
    """A solver whose work is looked at until it is approved."""

    solver = tl.Role(prompt="Solve {question}\n{context}")
    verifier = tl.Role(prompt="Check {question}\n{context}", sees=["solver"])

    async def play(self, rollout: TeamPlay) -> RoleReply:
        """Play."""
        for left in (2, 1, 0):
            found = await rollout.ask(self.solver)
            if not left or "APPROVE" in await rollout.ask(self.verifier):
                break
        return found


class Panel(tl.Team):
    """Experts with models of their own who speak at once, and a judge who may want to hear them again."""

    left = tl.Role(prompt="Left, step {step}: {question}", model="small")
    right = tl.Role(prompt="Right, step {step}: {question}")
    judge = tl.Role(prompt="Judge {question}\n{context}", model="small")

    async def play(self, rollout: TeamPlay) -> RoleReply:
        """Play."""
        while True:
            heard = await asyncio.gather(rollout.ask(self.left), rollout.ask(self.right))
            if any("no" in one for one in heard):
                heard.append(await rollout.ask(self.left))
            found = await rollout.ask(self.judge)
            if "go on" not in found or rollout.step == 2:
                return found
            await rollout.observe(f"They said {' and '.join(heard)}.")
