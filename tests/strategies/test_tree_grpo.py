"""Tree-GRPO: which states are continued, how often, and what that makes."""

from __future__ import annotations

from scripted import Say, grow, paths

from trunkline._core import draw_points, fork_points
from trunkline.rollout.strategies.tree_grpo import TreeGRPO
from trunkline.rollout.view import View


def steps(conversation: list[dict], seed: int) -> Say:
    """Three steps, each with words of its own."""
    turn = sum(message["role"] == "assistant" for message in conversation)
    return Say(f"{seed}", final=turn == 2)


async def test_every_tree_grows_by_the_forks_that_the_core_draws_from_it():
    tree, llm = await grow(TreeGRPO(trees=2, forks=2, rounds=2), steps)
    rollouts = tree.rollouts
    assert len(rollouts) == 2 * (1 + 2 * 2), "M (1 + N L)"
    assert [rollout.subgroup for rollout in rollouts] == [0, 1, 0, 0, 1, 1, 0, 0, 1, 1]
    assert paths(tree)[:2] == [(0, 0), (0, 1)]
    assert all(rollout.turns == 3 for rollout in rollouts), "turn limits are of the whole path"
    first = await grow(TreeGRPO(trees=2, forks=2, rounds=1), steps)
    core = first[0].core
    parents, kinds, leaves = core.shape()
    for number in range(2):
        points = fork_points(parents, kinds, [leaves[number]])
        assert len(points) == 3, "the prompt and two observations"
    chains, _ = await grow(TreeGRPO(trees=2, forks=1, rounds=1), steps)
    view = View(chains.tree if hasattr(chains, "tree") else chains, [0, 1], 7)
    assert view.seed(0) != view.seed(1)
    assert len(draw_points(points, 2, view.seed(1), replace=True)) == 2
    assert len(llm.asked) == sum(3 - rollout.point.turns for rollout in rollouts)


async def test_the_tree_is_the_same_every_time_and_other_for_another_seed():
    digests = [(await grow(TreeGRPO(), steps, seed=seed))[0].digest() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
