"""A team whose roles ask two LLMs, for tests; workers can import it."""

from __future__ import annotations

import asyncio

from trunkline.agent import Agent
from trunkline.llm.request import Sampling
from trunkline.rollout.programs.context import ProgramContext
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay

SHORT = Sampling(max_tokens=8)


class Panel(Team):
    """A solver at the main LLM and two judges at one of their own, who are asked together."""

    solver = Role(prompt="Solve: {question}\n{context}", sampling=SHORT)
    strict = Role(prompt="Be strict: {question}\n{context}", llm="judge", sampling=SHORT)
    mild = Role(prompt="Be mild: {question}\n{context}", llm="judge", sampling=SHORT)
    rounds: int = 2

    async def play(self, rollout: TeamPlay) -> str:
        said = ""
        for number in range(self.rounds):
            said = await rollout.ask(self.solver)
            await asyncio.gather(rollout.ask(self.strict), rollout.ask(self.mild))
            await rollout.observe(f"round {number} is over")
        return f"{said}"


class Apart(Panel):
    """A panel whose solver has an LLM of its own as well."""

    solver = Role(prompt="Solve: {question}\n{context}", llm="solver", sampling=SHORT)


LEAD = Agent(model="m", name="lead")
JUDGE = Agent(model="m", name="judge", llm="judge")
STRAY = Agent(model="m", name="stray", llm="nobody")


async def asks_both(rollout: ProgramContext) -> str:
    """A program that asks two agents, equal but for their LLMs, the same."""
    first, second = await asyncio.gather(
        *(rollout.ask(one, [{"role": "user", "content": "?"}]) for one in (LEAD, JUDGE))
    )
    return f"{first.text} {second.text}"


async def strays(rollout: ProgramContext) -> str:
    """A program that asks an LLM which is not there."""
    return (await rollout.ask(STRAY)).text
