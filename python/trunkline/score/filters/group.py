"""A finished group as a filter sees it: the tree, who ended how, and what was said about them so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._core import TURN
from trunkline.errors import LLMError
from trunkline.llm.dialects.dialect import Parsed
from trunkline.llm.recorded import recorded
from trunkline.score import verdicts
from trunkline.tree.node import Node
from trunkline.types import FAILED, UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trunkline.llm.protocol import Choice
    from trunkline.score.verdicts import Verdict
    from trunkline.tree.trajectory import Trajectory
    from trunkline.tree.tree import Tree

__all__ = ["Group"]

_WITHOUT_END = FAILED | {Termination.CENSORED, Termination.CANCELLED, None}


class Group:
    """All rollouts of one task, once the tree is complete.

    Args:
        tree: The tree.
        reader: How the agent's dialect reads a turn.

    Attributes:
        tree: The tree.
        rollouts: Every rollout, in the order they were opened.
    """

    def __init__(self, tree: Tree, reader: Callable[[Choice], Parsed]) -> None:
        self.tree = tree
        self.rollouts = tree.rollouts
        self._reader = reader
        self._read: dict[int, Parsed] = {}

    def verdicts(self, rollout: Trajectory) -> list[Verdict]:
        """What filters that came before said about a rollout, and the strategy."""
        return verdicts.read(rollout.note)

    @property
    def ended(self) -> list[Trajectory]:
        """Rollouts that came to an end of their own and were not dropped: those that broke or were cut are no news."""
        return [
            rollout
            for rollout in self.rollouts
            if rollout.termination not in _WITHOUT_END and not verdicts.dropped(self.verdicts(rollout))
        ]

    @property
    def live(self) -> list[Trajectory]:
        """Rollouts that can be trained: they have an outcome, and no filter has masked or dropped them."""
        return [
            rollout
            for rollout in self.ended
            if rollout.termination not in UNSCORED and not verdicts.masked(self.verdicts(rollout))
        ]

    def turns(self, rollout: Trajectory) -> Iterator[Node]:
        """Yield the model turns on a rollout's path, those of its trunk included."""
        core = self.tree.core
        for number in core.path(core.rollout(rollout.id).leaf):
            if core.node(number).kind == TURN:
                yield Node(self.tree, number)

    def read(self, turn: Node) -> Parsed:
        """Read a model turn again as the agent's dialect does: calls, else an answer, else a problem.

        Args:
            turn: A node that is a model turn.
        """
        known = self._read.get(turn.id)
        if known is None:
            known = self._read[turn.id] = self._parse(turn)
        return known

    def _parse(self, turn: Node) -> Parsed:
        try:
            return self._reader(recorded(self.tree.core, turn.id))
        except LLMError as problem:
            # It was not readable when it came, either: the rollout broke there, unless another's went on.
            return Parsed(problem=str(problem))

    def said(self, turn: Node) -> str:
        """All that the model wrote in a turn: its reasoning, its text, the arguments of its calls."""
        choice = recorded(self.tree.core, turn.id)
        arguments = (call.arguments for call in choice.tool_calls)
        return "\n".join(filter(None, (choice.reasoning, choice.content, *arguments)))
