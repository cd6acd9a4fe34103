"""Agent calls: the model turns of a rollout with what its program noted of each, and what each was really sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from trunkline._core import MESSAGE, OBSERVATION, TURN
from trunkline.errors import ArgumentError
from trunkline.rollout.journal import Journal

if TYPE_CHECKING:
    from trunkline._core import Tree as Core
    from trunkline.tree.tree import Tree

__all__ = ["Call", "Calls", "context_of", "sent", "turns_of"]

_Note = tuple[bool, bool, Annotated[int, msgspec.Meta(ge=1, lt=2**31)], Annotated[float, msgspec.Meta(ge=0)]]
"""What a team notes of a turn: active, valid, step, and the penalty of an action that is not valid."""


class Call(NamedTuple):
    """One agent call of a rollout.

    Attributes:
        node: Its turn.
        turn: Which turn of the path that is, from 0.
        step: Which step it belongs to, from 1.
        active: Whether anything depended on it.
        valid: Whether what it said is a valid action.
        penalty: What is subtracted from the reward for it; 0 for a call that is valid, or not active.
    """

    node: int
    turn: int
    step: int
    active: bool
    valid: bool
    penalty: float


class Calls:
    """Reads the agent calls of a tree's rollouts.

    A call is a model turn on the rollout's path, and these are in call order. What a team noted with a turn is read
    from the rollout's records; any program may note the same four. A turn with no such note is active and valid, and in
    the step that the path says: one more than the turns before it that something was observed after.

    Args:
        core: The tree.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._journal = Journal(core)

    def of(self, rollout: int) -> list[Call]:
        """Return the calls of a rollout, in call order; those of a trunk it was forked from are among them."""
        core, noted = self._core, self._noted(rollout)
        found: list[Call] = []
        step, moved = 1, False
        for node in core.path(core.rollout(rollout).leaf):
            kind = core.node(node).kind
            if kind == TURN:
                active, valid, own, penalty = noted.get(node, (True, True, step, 0.0))
                found.append(Call(node, len(found), own, active, valid, penalty if active and not valid else 0.0))
                moved = True
            elif moved and kind in {OBSERVATION, MESSAGE}:
                step, moved = step + 1, False
        return found

    def _noted(self, rollout: int) -> dict[int, _Note]:
        """What is noted of the turns of a rollout."""
        found = {}
        for record in self._journal.of(rollout):
            if record.kind == "ask" and record.nodes and (note := _read(record.data[2:])) is not None:
                found[record.nodes[0]] = note
        return found


def _read(noted: Any) -> _Note | None:
    """Read the note of a turn; None where a program noted nothing, or something of its own."""
    try:
        return msgspec.convert(noted[0], _Note) if noted else None
    except msgspec.ValidationError:
        return None


def turns_of(tree: Tree, rollout: int) -> list[int]:
    """Return the model turns on a rollout's path, in order."""
    core = tree.core
    return [node for node in core.path(core.rollout(rollout).leaf) if core.node(node).kind == TURN]


def context_of(core: Core, turn: int) -> bytes | None:
    """Return the messages that a program asked a turn with, a JSON array; None where its path was sent."""
    context = core.node(turn).context
    if context is None:
        return None
    try:
        return core.request_context(context, b"[", b"]")
    except ArgumentError:
        return None  # it says how the token ids that were sent drifted from those of the path


def sent(core: Core, turn: int) -> bytes:
    """Return the messages that a turn was asked with, a JSON array: its context where it has one, else its path."""
    return context_of(core, turn) or core.messages(core.node(turn).parent)
