"""Batches of trees whose prompts were re-tokenised: a row holds what the engine was given and what it sampled."""

from __future__ import annotations

from collections import Counter

import pytest
from exact_runs import grow, serving

import trunkline as tl
from trunkline.llm.token_ids.base import TokenMode
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tree.views import Tree
from trunkline.types import Task, Termination


def trained_turns(columns: tl.train.PackedColumns) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What stands before the trained tokens of each row, and these."""
    ids, mask = columns["ids"], columns["loss_mask"]
    found = []
    for start, end in zip(columns["offsets"], list(columns["offsets"])[1:], strict=False):
        first = next(at for at in range(start, end) if mask[at])
        assert all(mask[first:end]), "a turn is one stretch"
        found.append((tuple(ids[start:first]), tuple(ids[first:end])))
    return found


def scored(trees: list[Tree]) -> None:
    for tree in trees:
        for rollout in tree.rollouts:
            if rollout.termination is Termination.ANSWER:
                tree.core.score(rollout.id, float(rollout.id % 2))


@pytest.mark.parametrize("policy", ["bridge", "realign", "fork"])
async def test_a_turn_is_trained_after_the_prompt_that_it_was_sampled_for(policy: str, tasks: list[Task]):
    mode = TokenMode(api="chat" if policy == "bridge" else "completions", drift=policy)
    async with serving(mode, noncanonical=0.2) as (llm, noting):
        trees = await grow(mode, llm, tasks, strategy=TreeGRPO(2, 2, 1))
    scored(trees)
    batch = tl.train.batch(trees, estimator="tree_grpo", shared="once", keep_masked=True, censored="mask")
    turns = trained_turns(tl.train.batch(trees, estimator="tree_grpo", shared="once").by_turn().ragged())
    sampled = Counter(noting.sampled())
    masks = [list(batch.ragged()["loss_mask"]), list(batch.tree()["loss_mask"])]
    batch.by_turn()
    assert masks == [list(batch.ragged()["loss_mask"]), list(batch.tree()["loss_mask"])], "a view changes no batch"
    if policy == "bridge":
        # The server renders prompts itself and does not say their ids where they are bridged.
        assert {own for _, own in turns} <= {own for _, own in sampled}
    else:
        assert set(turns) <= set(sampled)
    assert len(turns) == len(set(turns)) > 0
    # Every turn is trained, also one that a realigned prompt left out of its rollout's row.
    trained = [one for one in tl.train.turns(trees, estimator="tree_grpo", shared="once") if one.trained]
    assert Counter(own for _, own in turns) == Counter(
        tuple(trees[one.group].node(one.node).token_ids) for one in trained
    )
    assert (batch.report["forks"] > 0) == (policy == "fork")
    # In rows of rollouts the same tokens are trained. A realigned turn repeats what is left of one that was cut.
    count = sum(batch.ragged()["loss_mask"])
    if policy != "realign":
        assert count == sum(len(own) for _, own in turns)
    assert sum(batch.tree()["loss_mask"]) == count > 0
