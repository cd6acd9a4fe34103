"""Columns across the boundary: what goes in comes out, and what cannot go in is refused by name."""

from __future__ import annotations

import ctypes
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import SAMPLED, TRUNCATED, TokenBuffer
from trunkline.errors import ArgumentError

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=50)


@given(IDS, st.data())
def test_columns_come_out_as_they_went_in(ids: list[int], data: st.DataObject) -> None:
    def column(numbers: st.SearchStrategy) -> list:
        return data.draw(st.lists(numbers, min_size=len(ids), max_size=len(ids)))

    logprobs = column(st.floats(-50, 0, width=32))
    versions = column(st.integers(-1, 2**31 - 1))
    flags = column(st.integers(0, 7))
    typed = TokenBuffer(array("I", ids), array("f", logprobs), array("i", versions), bytes(flags))
    for tokens in (typed, TokenBuffer(ids, logprobs, versions, flags)):
        assert (list(tokens.ids), list(tokens.logprobs)) == (ids, logprobs)
        assert (list(tokens.versions), list(tokens.flags)) == (versions, flags)
        assert [c.format for c in (tokens.ids, tokens.logprobs, tokens.versions, tokens.flags)] == ["I", "f", "i", "B"]
        assert len(tokens) == len(ids)


def test_what_is_left_out_has_its_plain_meaning() -> None:
    given = TokenBuffer([5, 6])
    assert (list(given.logprobs), list(given.versions), list(given.flags)) == ([0.0, 0.0], [-1, -1], [0, 0])
    sampled = TokenBuffer([5, 6], [-0.5, -1.5], flags=None)
    assert list(sampled.flags) == [SAMPLED, SAMPLED]
    cut = TokenBuffer([5], [-0.5], flags=[SAMPLED | TRUNCATED])
    assert list(cut.flags) == [5]


def released() -> memoryview:
    view = memoryview(b"")
    view.release()
    return view


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([1, 2], [0.0]), "1 log-probabilities where 2 are needed"),
        (([1], [0.0], [1, 2]), "2 weight versions where 1 are needed"),
        (([1], [0.0], [1], b""), "0 flags where 1 are needed"),
        ((array("d", [1.0]),), "a column holds float64; it must be uint32"),
        ((b"\0\0\0\0",), "it must be uint32"),
        ((array("q", [1]),), "a column holds int64; it must be uint32"),
        (((ctypes.c_uint32.__ctype_be__ * 1)(1),), "a column holds big-endian uint32; it must be uint32"),
        (([1], array("h", [1])), "logprobs: a column holds int16; it must be float32"),
        (([1], None, array("I", [1])), "versions: a column holds uint32; it must be int32"),
        ((memoryview(b"\1").cast("?"),), "a column holds bool; it must be uint32"),
        ((array("d"),), "a column holds float64; it must be uint32"),
        ((array("i"),), "a column holds int32; it must be uint32"),
        (((ctypes.c_void_p * 1)(1),), 'a column holds the format "<P"; it must be uint32'),
        ((released(),), "a column of uint32 cannot be read (operation forbidden on released memoryview object)"),
        ((memoryview(bytes(16)).cast("I", (2, 2)),), "a column of uint32 has 2 dimensions; it must be one-dimensional"),
        ((ctypes.c_uint32(1),), "a column of uint32 has 0 dimensions; it must be one-dimensional"),
        (([-1],), "a number in a column of uint32 is out of range"),
        (([2**32],), "out of range"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(arguments: tuple, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        TokenBuffer(*arguments)
    assert text in str(caught.value)


def test_a_wrong_type_is_a_type_error() -> None:
    for wrong in ("12", 12, [1.5], None):
        with pytest.raises(TypeError):
            TokenBuffer(wrong)


@pytest.mark.parametrize(
    "ids",
    [
        memoryview(array("I", [5, 6, 7]))[::-1],
        memoryview(array("I", [7, 0, 6, 0, 5, 0]))[::2],
        memoryview(b"\0" + array("I", [7, 6, 5]).tobytes())[1:].cast("I"),
        (ctypes.c_uint32 * 3)(7, 6, 5),
        memoryview(array("I", [7, 6, 5])).toreadonly(),
    ],
    ids=["backwards", "apart", "not aligned", "ctypes", "read-only"],
)
def test_columns_may_lie_in_memory_as_they_like(ids: object) -> None:
    assert list(TokenBuffer(ids).ids) == [7, 6, 5]


def test_a_mask_of_bools_is_a_column_of_flags() -> None:
    mask = memoryview(bytes([1, 0])).cast("?")
    assert list(TokenBuffer([1, 2], flags=mask).flags) == [1, 0]
    assert list(TokenBuffer([1, 2], flags=memoryview(bytes([1, 1, 0])).cast("?")[::2]).flags) == [1, 0]
    assert list(TokenBuffer([], flags=memoryview(b"").cast("?")).flags) == []
