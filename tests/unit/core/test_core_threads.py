"""Any thread may use a tree: no call is lost, none deadlocks, and long reads let others run."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trunkline._core import BatchQueue, CoreTree
from trunkline.errors import CoreError
from trunkline.types import Usage


def test_many_threads_grow_one_tree() -> None:
    tree = CoreTree()
    rollouts = [tree.open(0, [draw]) for draw in range(8)]
    stop = threading.Event()

    def grow(rollout: int) -> None:
        for step in range(150):
            tree.turn(rollout, b'{"step":%d}' % (step % 40), 0, 0, 0, step, 0, 1, 0, 1)
            tree.observe(rollout, b'{"seen":%d}' % (rollout if step % 10 == 9 else 0), 0, 1)
        tree.close(rollout, "answer", "done")

    def read() -> int:
        seen = 0
        while not stop.is_set():
            flat, shared, *_ = tree.tokens()
            assert flat >= shared
            assert tree.messages(len(tree) - 1).endswith(b"]")
            seen += 1
        return seen

    with ThreadPoolExecutor(10) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        growing = [pool.submit(grow, rollout) for rollout in rollouts]
        try:
            for future in growing:
                future.result(timeout=60)
        finally:
            stop.set()
        assert all(future.result(timeout=60) > 0 for future in reading)
    tree.check()
    assert tree.growing == []
    assert all(Usage(*tree.rollout(rollout).usage).calls == 150 for rollout in rollouts)
    assert all(Usage(*tree.rollout(rollout).usage).tools == 150 for rollout in rollouts)


def test_two_threads_add_and_take_rows_of_one_queue() -> None:
    queue: BatchQueue[int] = BatchQueue(8, 0.0, 0.0, True, True)

    def take(first: int) -> list[int]:
        found: list[int] = []
        for row in range(first, first + 2000):
            queue.add(row, "m", "r", (0, 0), 1, 0.0)
            batches, _ = queue.next(0.0, 1, 0, 0)
            found += [row for batch in batches for row in batch]
        return found

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(take, [0, 2000])
    assert sorted(one + two + queue.clear()) == list(range(4000))


def test_large_trees_are_swept_beside_other_threads() -> None:
    tree = CoreTree()
    for draw in range(3000):
        rollout = tree.open(0, [draw])
        tree.turn(rollout, b'{"draw":%d}' % draw, 0, 0, 0, 10, 0, 1, 0, 0)
        tree.close(rollout, "answer", str(draw))
        tree.score(rollout, draw % 2)
    delta = tree.delta()
    assert delta is not None
    with ThreadPoolExecutor(4) as pool:
        digests = {future.result(timeout=60) for future in [pool.submit(tree.digest) for _ in range(8)]}
        copies = [CoreTree() for _ in range(4)]
        assert all(pool.map(lambda copy: copy.apply(delta), copies))
    assert digests == {copy.digest() for copy in copies}
    assert tree.tokens() == (33_000, 3_010, 3_000, 3_000, 11, 0, False)


def test_a_delta_is_applied_once_whoever_comes_first() -> None:
    tree = CoreTree()
    tree.append(0, 1, b"{%s}" % (b" " * 300_000))
    delta = tree.delta()
    assert delta is not None
    copy = CoreTree()
    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(lambda _: copy.apply(delta), range(8)))
    assert sorted(applied) == [False] * 7 + [True]


class Nuisance:
    """In a cycle, so that the collector runs its finalizer in the middle of whatever allocates."""

    def __init__(self, tree: CoreTree, calls: list[int]) -> None:
        self.me = self
        self.tree = tree
        self.calls = calls

    def __del__(self) -> None:
        self.calls.append(len(self.tree))


def test_finalizers_may_use_the_tree_that_triggers_them() -> None:
    tree = CoreTree()
    rollout = tree.open(0, [])
    for _ in range(20):
        leaf = tree.turn(rollout, b"{}", 0, 0, 0, 1, 0, 1, 0, 0)
    calls: list[int] = []
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            Nuisance(tree, calls)
            tree.node(leaf)
            tree.path(leaf)
            tree.rollout(rollout)
            tree.messages(leaf)
            tree.values()
            with pytest.raises(CoreError):
                tree.node(99)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert calls == [21] * 50
