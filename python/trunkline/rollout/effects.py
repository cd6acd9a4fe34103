"""Tool calls with side effects: that one will begin is in the run file before it does, so none is ever run twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.errors import UnknownEffect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import Tree as Core
    from trunkline.rollout.desk import Outlet
    from trunkline.tools.call import Call

__all__ = ["Effects"]


class _Intent(msgspec.Struct):
    """A mark: a call with side effects is about to begin.

    Attributes:
        intent: Rollout, turn and index of the call.
    """

    intent: tuple[int, int, int]


_decoder: Final = msgspec.json.Decoder(_Intent)


class Effects:
    """What one rollout's calls may have done.

    Args:
        core: The tree.
        rollout: The rollout's number.
        outlet: Brings marks into the run file.

    Attributes:
        doubt: Why nobody knows what the calls under way did, should they be given up now; None while none is under way.
    """

    def __init__(self, core: Core, rollout: int, outlet: Outlet) -> None:
        self.doubt: UnknownEffect | None = None
        self._core = core
        self._rollout = rollout
        self._outlet = outlet
        self._begun: set[tuple[int, int]] = set()

    def recall(self) -> None:
        """Read which calls had begun before this process had the rollout."""
        mine = f'{{"intent":[{self._rollout},'
        intents = [_decoder.decode(mark).intent for mark in self._core.marks() if mark.startswith(mine)]
        self._begun = {(turn, index) for _, turn, index in intents}

    async def begin(self, calls: Sequence[tuple[str, Call]]) -> None:
        """Write down that calls of a turn are about to begin, and wait until that is in the run file.

        Args:
            calls: The tools' names and the calls.

        Raises:
            UnknownEffect: One of them had begun before, and no observation says what came of it.
        """
        for name, call in calls:
            if (call.turn, call.index) in self._begun:
                raise UnknownEffect(
                    f"{name} had begun when its worker or its run ended (call id {call.id}), and nobody knows whether "
                    "it took effect; a tool with side effects is not run again"
                )
        size = 0
        for _, call in calls:
            mark = msgspec.json.encode(_Intent((self._rollout, call.turn, call.index))).decode()
            self._core.mark(mark)
            size += len(mark)
        self._outlet.grew(size)
        await self._outlet.durable()
        name, call = calls[0]
        self.doubt = UnknownEffect(
            f"the rollout was ended while {name} ran (call id {call.id}), and nobody knows whether it took effect"
        )

    def ended(self) -> None:
        """The calls under way have come to their ends."""
        self.doubt = None
