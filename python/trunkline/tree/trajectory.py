"""One rollout of a tree, from its root to its leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from trunkline.tree.failure import Failure, usage_of
from trunkline.tree.node import Kind, Node
from trunkline.tree.tokens import Seconds
from trunkline.types import Termination

if TYPE_CHECKING:
    from trunkline import _core
    from trunkline.tree.tree import Tree
    from trunkline.types import Message, Task, Usage

__all__ = ["Trajectory"]


class Trajectory:
    """A rollout, as a view: the path of its leaf and how it ended.

    Args:
        tree: The tree it belongs to.
        id: The rollout's number in the tree.
    """

    __slots__ = ("id", "tree")

    def __init__(self, tree: Tree, id: int) -> None:
        tree.core.rollout(id)
        self.id = id
        self.tree = tree

    @property
    def _facts(self) -> _core.Rollout:
        # Read anew each time: a rollout grows.
        return self.tree.core.rollout(self.id)

    @property
    def task(self) -> Task:
        """The task it tries to solve."""
        return self.tree.task

    @property
    def point(self) -> Node:
        """The fork point it grew from."""
        return Node(self.tree, self._facts.point)

    @property
    def leaf(self) -> Node:
        """Its last node so far."""
        return Node(self.tree, self._facts.leaf)

    @property
    def nodes(self) -> list[Node]:
        """Every node from the first prompt to the leaf; the empty root is not among them."""
        leaf = self._facts.leaf
        return [Node(self.tree, node) for node in self.tree.core.path(leaf)]

    @property
    def messages(self) -> list[Message]:
        """The conversation from the first prompt to the leaf."""
        leaf = self._facts.leaf
        return cast("list[dict[str, Any]]", msgspec.json.decode(self.tree.core.messages(leaf)))

    @property
    def path(self) -> tuple[int, ...]:
        """Its fork path: turn, draw, turn, draw, and so on. It is unique in its tree."""
        return self._facts.path

    @property
    def draw(self) -> int:
        """Which sample of its fork point it is, from 0."""
        return self._facts.draw

    @property
    def subgroup(self) -> int:
        """The initial chain it was expanded for."""
        return self._facts.subgroup

    @property
    def termination(self) -> Termination | None:
        """Why it ended; None while it grows."""
        word = self._facts.termination
        return None if word is None else Termination(word)

    @property
    def answer(self) -> str | None:
        """Its final answer, if it gave one."""
        return self._facts.answer

    @property
    def error(self) -> Failure | None:
        """What went wrong, if something did; its message is safe to print."""
        text = self._facts.error
        return Failure.decode(text) if text else None

    @property
    def reward(self) -> float:
        """Its reward; NaN while unscored."""
        return self._facts.reward

    @property
    def note(self) -> str | None:
        """What was noted on it last, if anything was; see :mod:`trunkline.score.filters`."""
        return self._facts.note

    @property
    def usage(self) -> Usage:
        """What its own calls cost, failed attempts too; those of a trunk it was forked from belong to who made them."""
        facts = self._facts
        return usage_of(facts.usage, facts.error)

    @property
    def seconds(self) -> Seconds:
        """Seconds its own calls took: model calls, tool calls."""
        facts = self._facts
        return Seconds(facts.llm_micros / 1e6, facts.tool_micros / 1e6)

    @property
    def turns(self) -> int:
        """Model turns on its path, shared ones included."""
        return self._facts.turns

    @property
    def weights(self) -> list[str | None]:
        """Versions of the weights of the turns on its path, shared ones included: each once, from oldest to newest."""
        return list(dict.fromkeys(node.weights for node in self.nodes if node.kind is Kind.TURN))

    @property
    def generated(self) -> int | None:
        """Generated tokens on its path, shared ones included; None where a turn on it has neither ids nor usage."""
        turns = [node.generated_tokens for node in self.nodes if node.kind is Kind.TURN]
        counted = [count for count in turns if count is not None]
        return sum(counted) if len(counted) == len(turns) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trajectory) and other.id == self.id and other.tree.core is self.tree.core

    def __hash__(self) -> int:
        return hash((id(self.tree.core), self.id))

    def __repr__(self) -> str:
        ended = self.termination
        return f"<Trajectory {self.id} {'growing' if ended is None else ended.value}>"
