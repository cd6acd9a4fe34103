"""Views over the native tree: what was done for one task, read without copying it."""

from __future__ import annotations

from trunkline.tree.node import Kind, Node
from trunkline.tree.tokens import Seconds, Tokens
from trunkline.tree.trajectory import Trajectory
from trunkline.tree.tree import Tree
from trunkline.tree.vote import Votes, majority, normalise, vote

__all__ = [
    "Kind",
    "Node",
    "Seconds",
    "Tokens",
    "Trajectory",
    "Tree",
    "Votes",
    "majority",
    "normalise",
    "vote",
]
