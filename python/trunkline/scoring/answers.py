"""The final answer in what an assistant wrote, and the number in an answer."""

from __future__ import annotations

import math
import re

from trunkline.llm.dialects.thinking import spoken
from trunkline.tree.vote import DIGITS, LONG

__all__ = ["extract_answer", "number", "tail"]

_ANSWER, _ANSWER_END = "<answer>", "</answer>"
_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\[{}\\]|[{}]")  # an escaped brace balances nothing
_NUMBER = re.compile(rf"(?:(?<![\w.)])-)?(?<![\w.]){DIGITS}(?:e[-+]?[0-9]{{1,3}})?(?![0-9])")
_SPACE = re.compile(r"\s")
_FRACTION = re.compile(r"-?[0-9]{1,30}\s*/\s*[0-9]{1,30}")


def _tagged(text: str) -> str | None:
    start = text.rfind(_ANSWER)
    if start < 0:
        return None
    start += len(_ANSWER)
    end = text.find(_ANSWER_END, start)
    # Without the closing tag the rest is the answer: servers drop a stop string from the reply.
    return (text[start:] if end < 0 else text[start:end]).strip()


def _boxed(text: str) -> str | None:
    # One pass with a stack, so that unbalanced braces cannot make it quadratic.
    starts = {match.end() for match in _BOXED.finditer(text)}
    if not starts:
        return None
    found: tuple[int, int] | None = None
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.end())
        elif match[0] == "}" and opened:
            start = opened.pop()
            if start in starts and (found is None or start > found[0]):
                found = (start, match.start())
    return None if found is None else text[found[0] : found[1]].strip()


def extract_answer(text: str) -> str:
    r"""Find the final answer in an assistant's text.

    Regions between ``<think>`` and ``</think>`` are left out first, an unclosed one to the end of the text.
    Then the last ``<answer>`` region counts; without one the last ``\boxed{...}`` whose braces balance;
    without that the whole text.

    Args:
        text: What the assistant wrote.

    Returns:
        The answer without white space around it; empty if there is none.
    """
    text = spoken(text)
    tagged = _tagged(text)
    if tagged is not None:
        return tagged
    boxed = _boxed(text)
    return text.strip() if boxed is None else boxed


def tail(text: str, limit: int) -> str:
    """The end of a text, without the word that the cut went through.

    Args:
        text: Any text.
        limit: The most characters to keep; a text that is no longer comes back as it is.
    """
    if len(text) <= limit:
        return text
    space = _SPACE.search(text, len(text) - limit - 1)
    return "" if space is None else text[space.end() :]


def number(text: str) -> float | None:
    """The number an answer states: the whole answer if it is a fraction, else the last number in it.

    Of an answer of more than 4,000 characters only the last ones are read.

    Args:
        text: An answer, such as ``"about 1,200.5 km"``, ``"3/4"`` or ``"-2e3"``.

    Returns:
        A finite number, or None if there is none.
    """
    text = tail(text.strip(), LONG).casefold().replace("\u2212", "-")
    if _FRACTION.fullmatch(text):
        above, below = text.split("/")
        return int(above) / int(below) if int(below) else None
    found = _NUMBER.findall(text)
    if not found:
        return None
    value = float(found[-1].replace(",", ""))
    return value if math.isfinite(value) else None
