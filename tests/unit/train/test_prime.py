"""Samples of prime-rl, decoded with the fields of its TrainingSample, against flat rows of packing."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from groves import D6, Try, grove
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trees import message, token_trees

import trunkline as tl
from trunkline._core import PROMPT, SAMPLED, SYNTHETIC, TokenBuffer, drift, harvest, pack_ragged
from trunkline.errors import ArgumentError, ConfigError, UsageError
from trunkline.train import prime
from trunkline.tree.views import Tree


class TrainingSample(msgspec.Struct, array_like=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The fields that prime-rl decodes, in its order."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: list[float] | None = None
    mm_kwargs: dict[str, Any] | None = None
    routed_experts: list[Any] | None = None
    mm_token_type_ids: list[int] | None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    advantages: list[float] | None = None


def samples(trees: list[Tree], estimator: Any = "dr_grpo", **options: Any) -> list[TrainingSample]:
    data = prime.training_samples(trees, estimator=estimator, **options)
    return msgspec.msgpack.decode(data, type=list[TrainingSample])


def flat_sums(trees: list[Tree], estimator: str) -> dict[tuple[int, int, int], list[float]]:
    """The advantage of every rollout that trains a token, by tree, node and place of the token."""
    found: dict[tuple[int, int, int], list[float]] = {}
    advantages: dict[tuple[int, int], dict[int, float]] = {}
    for turn in tl.train.turns(trees, estimator=estimator, shared="repeat"):
        if turn.trained:
            advantages.setdefault((turn.group, turn.rollout), {})[turn.node] = turn.advantage
    for (group, rollout), values in advantages.items():
        h = harvest([trees[group].core])
        ends = [h.leaves[rollout]]
        ends += [end for end, own in zip(h.segment_leaves, h.segment_rollouts, strict=True) if own == rollout]
        for end in ends:
            node = end
            while node:
                for token in range(h.offsets[node], h.offsets[node + 1]):
                    if node in values and h.flags[token] & (SAMPLED | SYNTHETIC) == SAMPLED:
                        found.setdefault((group, node, token), []).append(values[node])
                node = h.parents[node]
    return found


def batch(trees: list[Tree], estimator: str) -> tl.train.TrainBatch:
    return tl.train.batch(trees, estimator=estimator, shared="repeat")


def flat_rows(trees: list[Tree]) -> list[tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]]:
    """Ids, log-probabilities and loss mask of every row that packing makes of these trees."""
    h = harvest([tree.core for tree in trees])
    leaves = [*h.leaves, *h.segment_leaves]
    packed = pack_ragged(h.parents, leaves, h.offsets, h.ids, h.logprobs, h.versions, h.flags)
    spans = zip(packed.offsets[:-1], packed.offsets[1:], strict=True)
    return [tuple(tuple(c[a:b]) for c in (packed.ids, packed.logprobs, packed.loss_mask)) for a, b in spans]


@given(token_trees(), token_trees(id="r"), st.sampled_from(["dr_grpo", "tree_grpo", "spo_rloo", "gigpo_mean"]))
@settings(max_examples=50)
def test_samples_are_flat_rows_that_train_each_token_once(one: Tree, other: Tree, estimator: str):
    trees = [one, other]
    found, flat, rows = samples(trees, estimator), flat_sums(trees, estimator), flat_rows(trees)
    shown = {row[:2] for row in rows}
    masks = {row[:2]: row[2] for row in rows}
    for sample in found:
        row = tuple(sample.token_ids), tuple(sample.logprobs)
        assert row in shown
        assert any(sample.mask)
        assert all(in_row >= in_sample for in_row, in_sample in zip(masks[row], sample.mask, strict=True))
        columns = (sample.mask, sample.temperatures, sample.rl_weights, sample.advantages)
        assert {len(column) for column in columns} == {len(sample.token_ids)}
        assert all(shown or (not weight and not value) for shown, _, weight, value in zip(*columns, strict=True))
    trained = [
        (weight, value)
        for sample in found
        for shown, weight, value in zip(sample.mask, sample.rl_weights, sample.advantages, strict=True)
        if shown
    ]
    assert len(trained) == len(flat)
    assert Counter(weight for weight, _ in trained) == Counter(map(len, flat.values()))
    total = math.fsum(weight * value for weight, value in trained)
    assert total == pytest.approx(math.fsum(value for values in flat.values() for value in values), abs=1e-9)
    assert total == pytest.approx(math.fsum(batch(trees, estimator).ragged()["advantages"]), abs=1e-4)


def chain_tree(*said: list[int], given: list[int] | None = (9, 9), logprob: float = -0.5, words: str = "m") -> Tree:
    """Chains of one turn below a prompt; no ids of the prompt where ``given`` is None."""
    tree = Tree(tl.Task.ask("what?", id="q"))
    core = tree.core
    prompt = core.append(0, PROMPT, message("user", "what?"))
    if given is not None:
        core.tokenise(prompt, TokenBuffer(list(given)))
    for draw, ids in enumerate(said):
        rollout = core.open(prompt, [0, draw], draw)
        tokens = TokenBuffer(ids, [logprob] * len(ids), None, [SAMPLED] * len(ids)) if ids else None
        text = message("assistant", f"{draw}")
        core.turn(rollout, text, 0, core.name(words), core.name("stop"), 2, 0, len(ids) or 5, 0, 0, None, None, tokens)
        core.close(rollout, "answer", f"{draw}")
        core.score(rollout, float(draw))
    return tree


def test_a_sample_by_hand():
    # rewards 0, 1, 1 of which two are the same turn; R - mean = -2/3, 1/3, 1/3
    tree = chain_tree([1], [2, 3], [2, 3], words='m {"temperature":0.25} tools:none')
    tree.core.score(2, 1.0)
    first, second = samples([tree], env_name="maths")
    assert (first.token_ids, first.mask) == ([9, 9, 1], [False, False, True])
    assert second == TrainingSample(
        token_ids=[9, 9, 2, 3],
        mask=[False, False, True, True],
        logprobs=[0.0, 0.0, -0.5, -0.5],
        temperatures=[1.0, 1.0, 0.25, 0.25],
        env_name="maths",
        rl_weights=[0.0, 0.0, 2.0, 2.0],
        advantages=[0.0, 0.0, pytest.approx(1 / 3), pytest.approx(1 / 3)],
    )


@pytest.mark.parametrize(("policy", "shared"), [("realign", 1.0), ("fork", 2.0), ("bridge", 2.0)])
def test_a_turn_counts_for_the_rollouts_whose_samples_hold_it(policy: str, shared: float):
    # Both rollouts say 1 and see 4. Then one says 2, and the other 3 after a prompt that lost all behind 9 9.
    tree = chain_tree()
    core = tree.core
    for draw, said in enumerate((2, 3)):
        rollout = core.open(1, [0, draw], draw)
        for ids in ([1], [said]):
            instead = None if policy == "bridge" else TokenBuffer([5])
            sent = drift(core, policy, 2, instead) if ids == [3] else None
            tokens = TokenBuffer(ids, [-0.5])
            core.turn(rollout, message("assistant", str(ids)), 0, 0, 0, 2, 0, 1, 0, 0, None, sent, tokens)
            if ids == [1]:
                core.tokenise(core.observe(rollout, message("tool", "4", tool_call_id="t"), 0, 1), TokenBuffer([4]))
        core.close(rollout, "answer", "yes")
        core.score(rollout, float(draw))
    first, second = samples([tree])
    assert first.token_ids == [9, 9, 1, 4, 2]
    assert first.rl_weights == [0.0, 0.0, shared, 0.0, 1.0]
    assert second.token_ids == ([9, 9, 1, 4, 3] if policy == "bridge" else [9, 9, 5, 3])
    assert second.rl_weights == [*[0.0] * (len(second.token_ids) - 1), 1.0]


def test_a_prompt_that_was_given_whole_needs_no_ids_on_its_path():
    tree = chain_tree([1], [2], given=None)
    core = tree.core
    for draw in (2, 3):
        rollout = core.open(1, [0, draw], draw)
        tokens, sent = TokenBuffer([draw], [-0.5]), drift(core, "fork", 0, TokenBuffer([8, 8]))
        core.turn(rollout, message("assistant", str(draw)), 0, 0, 0, 2, 0, 1, 0, 0, None, sent, tokens)
        core.close(rollout, "answer", "yes")
        core.score(rollout, float(draw))
    for rollout in (0, 1):
        tl.scoring.notes.note(core, rollout, tl.filters.Verdict("f", "mask"))
    assert [sample.token_ids for sample in samples([tree])] == [[8, 8, 2], [8, 8, 3]]


@pytest.mark.parametrize(
    "words", ["m", "m {", 'm {"temperature":"hot"} tools:none', 'm {"temperature":true} x', "m []"]
)
def test_a_temperature_that_was_not_asked_for_is_one(words: str):
    assert samples([chain_tree([1], [2], words=words)])[0].temperatures == [1.0] * 3


def test_masked_and_failed_rollouts_are_context_or_left_out():
    tree = chain_tree([1], [2], [3])
    tl.scoring.notes.note(tree.core, 2, tl.filters.Verdict("f", "mask"))
    assert [sample.token_ids[-1] for sample in samples([tree])] == [1, 2]
    assert samples([]) == []


def test_an_estimator_may_be_a_function():
    found = samples([chain_tree([1], [2], [3])], estimator=lambda group: [1.5, None, len(group)])
    assert [(sample.token_ids[-1], sample.advantages[-1]) for sample in found] == [(1, 1.5), (3, 3.0)]


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (grove(D6), r'task "q": turn 2 has no token ids, or a message before it has none: tl\.LLM'),
        (chain_tree([1], [2], given=None), "turn 2 has no token ids, or a message before it has none"),
        (chain_tree([1], []), "turn 3 has no token ids"),
        (chain_tree([1], [2], logprob=math.nan), "turn 2 is to be trained, and the log-probability of a token"),
        (grove([Try(["A"], 1.0), Try(["B"], ended="censored")]), "censored='mask'"),
    ],
)
def test_what_cannot_be_trained_is_refused(tree: Tree, text: str):
    with pytest.raises(UsageError, match=text):
        samples([tree])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"estimator": "grpo2"}, ConfigError, "estimator"),
        ({"env_name": "all"}, ConfigError, "env_name must be a name, and not 'all'.*'all'"),
        ({"env_name": ""}, ConfigError, "env_name"),
        ({"env_name": 3}, ConfigError, "env_name"),
        ({"scal": "none"}, ArgumentError, "scal"),
        ({"censored": "drop"}, ConfigError, "censored"),
        ({"on_failed": "retry"}, ConfigError, "on_failed"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        prime.training_samples([chain_tree([1], [2])], **{"estimator": "dr_grpo", **options})


def test_a_turn_asked_with_other_messages_cannot_be_trained_on_its_path():
    tree = chain_tree([1], [2])
    core = tree.core
    rollout = core.open(1, [0, 2], 2)
    asked = core.context([core.fragment(message("user", "another"))])
    tokens = TokenBuffer([4], [-0.5])
    core.turn(rollout, message("assistant", "4"), 0, 0, 0, 2, 0, 1, 0, 0, None, asked, tokens)
    core.close(rollout, "answer", json.dumps(4))
    core.score(rollout, 3.0)
    with pytest.raises(UsageError, match="turn 4 has no token ids"):
        samples([tree])
