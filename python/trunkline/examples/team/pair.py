"""Two agents that solve side by side, and a third that judges where they disagree."""

import asyncio
import re

import trunkline as tl


class Box:
    """Keeps what the last box of a reply holds; a reply without one is no valid action."""

    def read(self, text: str, reasoning: str | None) -> tl.teams.Reading:
        found = re.findall(r"\\boxed\{(.*?)\}", text)
        return tl.teams.Reading(found[-1] if found else "", bool(found))


class Pair(tl.Team):
    """Asks both at once; one step more for each answer that the judge turns down."""

    quick = tl.Role(prompt="{question}\nAnswer at once, within \\boxed{}.", reads=Box())
    careful = tl.Role(
        prompt="{question}\nStep by step, then the answer within \\boxed{}.",
        reads=Box(),
        relay="Proposed: <answer>{text}</answer>",
    )
    judge = tl.Role(
        prompt="{question}\n{context}\nIs that right? <verify>yes</verify> or <verify>no</verify>",
        sees=["careful"],
        reads=tl.teams.Tag("verify", keep="content"),
    )
    rounds: int = 3

    async def play(self, rollout: tl.teams.TeamPlay) -> str:
        answer = ""
        for _ in range(self.rounds):
            first, answer = await asyncio.gather(rollout.ask(self.quick), rollout.ask(self.careful))
            if first == answer or await rollout.ask(self.judge) == "yes":
                break
            await rollout.observe("That was not approved. Try again.")
        return answer
