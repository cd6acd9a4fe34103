"""Packing through the binding beside glue code: 64 trees of 16 rollouts, about 500,000 tokens as flat rows.

Both sides start from the same numpy columns and end with numpy arrays of every column; the results must be equal. They
are timed in turn, and the ratio is that of the medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import pytest

np = pytest.importorskip("numpy")
from rivals import packing  # noqa: E402
from trunkline import _core  # noqa: E402

TREES, LEVELS = 64, 4
ROUNDS = 9


def forest() -> packing.Batch:
    """A prompt of 120 tokens, then five steps of a turn and an observation; each step but the first comes twice."""
    random = np.random.default_rng(7)
    parents, leaves, lengths, sampled = [], [], [], []

    def node(parent: int | None, length: int, flag: int) -> int:
        parents.append(len(parents) if parent is None else parent)
        lengths.append(length)
        sampled.append(flag)
        return len(parents) - 1

    for tree in range(TREES):
        ends = [node(None, 120, 0)]
        for level in range(LEVELS + 1):
            starts, ends = ends, []
            for start in starts:
                for _ in range(2 if level else 1):
                    turn = node(start, 20 + (tree * 7 + level * 11) % 40, 1)
                    ends.append(node(turn, 20 + (tree * 7 + level * 11 + 5) % 40, 0))
        leaves += ends
    flags = np.repeat(np.array(sampled, np.uint8), lengths)
    ids = random.integers(0, 150_000, len(flags), dtype=np.uint32)
    logprobs = np.where(flags, -random.random(len(flags), dtype=np.float32), np.float32(0))
    versions = np.where(flags, 3, -1).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    shape = (np.array(parents, np.uint32), np.array(leaves, np.uint32), offsets)
    return packing.Batch(*shape, ids, logprobs, versions, flags, random.normal(size=len(leaves)))


def ours(batch: packing.Batch, pack: Callable, names: list[str], **options: object) -> dict[str, np.ndarray]:
    """Pack, and read every column."""
    packed = pack(*batch.columns(), values=batch.values, **options)
    return {name: np.asarray(getattr(packed, name)) for name in names}


RIVALS = {
    ("padded", "numpy"): lambda batch: packing.padded(batch, 0),
    ("padded", "lists"): lambda batch: packing.padded_lists(batch, 0),
    ("ragged", "numpy"): packing.ragged,
    ("tree", "numpy"): packing.tree,
}


@pytest.mark.parametrize(("layout", "rival"), RIVALS)
def test_packing_beside_glue_code(benchmark, capsys, layout: str, rival: str) -> None:
    batch = forest()
    theirs = RIVALS[layout, rival](batch)
    pack = partial(ours, batch, getattr(_core, f"pack_{layout}"), list(theirs))
    mine = pack()
    for name, column in theirs.items():
        assert mine[name].dtype == column.dtype, name
        np.testing.assert_allclose(mine[name], column, rtol=1e-6, err_msg=name)
    del mine, theirs
    times: dict[Callable, list[float]] = {pack: [], partial(RIVALS[layout, rival], batch): []}
    for _ in range(ROUNDS):
        for work, taken in times.items():
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    fast, slow = (statistics.median(taken) for taken in times.values())
    benchmark.extra_info.update(rival_seconds=slow, ratio=slow / fast)
    with capsys.disabled():
        print(f"\n{layout}: {fast * 1e3:.2f} ms, {rival} {slow * 1e3:.2f} ms: {slow / fast:.1f} times as fast")
    benchmark.pedantic(pack, rounds=ROUNDS)
