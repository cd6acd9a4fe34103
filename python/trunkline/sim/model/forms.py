"""Which forms of a reply a prompt describes: a verdict, a search, an answer, each between its tags."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["NO", "OFFER", "YES", "Forms", "forms_in", "is_form"]

YES: Final = ("yes", "true", "correct", "accept", "accepted", "approve", "approved", "sufficient", "pass")
NO: Final = ("no", "false", "incorrect", "reject", "rejected", "insufficient", "fail")
_WORDS: Final = "|".join((*YES, *NO))
OFFER: Final = re.compile(rf"<([A-Za-z_]{{1,24}})>\s*({_WORDS})\s*(?:(?:/|\||or)\s*({_WORDS})\s*)?</\1>", re.IGNORECASE)
_SEARCH: Final = re.compile(r"<search>(.{0,80}?)</search>", re.DOTALL)
_ANSWER: Final = re.compile(r"<answer>(.{0,80}?)</answer>|\\boxed(?:\{([^{}]{0,80})\})?", re.DOTALL)


class Forms(NamedTuple):
    """Where in a prompt each form is last described; -1 where it is not.

    Attributes:
        verdict: A yes and a no, both offered between the same tags.
        search: A place for a query between search tags.
        answer: A place for an answer between answer tags, or in a box.
    """

    verdict: int
    search: int
    answer: int


@lru_cache(maxsize=4096)
def forms_in(text: str) -> Forms:
    """Find the forms that a prompt describes.

    Args:
        text: The prompt, with what it tells of colleagues: their searches and answers hold names or numbers, and one
            verdict is not an offer of two.
    """
    offers = list(OFFER.finditer(text))
    words = {word.lower() for offer in offers if offer[1] == offers[-1][1] for word in offer.groups()[1:] if word}
    both = bool(words.intersection(YES)) and bool(words.intersection(NO))
    return Forms(offers[-1].start() if both else -1, _last(_SEARCH, text), _last(_ANSWER, text))


def is_form(text: str) -> bool:
    """Whether a text is but a place for another, as in ``<search>your query</search>``: it has no name, no number."""
    return re.search(r"[A-Z0-9]", text) is None


def _last(pattern: re.Pattern[str], text: str) -> int:
    return max(
        (found.start() for found in pattern.finditer(text) if is_form("".join(filter(None, found.groups())))),
        default=-1,
    )
