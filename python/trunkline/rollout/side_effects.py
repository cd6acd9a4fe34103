"""Tool calls with side effects: that one will begin is in the run file before it does, so none is ever run twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import TreeError, UnknownEffect
from trunkline.tree.records import Failure
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline._core import CoreTree
    from trunkline.rollout.types import TurnSink
    from trunkline.tools.calls import Call

__all__ = ["SideEffectLog", "lose", "unresolved_effects"]

EffectKey = tuple[int, int, int]
"""Rollout, turn and index of a call."""


class _Intent(msgspec.Struct):
    """A mark: a call with side effects is about to begin.

    Attributes:
        intent: Which one.
        tool: The tool.
        id: The call's id.
    """

    intent: EffectKey
    tool: str
    id: str


class _Effect(msgspec.Struct):
    """A mark: what came of such a call is on record, in the same delta.

    Attributes:
        effect: Which one.
    """

    effect: EffectKey


_marks: tuple[tuple[str, msgspec.json.Decoder[_Intent | _Effect]], ...] = (
    ('{"intent":', msgspec.json.Decoder(_Intent)),
    ('{"effect":', msgspec.json.Decoder(_Effect)),
)


def unresolved_effects(core: CoreTree) -> dict[int, UnknownEffect]:
    """Return, by rollout, which call began that nothing is on record of.

    Args:
        core: The tree.

    Raises:
        TreeError: A mark is damaged.
    """
    begun: dict[EffectKey, _Intent] = {}
    for text in core.marks():
        for start, decoder in _marks:
            if text.startswith(start):
                try:
                    mark = decoder.decode(text)
                except msgspec.MsgspecError as problem:
                    raise TreeError(f"a mark of a call with side effects is damaged: {problem}") from None
                if isinstance(mark, _Intent):
                    begun[mark.intent] = mark
                else:
                    begun.pop(mark.effect, None)
    found: dict[int, UnknownEffect] = {}
    for (rollout, _, _), mark in begun.items():
        why = (
            f"{mark.tool} had begun when its worker or its run ended (call id {mark.id}), and nobody knows whether it "
            "took effect; a tool with side effects is not run again"
        )
        found.setdefault(rollout, UnknownEffect(why))
    return found


def lose(core: CoreTree, failure: Failure) -> None:
    """End all that grows as lost; a rollout with a call in doubt as that.

    Args:
        core: The tree.
        failure: Why.
    """
    doubtful = unresolved_effects(core)
    for rollout in core.growing:
        unresolved = doubtful.get(rollout)
        end = Termination.LOST if unresolved is None else Termination.UNKNOWN_EFFECT
        core.close(rollout, end.value, None, (failure if unresolved is None else Failure.of(unresolved)).encode())


class SideEffectLog:
    """What one rollout's calls may have done.

    Args:
        core: The tree.
        rollout: The rollout's number.
        sink: Brings marks into the run file.

    Attributes:
        before: The doubt that the rollout was found in; None for most.
    """

    def __init__(self, core: CoreTree, rollout: int, sink: TurnSink) -> None:
        self.before: UnknownEffect | None = None
        self._core = core
        self._rollout = rollout
        self._sink = sink
        self._begun: dict[EffectKey, _Intent] = {}

    @property
    def unresolved_effect(self) -> UnknownEffect | None:
        """Why nobody knows what its calls did, should the rollout end now; None where that is known."""
        if self.before is not None or not self._begun:
            return self.before
        mark = next(iter(self._begun.values()))
        return UnknownEffect(
            f"the rollout was ended while {mark.tool} ran (call id {mark.id}), and nobody knows whether it took effect"
        )

    def check(self) -> None:
        """Raise the doubt that the rollout was found in, if there is one."""
        if self.before is not None:
            raise self.before

    async def begin(self, calls: Sequence[tuple[str, Call]]) -> None:
        """Write down that calls are about to begin, and wait until that is in the run file.

        Args:
            calls: The tools' names and the calls.

        Raises:
            InfrastructureError: It cannot be written.
        """
        begun = [_Intent((self._rollout, call.turn, call.index), name, call.id) for name, call in calls]
        self._sink.grew(sum(map(self._write, begun)))
        await self._sink.durable()
        self._begun |= {mark.intent: mark for mark in begun}

    def known(self, turn: int, indices: Iterable[int]) -> None:
        """Write down that what came of calls is on record; called in the step in which it is put there.

        Args:
            turn: The turn that made them.
            indices: Their places in it; those without side effects do not matter.
        """
        for index in indices:
            place = self._rollout, turn, index
            if self._begun.pop(place, None) is not None:
                self._write(_Effect(place))

    def _write(self, mark: _Intent | _Effect) -> int:
        """Write a mark; returns its size."""
        text = msgspec.json.encode(mark).decode()
        self._core.mark(text)
        return len(text)
