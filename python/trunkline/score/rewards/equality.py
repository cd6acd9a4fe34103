"""Equality of mathematics, as it is found out in a process of its own; see :mod:`trunkline.score.rewards.maths`."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from trunkline.tools.tool import tool

__all__ = ["is_text", "same"]

_COMMAND: Final = re.compile(r"\\[a-zA-Z]+")
_PROSE: Final = re.compile(
    r"(?!(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?\b|(?:log|exp|sqrt|lim|max|min|gcd|lcm|mod|inf|abs|det|pi|oo)\b)"
    r"\b[A-Za-z]{3,}"
)
"""A word that names no function: text around mathematics, and not a product of letters."""

_SIGNS: Final = re.compile(r"[\d\\$=+*/^<>|{}\[\]_]")

_EXPONENT: Final = re.compile(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?|\.\d+)[eE]([-+]?\d{1,4})(?![\w.])")
_NAMED: Final = re.compile(
    r"(?<![A-Za-z\\])(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp)(?=\s*[(^])|(?<![A-Za-z\\])pi(?![A-Za-z])"
)
"""Functions and the one constant that stand in plain text as LaTeX has them as commands."""

_MARKED: Final = re.compile(r"\$|\\\(|\\\[|\\boxed|\\begin")


def is_text(answer: str) -> bool:
    """Whether an accepted answer is words and no mathematics, such as a name.

    Args:
        answer: An accepted answer.
    """
    return _SIGNS.search(answer) is None and _PROSE.search(answer) is not None


def _formula(text: str) -> str:
    """A formula in plain text, as LaTeX writes it."""
    return _EXPONENT.sub(r"\1*10^{\2}", _NAMED.sub(r"\\\g<0>", text.replace("**", "^")))


def _readings(text: str) -> list[Any]:
    """What a text says as mathematics; empty where it says nothing."""
    from math_verify import parse  # noqa: PLC0415 - an extra, and seconds to import

    plain = bool(_MARKED.search(text) or _PROSE.search(_COMMAND.sub(" ", text)))
    # Its own limits of time would call an answer that takes long a wrong one.
    found: list[Any] = parse(text if plain else f"${_formula(text)}$", parsing_timeout=None)
    return found


@tool(name="math-verify", isolated=True, memory="2GB")
def same(answer: str, references: list[str]) -> str:
    """Say whether an answer equals one of the accepted ones: ``equal``, ``other``, or ``unknown``.

    Args:
        answer: The answer.
        references: The accepted ones; ``unknown`` says that none of them is mathematics.
    """
    from math_verify import verify  # noqa: PLC0415

    logging.disable(logging.CRITICAL)
    accepted = [found for reference in references if (found := _readings(reference))]
    if not accepted:
        return "unknown"
    given = _readings(answer)
    # The accepted one comes first: the comparison is not symmetrical.
    equal = any(verify(one, given, timeout_seconds=None) for one in accepted) if given else False
    return "equal" if equal else "other"
