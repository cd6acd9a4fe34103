"""The figures of a run from lists that hold every row: slow, and simple enough to be believed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from trunkline.scoring import notes
from trunkline.scoring.diversity import Try, effective
from trunkline.scoring.metrics import (
    accuracy,
    best_of_n,
    majority_at_k,
    majority_at_n,
    mean_pass_at_k,
    mean_pass_hat_k,
    per_solved,
)
from trunkline.store.schema import RolloutRow, TreeRow
from trunkline.tree.answers import normalise
from trunkline.types import FAILED, UNSCORED, Usage

Rows = dict[int, list[RolloutRow]]


def tries_of(rows: Sequence[RolloutRow]) -> list[Try]:
    """What counts of some rollouts."""
    found = []
    for row in rows:
        counts = row.termination is not None and row.termination not in UNSCORED
        reward = row.reward if counts and row.reward is not None else math.nan
        found.append(Try(row.subgroup, reward, row.answer if counts else None, row.action))
    return found


def intraclass_of(tasks: Sequence[Sequence[Try]]) -> float | None:
    """The correlation of rewards of one chain, by the formulas."""
    chains = [list(_chains(task).values()) for task in tasks]
    flat = [[reward for chain in task for reward in chain] for task in chains]
    if not any(flat):
        return None
    if all(len(chain) == 1 for task in chains for chain in task):
        return 0.0
    freedom = sum(len(task) - 1 for task in chains if task)
    if not freedom or all(len(set(task)) <= 1 for task in flat):
        return None
    unit = max(abs(reward) for task in flat for reward in task)
    between, within, size = [], [], []
    for task in filter(None, chains):
        scaled = [[reward / unit for reward in chain] for chain in task]
        every = [reward for chain in scaled for reward in chain]
        level = math.fsum(every) / len(every)
        for chain in scaled:
            own = math.fsum(chain) / len(chain)
            between.append(len(chain) * (own - level) ** 2)
            within.extend((reward - own) ** 2 for reward in chain)
            size.append(len(chain) - len(chain) ** 2 / len(every))
    msb = math.fsum(between) / freedom
    msw = math.fsum(within) / sum(len(chain) - 1 for task in chains for chain in task)
    scale = msb + (math.fsum(size) / freedom - 1) * msw
    return max((msb - msw) / scale, -1.0) if scale > 1e-12 * msw else None


def _chains(task: Sequence[Try]) -> dict[int, list[float]]:
    chains: dict[int, list[float]] = defaultdict(list)
    for one in task:
        if not math.isnan(one.reward):
            chains[one.subgroup].append(one.reward)
    return chains


def summary_of(trees: Sequence[TreeRow], rows: Rows, broken: set[int], *, scored: bool) -> dict[str, Any]:
    """The figures of a summary that are made of rollouts."""
    every = [row for listed in rows.values() for row in listed]
    tries = [tries_of(listed) for listed in rows.values()]
    worth = [[one.reward for one in task] for task in tries]
    most = max(map(len, worth), default=0)
    rho = intraclass_of(tries)
    sizes = [[len(chain) for chain in _chains(task).values()] for task in tries if _chains(task)]
    distinct = [
        [{key for one in task if (key := of(one))} for task in tries]
        for of in (lambda one: one.action, lambda one: one.answer and normalise(one.answer))
    ]
    kept = [row for row in every if row.termination is not None and row.termination not in UNSCORED]
    cut = [row for row in every if row.termination in ("censored", None)]
    return {
        "finished": len(trees),
        "broken": sum(tree.error is not None for tree in trees),
        "rollouts": len(every),
        "scored": sum(not math.isnan(reward) for task in worth for reward in task),
        "tries": most,
        "short": len(trees) - sum(sum(not math.isnan(reward) for reward in task) == most for task in worth),
        "accuracy": accuracy(worth),
        "best_of_n": best_of_n(worth),
        "majority": majority_at_n([[one.answer for one in task] for task in tries], worth),
        "usage": sum((row.usage for row in every), Usage()),
        "terminations": Counter("growing" if row.termination is None else row.termination for row in every),
        "failed": sum(row.termination in FAILED for row in every),
        "solved": sum(any(reward >= 1 for reward in task) for task in worth),
        "paths": sum(row.turns for row in every),
        "groups_kept": sum(task not in broken and _is_kept(listed, scored) for task, listed in rows.items()),
        "filters": _filtered(rows),
        "lengths": [(len(part), sum(row.turns for row in part) / len(part)) if part else None for part in (kept, cut)],
        "diversity": None
        if not tries
        else (
            *(sum(map(len, found)) / len(tries) for found in distinct),
            rho,
            None if rho is None else math.fsum(effective(task, rho) for task in sizes) / len(sizes),
        ),
        "ended": Counter(tree.ended for tree in trees),
        "flat": sum(tree.flat for tree in trees),
        "longest": max((tree.longest for tree in trees), default=0),
    }


def _is_kept(rows: Sequence[RolloutRow], scored: bool) -> bool:
    said = [notes.read(row.note) for row in rows]
    if any(verdict.action == "failed" for verdicts in said for verdict in verdicts):
        return False
    return any(
        row.termination is not None
        and row.termination not in UNSCORED
        and not notes.masked(verdicts)
        and (row.reward is not None or not scored)
        for row, verdicts in zip(rows, said, strict=True)
    )


def _filtered(rows: Rows) -> dict[str, tuple[int, int, int]]:
    """Rollouts that each filter masked and dropped, and groups that it dropped whole."""
    found: dict[str, tuple[int, int, int]] = {}
    for listed in rows.values():
        said = [{(one.filter, one.action) for one in notes.read(row.note)} for row in listed]
        for name in {name for verdicts in said for name, _ in verdicts}:
            masked, dropped, whole = found.get(name, (0, 0, 0))
            drops = sum((name, "drop") in verdicts for verdicts in said)
            masked += sum((name, "mask") in verdicts for verdicts in said)
            found[name] = masked, dropped + drops, whole + (drops == len(listed))
    return found


def metrics_of(finished: Sequence[int], rows: Rows) -> dict[str, Any]:
    """The metrics of a run without prices."""
    tries = [tries_of(rows.get(task, [])) for task in finished]
    rewards = [[one.reward for one in task] for task in tries]
    answers = [[one.answer for one in task] for task in tries]
    usage = [sum((row.usage for row in rows.get(task, [])), Usage()) for task in finished]
    solved = [any(reward >= 1 for reward in task) for task in rewards]
    most = max((sum(not math.isnan(reward) for reward in task) for task in rewards), default=0)
    counts = sorted({1 << power for power in range(10) if 1 << power < most} | ({most} if most else set()))
    reported = any(each.prompt or each.generated for each in usage)
    return {
        "tries": most,
        "accuracy": accuracy(rewards),
        "best": best_of_n(rewards),
        "pass_at": {k: mean_pass_at_k(rewards, k) for k in counts},
        "pass_hat": {k: mean_pass_hat_k(rewards, k) for k in counts},
        "majority": {k: majority_at_k(answers, rewards, k) for k in counts},
        "generated_per_solved": per_solved([each.generated for each in usage], solved) if reported else None,
        "tokens_per_solved": per_solved([each.prompt + each.generated for each in usage], solved) if reported else None,
        "unreported": sum(each.unreported for each in usage),
    }
