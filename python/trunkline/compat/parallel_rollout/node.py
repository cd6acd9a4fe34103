"""A node of somebody's own search: a plain object, which nothing but its owner changes."""

from __future__ import annotations

import math
import sys
from typing import Any

from trunkline.bounds import number, shown
from trunkline.errors import ConfigError, UsageError

__all__ = ["Node"]


class Node:
    """A state of a search, with what is known of it.

    It is no view of a tree of the library: its owner links it, fills it and reads it. Making one with a parent does not
    put it among the parent's children; ``parent.children.append(node)`` does.

    Args:
        parent: The node before it; None for a root.

    Attributes:
        parent: The node before it, or None.
        children: The nodes after it, a list.
        state: Whatever its owner keeps, such as the messages so far.
        visits: How many rewards were backed up through it.
        value: V(s), the mean of these rewards; 0.0 before the first.
        compressed_reasoning: A text on how this state was reached; None where nobody wrote one.

    Raises:
        ConfigError: The parent is no node.
    """

    def __init__(self, parent: Node | None = None) -> None:
        if parent is not None and not isinstance(parent, Node):
            raise ConfigError(f"Node: parent must be a Node or None, not {shown(parent)}")
        self.parent = parent
        self.children: list[Node] = []
        self.state: Any = None
        self.visits = 0
        self.value = 0.0
        self.compressed_reasoning: str | None = None

    def backpropagate(self, reward: float | None) -> None:
        """Count a reward here and in every node above, whose values stay the means of their rewards.

        Args:
            reward: A finite number. None and NaN stand for a rollout without a score, and change nothing.

        Raises:
            ConfigError: It is no such number; nothing was changed.
            UsageError: The parents lead back to a node they began with; nothing was changed.
        """
        if reward is None or (isinstance(reward, float) and math.isnan(reward)):
            return
        if not isinstance(reward, int | float) or isinstance(reward, bool) or not abs(reward) <= sys.float_info.max:
            raise ConfigError(f"backpropagate: reward must be a finite number, not {shown(reward)}")
        for node in self._upwards():
            node.visits += 1
            # Each divided by itself: the difference of two huge rewards may be no number.
            node.value += reward / node.visits - node.value / node.visits

    def best_child(self, c: float) -> Node:
        """The child to go on with by UCB1: ``value + c * sqrt(ln(visits of this node) / visits of the child)``.

        A child without visits comes before all others, one whose value is NaN after them, and of equal ones the first
        is taken. See Auer, Cesa-Bianchi and Fischer,
        "Finite-time analysis of the multiarmed bandit problem" (2002), and Kocsis and Szepesvári (2006) for trees.

        Args:
            c: How much doubt counts; 0 takes the child of the highest value.

        Raises:
            UsageError: There are no children.
            ConfigError: ``c`` is no number of at least 0.
        """
        number("best_child: c", c, 0)
        if not self.children:
            raise UsageError("best_child: this node has no children; append some to its list of children first")
        # Whoever counts visits by hand may leave none here.
        seen = math.log(max(self.visits, 1))

        def bound(child: Node) -> float:
            if child.visits <= 0:
                return math.inf
            found = child.value + c * math.sqrt(seen / child.visits)
            return -math.inf if math.isnan(found) else found

        return max(self.children, key=bound)

    def __repr__(self) -> str:
        # Numbers only: a state may be long, and children lead back here.
        return f"<Node {len(self.children)} children, {self.visits} visits, value {self.value:.4g}>"

    def _upwards(self) -> list[Node]:
        """This node and every one above it."""
        path: list[Node] = []
        seen: set[int] = set()
        node: Node | None = self
        while node is not None:
            if id(node) in seen:
                raise UsageError("backpropagate: following the parents leads back to where it began; a root has None")
            seen.add(id(node))
            path.append(node)
            node = node.parent
        return path
