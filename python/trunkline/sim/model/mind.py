"""What every behaviour draws with: the dials, the request's sampling and streams of draws."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.sim.model.choice import chance, decide
from trunkline.sim.model.dials import SIM_VERSION
from trunkline.sim.world.draws import Draws

if TYPE_CHECKING:
    from trunkline.sim.model.choice import Choice
    from trunkline.sim.model.dials import Dials
    from trunkline.sim.model.draft import Draft

__all__ = ["Mind", "Sampling"]

_MOST_FILLERS: Final = 60
_NORMAL: Final = NormalDist()

_FILLERS: Final = (
    "Let me think about what is known so far.",
    "I should take this one step at a time.",
    "The names here are similar, so care is needed.",
    "It is worth reading the sources again before going on.",
    "There may be more than one entry that looks right.",
    "I will keep the original question in mind.",
    "Nothing so far contradicts this line of thought.",
    "A short check of the dates and places would not hurt.",
    "The wording of the question matters here.",
    "I can follow the links between the entries.",
    "Some of the text has no bearing on the question.",
    "The register often lists several people under one heading.",
    "First things first.",
    "That narrows the search down.",
    "I had better be precise about who is meant.",
    "This is one of several parts of the question.",
    "An older name may be used in some documents.",
    "So far the pieces fit together.",
    "The next step follows from the last one.",
    "I would rather look than guess.",
)


class Sampling(NamedTuple):
    """How a reply is sampled.

    Attributes:
        seed: Of this very choice: the request's seed plus the choice's index.
        temperature: 0 always takes the likeliest option.
        top_p: Share of the mass that options are drawn from.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0


class Mind:
    """The state of one reply being made up.

    Args:
        behaviour: Name of the behaviour; part of every stream's key.
        digest: Digest of the conversation.
        dials: How the model errs.
        sampling: The request's sampling. At temperature 0 the seed has no effect.
    """

    __slots__ = ("_accidents", "_choices", "_key", "dials", "sampling")

    def __init__(self, behaviour: str, digest: bytes, dials: Dials, sampling: Sampling) -> None:
        seed = sampling.seed if sampling.temperature > 0 else "greedy"
        self._key = ("sim", SIM_VERSION, behaviour, digest.hex(), seed)
        self._choices = Draws(*self._key, "choices")
        self._accidents = Draws(*self._key, "accidents")
        self.dials = dials
        self.sampling = sampling

    def decide(self, masses: dict[str, float], allowed: frozenset[str] | None = None) -> Choice:
        """Draw one of some options, given with their masses at temperature 1.

        Args:
            masses: The options.
            allowed: The only ones that may come out, where not all may.
        """
        return decide(masses, self._choices, self.sampling.temperature, self.sampling.top_p, allowed)

    def accident(self, rate: float) -> bool:
        """Whether something of this rate goes wrong in the turn."""
        return chance(rate, self._accidents, self.sampling.temperature)

    def notices(self) -> bool:
        """Whether an earlier error that is in view is noticed in this turn."""
        return self._accidents.chance(self.dials.recoverability)

    def below(self, n: int) -> int:
        """A whole number below ``n`` that decides nothing."""
        return self._accidents.below(n)

    def fill(self, draft: Draft) -> None:
        """Add thoughts that carry nothing; their number has a lognormal tail."""
        while draft.left:
            given = next((text for text in _FILLERS if draft.fits(text + " ")), None)
            if given is None:
                return
            draft.say(given + " ")
        count = 1
        if self.dials.length_tail > 0:
            u = min(max(self._accidents.random(), 1e-9), 1 - 1e-9)
            count = min(int(math.exp(0.35 + self.dials.length_tail * _NORMAL.inv_cdf(u))), _MOST_FILLERS)
        for _ in range(count):
            draft.say(_FILLERS[self._accidents.below(len(_FILLERS))] + " ")

    def wording(self, draft: Draft, place: str, first: str, second: str) -> None:
        """Add one of two wordings that mean the same.

        Whether there is a choice at all is a function of the place, not of the seed; where there is none
        the first wording stands.

        Args:
            draft: The reply.
            place: The question and the part of the turn.
            first: The usual wording.
            second: The other one.
        """
        if Draws("wording", place).chance(self.dials.uncertain_right):
            draft.choose(self, {first: 0.5, second: 0.5})
        else:
            draft.say(first)
