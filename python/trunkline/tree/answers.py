"""Normal forms of answers, and majority votes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LONG = 4_000
"""Characters of the longest answer that is folded; a longer one is a text, and compares as one."""

DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
"""Pattern of a number without sign and exponent: thousands in groups of three, or plain digits; a fraction."""

_ARTICLES = frozenset({"a", "an", "the"})
_QUOTES = frozenset("'\u2018\u2019`\u00b4")
# A number on its own, with a small exponent. A sign counts only where a number can begin, so that "1990-1995" is two
# positive numbers.
_NUMBER = re.compile(rf"(?<![\w.])(?:(?<![^\s(=$€£¥])[-+])?[$€£¥]?{DIGITS}(?:e[-+]?[0-9]{{1,2}})?(?!\w)")
_CURRENCY = re.compile(r"[$€£¥,+]")
# Before a fraction that is one character, behind a whole number.
_MIXED = re.compile(r"(?<=[0-9])(?=[\u00bc-\u00be\u2150-\u215f\u2189])")
_INITIALS = re.compile(r"(?<=[^\W\d_])\.(?=[^\W\d_]|\s|$)")
_LANGUAGE = re.compile(r"(?<!\w)([^\W\d_])(\+\+|#)(?!\w)")
_DIGIT = re.compile("[0-9]")
_MOST_CHARS = 1 << 14  # different characters that a table remembers


class _CharTable(dict[int, int | str | None]):
    """A table for ``str.translate`` whose entries are worked out as characters are met."""

    def __init__(self, entry: Callable[[str], str | None]) -> None:
        super().__init__()
        self._entry = entry

    def __missing__(self, code: int) -> str | None:
        if len(self) >= _MOST_CHARS:
            self.clear()
        found = self[code] = self._entry(chr(code))
        return found


def _plain(char: str) -> str | None:
    """A character of an answer: none for quotes and formats, a hyphen for a minus sign."""
    if char in _QUOTES or unicodedata.category(char) == "Cf":
        return None
    return "-" if char == "\u2212" else char


def _of_word(char: str) -> str:
    return char if char.isalnum() or unicodedata.category(char)[0] == "M" else " "


_PLAIN = _CharTable(_plain)
_OF_WORD = _CharTable(_of_word)


class Votes(msgspec.Struct, frozen=True):
    """Equal answers: normal form, most frequent spelling, positions of the voters."""

    key: str
    answer: str
    voters: tuple[int, ...]


def _number(text: str) -> str:
    if text.isdecimal():
        return text.lstrip("0") or "0"
    plain = _CURRENCY.sub("", text.replace("e+", "e"))
    # Digits are moved as text: a float, or a decimal context, would round long ones.
    plain = format(Decimal(plain), "f")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    sign, digits = ("-", plain[1:]) if plain.startswith("-") else ("", plain)
    digits = digits.lstrip("0")
    if not digits:
        return "0"
    return sign + ("0" + digits if digits.startswith(".") else digits)


def _words(text: str) -> list[str]:
    words = text.translate(_OF_WORD).split()
    # What punctuation cut free may be a number after all, as in "v.05".
    numbers = _DIGIT.search(text) is not None
    return [_number(word) if _NUMBER.fullmatch(word) else word for word in words] if numbers else words


def compatible(text: str) -> str:
    """Return a text in Unicode's compatibility form, with a space between a whole number and its fraction."""
    return unicodedata.normalize("NFKC", _MIXED.sub(" ", text))


def _fold(text: str) -> str:
    text = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", compatible(text).casefold())
    return text.translate(_PLAIN)


def normalise(answer: str) -> str:
    """Return the normal form of an answer, empty only for a blank one; beyond 4,000 characters only case is folded."""
    try:
        return _known[answer]
    except KeyError:
        stripped = answer.strip()
    if len(stripped) > LONG:
        return stripped.casefold()
    if stripped in _known:
        return _known[stripped]
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    folded = _known[stripped] = fold(stripped)
    return folded


def fold(text: str) -> str:
    """Return the normal form of a text of any length, at about half a second a million characters."""
    folded = _fold(text)
    text = _LANGUAGE.sub(lambda match: f" {match[1]}{'plusplus' if match[2] == '++' else 'sharp'} ", folded)
    text = _INITIALS.sub("", text)
    tokens: list[str] = []
    end = 0
    for match in _NUMBER.finditer(text):
        tokens += _words(text[end : match.start()])
        tokens.append(_number(match[0]))
        end = match.end()
    tokens += _words(text[end:])
    kept = [token for token in tokens if token not in _ARTICLES]
    return " ".join(kept or tokens) or " ".join(folded.split())


_known: dict[str, str] = {}
_MOST_KNOWN = 1024  # answers whose normal form is remembered


def vote(answers: Iterable[str | None]) -> list[Votes]:
    """Group equal answers, most votes first, then by normal form; None and blank answers are no votes."""
    voters: dict[str, list[int]] = defaultdict(list)
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    for position, answer in enumerate(answers):
        key = "" if answer is None else normalise(answer)
        if answer is not None and key:
            voters[key].append(position)
            spellings[key][answer.strip()] += 1
    classes = [
        Votes(key, min(spellings[key].items(), key=lambda item: (-item[1], item[0]))[0], tuple(positions))
        for key, positions in voters.items()
    ]
    return sorted(classes, key=lambda votes: (-len(votes.voters), votes.key))


def majority(answers: Iterable[str | None]) -> str | None:
    """Return the answer with the most votes, in its most frequent spelling; None without votes."""
    classes = vote(answers)
    return classes[0].answer if classes else None
