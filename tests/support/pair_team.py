"""A team as users write one, for tests of the command line; it crosses to workers by its name."""

from __future__ import annotations

from typing import Any

import trunkline as tl
from trunkline.llm.request import Sampling
from trunkline.team.team import TeamPlay


class Pair(tl.Team):
    """A solver whose work a checker approves, or not."""

    solver = tl.Role(prompt="{question}\n{context}\nState the answer within \\boxed{}.")
    checker = tl.Role(
        prompt="{question}\n{context}\nSay <verify>yes</verify> or <verify>no</verify>.",
        sampling=Sampling(temperature=0.5),
        penalty=0.1,
    )

    rounds: int = 2
    eager: bool = False

    async def play(self, rollout: TeamPlay) -> str:
        answer = await rollout.ask(self.solver)
        for _ in range(self.rounds - 1):
            if self.eager or "<verify>yes</verify>" in await rollout.ask(self.checker):
                break
            answer = await rollout.ask(self.solver)
        return answer.rsplit("<answer>", 1)[-1].removesuffix("</answer>")


class Looking(Pair):
    """One that has tools."""

    tools: tuple[tl.tools.Tool, ...] = ()


class Finding(Pair, kw_only=True):
    """One that needs a tool."""

    tool: tl.tools.Tool[..., Any]


READY = Pair(model="own", rounds=4, roles={"solver": {"model": "other"}, "checker": {"sampling": {"top_p": 0.9}}})
