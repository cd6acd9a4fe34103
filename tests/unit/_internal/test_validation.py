from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._internal.validation import check_float, check_int, check_text, short_repr, type_phrase
from trunkline.errors import ConfigError

ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, exclude_categories=()))
    | st.lists(st.text())
    | st.dictionaries(st.text(), st.text())
)


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


def test_what_fits_comes_back_as_it_was() -> None:
    assert check_int("n", 1, 1) == 1
    assert check_int("n", 10**5000, 1) == 10**5000
    assert check_int("n", 20, 0, 20) == 20
    assert check_float("t", 0, 0) == 0
    assert check_float("t", -2.0, -2, 2) == -2.0
    assert check_float("t", 1e-300, 0, above=True) == 1e-300
    assert check_text("name", "\U0001f600 \0") == "\U0001f600 \0"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_int("Chain: n", 0, 1), "Chain: n must be a whole number of at least 1, not 0"),
        (lambda: check_int("n", True, 0), "n must be a whole number of at least 0, not True"),
        (lambda: check_int("n", 1.0, 0), "n must be a whole number of at least 0, not 1.0"),
        (lambda: check_int("n", "7", 0), "n must be a whole number of at least 0, not '7'"),
        (lambda: check_int("n", 21, 0, 20), "n must be a whole number from 0 to 20, not 21"),
        (lambda: check_int("n", 10**5000, 0, 20), "n must be a whole number from 0 to 20, not <int>"),
        (lambda: check_float("t", -0.1, 0), "t must be a number of at least 0, not -0.1"),
        (lambda: check_float("t", math.nan, 0), "t must be a number of at least 0, not nan"),
        (lambda: check_float("t", math.inf, 0), "t must be a number of at least 0, not inf"),
        (lambda: check_float("t", False, 0), "t must be a number of at least 0, not False"),
        (lambda: check_float("t", 3, -2, 2), "t must be a number from -2 to 2, not 3"),
        (lambda: check_float("t", 0, 0, 1, above=True), "t must be a number above 0 and at most 1, not 0"),
        (lambda: check_float("t", 10**400, 0, 1), "t must be a number from 0 to 1, not 1" + "0" * 58 + "…"),
        (
            lambda: check_float("t", "5", 0, above=True, unit="seconds"),
            "t must be a number of seconds above 0, not '5'",
        ),
        (lambda: check_text("name", None), "name must be a string, not None"),
        (lambda: check_text("name", Rude()), "name must be a string, not <Rude>"),
        (
            lambda: check_text("name", "a\ud800"),
            "name holds a lone surrogate, '\\ud800', which no request can carry: remove it",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_range(check: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check()
    assert str(caught.value) == message


@given(ANYTHING)
@settings(max_examples=150)
def test_a_check_gives_the_value_back_or_one_printable_line(value: Any) -> None:
    checks: list[Callable[[], object]] = [
        lambda: check_int("n", value, 0, 9),
        lambda: check_float("t", value, 0, 9),
        lambda: check_text("s", value),
    ]
    for check in checks:
        try:
            said = "" if check() is value else "another value"
        except ConfigError as problem:
            said = str(problem)
        assert said.isprintable()
        assert len(said) < 140
        assert said != "another value"
    assert short_repr(value).isprintable()
    assert type_phrase(value).isprintable()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true or false"),
        (5, "a number"),
        (0.0, "a number"),
        (math.nan, "nan"),
        ("x", "a string"),
        ("", "an empty string"),
        ([0], "a list"),
        ([], "an empty list"),
        ((), "an empty tuple"),
        ({}, "an empty object"),
        ({1: 2}, "an object"),
        (PurePosixPath(), "of type PurePosixPath"),
    ],
)
def test_what_a_value_is_called(value: object, words: str) -> None:
    assert type_phrase(value) == words
