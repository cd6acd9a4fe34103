"""Tool calls with side effects: their begin is in the run file before they run, so that none runs twice."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import UnknownEffect
from trunkline.tree.records import Failure, read_marks
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trunkline._core import CoreTree
    from trunkline.rollout.types import TurnSink
    from trunkline.tools.calls import Call

EffectKey = tuple[int, int, int]
"""Rollout, turn and index of a call."""


class _Intent(msgspec.Struct):
    """Mark: a call with side effects, by rollout, turn and index, is about to begin."""

    intent: EffectKey
    tool: str
    id: str


class _Effect(msgspec.Struct):
    """Mark: the observation of such a call is recorded, in the same delta."""

    effect: EffectKey


_KINDS: dict[str, type[_Intent | _Effect]] = {"intent": _Intent, "effect": _Effect}


def unresolved_effects(core: CoreTree) -> dict[int, UnknownEffect]:
    """Return, by rollout, an error for the first call without recorded effect; raises TreeError."""
    begun: dict[EffectKey, _Intent] = {}
    for _, mark in read_marks(core, _KINDS, "a call with side effects"):
        if isinstance(mark, _Intent):
            begun[mark.intent] = mark
        else:
            begun.pop(mark.effect, None)
    found: dict[int, UnknownEffect] = {}
    for (rollout, _, _), mark in begun.items():
        why = (
            f"{mark.tool} had begun when its worker or its run ended (call id {mark.id}), and whether it took effect "
            "is unknown; a tool with side effects is not run again"
        )
        found.setdefault(rollout, UnknownEffect(why))
    return found


def lose(core: CoreTree, failure: Failure) -> None:
    """Close all growing rollouts as lost, those with an unresolved call as ``unknown_effect``."""
    doubtful = unresolved_effects(core)
    for rollout in core.growing:
        unresolved = doubtful.get(rollout)
        end = Termination.LOST if unresolved is None else Termination.UNKNOWN_EFFECT
        core.close(rollout, end.value, None, (failure if unresolved is None else Failure.of(unresolved)).encode())


_NONE: Mapping[EffectKey, _Intent] = MappingProxyType({})


class SideEffectLog:
    """Records begin and effect of one rollout's calls with side effects; ``before`` is an earlier unresolved one."""

    __slots__ = ("_core", "_rollout", "_sink", "before", "begun")

    def __init__(self, core: CoreTree, rollout: int, sink: TurnSink) -> None:
        self.before: UnknownEffect | None = None
        self._core = core
        self._rollout = rollout
        self._sink = sink
        self.begun: Mapping[EffectKey, _Intent] = _NONE

    @property
    def unresolved_effect(self) -> UnknownEffect | None:
        """The error for a call whose effect would be unknown if the rollout ended now."""
        if self.before is not None or not self.begun:
            return self.before
        mark = next(iter(self.begun.values()))
        return UnknownEffect(
            f"the rollout was ended while {mark.tool} ran (call id {mark.id}), and whether it took effect is unknown"
        )

    def check(self) -> None:
        """Raise the unresolved call of an earlier process, if there is one."""
        if self.before is not None:
            raise self.before

    async def begin(self, calls: Sequence[tuple[str, Call]]) -> None:
        """Record that calls are about to begin, and wait until that is in the run file."""
        begun = [_Intent((self._rollout, call.turn, call.index), name, call.id) for name, call in calls]
        self._sink.grew(sum(map(self._write, begun)))
        await self._sink.durable()
        self.begun = {**self.begun, **{mark.intent: mark for mark in begun}}

    def known(self, turn: int, indices: Iterable[int]) -> None:
        """Record effects in the step that appends the observations."""
        if not self.begun:
            return
        begun = dict(self.begun)
        for index in indices:
            place = self._rollout, turn, index
            if begun.pop(place, None) is not None:
                self._write(_Effect(place))
        self.begun = begun

    def _write(self, mark: _Intent | _Effect) -> int:
        """Write a mark and return its size."""
        text = msgspec.json.encode(mark).decode()
        self._core.mark(text)
        return len(text)
