"""What ``trunkline show`` knows, as plain data: totals, tasks and trees in JSON."""

from __future__ import annotations

import json as stdjson
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.cli.output import put
from trunkline.score.notes import graded
from trunkline.score.verdicts import read
from trunkline.tree.tokens import Tokens

if TYPE_CHECKING:
    from trunkline.store.summary import Summary
    from trunkline.store.tasks import TaskSummary
    from trunkline.tree.tree import Tree

__all__ = ["plain", "summary_data", "task_data", "tree_data", "write_json"]


def plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def summary_data(summary: Summary) -> dict[str, Any]:
    """Return a run's totals, with what follows from them."""
    data: dict[str, Any] = plain(summary)
    data["usage"] = msgspec.structs.asdict(summary.usage)
    data["tokens"] |= _shared(data["tokens"])
    data["ids"] |= _shared(data["ids"])
    data |= {"rate": summary.rate, "prompt": summary.prompt, "uncached": summary.uncached}
    if summary.diversity is not None:
        data["diversity"]["design_effect"] = summary.diversity.design_effect
    data |= {"per_task": summary.per_task, "per_solved": summary.per_solved}
    return data


def _shared(tokens: dict[str, int]) -> dict[str, float]:
    counted = msgspec.convert(tokens, Tokens)
    return {"saved": counted.saved, "reuse": counted.reuse}


def task_data(task: TaskSummary) -> dict[str, Any]:
    """Return the figures of a task."""
    data: dict[str, Any] = plain(task)
    data["usage"] = msgspec.structs.asdict(task.usage)
    data["tokens"] |= _shared(data["tokens"])
    return data


def tree_data(tree: Tree) -> dict[str, Any]:
    """Return a tree with its rollouts and nodes."""
    return {
        "task": tree.task.id,
        "digest": tree.digest(),
        "answer": tree.answer,
        "reward": tree.reward,
        "tokens": tree.tokens,
        "rollouts": [
            {
                "rollout": rollout.id,
                "path": rollout.path,
                "termination": rollout.termination,
                "answer": rollout.answer,
                "reward": rollout.reward,
                "error": rollout.error,
                "verdicts": read(rollout.note),
                "graded": [msgspec.structs.asdict(one) for one in graded(rollout.note)],
                "turns": rollout.turns,
                "nodes": [node.id for node in rollout.nodes],
            }
            for rollout in tree.rollouts
        ],
        "nodes": [
            {
                "node": node.id,
                "parent": node.parent.id,
                "kind": node.kind.name.lower(),
                "message": node.message,
                "weights": node.weights,
                "report": node.compressed_reasoning,
            }
            for node in tree.nodes
            if node.parent is not None
        ],
    }


def write_json(data: dict[str, Any]) -> None:
    """Print an object on stdout."""
    # Everything beyond ASCII is escaped, so that no control character of any kind reaches a terminal.
    put(stdjson.dumps(plain(data), indent=2))
