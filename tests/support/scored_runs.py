"""Run files whose tries have rewards of one's own choice."""

from __future__ import annotations

import json
from pathlib import Path

from call_logs import delta_with

from trunkline.store.derive import rows
from trunkline.store.schema import CallRow
from trunkline.store.writer import RunWriter
from trunkline.tree.views import Tree
from trunkline.types import Task

__all__ = ["BROKE", "RIGHT", "WRONG", "Tries", "write"]

ENDPOINT = "http://h/v1"
PRICE = {"price": {ENDPOINT: {"prompt": 1e6, "generated": 1e6, "cached": 1e6}}}

RIGHT, WRONG, BROKE = ("yes", 1.0), ("no", 0.0), (None, None)
Tries = dict[str, list[tuple[str | None, float | None]]]


def write(
    path: Path, tries: Tries, *, reward: str | None = "exact", more: list[Task] | None = None, priced: bool = False
) -> Path:
    """Write a run: for each task its tries as answer and reward; None is a try that broke, with no reward."""
    tasks = [Task.ask(f"What is {name}?", name, id=name) for name in tries] + (more or [])
    settings = {"reward": reward, "llm": PRICE if priced else {}}
    writer = RunWriter.create(path, settings, tasks)
    for number, (task, given) in enumerate(zip(tasks, tries.values(), strict=False)):
        core = Tree(task).core
        point = core.append(0, 1, json.dumps(task.messages[0]).encode())
        for draw, (answer, worth) in enumerate(given):
            rollout = core.open(point, [0, draw], draw)
            core.turn(rollout, json.dumps({"role": "assistant", "content": answer}).encode(), 0, 0, 0, 5, 0, 2, 0, 9)
            core.close(rollout, "llm_error" if answer is None else "answer", answer)
            if worth is not None:
                core.score(rollout, worth)
        calls = [CallRow(ENDPOINT, 1, 5, 0, 2, 1, 0, -1, 9, 0) for _ in given]
        delta = delta_with(core, calls)
        writer.commit([(number, 0, delta)], [(number, *rows(core))])
    writer.finish()
    return path
