"""A strategy that forks a chain in the middle, and a script that tells the two apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from scripted import Say

from trunkline._core import OBSERVATION, base_seed
from trunkline.strategies.base import Fork, View
from trunkline.tree.views import Tree


class Late:
    """Chains, and one round of forks after so many turns of the first."""

    def __init__(self, *turns: int, chains: int = 1, n: int = 1, say: str = "") -> None:
        self.turns, self.chains, self.n, self.say = turns, chains, n, say
        self.seen: list[list[int]] = []

    def rollouts(self) -> int:
        return self.chains + self.n * len(self.turns)

    def start(self, view: View) -> Iterable[Fork]:
        yield Fork(n=self.chains)

    def ended(self, view: View) -> Iterable[Fork]:
        self.seen.append([rollout.id for rollout in view.rollouts])
        if len(self.seen) == 1:
            seen = [node.id for node in view.tree.rollouts[0].nodes if node.kind == OBSERVATION]
            for turns in self.turns:
                yield Fork(seen[turns - 1] if turns else None, n=self.n, say=self.say)


def words(conversation: list[dict], seed: int, own: Sequence[str] = "abc") -> Say:
    """The first chain writes its own words and answers; who forks from it writes x and answers."""
    turn = sum(message["role"] == "assistant" for message in conversation)
    chain = seed == (base_seed(7, "q", (0, 0), turn) if turn else base_seed(7, "q", (), 0))
    if chain:
        return Say(own[turn]) if turn < len(own) else Say("yes", final=True)
    return Say("yes", final=True) if '\\"x\\"' in json.dumps(conversation[-2:]) else Say("x")


def written(tree: Tree, rollout: int) -> list[str]:
    """What a rollout's tools said, all along its path."""
    return [node.text for node in tree.rollouts[rollout].nodes if node.kind == OBSERVATION]
