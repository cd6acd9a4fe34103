"""The team of experts: several work on a question on their own, and one makes an answer of what they found."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from trunkline.team.projection import Tag
from trunkline.team.role import Role
from trunkline.team.team import Team

if TYPE_CHECKING:
    from trunkline.team.play import TeamPlay

__all__ = ["ExpertsTeam"]

_SYNTHESIS: Final = """Several experts have worked on this question, each on their own:
{question}

What they said:
{context}

Weigh their arguments, not their number. Then give the final answer, short and without explanation, within \
<answer> </answer>.
"""


class ExpertsTeam(Team, frozen=True, kw_only=True):
    """Three experts, asked at the same time, and a synthesiser who sees what they said.

    The experts see nothing of one another. The rollout's answer is what stands in the synthesiser's ``<answer>`` tag;
    the empty text where it has none.
    """

    theorist = Role(
        system="You are a theorist: you reason from definitions and first principles.",
        prompt="{question}\n\nDerive the answer step by step, and say what it rests on.",
    )
    practitioner = Role(
        system="You are a practitioner: you work with examples, numbers and known methods.",
        prompt="{question}\n\nWork the answer out in the most direct way you know, and check it on an example.",
    )
    sceptic = Role(
        system="You are a sceptic: you look for traps, special cases and hidden assumptions.",
        prompt="{question}\n\nSay what is easy to get wrong here, and what the answer is once that is avoided.",
    )
    synthesiser = Role(prompt=_SYNTHESIS, reads=Tag("answer", keep="content"))

    async def play(self, rollout: TeamPlay) -> str:
        """Ask the experts together, then the synthesiser."""
        experts = (self.theorist, self.practitioner, self.sceptic)
        await asyncio.gather(*(rollout.ask(expert) for expert in experts))
        return await rollout.ask(self.synthesiser)
