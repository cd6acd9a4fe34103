"""Trees of random token ids: turns and observations, forks, rollouts that broke or have no reward."""

from __future__ import annotations

import random

from groves import said

from trunkline._core import PROMPT, TURN, TokenBuffer
from trunkline.tree.views import Tree
from trunkline.types import Task


def random_tree(id: str, dice: random.Random, rollouts: int, vocabulary: int = 1000, turns: int = 3) -> Tree:
    """Grow a tree at random: every node has ids, every turn log-probabilities.

    One rollout of eight broke, and one of eight is unscored; rewards are multiples of 1/4.
    """
    tree = Tree(Task.ask(f"what of {id}?", id=id))
    core = tree.core

    def run(most: int) -> list[int]:
        return [dice.randrange(1, vocabulary) for _ in range(dice.randint(1, most))]

    def tokens(ids: list[int]) -> TokenBuffer:
        return TokenBuffer(ids, [-dice.random() for _ in ids], [7] * len(ids))

    prompt = core.append(0, PROMPT, said("user", f"what of {id}?"), 0, TokenBuffer(run(9)))
    agent, model, stop = core.name("agent"), core.name("m"), core.name("stop")
    points = [prompt]
    for place in range(rollouts):
        point = dice.choice(points)
        depth = core.node(point).turns
        rollout = core.open(point, [depth, place], place % 2)
        for turn in range(depth, max(depth + 1, dice.randint(1, turns))):
            if core.node(core.rollout(rollout).leaf).kind == TURN:
                core.observe(rollout, said("user", f"seen {place} {turn}"), agent, 1, False, TokenBuffer(run(5)))
            own = tokens(run(6))
            text = said("assistant", f"{place} {turn}")
            points.append(core.turn(rollout, text, agent, model, stop, 10, 0, len(own), 0, 1, None, None, own))
        fate = dice.randrange(8)
        core.close(rollout, "tool_error" if fate == 0 else "answer", None if fate == 0 else f"{place}")
        if fate > 1:
            core.score(rollout, dice.randrange(5) / 4)
    core.check()
    return tree
