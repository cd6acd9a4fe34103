"""Run files written down by hand, and what is read back of their exports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trunkline._core import PROMPT
from trunkline.llm import messages
from trunkline.store.derive import rows
from trunkline.store.writer import RunWriter
from trunkline.tree.views import Tree
from trunkline.types import Task

LOOKUP = {"type": "function", "function": {"name": "lookup", "description": "d", "parameters": {"type": "object"}}}
NATIVE = {"agent": {"name": "agent", "tools": [LOOKUP], "dialect": {"kind": "native", "options": {}}}}


def write_run(path: Path, trees: Sequence[Tree], settings: dict[str, Any] | None = None, unfinished: int = 0) -> Path:
    """Write a run of these trees, of which the last so many have not been finished."""
    writer = RunWriter.create(path, {"model": "m", **(settings or {})}, [tree.task for tree in trees])
    for number, tree in enumerate(trees):
        delta = tree.core.delta()
        done = number < len(trees) - unfinished
        writer.commit([(number, 0, delta)] if delta else [], [(number, *rows(tree.core))] if done else [])
    writer.finish("interrupted" if unfinished else "done")
    return path


def begun(task: Task) -> tuple[Tree, int]:
    """A tree with the prompts of its task, and the last of them."""
    tree, point = Tree(task), 0
    for message in task.messages:
        point = tree.core.append(point, PROMPT, messages.encode(message))
    return tree, point


def say(tree: Tree, rollout: int, message: bytes, aside: str | None = None) -> int:
    """Append a turn of the agent."""
    core = tree.core
    said = None if aside is None else aside.encode()
    agent, model, finish = core.name("agent"), core.name("m"), core.name("stop")
    return core.turn(rollout, message, agent, model, finish, 10, 0, 5, 0, 1, said)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [json.loads(row) for row in path.read_text("utf-8").splitlines()]
