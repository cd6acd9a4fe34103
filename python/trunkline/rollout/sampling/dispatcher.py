"""Passes of the event loop in which wanted turns leave as requests, through the core's turn engine."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from trunkline._core import TurnEngine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.agent import CompiledAgent
    from trunkline.errors import RolloutError
    from trunkline.rollout.sampling.sampler import Sampler
    from trunkline.rollout.task_budget import Reservation
    from trunkline.rollout.types import KeptPrefix, Turn

    TurnFuture: TypeAlias = asyncio.Future[Turn | RolloutError]


class WantedTurn:
    """A rollout that waits for its next turn; ``key`` is the engine's while the request is not sent, else -1."""

    __slots__ = ("compiled", "kept", "key", "reservation", "rollout", "sampler", "turn")

    def __init__(
        self,
        sampler: Sampler,
        compiled: CompiledAgent,
        rollout: int,
        turn: TurnFuture,
        kept: KeptPrefix | None,
        reservation: Reservation | None,
    ) -> None:
        self.sampler = sampler
        self.compiled = compiled
        self.rollout = rollout
        self.turn = turn
        self.kept = kept
        self.reservation = reservation
        self.key = -1


class Draws(NamedTuple):
    """Consecutive draws of one state: the node, model turns on its path, the first seed, and the rollouts that wait."""

    leaf: int
    turn: int
    seed: int
    wanted: Sequence[WantedTurn]


class TurnDispatcher:
    """Gathers what all rollouts of a worker want in one pass of the event loop, and sends it."""

    def __init__(self) -> None:
        self.engine: TurnEngine[WantedTurn] = TurnEngine()
        self._agents: dict[CompiledAgent, int] = {}
        self._model = self.engine.model(True)
        self._waiting = False

    def want(self, tree: int, wanted: WantedTurn) -> None:
        """Ask for a rollout's next turn at the end of this pass."""
        agent = self._agents.get(wanted.compiled)
        if agent is None:
            agent = self._register(wanted.compiled)
        wanted.key = self.engine.ask(tree, wanted.rollout, agent, wanted, wanted.kept)
        if not self._waiting:
            self._waiting = True
            asyncio.get_running_loop().call_soon(self._send)

    def give_up(self, wanted: WantedTurn) -> None:
        """Do not ask for a turn that nothing waits for any more."""
        if wanted.key >= 0:
            self.engine.give_up(wanted.key)

    def _register(self, compiled: CompiledAgent) -> int:
        agent = self._agents[compiled] = self.engine.agent(
            self._model,
            compiled.head,
            compiled.constant,
            compiled.reading,
            compiled.agent.name,
            compiled.namespace,
            True,
        )
        return agent

    def _send(self) -> None:
        self._waiting = False
        for leaf, turn, seed, wanted in self.engine.take(self._model):
            places = []
            for place, one in enumerate(wanted):
                one.key = -1
                if not one.turn.done():  # it is cancelled, and its rollout has not been told
                    places.append(place)
            for first, count in runs(places):
                wanted[first].sampler.send(Draws(leaf, turn, seed + first, wanted[first : first + count]))


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers in ascending ones, as (first, count)."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield found[0], len(found)
