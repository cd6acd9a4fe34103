"""Where an initial rollout and those expanded for it may be drawn again: what partial rollouts choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline._core import MESSAGE, TURN
from trunkline.types import FAILED, Termination

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from trunkline.rollout.view import View

__all__ = ["candidates", "founders"]

_NEVER: Final = 3


def founders(view: View, most: int) -> list[int]:
    """Choose initial rollouts among those of an earlier run: of each initial chain there the best.

    That is the first that answered, else the first that was cut short, else the first whose context was full. Those
    that broke are left out.

    Args:
        view: The tree.
        most: How many.

    Returns:
        Ids, the best first, the earlier first where two are as good.
    """
    best: dict[int, tuple[int, int]] = {}
    for number in range(view.taken):
        facts = view.tree.core.rollout(number)
        rank = _rank(facts.termination)
        if rank < best.get(facts.subgroup, (_NEVER, 0))[0]:
            best[facts.subgroup] = rank, number
    return [number for _, number in sorted(best.values())[:most]]


def _rank(termination: str | None) -> int:
    """How good an earlier rollout is to begin with; the lower the better."""
    if termination == Termination.ANSWER:
        return 0
    if termination is None or termination in FAILED:
        return _NEVER
    return 2 if termination == Termination.MAX_CONTEXT else 1


def candidates(view: View, subgroup: int, there: int, tools: Collection[str] = ()) -> Iterator[int]:
    """Yield the turns of a subgroup that may be drawn again.

    Left out are turns that call no tool, and those of states that a rollout of the subgroup was forked at. A turn of a
    program that calls none is left out only if it ended a rollout: programs run tools themselves, and let roles talk.

    Args:
        view: The tree.
        subgroup: The initial chain that its rollouts were expanded for.
        there: How many rollouts of the tree to look at, in the order they were opened; all if there are fewer.
        tools: Names: only turns that call one of these; any of the above if empty.

    Yields:
        Their nodes, the earlier first; one of each state.
    """
    core = view.tree.core
    opened = map(core.rollout, range(min(there, core.rollouts)))
    own = [facts for facts in opened if facts.subgroup == subgroup]
    states = {facts.point for facts in own[1:]}
    for facts in own:
        for node in core.path(facts.leaf):
            turn = core.node(node)
            if turn.kind == TURN and turn.parent not in states and _calls(view, node, tools):
                states.add(turn.parent)
                yield node


def _calls(view: View, turn: int, tools: Collection[str]) -> bool:
    """Whether a turn calls one of these tools; without any, whether something came of it."""
    called = [call.name for call in view.calls(turn)]
    return any(name in tools for name in called) if tools else bool(called) or _went_on(view, turn)


def _went_on(view: View, turn: int) -> bool:
    """Whether a program took the next turn, or observed something, right after a turn."""
    core = view.tree.core
    return any(core.node(child).kind in {TURN, MESSAGE} for child in core.children(turn))
