"""Tree-GRPO: which states are continued, how often, what that makes, and what of it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from scripted import Say, grow, paths

from trunkline._core import tree_leaves, tree_steps
from trunkline.errors import ConfigError, LLMError
from trunkline.scoring.notes import read
from trunkline.strategies import tree_grpo
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tree.views import Tree
from trunkline.types import Termination


def steps(conversation: list[dict], seed: int) -> Say:
    """Three steps, each with words of its own."""
    turn = sum(message["role"] == "assistant" for message in conversation)
    return Say(f"{seed}", final=turn == 2)


def never(conversation: list[dict], seed: int) -> Say:
    """Steps without an end."""
    return Say(f"{seed}")


class Picks:
    """Picks by their place among the points of a tree, instead of a draw; remembers what it was asked."""

    def __init__(self, *places: Sequence[int]) -> None:
        self.places = list(places)
        self.asked: list[tuple[int, int, bool]] = []

    def __call__(self, points: Sequence[int], k: int, seed: int, *, replace: bool) -> list[int]:
        self.asked.append((len(points), k, replace))
        return [points[place] for place in self.places.pop(0)]


def dropped(tree: Tree) -> list[int]:
    return [rollout.id for rollout in tree.rollouts if any(word.action == "drop" for word in read(rollout.note))]


async def test_each_pick_is_continued_to_the_end_in_its_own_subgroup(monkeypatch: pytest.MonkeyPatch):
    # Points of a chain of 3 turns, from the root down: 0 the prompt, 1 and 2 the observations of turns 1 and 2.
    picks = Picks([1, 1], [0, 2])
    monkeypatch.setattr(tree_grpo, "draw_points", picks)
    tree, llm = await grow(TreeGRPO(trees=2, forks=2, rounds=1), steps)
    assert picks.asked == [(3, 2, True), (3, 2, True)]
    assert paths(tree) == [
        (0, 0),
        (0, 1),
        (0, 0, 1, 1),  # the state after turn 1 of the first chain, drawn twice: two siblings
        (0, 0, 1, 2),
        (0, 2),  # the prompt: a fresh chain, in the subgroup of the second tree
        (0, 1, 2, 1),  # the state after turn 2 of the second chain
    ]
    assert [rollout.subgroup for rollout in tree.rollouts] == [0, 1, 0, 0, 1, 1]
    assert [rollout.turns for rollout in tree.rollouts] == [3] * 6
    # 3 + 3 of the chains, then 2 + 2 and 3 + 1.
    assert len(llm.asked) == 14


async def test_later_rounds_draw_from_all_of_a_tree(monkeypatch: pytest.MonkeyPatch):
    picks = Picks([1], [3])
    monkeypatch.setattr(tree_grpo, "draw_points", picks)
    tree, _ = await grow(TreeGRPO(trees=1, forks=1, rounds=2), steps)
    # The first continuation, from the state after turn 1, adds the state after its own turn 2: 3 points, then 4.
    assert picks.asked == [(3, 1, True), (4, 1, True)]
    assert paths(tree) == [(0, 0), (0, 0, 1, 1), (0, 0, 1, 1, 2, 1)]


async def test_turn_limits_are_of_the_whole_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tree_grpo, "draw_points", Picks([0, 1, 2, 3]))
    tree, llm = await grow(TreeGRPO(trees=1, forks=4, rounds=1), never, max_turns=4)
    assert [rollout.turns for rollout in tree.rollouts] == [4] * 5
    assert {rollout.termination for rollout in tree.rollouts} == {Termination.MAX_TURNS}
    assert len(llm.asked) == 4 + (4 + 3 + 2 + 1)


@pytest.mark.parametrize(("trees", "forks", "rounds"), [(2, 2, 1), (4, 2, 1), (1, 3, 2), (3, 1, 3)])
async def test_it_makes_as_many_leaves_as_it_says(trees: int, forks: int, rounds: int):
    strategy = TreeGRPO(trees=trees, forks=forks, rounds=rounds)
    tree, _ = await grow(strategy, steps)
    assert len(tree.rollouts) == strategy.rollouts() == trees * (1 + forks * rounds)
    assert strategy.rollouts() == tree_leaves(trees, forks, rounds)
    sizes = Counter(rollout.subgroup for rollout in tree.rollouts)
    assert sizes == dict.fromkeys(range(trees), 1 + forks * rounds)


async def test_picks_are_uniform_so_that_a_continuation_costs_half_a_step_more_than_half_a_chain():
    runs = 200
    made, depths = 0, Counter()
    for seed in range(runs):
        tree, llm = await grow(TreeGRPO(trees=2, forks=2, rounds=1), steps, seed=seed)
        made += len(llm.asked)
        depths.update(rollout.point.turns for rollout in tree.rollouts[2:])
    expected, flat = tree_steps(2, 2, 3)
    assert (expected, flat) == (14.0, 18.0), "2 (3 + 2 x 2), and 6 x 3"
    # A continuation takes 1, 2 or 3 steps, each as likely: variance 2/3, of four 8/3; 4 standard errors of the mean.
    assert abs(made / runs - expected) < 4 * (8 / 3 / runs) ** 0.5
    # 800 picks, a third each: standard deviation 13.3.
    assert all(abs(depths[turns] - 800 / 3) < 4 * 13.4 for turns in (0, 1, 2)), depths


async def test_the_tree_is_the_same_every_time_and_other_for_another_seed():
    digests = [(await grow(TreeGRPO(keep=2), steps, seed=seed))[0].digest() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


async def test_what_is_not_kept_of_a_tree_stays_in_it_and_is_noted_as_dropped():
    tree, _ = await grow(TreeGRPO(trees=2, forks=2, rounds=2, keep=3), steps)
    assert len(tree.rollouts) == 10
    gone = dropped(tree)
    assert Counter(tree.rollouts[number].subgroup for number in gone) == {0: 2, 1: 2}, "5 leaves each, 3 kept"
    (verdict,) = read(tree.rollouts[gone[0]].note)
    assert (verdict.filter, verdict.action) == ("TreeGRPO", "drop")
    assert verdict.reason == f"not among the 3 of 5 rollouts kept of tree {tree.rollouts[gone[0]].subgroup}"
    assert all(rollout.termination is Termination.ANSWER for rollout in tree.rollouts)


async def test_every_leaf_is_kept_as_often_as_any_other():
    times = Counter()
    for seed in range(300):
        tree, _ = await grow(TreeGRPO(trees=1, forks=2, rounds=1, keep=1), steps, seed=seed)
        (kept,) = {0, 1, 2}.difference(dropped(tree))
        times[kept] += 1
    # 300 draws, a third each: standard deviation 8.2.
    assert all(abs(times[number] - 100) < 4 * 8.2 for number in range(3)), times


async def test_all_are_kept_where_none_are_to_be_dropped():
    for strategy in (TreeGRPO(), TreeGRPO(keep=3)):
        tree, _ = await grow(strategy, steps)
        assert dropped(tree) == []


class Breaking:
    """The three steps, where the calls of these numbers fail."""

    def __init__(self, *calls: int) -> None:
        self.calls = calls
        self.made = 0

    def __call__(self, conversation: list[dict], seed: int) -> Say:
        self.made += 1
        if self.made - 1 in self.calls:
            raise LLMError("no reply")
        return steps(conversation, seed)


async def test_a_rollout_that_broke_takes_no_place_among_those_kept():
    # Calls 0 to 2 are the chain; its three continuations ask first as calls 3, 4 and 5. Two of them break.
    tree, _ = await grow(TreeGRPO(trees=1, forks=3, rounds=1, keep=2), Breaking(3, 4))
    broken = [rollout.id for rollout in tree.rollouts if rollout.termination is Termination.LLM_ERROR]
    assert len(broken) == 2
    assert dropped(tree) == [], "two of four are sound, and two are kept"


async def test_a_chain_that_broke_in_its_first_turn_is_not_continued_and_the_other_trees_are():
    tree, _ = await grow(TreeGRPO(trees=2, forks=2, rounds=2, keep=1), Breaking(0))
    assert Counter(rollout.subgroup for rollout in tree.rollouts) == {0: 1, 1: 5}
    assert len(dropped(tree)) == 4


async def test_trees_pick_apart_from_each_other():
    def script(conversation: list[dict], seed: int) -> Say:
        return Say(str(seed), final=len(conversation) > 7)

    different = 0
    for seed in range(12):
        tree, _ = await grow(TreeGRPO(trees=2, forks=1), script, seed=seed)
        first, second = (rollout.point.turns for rollout in tree.rollouts[2:])
        different += first != second
    assert different >= 2, "of 12 pairs of picks among four states, each equal by chance in one of four"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trees": 0}, "trees must be a whole number from 1 to 1048576, not 0"),
        ({"forks": 1.5}, "forks must be a whole number from 1 to 1048576, not 1.5"),
        ({"rounds": True}, "rounds must be a whole number"),
        ({"keep": 0}, "keep must be a whole number of at least 1, not 0"),
        ({"keep": 4}, r"keep must be at most what a tree gets, 1 \+ N L = 1 \+ 2 x 1 = 3, not 4"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        TreeGRPO(**options)


def test_the_formula_says_how_many_and_how_many_are_kept():
    assert TreeGRPO().formula() == "M (1 + N L) = 2 (1 + 2 x 1) = 6"
    assert TreeGRPO(keep=3).formula().endswith("= 6, of which M K = 2 x 3 = 6 are kept")
