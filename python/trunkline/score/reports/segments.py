"""The segments of a tree: what is reported on, each part of a path that rollouts share once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trunkline.tree.node import Kind
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from trunkline.tree.tree import Tree

__all__ = ["Segment", "reported_leaves", "segments"]


class Segment(NamedTuple):
    """A run of nodes between two places where something is reported, none of them a prompt.

    Attributes:
        node: Its last node, on which its report is written.
        parent: Position of the segment before it; None where it follows the prompt.
        nodes: What it adds to the path, in order; at least one node.
        leaf: Whether a rollout that is reported ends here.
        branches: How many segments follow it.
    """

    node: int
    parent: int | None
    nodes: tuple[int, ...]
    leaf: bool
    branches: int


def reported_leaves(tree: Tree) -> dict[int, str | None]:
    """The leaves that get a report, ascending, each with the answer that a rollout gave there.

    Rollouts that grow, broke, were cut or filtered get none, and neither do those in which nobody said anything. Two
    rollouts with one leaf get one.

    Args:
        tree: The tree.
    """
    core = tree.core
    answers: dict[int, str | None] = {}
    for number in range(core.rollouts):
        facts = core.rollout(number)
        if facts.termination is None or Termination(facts.termination) in UNSCORED or facts.turns == 0:
            continue
        known = answers.get(facts.leaf)
        answers[facts.leaf] = facts.answer if known is None else known
    return dict(sorted(answers.items()))


def segments(tree: Tree) -> list[Segment]:
    """Cut the paths to all reported leaves where they part and where they end.

    Args:
        tree: The tree.

    Returns:
        The segments, each behind the one before it on its path. Prompts are in none: chains that share nothing but the
        prompt are one segment each.
    """
    core = tree.core
    leaves = reported_leaves(tree)
    # A parent has a smaller number than its children.
    children: dict[int, list[int]] = {}
    seen: set[int] = set()
    for leaf in leaves:
        node = leaf
        while node and node not in seen:
            seen.add(node)
            parent = core.node(node).parent
            children.setdefault(parent, []).append(node)
            node = parent
    found: list[Segment] = []
    # Of each node that was reached: the segment before, and what came since.
    reached: dict[int, tuple[int | None, tuple[int, ...]]] = {0: (None, ())}
    for node in sorted({0, *seen}):
        before, since = reached.pop(node)
        if node and core.node(node).kind != Kind.PROMPT:
            since = (*since, node)
        below = children.get(node, [])
        if since and (node in leaves or len(below) > 1):
            found.append(Segment(node, before, since, node in leaves, len(below)))
            before, since = len(found) - 1, ()
        for child in below:
            reached[child] = (before, since)
    return found
