"""A calculator: decimal arithmetic of 50 digits, whose cost does not depend on what a model writes."""

from __future__ import annotations

import re
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import TYPE_CHECKING, Any, Final

from trunkline._internal.text import excerpt
from trunkline.errors import ToolError
from trunkline.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST: Final = 1_000
"""Characters of an expression."""
_DEEPEST: Final = 100
"""Parentheses, signs and powers inside one another."""
_DIGITS: Final = 50
_SHOWN: Final = 20
"""Digits that are shown of a number that is not whole."""

_TOKEN: Final = re.compile(
    r"\s*(?:((?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?(?:[eE][+-]?\d{1,7})?|\.\d+(?:[eE][+-]?\d{1,7})?)"
    r"|(\*\*|//|[-+*/%^()]))",
    re.ASCII,
)
_SIGNS: Final = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-"})

_EXACT: Final = Context(
    prec=_DIGITS,
    rounding=ROUND_HALF_EVEN,
    Emin=-999_999,
    Emax=999_999,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
_SHORT: Final = Context(prec=_SHOWN, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999, traps=[])


def _floor(left: Decimal, right: Decimal) -> Decimal:
    return _EXACT.divide(left, right).to_integral_value(ROUND_FLOOR)


def _modulo(left: Decimal, right: Decimal) -> Decimal:
    """Return the rest of a division, with the sign of the divisor, as in Python."""
    rest = _EXACT.remainder(left, right)
    return _EXACT.add(rest, right) if rest and (rest < 0) != (right < 0) else rest


_OPERATORS: Final[dict[str, tuple[int, Callable[[Decimal, Decimal], Decimal]]]] = {
    "+": (1, _EXACT.add),
    "-": (1, _EXACT.subtract),
    "*": (2, _EXACT.multiply),
    "/": (2, _EXACT.divide),
    "//": (2, _floor),
    "%": (2, _modulo),
    "**": (4, _EXACT.power),
}
_OF_SIGNS: Final = 3


class Expression:
    """Reads an expression and works it out at once; ToolError tells the model what is wrong with it."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise ToolError(f"Error: an expression may have {_LONGEST:,} characters; this one has {len(text):,}.")
        self._tokens: list[str] = []
        text, at = text.translate(_SIGNS).rstrip(), 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ToolError(
                    f"Error: the expression cannot be read from '{excerpt(text[at:].lstrip(), 40)}' on: write numbers, "
                    "+ - * / // % ** and parentheses; there are no names and no functions (x ** 0.5 is a square root)."
                )
            number, sign = found.groups()
            self._tokens.append(number.replace(",", "") if number else sign.replace("^", "**"))
            at = found.end()
        self._at = 0

    def value(self) -> Decimal:
        """Work the whole expression out."""
        found = self._side(0, 0)
        if self._next():
            raise ToolError(f"Error: the expression has '{self._next()}' where an operator or its end was expected.")
        return found

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _side(self, least: int, depth: int) -> Decimal:
        """Work out operators that bind at least so strongly."""
        if depth > _DEEPEST:
            raise ToolError(f"Error: the expression is nested more than {_DEEPEST} levels deep.")
        left = self._number(depth)
        while (known := _OPERATORS.get(self._next())) is not None and known[0] >= least:
            strength, work = known
            self._at += 1
            # Powers are read from the right.
            left = work(left, self._side(strength if work == _EXACT.power else strength + 1, depth + 1))
        return left

    def _number(self, depth: int) -> Decimal:
        word = self._next()
        self._at += 1
        if word in {"-", "+"}:
            value = self._side(_OF_SIGNS, depth + 1)
            return _EXACT.minus(value) if word == "-" else value
        if word == "(":
            value = self._side(0, depth + 1)
            if self._next() != ")":
                raise ToolError("Error: a parenthesis of the expression is not closed.")
            self._at += 1
            return value
        if not word or not (word[0].isdigit() or word[0] == "."):
            what = f"has '{word}' where a number was expected" if word else "ends where a number was expected"
            raise ToolError(f"Error: the expression {what}.")
        return _EXACT.create_decimal(word)


@tool(name="calculator", pure=True)
def calculate(expression: str) -> str:
    """Work out an arithmetic expression, such as (3 + 4.5) * 2 ** 10 / 7; numbers are kept to 50 digits.

    Args:
        expression: Numbers, + - * / // % ** and parentheses. There are no names and no functions.
    """
    try:
        value = Expression(expression).value()
        if not value.is_finite():  # a power of zero signals nothing
            raise DivisionByZero
    except DivisionByZero:
        raise ToolError("Error: the expression divides by zero.") from None
    except Overflow:
        raise ToolError("Error: the result is too large: numbers go up to 10 ** 999999.") from None
    except InvalidOperation:
        raise ToolError("Error: the expression has no real value, or one beyond 50 digits.") from None
    return shown(value)


def shown(value: Decimal) -> str:
    """Return a number as a text: whole ones in full, others with 20 digits."""
    if value == 0:
        return "0"
    if value == value.to_integral_value() and value.adjusted() < _DIGITS:
        return f"{value:.0f}"
    short = value.normalize(_SHORT)
    return f"{short:f}" if -_SHOWN // 2 < short.adjusted() < _SHOWN else f"{short:e}"


def calculator() -> Tool[..., Any]:
    """Return a tool for arithmetic: one expression of numbers, ``+ - * / // % **`` and parentheses.

    Nothing is evaluated as Python. Numbers are decimal with 50 digits and at most 10 ** 999999, so no expression takes
    long or much memory.
    """
    return calculate
