"""A team of two for tests: a solver, and a verifier who approves at a time that the task names."""

from __future__ import annotations

from trunkline.agent import Agent
from trunkline.llm.batch.completion import Prompt
from trunkline.team.projection import Reading
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay
from trunkline.types import Task


class Digits:
    """Reads a number; what is none is no valid action."""

    def read(self, text: str, reasoning: str | None) -> Reading:
        """See :class:`trunkline.team.projection.Reader`."""
        return Reading(text, text.strip().isdigit())


class Duo(Team):
    """Up to three rounds, which may be steps; the second number is none. A row that is approved may be asked on."""

    solver = Role(prompt="Solve {question} {context}", reads=Digits())
    verifier = Role(prompt="Verify in step {step}, {context}")
    rounds: int = 3
    steps: bool = False

    async def play(self, rollout: TeamPlay) -> str | None:
        """Play a rollout; the question is the round in which it is approved."""
        approved, answer = int(rollout.question), ""
        for number in range(1, self.rounds + 1):
            active = number <= approved
            if not active and (self.early_termination or not number % 2):
                break
            said = await rollout.ask(self.solver, active=active)
            if active:
                answer = str(said)
                await rollout.ask(self.verifier)
                if self.steps:
                    await rollout.observe("Once more.")
        return answer


def says(body: str) -> str:
    """What is said to a request: digits, but the solver's second reply."""
    return "two" if body.count("solver") == 1 else "7"


def generate(prompts: list[Prompt]) -> list[str]:
    """An engine of the team."""
    return [says(prompt.messages[-1]["content"]) for prompt in prompts]


TASKS = [Task.ask(str(approved), "7", id=f"approved in {approved}") for approved in (1, 2, 3)]
SOLO = Agent(model="m", name="solo")
