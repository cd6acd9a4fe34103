"""Arithmetic word problems of two to five steps: made, parsed and solved.

A problem has a start, one sentence a step, and a question: "A warehouse holds 40 crates. Then 15 more crates arrive.
... How many crates are there in the end?"
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from trunkline.sim.world.names import Draws

__all__ = ["Step", "evaluate", "make", "parse"]

_LARGEST: Final = 5000
_PLACES: Final = ("warehouse", "harbour shed", "library", "market stall", "workshop", "mill", "museum", "bakery")
_THINGS: Final = ("crates", "barrels", "books", "lanterns", "ropes", "tiles", "jars", "coins", "baskets", "maps")
_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.floordiv,
}
_WORDINGS: Final[dict[str, tuple[str, str]]] = {
    "start": ("A {p} holds {n} {t}.", "At first there are {n} {t} in the {p}."),
    "add": ("Then {n} more {t} arrive.", "After that the keeper brings in {n} further {t}."),
    "subtract": ("Then {n} of the {t} are sold.", "After that the keeper gives away {n} {t}."),
    "multiply": (
        "Then the number of {t} grows to {n} times what it was.",
        "After that each of the {t} is replaced by {n} {t}.",
    ),
    "divide": (
        "Then the {t} are split into {n} equal lots and only one lot stays.",
        "After that only one in every {n} {t} is kept.",
    ),
}
_END: Final = ("How many {t} are there in the end?", "How many {t} remain when all this is done?")


class Step(NamedTuple):
    """One step; ``op`` is ``start``, ``add``, ``subtract``, ``multiply`` or ``divide``."""

    op: str
    value: int


class Problem(NamedTuple):
    """A word problem: its text, the last running total, and the start with two to five operations."""

    text: str
    answer: int
    steps: tuple[Step, ...]


def make(rng: Random | Draws) -> Problem:
    """Make a problem whose totals are positive whole numbers and whose answer is not one of its numbers."""
    while True:
        steps = _steps(rng, operations=2 + _below(rng, 4))
        answer = evaluate(steps)[-1]
        if answer not in {step.value for step in steps}:
            break
    thing, place = _THINGS[_below(rng, len(_THINGS))], _PLACES[_below(rng, len(_PLACES))]
    sentences = [_WORDINGS[step.op][_below(rng, 2)].format(p=place, t=thing, n=step.value) for step in steps]
    sentences.append(_END[_below(rng, len(_END))].format(t=thing))
    return Problem(" ".join(sentences), answer, steps)


def evaluate(steps: Sequence[Step]) -> list[int]:
    """The running total after each step, the start included.

    Raises:
        ConfigError: A step is unknown, misplaced, or divides by zero or with a remainder.
    """
    totals: list[int] = []
    for op, value in steps:
        if (op == "start") != (not totals):
            raise ConfigError("a problem has one start, and it comes first")
        last = totals[-1] if totals else 0
        if op == "start":
            totals.append(value)
        elif op not in _OPERATIONS or (op == "divide" and (not value or last % value)):
            raise ConfigError(f"cannot apply the step {op!r} with {value} to {last}")
        else:
            totals.append(_OPERATIONS[op](last, value))
    return totals


def parse(text: str) -> tuple[Step, ...] | None:
    """The steps of the last complete problem in a text, such as a prompt; None where there is none."""
    # Prompts that hold long transcripts are searched for problems, too, and mostly there is none.
    if not any(words in text for words in _ENDINGS):
        return None
    found: tuple[Step, ...] | None = None
    steps: list[Step] = []
    thing, end = "", 0
    for match in _SENTENCE.finditer(text):
        wording = str(match.lastgroup)
        op = wording[:-1]
        follows = bool(steps) and match[f"{wording}_t"] == thing and not text[end : match.start()].strip()
        if op == "start":
            steps, thing = [Step(op, int(match[f"{wording}_n"]))], match[f"{wording}_t"]
        elif not follows:
            steps = []
        elif op != "end":
            steps.append(Step(op, int(match[f"{wording}_n"])))
        elif len(steps) > 1:
            found, steps = tuple(steps), []
        end = match.end()
    return found


_ENDINGS: Final = tuple(template.partition("{t}")[0] for template in _END)


def _pattern(group: str, template: str) -> str:
    """The pattern of one wording, a named group; its thing and number are groups as well."""
    pattern = re.escape(template).replace(re.escape("{p}"), "[a-z ]{1,30}?")
    pattern = pattern.replace(re.escape("{t}"), f"(?P<{group}_t>[a-z]{{1,20}})", 1)
    pattern = pattern.replace(re.escape("{t}"), f"(?P={group}_t)")
    return f"(?P<{group}>{pattern.replace(re.escape('{n}'), f'(?P<{group}_n>[0-9]{{1,9}})')})"


_SENTENCE: Final = re.compile(
    "|".join(
        _pattern(f"{op}{i}", template)
        for op, pair in (*_WORDINGS.items(), ("end", _END))
        for i, template in enumerate(pair)
    )
)


def _steps(rng: Random | Draws, operations: int) -> tuple[Step, ...]:
    """A start and operations that keep the total whole, at least 2 and at most ``_LARGEST``."""
    total = 6 + _below(rng, 55)
    steps = [Step("start", total)]
    while len(steps) <= operations:
        op = list(_OPERATIONS)[_below(rng, 4)]
        value = 2 + _below(rng, {"add": 48, "subtract": max(1, total - 4), "multiply": 5, "divide": 8}[op])
        after = _OPERATIONS[op](total, value)
        if not 2 <= after <= _LARGEST or (op == "divide" and total % value):
            continue
        total = after
        steps.append(Step(op, value))
    return tuple(steps)


def _below(rng: Random | Draws, n: int) -> int:
    return int(rng.random() * n)
