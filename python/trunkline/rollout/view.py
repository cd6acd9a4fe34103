"""What a strategy is shown between two rounds: the tree, whom it is about, and a seed."""

from __future__ import annotations

from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING

from trunkline.llm.recorded import recorded
from trunkline.tree.trajectory import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.llm.protocol import ToolCall
    from trunkline.tree.tree import Tree

__all__ = ["View"]


class View:
    """A tree at rest: nobody grows while a hook looks at it.

    Args:
        tree: The tree.
        numbers: Ids of the rollouts that the hook is asked about.
        seed: The run's seed.
        taken: How many rollouts, the first ones, an earlier run has grown.
        hear: Returns the tool calls of a model turn; those of the message's own field when not given.

    Attributes:
        taken: How many rollouts, the first ones, were taken over from an earlier run.
        tree: The tree; ``tree.core`` has the columns that selection in the core is fed with.
        rollouts: Those that the hook is asked about, in logical order: as they were opened.
    """

    def __init__(
        self,
        tree: Tree,
        numbers: Sequence[int],
        seed: int,
        taken: int = 0,
        hear: Callable[[int], Sequence[ToolCall]] | None = None,
    ) -> None:
        self.tree = tree
        self.taken = taken
        self._hear = hear
        self.rollouts = [Trajectory(tree, number) for number in sorted(numbers)]
        self._seed = seed

    def seed(self, number: int = 0) -> int:
        """Return a seed for a decision, 0 to 2**64 - 1: a function of run seed, task and how far the tree has grown.

        Args:
            number: Which decision, for a hook that makes several.
        """
        moment = (number, self.tree.core.rollouts, *(rollout.turns for rollout in self.rollouts))
        key = pack(f"<q{len(moment)}I", self._seed, *moment)
        name = self.tree.task.id.encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(key + name, digest_size=8, person=b"strategy").digest(), "little")

    def subgroup(self, number: int) -> list[int]:
        """Return the last nodes of a subgroup's rollouts, in the order they were opened.

        Args:
            number: The initial chain that they were expanded for.
        """
        core = self.tree.core
        facts = map(core.rollout, range(core.rollouts))
        return [rollout.leaf for rollout in facts if rollout.subgroup == number]

    def calls(self, turn: int) -> Sequence[ToolCall]:
        """Return the tool calls of a model turn, as the agent's dialect reads them: a model's words, so anything.

        Args:
            turn: The turn's node.
        """
        return recorded(self.tree.core, turn).tool_calls if self._hear is None else self._hear(turn)
