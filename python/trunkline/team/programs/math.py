"""The math team: a solver and a verifier, who approves or rejects what the solver found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.bounds import whole
from trunkline.score.answers import extract_answer
from trunkline.team.programs.verdict import check_lenient, said_yes
from trunkline.team.projection import Boxed, Tag
from trunkline.team.role import Role
from trunkline.team.team import Team

if TYPE_CHECKING:
    from trunkline.team.play import TeamPlay

__all__ = ["MathTeam"]

_APPROVES: Final = "<verify>approve</verify>"
_REJECTS: Final = "<verify>reject</verify>"

_SOLVER: Final = """A team of agents works on this math problem:
{question}

What has been said in the team so far:
{context}

You are the solver. Work the problem out step by step; where the verifier found fault with an earlier solution, mend \
it or find another way. State the final answer within \\boxed{}.
"""

_VERIFIER: Final = """A team of agents works on this math problem:
{question}

What has been said in the team so far:
{context}

You are the verifier. Check the solver's latest solution: each step, each formula and the result. End with your \
verdict, which is one of these two:
<verify>approve</verify> if all of it is right;
<verify>reject</verify> if anything is wrong, and say before it what is.
"""


class MathTeam(Team, frozen=True, kw_only=True):
    r"""A solver, and a verifier who approves or rejects its solution, for at most so many rounds.

    The last solution is not reviewed, so a rollout has at most ``2 * rounds - 1`` turns. Both roles see all that was
    said. The rollout's answer is read in the solver's latest text as that of an agent is, so rewards and votes fit:
    thoughts are left out, then it is the last ``\boxed{...}``, else the whole text
    (:func:`trunkline.score.answers.extract_answer`).

    The solver's action is valid if its last ``\boxed`` holds a group that closes; the verifier's if it has a verdict
    tag and no Chinese characters. One that is not costs 0.1 and is used all the same.

    Attributes:
        rounds: The most solutions.
        lenient: Whether a verdict counts as approval that is no verdict, or is both; only lower case counts then.
            Without, a solution is approved if the verdict approves, in any case, and does not reject.
    """

    solver = Role(prompt=_SOLVER, reads=Boxed(), penalty=0.1)
    verifier = Role(prompt=_VERIFIER, reads=Tag("verify", keep="all", chinese=False), penalty=0.1)

    rounds: int = 3
    lenient: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("rounds", self.rounds, 1)
        check_lenient(self.lenient)

    async def play(self, rollout: TeamPlay) -> str:
        """Solve and verify by turns until a solution is approved."""
        solution, approved = "", False
        for number in range(1, self.rounds + 1):
            said = await rollout.ask(self.solver, active=not approved)
            if not approved:
                solution = said
            if number == self.rounds:
                break
            verdict = await rollout.ask(self.verifier, active=not approved)
            approved = approved or self._approves(verdict)
            if approved and self.early_termination:
                break
        return extract_answer(solution)

    def _approves(self, verdict: str) -> bool:
        return said_yes(verdict, _APPROVES, _REJECTS, lenient=self.lenient, cased=self.lenient)
