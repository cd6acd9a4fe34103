"""Columns across the boundary: what goes in comes out, and what cannot go in is refused by name."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import SAMPLED, TRUNCATED, Tokens
from trunkline.errors import ArgumentError

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=50)


@given(IDS, st.data())
def test_columns_come_out_as_they_went_in(ids: list[int], data: st.DataObject) -> None:
    def column(numbers: st.SearchStrategy) -> list:
        return data.draw(st.lists(numbers, min_size=len(ids), max_size=len(ids)))

    logprobs = column(st.floats(-50, 0, width=32))
    versions = column(st.integers(-1, 2**31 - 1))
    flags = column(st.integers(0, 7))
    typed = Tokens(array("I", ids), array("f", logprobs), array("i", versions), bytes(flags))
    for tokens in (typed, Tokens(ids, logprobs, versions, flags)):
        assert (list(tokens.ids), list(tokens.logprobs)) == (ids, logprobs)
        assert (list(tokens.versions), list(tokens.flags)) == (versions, flags)
        assert [c.format for c in (tokens.ids, tokens.logprobs, tokens.versions, tokens.flags)] == ["I", "f", "i", "B"]
        assert len(tokens) == len(ids)


def test_what_is_left_out_has_its_plain_meaning() -> None:
    given = Tokens([5, 6])
    assert (list(given.logprobs), list(given.versions), list(given.flags)) == ([0.0, 0.0], [-1, -1], [0, 0])
    sampled = Tokens([5, 6], [-0.5, -1.5], flags=None)
    assert list(sampled.flags) == [SAMPLED, SAMPLED]
    cut = Tokens([5], [-0.5], flags=[SAMPLED | TRUNCATED])
    assert list(cut.flags) == [5]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([1, 2], [0.0]), "1 log-probabilities where 2 are needed"),
        (([1], [0.0], [1, 2]), "2 weight versions where 1 are needed"),
        (([1], [0.0], [1], b""), "0 flags where 1 are needed"),
        ((array("d", [1.0]),), 'a column has the format "d"; it must be uint32'),
        ((b"\0\0\0\0",), "it must be uint32"),
        ((memoryview(bytes(16)).cast("I", (2, 2)),), "a column has 2 dimensions"),
        (([-1],), "a number in a column of uint32 is out of range"),
        (([2**32],), "out of range"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(arguments: tuple, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Tokens(*arguments)
    assert text in str(caught.value)


def test_a_wrong_type_is_a_type_error() -> None:
    for wrong in ("12", 12, [1.5], None):
        with pytest.raises(TypeError):
            Tokens(wrong)


def test_a_mask_of_bools_is_a_column_of_flags() -> None:
    mask = memoryview(bytes([1, 0])).cast("?")
    assert list(Tokens([1, 2], flags=mask).flags) == [1, 0]
