"""Teams as users write them, which type checkers must pass: see the settings of mypy and basedpyright."""

import trunkline as tl
from trunkline import Role, Team


class Plain(tl.Team):
    """A team without settings."""

    writer = tl.Role(system="Write a poem about the question.")

    async def play(self, rollout: tl.teams.TeamPlay) -> str:
        return await self.draft(rollout)

    async def draft(self, rollout: tl.teams.TeamPlay) -> str:
        return str(await rollout.ask(self.writer))


class Rounds(Team):
    """A team with settings of its own, one with a default that is made anew for each team."""

    rounds: int = 2
    names: list[str] = []
    solver = Role(system="Solve the problem.")
    verifier = Role(system="Verify the solution.")

    async def play(self, rollout: tl.teams.TeamPlay) -> str | None:
        for _ in range(self.rounds):
            await rollout.ask(self.solver)
        return None


class Deeper(Rounds):
    """A team derived from one of one's own."""

    depth: int = 1


def teams() -> list[tl.Team]:
    """Make each of them."""
    deeper = Deeper(model="m", rounds=3, depth=2)
    rounds: int = deeper.rounds + deeper.depth
    return [Plain(model="m"), Rounds(model="m", rounds=rounds, names=["a"]), deeper, tl.teams.MathTeam(model="m")]
