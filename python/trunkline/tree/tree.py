"""Everything done for one task, as a view over the native tree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from trunkline import _core
from trunkline.tree.failure import usage_of
from trunkline.tree.node import Node
from trunkline.tree.tokens import Tokens, count
from trunkline.tree.trajectory import Trajectory
from trunkline.tree.vote import majority
from trunkline.types import UNSCORED, Usage

if TYPE_CHECKING:
    from trunkline.types import Message, Task

__all__ = ["Tree", "Values"]


class Values(NamedTuple):
    """Columns with one entry for every node of a tree.

    Attributes:
        visits: Rollouts passing through the node.
        scored: The scored ones among them.
        means: V(s), their mean reward; NaN where none is scored.
    """

    visits: tuple[int, ...]
    scored: tuple[int, ...]
    means: tuple[float, ...]


class Tree:
    """A task and everything that was done for it.

    Nothing is kept here but the arguments: every read asks the native tree, so a view of a growing tree is never out
    of date.

    Args:
        task: The task.
        core: Its native tree; a new one when not given.
        ended: How its growth ended, as its run says: ``finished``, ``settled``, ``enough``, ``budget``, ``deadline`` or
            ``broken``; empty while it grows, and where nobody says.
    """

    __slots__ = ("core", "ended", "task")

    def __init__(self, task: Task, core: _core.Tree | None = None, ended: str = "") -> None:
        self.core = _core.Tree() if core is None else core
        self.task = task
        self.ended = ended

    @property
    def root(self) -> Node:
        """The empty node that every prompt hangs under."""
        return Node(self, 0)

    def node(self, id: int) -> Node:
        """The node of that number; raises :class:`~trunkline.errors.TreeError` if there is none."""
        return Node(self, id)

    @property
    def nodes(self) -> list[Node]:
        """Every node, the root first; a parent comes before its children."""
        return [Node(self, number) for number in range(len(self.core))]

    @property
    def rollouts(self) -> list[Trajectory]:
        """Every rollout, in the order they were opened."""
        return [Trajectory(self, number) for number in range(self.core.rollouts)]

    def messages(self, node: Node | int) -> list[Message]:
        """The conversation from the root to a node."""
        number = node.id if isinstance(node, Node) else node
        return cast("list[dict[str, Any]]", msgspec.json.decode(self.core.messages(number)))

    def digest(self) -> str:
        """32 hex digits over what was said and decided, whatever the worker count, order and timing."""
        return self.core.digest()

    def values(self) -> Values:
        """Visits and mean rewards of all nodes, in one pass over the tree."""
        visits, scored, means = self.core.values()
        return Values(tuple(visits), tuple(scored), tuple(means))

    @property
    def tokens(self) -> Tokens:
        """Tokens, counted flat and as a tree."""
        return count(self.core)

    @property
    def usage(self) -> Usage:
        """What all calls of all rollouts cost."""
        total = Usage()
        for number in range(self.core.rollouts):
            facts = self.core.rollout(number)
            total += usage_of(facts.usage, facts.error)
        return total

    @property
    def answer(self) -> str | None:
        """What most rollouts answered, after normalisation; rollouts that broke or were cut do not vote.

        Aggregators (:func:`trunkline.aggregate`) also join answers that are equal as numbers, as 1/2 and 0.5.
        """
        ended = (self.core.rollout(number) for number in range(self.core.rollouts))
        return majority(facts.answer for facts in ended if facts.termination not in UNSCORED)

    @property
    def reward(self) -> float:
        """The mean reward of the scored rollouts, NaN if there is none; what a value function says is no score."""
        ended = (self.core.rollout(number) for number in range(self.core.rollouts))
        rewards = (facts.reward for facts in ended if facts.termination not in UNSCORED)
        scored = [reward for reward in rewards if not math.isnan(reward)]
        return math.fsum(scored) / len(scored) if scored else math.nan

    def __len__(self) -> int:
        return len(self.core)

    def __repr__(self) -> str:
        return f"<Tree of {self.task.id!r}: {len(self.core)} nodes, {self.core.rollouts} rollouts>"
