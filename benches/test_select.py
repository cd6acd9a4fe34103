"""UCT over 65,536 nodes: the scores of all through the binding, columns in and out, beside numpy's; and eight picks.

Both start from the same numpy arrays and end with one; rounds are taken in turn.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import pytest

from trunkline._core import Search

np = pytest.importorskip("numpy")

NODES = 1 << 16
ROUNDS = 200


def columns() -> tuple:
    """A tree that grew at random, with the visits of a search: parents, visits, values."""
    chance = np.random.default_rng(1)
    parents = (chance.random(NODES) * np.arange(NODES)).astype(np.uint32)
    visits = np.ones(NODES, np.uint32)
    for node in range(NODES - 1, 0, -1):
        visits[parents[node]] += visits[node]
    return parents, visits, chance.random(NODES)


def by_numpy(parents, visits, values):
    """The formula of TreeRL, as numpy says it."""
    scores = (values + 1 + 1e-8) / 2 + 0.5 * np.sqrt(np.log(visits[parents] + 1.0) / (visits + 1e-10))
    scores[parents == np.arange(NODES)] = math.inf
    return scores


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_uct_over_sixty_four_thousand_nodes(benchmark, capsys):
    known = columns()
    room = (known[1] == 1).astype(np.uint32)

    leaves = np.flatnonzero(room).astype(np.uint32)

    def ours():
        return np.asarray(Search(*known, c=0.5).scores())

    def picks():
        return Search(*known, leaves=leaves, c=0.5).descend(room, 8)

    assert np.allclose(ours(), by_numpy(*known), rtol=1e-12)
    floor: list[float] = []
    eight: list[float] = []

    def interleaved() -> None:
        floor.append(seconds(lambda: by_numpy(*known)))
        eight.append(seconds(picks))

    benchmark.pedantic(ours, setup=interleaved, rounds=ROUNDS)
    figures = {
        "scores_ms": 1e3 * benchmark.stats.stats.median,
        "numpy_ms": 1e3 * statistics.median(floor),
        "eight_picks_ms": 1e3 * statistics.median(eight),
    }
    figures["times_numpy"] = figures["numpy_ms"] / figures["scores_ms"]
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        print("\n" + "  ".join(f"{name} {value:,.2f}" for name, value in figures.items()))
