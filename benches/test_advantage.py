"""Estimators through the binding beside numpy and beside the plain loop: 64 Ki rows, or a tree of 64 Ki nodes.

Both sides get columns of the type they like and give a column; their results agree to 1e-9. The ratio is that of the
medians of rounds taken in turns; it is in ``extra_info`` and printed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import pytest

np = pytest.importorskip("numpy")

from rivals import estimators  # noqa: E402
from trunkline import _core  # noqa: E402

SIZE, ROUNDS = 64 << 10, 15


def clock(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def beside(benchmark: object, ours: Callable[[], object], theirs: Callable[[], object], name: str) -> None:
    """Keep how many times as long the other one takes."""
    pairs = [(clock(ours), clock(theirs)) for _ in range(ROUNDS)]
    own, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    benchmark.extra_info |= {"rate": SIZE / own, "rival": name, "rival_s": other, "ratio": other / own}
    benchmark(ours)


@pytest.fixture(autouse=True)
def shown(benchmark, capsys) -> Iterator[None]:
    """Print what a test has kept."""
    yield
    kept = benchmark.extra_info
    with capsys.disabled():
        rate, ratio = kept["rate"] / 1e6, kept["ratio"]
        print(f"\n{benchmark.name}: {rate:.1f} M/s; {kept['rival']} takes {ratio:.1f} times as long")


@pytest.fixture(scope="module", autouse=True)
def roomy() -> None:
    """Let the allocator keep what is freed, as it does in any process that has once freed something large: a trainer.

    Otherwise both sides spend half of their time on asking the system for the same pages again.
    """
    bytearray(16 << 20)


def same(ours: object, theirs: object) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=1e-9, rtol=1e-9)


@pytest.fixture(scope="module")
def rows() -> tuple:
    """Rewards, groups of 16, subgroups of 4 numbered within their group."""
    rewards = np.random.default_rng(1).random(SIZE)
    row = np.arange(SIZE, dtype=np.uint32)
    return rewards, row // 16, row // 4 % 4


@pytest.fixture(scope="module")
def tree() -> tuple:
    """Each node under any earlier one; a rollout at every node that has no child."""
    chance = np.random.default_rng(2)
    parents = (chance.random(SIZE) * np.arange(SIZE)).astype(np.uint32)
    leaves = np.setdiff1d(np.arange(SIZE, dtype=np.uint32), parents[1:])
    return parents, leaves, chance.random(len(leaves))


def test_grpo_beside_numpy(benchmark, rows) -> None:
    rewards, groups, _ = rows
    ours = lambda: _core.estimate("verl_grpo", rewards, group=groups)[0]  # noqa: E731
    theirs = lambda: estimators.grpo_numpy(rewards, groups)  # noqa: E731
    same(ours(), theirs())
    beside(benchmark, ours, theirs, "numpy")


def test_grpo_beside_the_loop(benchmark, rows) -> None:
    rewards, groups, _ = rows
    ours = lambda: _core.estimate("verl_grpo", rewards, group=groups)[0]  # noqa: E731
    columns = rewards.tolist(), groups.tolist()
    theirs = lambda: estimators.grpo_loop(*columns)  # noqa: E731
    same(ours(), theirs())
    beside(benchmark, ours, theirs, "a loop over a dictionary")


def test_tree_grpo_beside_numpy(benchmark, rows) -> None:
    rewards, groups, subgroups = rows
    ours = lambda: _core.estimate("tree_grpo", rewards, group=groups, subgroup=subgroups)[0]  # noqa: E731
    theirs = lambda: estimators.tree_grpo_numpy(rewards, groups, subgroups)  # noqa: E731
    same(ours(), theirs())
    beside(benchmark, ours, theirs, "numpy")


def test_grpo_of_rows_in_any_order_beside_numpy(benchmark, rows) -> None:
    rewards, groups, _ = rows
    groups = np.random.default_rng(3).permutation(groups)
    ours = lambda: _core.estimate("verl_grpo", rewards, group=groups)[0]  # noqa: E731
    theirs = lambda: estimators.grpo_numpy(rewards, groups)  # noqa: E731
    same(ours(), theirs())
    beside(benchmark, ours, theirs, "numpy")


def test_leaf_means_beside_numpy(benchmark, tree) -> None:
    parents, leaves, rewards = tree
    levels = estimators.Levels(parents, leaves)
    ours = lambda: _core.node_values(parents, leaves, rewards)  # noqa: E731
    theirs = lambda: levels.values(rewards)  # noqa: E731
    for mine, other in zip(ours(), theirs(), strict=True):
        same(mine, other)
    beside(benchmark, ours, theirs, "numpy by levels")
