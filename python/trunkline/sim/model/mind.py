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
_MIDDLE: Final = 0.35
"""Logarithm of the median number of filler thoughts, before it is cut to a whole one."""

_MOST_TRIES: Final = 256
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
_THOUGHTS: Final = tuple(f"{text} " for text in _FILLERS)


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

    Attributes:
        dials: The same.
        sampling: The same.
        tries: How often the reply was given up because it did not go on like the text it continues.
    """

    __slots__ = ("_accidents", "_choices", "_key", "dials", "sampling", "tries")

    def __init__(self, behaviour: str, digest: bytes, dials: Dials, sampling: Sampling) -> None:
        seed = sampling.seed if sampling.temperature > 0 else "greedy"
        self._key = ("sim", SIM_VERSION, behaviour, digest.hex(), seed)
        self._choices = Draws(*self._key, "choices")
        self._accidents = Draws(*self._key, "accidents")
        self.dials = dials
        self.sampling = sampling
        self.tries = 0

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

    @property
    def tired(self) -> bool:
        """Whether the reply was begun so often that what is most sure to agree with the given text is said."""
        return self.tries >= _MOST_TRIES

    def fill(self, draft: Draft) -> None:
        """Add thoughts that carry nothing; their number has a lognormal tail.

        Where the given text has some of them, the others are drawn as in a reply that has at least so many.
        """
        there = 0
        # Only the space behind the last of them may be missing.
        while given := next((text for text in _THOUGHTS if f"{draft.left} ".startswith(text)), None):
            draft.say(given)
            there += 1
        if draft.left:
            begun = [text for text in _THOUGHTS if text.startswith(draft.left)]
            if not begun or not self._thinks_on(draft, there, len(begun) / len(_THOUGHTS)):
                return
            draft.say(begun[self._accidents.below(len(begun))])
            there += 1
        for _ in range(self._more(there)):
            draft.say(_THOUGHTS[self._accidents.below(len(_THOUGHTS))])

    def _thinks_on(self, draft: Draft, there: int, share: float) -> bool:
        """Whether the given text ends in a thought, and not in what follows the thoughts, which is then on trial.

        Args:
            draft: The reply.
            there: How many thoughts there are.
            share: The share of thoughts that begin like what is left of the given text.
        """
        going = self._goes_on(there)
        if going == 0:
            return False
        if self.tired or self._accidents.random() * (going * share + 1 - going) < going * share:
            return True
        draft.trial = True
        return False

    def _more(self, there: int) -> int:
        """How many thoughts follow those that are there."""
        if there == 0:
            count = 1
            if self.dials.length_tail > 0:
                u = min(max(self._accidents.random(), 1e-9), 1 - 1e-9)
                count = min(int(math.exp(_MIDDLE + self.dials.length_tail * _NORMAL.inv_cdf(u))), _MOST_FILLERS)
            return count
        more = 0
        while self._accidents.chance(self._goes_on(there + more)):
            more += 1
        return more

    def _goes_on(self, there: int) -> float:
        """How likely a reply has more thoughts than those that are there, of which it has at least so many."""
        if there >= _MOST_FILLERS:
            return 0.0
        if self.dials.length_tail == 0:
            return float(there == 0)
        least = self._at_least(there)
        return self._at_least(there + 1) / least if least > 0 else 0.0

    def _at_least(self, count: int) -> float:
        """How likely a reply has at least so many thoughts."""
        if count == 0:
            return 1.0
        return 0.5 * math.erfc((math.log(count) - _MIDDLE) / self.dials.length_tail / math.sqrt(2))

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
