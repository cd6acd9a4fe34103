"""The switchboard: puts every question through to the LLM that its agent asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.llm.several import SeveralLanes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.rollout.draws import Draws

__all__ = ["Switchboard"]


class Switchboard:
    """Several LLMs where one could be: see :class:`Draws`, whose place it takes.

    Args:
        draws: Who asks each LLM, by its name; they share what is underway, and the weights.
        main: Which of them the run's agent asks.

    Attributes:
        exact: As of the one that the run's agent asks.
        weights: As of all.
        underway: As of all.
        lanes: Where rollouts say what they do, and whom they ask.
    """

    def __init__(self, draws: Mapping[str, Draws], main: str) -> None:
        self._draws = dict(draws)
        first = draws[main]
        self.exact = first.exact
        self.weights = first.weights
        self.underway = first.underway
        self.lanes = SeveralLanes({name: one.lanes for name, one in draws.items() if one.gathers})

    def of(self, llm: str) -> Draws:
        """Return who asks an LLM.

        Args:
            llm: Its name.
        """
        return self._draws[llm]
