"""Checksums of rows: those of zlib over MessagePack, for every value that SQLite returns."""

from __future__ import annotations

import sqlite3
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import add_sums, chain_sums, checksum, finished_rows

EDGES = [edge + step for bits in (5, 7, 8, 15, 16, 31, 32, 63) for edge in (-(2**bits), 2**bits) for step in (-1, 0, 1)]
WHOLE = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([edge for edge in EDGES if -(2**63) <= edge < 2**63])
LONG = st.sampled_from([31, 32, 255, 256, 65535, 65536])
VALUES = st.one_of(
    st.none(),
    WHOLE,
    st.floats(),
    st.text(st.characters(codec="utf-8")),
    st.binary(),
    LONG.map(lambda length: "x" * length),
    LONG.map(bytes),
)
ROWS = st.lists(st.lists(VALUES, max_size=20).map(tuple), max_size=5)


def of_zlib(row: Any, before: int = 0) -> int:
    return crc32(msgspec.msgpack.encode(row), before)


@given(ROWS, st.integers(0, 2**32 - 1))
def test_a_checksum_is_that_of_zlib_over_message_pack(rows: list[tuple[Any, ...]], before: int):
    expected = before
    for row in rows:
        expected = of_zlib(row, expected)
    assert checksum(rows, before) == expected
    assert checksum(map(list, rows), before) == expected
    mutable = [[bytearray(value) if isinstance(value, bytes) else value for value in row] for row in rows]
    assert checksum(mutable, before) == expected


def test_a_row_may_be_long():
    row = tuple(range(70_000))
    assert checksum([row]) == of_zlib(row)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(), st.text(st.characters(codec="utf-8"))), max_size=9))
def test_rows_are_chained_and_added_by_their_tasks(rows: list[tuple[int, int, str]]):
    rows = [(task, number % 2**40, text) for task, number, text in rows]
    chained, added = {0: 0, 1: 7}, {1: 2**32 - 1}
    missing = chain_sums(rows, chained)
    add_sums(rows, 2, added)
    expected, sums = {0: 0, 1: 7}, {1: 2**32 - 1}
    for task, number, text in rows:
        if task in expected:
            expected[task] = of_zlib((number, text), expected[task])
        sums[task] = (sums.get(task, 0) + of_zlib((task, number))) % 2**32
    assert (chained, added) == (expected, sums)
    assert missing == [task for task, _, _ in rows if task not in expected]


@pytest.mark.parametrize("value", [object(), [1], 2**64, "\ud800"])
def test_a_value_that_is_in_no_row_is_refused(value: object):
    rows: Any = [(1, value)]
    with pytest.raises((TypeError, OverflowError, ValueError)):
        checksum(rows)


def test_rows_of_finished_tasks_are_bound_with_their_checksums_and_without_none():
    finished: list[tuple[int, list[Any], list[list[Any]]]] = [
        (4, [1, None], [[0, "a", None], [1, None, 0.5]]),
        (5, [2, "b"], []),
    ]
    trees, rollouts = finished_rows(finished, [(8, 9), (None, 7)], {5: [(3, "taken")]})
    connection = sqlite3.connect(":memory:")
    stored = [connection.execute("SELECT ?, ?, ?, ?, ?, ?", row).fetchone() for row in trees]
    sums = [checksum([[1, None], [0, "a", None], [1, None, 0.5]]), checksum([[2, "b"], [3, "taken"]])]
    assert stored == [(4, 1, None, sums[0], 8, 9), (5, 2, "b", sums[1], None, 7)]
    assert [connection.execute("SELECT ?, ?, ?, ?", row).fetchone() for row in rollouts] == [
        (4, 0, "a", None),
        (4, 1, None, 0.5),
    ]
    assert not any(value is None for row in trees + rollouts for value in row)
