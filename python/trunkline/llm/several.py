"""Lanes for several LLMs: who asks one of them is away for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.llm.lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.llm.lanes import Lane

__all__ = ["SeveralLane", "SeveralLanes"]


class SeveralLanes:
    """Tells every LLM that wants to know what the rollouts of one event loop do; see :class:`Lanes`.

    Args:
        lanes: Those of the LLMs that gather requests, by the names of these.
    """

    def __init__(self, lanes: Mapping[str, Lanes]) -> None:
        self._lanes = dict(lanes)
        self._all = Lanes()

    def open(self) -> SeveralLane:
        """Add a rollout; it runs."""
        return SeveralLane(self._all.open(), {name: lanes.open() for name, lanes in self._lanes.items()})

    @property
    def running(self) -> int:
        """As of :class:`Lanes`, whichever LLM they are about to ask."""
        return self._all.running

    @property
    def asking(self) -> int:
        """As of :class:`Lanes`, whichever LLM they ask."""
        return self._all.asking

    @property
    def away(self) -> int:
        """As of :class:`Lanes`."""
        return self._all.away


class SeveralLane:
    """One rollout while it grows; see :class:`Lane`.

    Args:
        lane: Its lane, whichever LLM it asks.
        lanes: Its lane at each LLM that gathers requests.
    """

    __slots__ = ("_lane", "_lanes")

    def __init__(self, lane: Lane, lanes: dict[str, Lane]) -> None:
        self._lane = lane
        self._lanes = lanes

    def run(self) -> None:
        """It goes on."""
        self._lane.run()
        for lane in self._lanes.values():
            lane.run()

    def ask(self, *llms: str) -> None:
        """It waits for replies.

        Args:
            *llms: Of which LLMs; for all others it is away.
        """
        self._lane.ask()
        for name, lane in self._lanes.items():
            if name in llms:
                lane.ask()
            else:
                lane.leave()

    def leave(self) -> None:
        """It is in a tool."""
        self._lane.leave()
        for lane in self._lanes.values():
            lane.leave()

    def end(self) -> None:
        """It will not ask again."""
        self._lane.end()
        for lane in self._lanes.values():
            lane.end()
