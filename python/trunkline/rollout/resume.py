"""Where a rollout stands that has not ended, read off the tree: for runs that go on where another one left off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._core import TURN

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline._core import Tree as Core
    from trunkline.llm.protocol import Choice
    from trunkline.rollout.agent import Kit
    from trunkline.rollout.rollout import Rollout

__all__ = ["go_on"]


def go_on(rollout: Rollout, core: Core, kit: Kit, hear: Callable[[int], Choice]) -> None:
    """Put a rollout where it stands on its tree.

    Where the model moves next, it is asked, with the seed that this draw has in any run. Where its last turn is on the
    tree and nothing came of it yet, the program is given that turn again: its tool calls are run now. All observations
    of a turn come onto the tree together, so there are none or all.

    Args:
        rollout: One that has been made for a rollout of the tree, and was asked nothing yet.
        core: The tree.
        kit: The agent that plays it.
        hear: Returns a turn of the tree as the program is to see it.
    """
    facts = core.rollout(rollout.id)
    nodes = core.path(facts.leaf)
    own = nodes[nodes.index(facts.point) + 1 :]
    turns = [node for node in own if core.node(node).kind == TURN]
    waiting = turns.pop() if turns and turns[-1] == facts.leaf else None
    calls = sum(len(kit.speech.read(hear(turn)).calls) for turn in turns) if kit.agent.max_tool_calls is not None else 0
    rollout.take_up(None if waiting is None else hear(waiting), calls)
