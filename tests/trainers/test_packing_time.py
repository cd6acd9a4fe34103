"""Print the time of packing shared tokens once: TRL's trie over flat samples beside a batch of the same trees."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from frameworks import MARKS, load

import trunkline as tl
from trunkline._core import PROMPT, TURN, TokenBuffer
from trunkline.tree.views import Tree

np, packing = load("numpy", "trl.experimental.async_grpo.packing")
pytestmark = MARKS

TREES, ROLLOUTS, TURNS, TOKENS = 4, 16, 8, 64


def grown(number: int) -> Tree:
    """Grow a tree: each rollout forks from one before it, after an even turn of it."""
    tree = Tree(tl.Task.ask("what?", id=str(number)))
    core, count = tree.core, number * 100_000
    prompt = core.append(0, PROMPT, b'{"role":"user","content":"what?"}', 0, TokenBuffer(range(TOKENS)))
    agent, model, stop = (core.name(name) for name in ("agent", "model", "stop"))
    turns: list[list[int]] = []
    for draw in range(ROLLOUTS):
        point = prompt if draw < 2 else turns[draw // 2][2 * (draw % 4)]
        rollout = core.open(point, [core.node(point).turns, draw])
        while core.rollout(rollout).turns < TURNS:
            count += TOKENS
            if core.node(core.rollout(rollout).leaf).kind == TURN:
                seen = b'{"role":"user","content":"%d"}' % count
                core.observe(rollout, seen, agent, 1, False, TokenBuffer(range(count, count + TOKENS)))
            sampled = TokenBuffer(range(count, count + TOKENS), [-0.5] * TOKENS)
            said = b'{"role":"assistant","content":"%d"}' % count
            core.turn(rollout, said, agent, model, stop, 10, 0, 5, 0, 1, None, None, sampled)
        turns.append([node for node in core.path(core.rollout(rollout).leaf) if core.node(node).kind == TURN])
        core.close(rollout, "answer", "yes")
        core.score(rollout, draw % 2)
    return tree


def seconds(call: Callable[[], object]) -> float:
    """Time a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_print_the_time_of_packing():
    trees = [grown(number) for number in range(TREES)]
    flat = tl.train.batch(trees, estimator="dr_grpo", shared="repeat").ragged(dtype="i64")
    ids, mask, offsets = (np.asarray(flat[name]) for name in ("ids", "loss_mask", "offsets"))
    samples = [
        {
            "input_ids": ids[start:end],
            "completion_mask": mask[start:end],
            "old_log_probs": np.zeros(end - start, "f4"),
            "advantage": 1.0,
            "group_id": group,
        }
        for start, end, group in zip(offsets, offsets[1:], flat["groups"], strict=False)
    ]
    rows: list[object] = []

    def theirs() -> None:
        row = packing.TreeRow()
        for sample in samples:
            assert row.fits(sample, 10**9)
            row.add(sample)
        row.pack()
        rows.append(row)

    def ours() -> None:
        rows.append(dict(tl.train.batch(trees, estimator="dr_grpo", shared="repeat").tree(dtype="i64")))

    pairs = [(seconds(theirs), seconds(ours)) for _ in range(7)]
    ratio = statistics.median(one / other for one, other in pairs)
    trie, batch = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
    stored = len(rows[1]["ids"])
    print(
        f"\n{len(ids)} tokens of {len(samples)} samples, {stored} in trees, {len(rows[0].tokens)} in TRL's trie; "
        f"trie {trie:.0f} ms, batch with selection and advantages {batch:.1f} ms, ratio {ratio:.0f}"
    )
    assert stored < len(ids)
