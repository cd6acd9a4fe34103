"""Rows of samples for adapters, beside the batch and the tree that they are made of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_trees import token_trees

import trunkline as tl
from trunkline._core import SAMPLED, SYNTHETIC, TURN, last_ids
from trunkline.errors import ConfigError, UsageError
from trunkline.train import skyrl, verl
from trunkline.train.adapters.rows import sampled_rows, trained_rows
from trunkline.tree.views import Tree

FORESTS = st.integers(1, 3).flatmap(lambda count: st.tuples(*(token_trees(id=f"q{one}") for one in range(count))))


def taken(trees: tuple[Tree, ...], estimator: str = "dr_grpo") -> tl.train.TrainBatch:
    return tl.train.batch(trees, estimator=estimator, shared="repeat", keep_masked=True)


@given(FORESTS, st.sampled_from(["dr_grpo", "spo_rloo"]))
def test_trained_rows_are_the_rows_of_the_batch_that_train(trees: tuple[Tree, ...], estimator: str):
    made = taken(trees, estimator)
    columns = made.ragged()
    names = ("ids", "loss_mask", "logprobs", "advantages")
    ids, mask, logprobs, advantages = (list(columns[name]) for name in names)
    wanted: dict[tuple[int, int], list[Any]] = {}
    for row, start in enumerate(columns["offsets"][:-1] if columns["lengths"].nbytes else []):
        response, end = start + columns["prompt_lengths"][row], start + columns["lengths"][row]
        if any(mask[start:end]):
            key = columns["groups"][row], columns["rollouts"][row]
            part = slice(response, end)
            found = [ids[start:response], ids[part], mask[part], logprobs[part], advantages[part]]
            wanted.setdefault(key, []).append(found)
    assert {key: list(map(list, rows)) for key, rows in trained_rows(made).items()} == wanted


@given(token_trees())
def test_sampled_rows_hold_every_turn_of_a_rollout_whatever_its_reward(tree: Tree):
    core = tree.core
    for rollout, rows in sampled_rows(tree).items():
        whole = [row.prompt + row.response for row in rows]
        turns = [node for node in core.path(core.rollout(rollout).leaf) if core.node(node).kind == TURN]
        if turns:
            # What the last turn was asked with, and what it said, ends up in the last row.
            last = list(last_ids(core, turns[-1]))
            assert whole[-1][: len(last)] == last
        sampled = 0
        for node in turns:
            flags = bytes(core.tokens_of(node).flags)
            sampled += sum(flag & (SAMPLED | SYNTHETIC) == SAMPLED for flag in flags)
        # A realigned turn cuts what was sampled before; nothing is there twice.
        assert sum(sum(row.mask) for row in rows) <= sampled
        assert all(len(set(map(len, row[1:]))) == 1 for row in rows)


@given(FORESTS, st.booleans())
def test_the_output_for_skyrl_has_a_row_for_each_rollout_or_says_why_not(trees: tuple[Tree, ...], step_wise: bool):
    made = taken(trees)
    order = list(dict.fromkeys(zip(made.groups, made.rollouts, strict=True)))
    ids = [f"{group} {rollout}" for group, rollout in order]
    rows = trained_rows(made)
    options: dict[str, Any] = {"order": order, "trajectory_ids": ids, "step_wise": step_wise, "filler": 99}
    if not step_wise and any(len(own) > 1 for own in rows.values()):
        with pytest.raises(UsageError, match="SkyRL takes one"):
            skyrl.output(made, **options)
        return
    output = skyrl.output(made, **options)
    wanted = [(one, own) for one, key in zip(ids, order, strict=True) for own in rows.get(key) or [None]]
    assert output["trajectory_ids"] == [one for one, _ in wanted]
    for place, (_, row) in enumerate(wanted):
        names = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs", "rewards")
        found = [output[name][place] for name in names]
        assert found == ([[99], [99], [0], [0.0], [0.0]] if row is None else list(map(list, row)))
    if step_wise:
        following = [*output["trajectory_ids"], None][1:]
        ends = [one != after for one, after in zip(output["trajectory_ids"], following, strict=True)]
        assert output["is_last_step"] == ends
    else:
        assert output["is_last_step"] is None


def test_a_framework_that_is_missing_is_named_with_what_brings_it():
    with pytest.raises(
        ConfigError, match=r"verl needs an extra \(.*no_such_framework.*: pip install 'trunkline\[verl\]'"
    ):
        verl._verl("no_such_framework.part")
