"""The calculator: right, and neither slow nor harmed by any text."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import ToolError
from trunkline.tools.builtin.calculator import calculate, calculator

EXPRESSIONS = st.recursive(
    st.integers(0, 10**4).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(" ".join)
        | inner.map("({})".format)
        | inner.map("({}) ** 2".format)
        | inner.map("-{}".format)
    ),
    max_leaves=5,
)


@given(EXPRESSIONS.filter(lambda expression: expression.count("**") < 2))
def test_it_agrees_with_python(expression: str):
    try:
        expected = eval(expression)  # made of numbers and operators alone
    except ZeroDivisionError:
        with pytest.raises(ToolError):
            calculate(expression)
    else:
        assert Decimal(calculate(expression)) == expected


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.33333333333333333333"),
        ("-2 ** 2", "-4"),
        ("2 ^ 3 ** 2", "512"),
        ("-7 // 2", "-4"),
        ("7 % -3", "-2"),
        ("1,234.5 \u00d7 2 \u2212 1", "2468"),
        ("(2 ** 0.5) ** 2", "2"),
        ("10 ** 60", "1e+60"),
        ("123456789012345678901234567890 * 10", "1234567890123456789012345678900"),
    ],
)
def test_values(expression: str, value: str):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "ends where a number was expected"),
        ("abs(1)", "cannot be read from 'abs"),
        ("__import__('os').system('ls')", "there are no names"),
        ("9**9**9**9", "too large"),
        ("1 / 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("(-8) ** (1/3)", "no real value"),
        ("(" * 101 + "1", "nested more than 100"),
        ("(1", "not closed"),
        ("1 1", "where an operator or its end"),
        ("1" * 1001, "may have 1,000 characters"),
    ],
)
def test_what_cannot_be_is_said(expression: str, words: str):
    with pytest.raises(ToolError) as refused:
        calculate(expression)
    assert words in str(refused.value)


@given(st.text(alphabet="0123456789eE.,+-*/%^() x_\u00d7\u0660\udc80\0", max_size=1100))
def test_any_text_gets_a_number_or_an_error(expression: str):
    try:
        said = calculator()(expression)
    except ToolError as error:
        said = str(error)
    assert said.isprintable()
    assert len(said) < 1100
