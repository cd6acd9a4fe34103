"""Where a rollout stands that has not ended, read off the tree: for runs that go on where another one left off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._core import TURN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import Tree as Core
    from trunkline.llm.protocol import Choice, ToolCall
    from trunkline.rollout.agent import Kit
    from trunkline.rollout.rollout import Rollout

__all__ = ["calls_before", "go_on"]


def calls_before(core: Core, node: int, kit: Kit, calls: Callable[[int], Sequence[ToolCall]]) -> int:
    """Return how many tool calls were made on the path to a node; 0 for an agent without a limit, which asks nobody.

    Args:
        core: The tree.
        node: The node; calls of its own have not been made yet.
        kit: The agent that plays it.
        calls: Returns the tool calls of a turn.
    """
    if kit.agent.max_tool_calls is None:
        return 0
    return sum(len(calls(turn)) for turn in core.path(node)[:-1] if core.node(turn).kind == TURN)


def go_on(
    rollout: Rollout,
    core: Core,
    kit: Kit,
    hear: Callable[[int], Choice],
    calls: Callable[[int], Sequence[ToolCall]],
) -> None:
    """Put a rollout where it stands on its tree.

    Where the model moves next, it is asked, with the seed that this draw has in any run. Where its last turn is on the
    tree and nothing came of it yet, the program is given that turn again: its tool calls are run now. All observations
    of a turn come onto the tree together, so there are none or all.

    Args:
        rollout: One that has been made for a rollout of the tree, and was asked nothing yet.
        core: The tree.
        kit: The agent that plays it.
        hear: Returns a turn of the tree as the program is to see it.
        calls: Returns the tool calls of a turn.
    """
    facts = core.rollout(rollout.id)
    waiting = hear(facts.leaf) if core.node(facts.leaf).kind == TURN else None
    rollout.take_up(waiting, calls_before(core, facts.leaf, kit, calls))
