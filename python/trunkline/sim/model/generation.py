"""Drafts of replies, their tokens and log-probs.

The options' token sequences of a choice form a trie. Where it branches, the token taken has the mass of its branch
given the open branches, so that the log-probs of a choice's tokens sum to the log of the mass of the option drawn. All
other tokens are near 0.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.sim.model.choices import SIM_VERSION, chance, decide
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.sim.world.names import Draws

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.sim.model.choices import Choice, Dials


__all__ = ["Disagreement", "Draft", "Mind", "Sampling", "Token", "filler", "ids", "tokens", "variation"]


ALTERNATIVES: Final = 20

_LEAST: Final = -30.0
_DRAFT_FILLERS: Final = 256


class Disagreement(Exception):
    """A draft on trial does not continue like the given text."""


class Token(NamedTuple):
    """A generated token; at a branch it has the possible tokens, likeliest first, and its own log-prob."""

    id: int
    branches: tuple[tuple[int, float], ...] = ()
    logprob: float = 0.0


class Draft:
    """The pieces of a reply in order.

    A reply may continue a given text, whose unused rest is ``left``. Pieces must agree with that text until it is used
    up, only the rest becomes part of the draft, and a choice is drawn among the options that agree: a continuation has
    the distribution of a whole reply given its beginning. A text that the model would not have written ends the
    agreement.

    Where the given text ends inside an ambiguous piece, one reading is drawn and the draft is on ``trial``: pieces are
    drawn as if nothing were given, and a disagreement begins the reply again. ``sure`` is the mass of the beliefs that
    the reply rests on.
    """

    __slots__ = ("left", "pieces", "sure", "trial")

    def __init__(self, given: str = "") -> None:
        self.pieces: list[str | Choice] = []
        self.left = given
        self.sure: float | None = None
        self.trial = False

    def fits(self, text: str) -> bool:
        """Whether a text agrees with the rest of the given text."""
        return self.left.startswith(text) or text.startswith(self.left)

    def agrees(self, drawn: bool, text: str) -> bool:
        """Whether to say a text: as drawn, unless the given text has settled it."""
        return self.fits(text) if self.left and not self.trial else drawn

    def either(self, drawn: bool, one: str, other: str) -> bool:
        """Whether to say one text rather than the other: as drawn, unless the given text has settled it."""
        agree = self.fits(one)
        return drawn if self.trial or agree == self.fits(other) else agree

    def believe(self, mass: float) -> None:
        """Multiply the mass of a belief into ``sure``."""
        self.sure = mass if self.sure is None else self.sure * mass

    def say(self, text: str) -> None:
        """Add text without a choice.

        Raises:
            Disagreement: The draft is on trial, and the given text continues otherwise.
        """
        if self.left:
            if self.trial and not self.fits(text):
                raise Disagreement
            text = self._beyond(text)
        if text:
            self.pieces.append(text)

    def choose(self, mind: Mind, masses: dict[str, float]) -> Choice:
        """Draw one of some options with their masses at temperature 1, and add it; errors as for ``say``."""
        if not self.left:
            choice = mind.decide(masses)
            self.pieces.append(choice if len(choice.options) > 1 else choice.chosen)
            return choice
        longer = [option for option in masses if option.startswith(self.left)]
        agreeing = longer if longer and mind.tired else [*self._written(masses), *longer]
        choice = mind.decide(masses, frozenset(agreeing) if agreeing and not self.trial else None)
        if len(longer) > 1 and choice.chosen in longer:
            used, self.left = len(self.left), ""
            kept = [place for place, option in enumerate(choice.options) if option in longer]
            rests = tuple(choice.options[place][used:] for place in kept)
            total = sum(choice.masses[place] for place in kept) or 1.0
            shares = tuple(choice.masses[place] / total for place in kept)
            self.pieces.append(choice._replace(options=rests, masses=shares, pick=kept.index(choice.pick)))
        else:
            self.say(choice.chosen)
            self.trial |= bool(longer)
        return choice

    def _written(self, options: Iterable[str]) -> list[str]:
        """The longest option that the given text holds whole and continues after, if there is one."""
        whole = [option for option in options if self.left.startswith(option) and option != self.left]
        return [max(whole, key=len)] if whole else []

    def _beyond(self, text: str) -> str:
        """The part of a text beyond the given text, which is used up by as much."""
        left = self.left
        if left.startswith(text):
            self.left = left[len(text) :]
            return ""
        self.left = ""
        return text.removeprefix(left)

    def text(self) -> str:
        """The raw text."""
        return "".join([piece if isinstance(piece, str) else piece.chosen for piece in self.pieces])


def tokens(draft: Draft, end: str) -> list[Token]:
    """The tokens of a draft and of its ``end``, with the branches of its choices."""
    bpe = default_bpe()
    out: list[Token] = []
    following = bpe.special[end]
    for piece in reversed(_grouped(draft.pieces)):
        if isinstance(piece, str):
            new = [Token(token) for token in bpe.encode(piece)]
        else:
            new, ended = _branch(piece, following)
            if ended is not None and out and not out[0].branches:
                out[0] = ended
        if new:
            following = new[0].id
            out[:0] = new
    out.append(Token(bpe.special[end]))
    return out


def ids(draft: Draft, end: str) -> list[int]:
    """The token ids of a draft and of its ``end``, without log-probs."""
    bpe = default_bpe()
    out: list[int] = []
    for piece in _grouped(draft.pieces):
        out += bpe.encode(piece) if isinstance(piece, str) else _encode(piece.chosen)
    out.append(bpe.special[end])
    return out


def filler(seed: bytes, count: int) -> bytes:
    """The variation of each of ``count`` tokens."""
    return hashlib.shake_128(seed).digest(count)


@lru_cache(maxsize=_DRAFT_FILLERS)
def variation(number: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The log-prob of an ordinary token of variation 0 to 255, and its alternatives, likeliest first."""
    share = number / (_DRAFT_FILLERS - 1)
    own = -1e-4 - 0.04 * share**6
    rest = -math.expm1(own)
    bpe = default_bpe()
    chosen: dict[int, float] = {}
    for rank, word in enumerate(hashlib.shake_128(b"alternatives %d" % number).digest(4 * ALTERNATIVES)):
        token = 300 + (word * 6 + rank + number) % (len(bpe) - 320)
        if token not in chosen and len(chosen) < ALTERNATIVES + 1:
            chosen[token] = math.log(rest) + (len(chosen) + 1) * math.log(0.5)
    return own, tuple(chosen.items())


def _grouped(pieces: Sequence[str | Choice]) -> list[str | Choice]:
    """Pieces cut as the tokenizer cuts: texts joined, a space before a choice moved into its options."""
    out: list[str | Choice] = []
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text.endswith(" "):
            text = text[:-1]
            piece = piece._replace(options=tuple(f" {option}" for option in piece.options))  # noqa: PLW2901
        if text:
            out.append(text)
            text = ""
        out.append(piece)
    if text:
        out.append(text)
    return out


@lru_cache(maxsize=8192)
def _encode(text: str) -> tuple[int, ...]:
    return tuple(default_bpe().encode(text))


def _branch(choice: Choice, following: int) -> tuple[list[Token], Token | None]:
    """The chosen option's tokens, and the token after them where ending there was a branch."""
    sequences = [(*_encode(option), following) for option in choice.options]
    taken = sequences[choice.pick]
    alive: Sequence[int] = range(len(sequences))
    out: list[Token] = []
    for place, token in enumerate(taken):
        masses: dict[int, float] = {}
        for option in alive:
            key = sequences[option][place]
            masses[key] = masses.get(key, 0.0) + choice.masses[option]
        alive = [option for option in alive if sequences[option][place] == token]
        if len(masses) == 1:
            out.append(Token(token))
            continue
        total = sum(masses.values())
        logs = {key: max(math.log(mass / total), _LEAST) if mass > 0 else _LEAST for key, mass in masses.items()}
        branches = tuple(sorted(logs.items(), key=lambda item: (-item[1], item[0])))
        out.append(Token(token, branches, logs[token]))
    last = out.pop()
    return out, last if last.branches else None


_MOST_FILLERS: Final = 60
_MIDDLE: Final = 0.35
"""Logarithm of the median number of thoughts, before it is cut to a whole one."""

_MOST_TRIES: Final = 256
_NORMAL: Final = NormalDist()

_THOUGHTS: Final = (
    "Let me think about what is known so far. ",
    "I should take this one step at a time. ",
    "The names here are similar, so care is needed. ",
    "It is worth reading the sources again before going on. ",
    "There may be more than one entry that looks right. ",
    "I will keep the original question in mind. ",
    "Nothing so far contradicts this line of thought. ",
    "A short check of the dates and places would not hurt. ",
    "The wording of the question matters here. ",
    "I can follow the links between the entries. ",
    "Some of the text has no bearing on the question. ",
    "The register often lists several people under one heading. ",
    "First things first. ",
    "That narrows the search down. ",
    "I had better be precise about who is meant. ",
    "This is one of several parts of the question. ",
    "An older name may be used in some documents. ",
    "So far the pieces fit together. ",
    "The next step follows from the last one. ",
    "I would rather look than guess. ",
)


class Sampling(NamedTuple):
    """The sampling of a choice: its own seed (the request's plus the choice's index), temperature and top-p."""

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0


class Mind:
    """The random state of one reply; at temperature 0 the seed has no effect."""

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
        """Draw one of some options, or of the allowed ones, with their masses at temperature 1."""
        return decide(masses, self._choices, self.sampling.temperature, self.sampling.top_p, allowed)

    def accident(self, rate: float) -> bool:
        """Whether an accident of this rate happens in the turn."""
        return chance(rate, self._accidents, self.sampling.temperature)

    def notices(self) -> bool:
        """Whether an earlier error in view is noticed in this turn."""
        return self._accidents.chance(self.dials.recoverability)

    def below(self, n: int) -> int:
        """A whole number below ``n`` that decides nothing."""
        return self._accidents.below(n)

    @property
    def tired(self) -> bool:
        """Whether the reply was begun too often, so that the surest agreement with the given text is said."""
        return self.tries >= _MOST_TRIES

    def think(self, draft: Draft, then: str = "") -> None:
        """Open the thinking, fill it with thoughts, and go on with a text."""
        draft.say("<think>\n")
        self.fill(draft)
        draft.say(then)

    def fill(self, draft: Draft) -> None:
        """Add thoughts without content; their number has a lognormal tail.

        Where the given text has some, the others are drawn as in a reply that has at least as many.
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
        """Whether the given text ends in a thought; else its rest is on trial. ``share`` of all thoughts fit it."""
        going = self._goes_on(there)
        if going == 0:
            return False
        if self.tired or self._accidents.random() * (going * share + 1 - going) < going * share:
            return True
        draft.trial = True
        return False

    def _more(self, there: int) -> int:
        """How many thoughts follow the first ones."""
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
        """Probability of another thought after so many."""
        if there >= _MOST_FILLERS:
            return 0.0
        if self.dials.length_tail == 0:
            return float(there == 0)
        least = self._at_least(there)
        return self._at_least(there + 1) / least if least > 0 else 0.0

    def _at_least(self, count: int) -> float:
        """Probability of at least so many thoughts."""
        if count == 0:
            return 1.0
        return 0.5 * math.erfc((math.log(count) - _MIDDLE) / self.dials.length_tail / math.sqrt(2))

    def wording(self, draft: Draft, place: str, first: str, second: str) -> None:
        """Add one of two wordings that mean the same; the place, not the seed, decides whether there is a choice."""
        if Draws("wording", place).chance(self.dials.uncertain_right):
            draft.choose(self, {first: 0.5, second: 0.5})
        else:
            draft.say(first)
