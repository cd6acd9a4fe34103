"""Mathematical equality of answers, by math-verify, in processes that can be killed.

Its algebra system may run for ever on a short answer (``9**9**9``), and its own time limits need a main thread.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.validation import check_float
from trunkline.errors import ConfigError, TrunklineError
from trunkline.scoring.answers import extract_answer, tail
from trunkline.scoring.rewards.base import OpenedPerCall, Scored
from trunkline.tools.isolation.process_pool import ToolProcessPool
from trunkline.tools.tool import tool
from trunkline.tree.answers import LONG, normalise

if TYPE_CHECKING:
    from trunkline.tree.views import Trajectory


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
    """Whether a reference answer is words and no mathematics, such as a name."""
    return _SIGNS.search(answer) is None and _PROSE.search(answer) is not None


def _formula(text: str) -> str:
    """A formula in plain text, as LaTeX writes it."""
    return _EXPONENT.sub(r"\1*10^{\2}", _NAMED.sub(r"\\\g<0>", text.replace("**", "^")))


def _readings(text: str) -> list[Any]:
    """A text parsed as mathematics; empty where that fails."""
    from math_verify import parse  # noqa: PLC0415 - an extra, and seconds to import

    plain = bool(_MARKED.search(text) or _PROSE.search(_COMMAND.sub(" ", text)))
    # Its own limits of time would call an answer that takes long a wrong one.
    found: list[Any] = parse(text if plain else f"${_formula(text)}$", parsing_timeout=None)
    return found


@tool(name="math-verify", isolated=True, memory="2GB")
def same(answer: str, references: list[str]) -> str:
    """Say whether an answer equals one of the reference answers: ``equal``, ``other``, or ``unknown``."""
    from math_verify import verify  # noqa: PLC0415

    logging.disable(logging.CRITICAL)
    accepted = [found for reference in references if (found := _readings(reference))]
    if not accepted:
        return "unknown"
    given = _readings(answer)
    # The reference answer comes first: the comparison is not symmetrical.
    equal = any(verify(one, given, timeout_seconds=None) for one in accepted) if given else False
    return "equal" if equal else "other"


_TEXT: Final = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm)\s*\{([^{}]*)\}|\$")
"""Markup around words in LaTeX."""

_RESULT: Final = 1000  # characters of what a process says that are kept


class Math(OpenedPerCall, msgspec.Struct, frozen=True):
    """1.0 if the answer is mathematically equal to a reference answer, else 0.0; needs the ``maths`` extra.

    What is written alike counts as equal. The rest is compared by math-verify: numbers, fractions, expressions,
    equations, intervals, sets and matrices, plain or in LaTeX. An answer that is no mathematics scores 0; reference
    answers that are words are compared as words. An answer over which the comparison takes too long, or too much
    memory, leaves the rollout unscored.

    Args:
        timeout: Seconds that one comparison may take; its process is then killed.

    Raises:
        ConfigError: The extra is missing, or ``timeout`` is no number of seconds.
    """

    timeout: float = 10.0

    def __post_init__(self) -> None:
        check_float("Math: timeout", self.timeout, 0, above=True, unit="seconds")
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("Math compares with math-verify, an extra: pip install 'trunkline[maths]'")

    def opened(self) -> OpenMaths:
        """Return what compares in processes that stay while a run lasts."""
        return OpenMaths(self.timeout)


class OpenMaths:
    """Compares in processes started on demand; a time limit counts from when one is free."""

    timeout = math.inf

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._processes = ToolProcessPool(same, preload=("math_verify",))

    async def __call__(self, trajectory: Trajectory) -> Scored | float | None:
        references = trajectory.task.reference
        if not references:
            return None
        answer = tail((trajectory.answer or "").strip(), LONG)
        alike = any(_is_alike(answer, reference) for reference in references)
        return float(alike) if alike or not answer else await self._compared(answer, references)

    async def _compared(self, answer: str, references: tuple[str, ...]) -> Scored | float:
        arguments = msgspec.json.encode({"answer": answer, "references": references}).decode()
        try:
            said, well = await self._processes.run(arguments, None, _RESULT, self._seconds)
        except TrunklineError as problem:
            return Scored(math.nan, f"Math: {problem}")
        if not well:
            return Scored(math.nan, f"Math: {said.removeprefix('Error: ')}")
        if said == "unknown":
            # Also a wrong answer has to count, or the right ones alone would: those need no process.
            if all(map(is_text, references)):
                return 0.0
            return Scored(math.nan, "Math: no reference answer can be read as mathematics")
        return float(said == "equal")

    async def close(self) -> None:
        await self._processes.close()


def _is_alike(answer: str, reference: str) -> bool:
    """Whether two texts are the same but for white space, or the same words; signs mean something in mathematics."""
    if "".join(answer.split()) == "".join(reference.split()):
        return True
    words, accepted = (_TEXT.sub(r"\1", text) for text in (extract_answer(answer), reference))
    return is_text(accepted) and normalise(words) == normalise(accepted)
