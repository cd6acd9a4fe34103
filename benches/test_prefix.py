"""The prefix index through its binding, beside a radix cache in plain Python: the same paths, the same results.

The paths are those of tree rollouts: 16 tries a task that fork off chains of turns. Trunkline takes ``array`` columns
and stores four of them (ids, log-probabilities, versions, flags); the rival takes lists and stores ids alone.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable

import pytest

from rivals.radix import Radix
from trunkline._core import Prefix, TokenBuffer

ROUNDS = 5
TASKS, CHAINS, FORKS, TURNS = 6, 4, 3, 6


def paths() -> list[list[int]]:
    """Whole paths of tokens, one a try."""
    chance = random.Random(1)

    def run(least: int, most: int) -> list[int]:
        return [chance.randrange(150_000) for _ in range(chance.randrange(least, most))]

    found = []
    for _ in range(TASKS):
        prompt = run(600, 601)
        for _ in range(CHAINS):
            turns = [run(200, 900) for _ in range(TURNS)]
            for _ in range(FORKS):
                shared = chance.randrange(TURNS)
                forked = turns[:shared] + [run(200, 900) for _ in range(TURNS - shared)]
                found.append(sum(forked, prompt))
            found.append(sum(turns, prompt))
    return found


PATHS = paths()
FLAT = sum(map(len, PATHS))
# Half of the questions go on where a path ends; half leave it in the middle.
QUERIES = [path + [0] * 400 if i % 2 else path[: len(path) // 2] + [0] * 400 for i, path in enumerate(PATHS)]
MATCHED = [len(path) if i % 2 else len(path) // 2 for i, path in enumerate(PATHS)]


def columns(path: list[int]) -> tuple[array, array, array, bytes]:
    return array("I", path), array("f", [-0.5]) * len(path), array("i", [1]) * len(path), b"\1" * len(path)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(benchmark, capsys, name: str, tokens: int, rival: list[float], filled: Radix) -> None:
    """Tell what a token cost; of the tokens inserted, the share that was new."""
    ours, theirs = benchmark.stats.stats.median, statistics.median(rival)
    figures = {
        "ns_per_token": 1e9 * ours / tokens,
        "python_ns_per_token": 1e9 * theirs / tokens,
        "ratio": theirs / ours,
        "share_new": filled.tokens / FLAT,
    }
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        print(f"\n{name}: " + "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()))


@pytest.fixture(scope="module")
def filled() -> Radix:
    radix = Radix()
    for path in PATHS:
        radix.insert(path)
    return radix


def test_insert(benchmark, capsys, filled: Radix):
    runs = [columns(path) for path in PATHS]
    prefix, rival = Prefix(), []

    def insert() -> None:
        prefix.reset()
        space = prefix.space("model")
        for run in runs:
            prefix.insert(space, TokenBuffer(*run))

    def insert_python() -> None:
        radix = Radix()
        for path in PATHS:
            radix.insert(path)

    insert()
    benchmark.pedantic(insert, setup=lambda: rival.append(seconds(insert_python)), rounds=ROUNDS)
    reuse = prefix.reuse()
    assert (reuse.flat, reuse.unique) == (FLAT, filled.tokens)
    report(benchmark, capsys, "insert", FLAT, rival, filled)


def test_match(benchmark, capsys, filled: Radix):
    prefix, rival = Prefix(), []
    space = prefix.space("model")
    for path in PATHS:
        prefix.insert(space, TokenBuffer(path))
    queries = [array("I", query) for query in QUERIES]
    found = []

    def match() -> None:
        found[:] = [prefix.match(space, query).matched for query in queries]

    def match_python() -> None:
        assert [filled.match(query) for query in QUERIES] == MATCHED

    benchmark.pedantic(match, setup=lambda: rival.append(seconds(match_python)), rounds=ROUNDS)
    assert found == MATCHED
    report(benchmark, capsys, "match", sum(MATCHED), rival, filled)
