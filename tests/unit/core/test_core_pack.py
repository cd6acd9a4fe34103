"""Packing through the bindings, against a model of a few lines; what cannot be packed is refused by name."""

from __future__ import annotations

import math
import struct
from array import array
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import SAMPLED, SYNTHETIC, Padded, Ragged, TreePacked, pack_padded, pack_ragged, pack_tree
from trunkline.errors import ArgumentError


@dataclass
class Forest:
    """Columns as they go in, and the paths they stand for."""

    parents: list[int]
    leaves: list[int]
    runs: list[list[tuple[int, float, int, int]]]

    def columns(self) -> list[Any]:
        tokens = [token for run in self.runs for token in run]
        offsets = [sum(map(len, self.runs[:node])) for node in range(len(self.runs) + 1)]
        ids, logprobs, versions, flags = ([token[i] for token in tokens] for i in range(4))
        shape = (array("I", self.parents), array("I", self.leaves), array("Q", offsets))
        return [*shape, array("I", ids), array("f", logprobs), array("i", versions), bytes(flags)]

    def path(self, node: int) -> list[int]:
        parent = self.parents[node]
        return [node] if parent == node else [*self.path(parent), node]

    def tokens(self, rollout: int) -> list[tuple[int, float, int, int]]:
        return [token for node in self.path(self.leaves[rollout]) for token in self.runs[node]]

    def bare(self) -> bool:
        """Whether a rollout is of a tree without tokens."""
        full = {self.path(node)[0] for node, run in enumerate(self.runs) if run}
        return any(self.path(leaf)[0] not in full for leaf in self.leaves)

    def prompt(self, rollout: int) -> int:
        tokens = self.tokens(rollout)
        return next((at for at, token in enumerate(tokens) if token[3] == SAMPLED), len(tokens))


TOKEN = st.tuples(
    st.integers(0, 2**32 - 1),
    st.floats(-20, 0, width=32),
    st.integers(-1, 9),
    st.sampled_from([0, SAMPLED, SYNTHETIC]),
)


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    nodes = draw(st.integers(1, 9))
    parents = [draw(st.integers(0, node)) for node in range(nodes)]
    leaves = draw(st.lists(st.integers(0, nodes - 1), max_size=6))
    return Forest(parents, leaves, [draw(st.lists(TOKEN, max_size=3)) for _ in range(nodes)])


def refused(forest: Forest) -> bool:
    """Whether the forest has a tree without token ids; each layout refuses it, and takes it where it is masked."""
    columns, bare = forest.columns(), forest.bare()
    for pack in (pack_ragged, pack_padded, pack_tree):
        if bare:
            with pytest.raises(ArgumentError, match=r"the tree of rollout \d has no token ids.* tokens=TokenMode\(\)"):
                pack(*columns)
        assert pack(*columns, masked=[1] * len(forest.leaves))
    return bare


def facts(packed: Padded | Ragged | TreePacked, number: int) -> list[tuple[int, float, int, int]]:
    tokens = packed.unpack(number)
    return list(zip(tokens.ids, tokens.logprobs, tokens.versions, tokens.flags, strict=True))


@given(forests(), st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6))
def test_every_layout_gives_its_rollouts_back_and_shows_what_is_trained(forest: Forest, values: list[float]) -> None:
    if refused(forest):
        return
    columns, values = forest.columns(), array("f", values[: len(forest.leaves)])
    ragged, padded = pack_ragged(*columns, values=values), pack_padded(*columns, values=values, pad=7)
    tree = pack_tree(*columns, values=values)
    for rollout, value in enumerate(values):
        tokens, prompt = forest.tokens(rollout), forest.prompt(rollout)
        assert facts(ragged, rollout) == facts(padded, rollout) == facts(tree, rollout) == tokens
        start, end = ragged.offsets[rollout], ragged.offsets[rollout + 1]
        mask = [int(token[3] == SAMPLED) for token in tokens]
        assert list(ragged.ids[start:end]) == [token[0] for token in tokens]
        assert list(ragged.loss_mask[start:end]) == mask
        assert list(ragged.advantages[start:end]) == [value if trained else 0 for trained in mask]
        assert list(ragged.logprobs[start:end]) == [token[1] * (token[3] == SAMPLED) for token in tokens]
        assert list(ragged.position_ids[start:end]) == list(range(len(tokens)))
        assert (ragged.prompt_lengths[rollout], ragged.lengths[rollout]) == (prompt, len(tokens))
        if padded.responses.ndim == 2:
            width = padded.responses.shape[1]
            response = [token[0] for token in tokens[prompt:]]
            assert padded.responses.tolist()[rollout] == response + [7] * (width - len(response))
            assert padded.response_mask.tolist()[rollout] == mask[prompt:] + [0] * (width - len(response))


@given(forests(), st.integers(0, 40))
def test_a_token_of_a_tree_sees_its_path_and_weighs_its_share(forest: Forest, room: int) -> None:
    if forest.bare():
        return
    longest = max((len(forest.tokens(rollout)) for rollout in range(len(forest.leaves))), default=0)
    tree = pack_tree(*forest.columns(), max_tokens=longest + room, oversize="split")
    for start, end in zip(tree.offsets, list(tree.offsets)[1:], strict=False):
        assert end - start <= longest + room
        parents, ends = list(tree.parents[start:end]), list(tree.subtree_ends[start:end])
        for token in range(end - start):
            above = [token]
            while parents[above[-1]] >= 0:
                above.append(parents[above[-1]])
            assert [other for other in range(token + 1) if token < ends[other]] == above[::-1]
            assert tree.position_ids[start + token] == len(above) - 1
    lengths: dict[int, list[int]] = {}
    for rollout, leaf in enumerate(forest.leaves):
        lengths.setdefault(forest.path(leaf)[0], []).append(len(forest.tokens(rollout)))
    assert sum(tree.weights) == pytest.approx(sum(sum(tree) / len(tree) for tree in lengths.values()), rel=1e-5)


# A prompt of two tokens, then one turn of two tokens or another of one.
PLAIN = Forest(
    [0, 0, 0],
    [1, 2, 1],
    [
        [(1, 0.0, -1, 0), (2, 0.0, -1, SYNTHETIC)],
        [(3, -0.5, 4, SAMPLED), (4, -1.5, 4, SAMPLED)],
        [(5, -2.5, 4, SAMPLED)],
    ],
)


def test_a_padded_batch_is_what_verl_reads() -> None:
    packed = pack_padded(*PLAIN.columns(), values=[1.0, 2.0, 4.0], max_prompt=3, max_response=2, pad=9)
    assert packed.prompts.tolist() == [[9, 1, 2]] * 3
    assert packed.responses.tolist() == [[3, 4], [5, 9], [3, 4]]
    assert packed.input_ids.tolist()[1] == [9, 1, 2, 5, 9]
    assert packed.attention_mask.tolist()[1] == [0, 1, 1, 1, 0]
    assert packed.position_ids.tolist() == [[0, 0, 1, 2, 3], [0, 0, 1, 2, 2], [0, 0, 1, 2, 3]]
    assert packed.flags.tolist()[1] == [0, 0, SYNTHETIC, SAMPLED, 0]
    assert packed.response_mask.tolist() == [[1, 1], [1, 0], [1, 1]]
    assert packed.logprobs.tolist() == [[-0.5, -1.5], [-2.5, 0], [-0.5, -1.5]]
    assert packed.versions.tolist() == [[4, 4], [4, -1], [4, 4]]
    assert packed.advantages.tolist() == [[1, 1], [2, 0], [4, 4]]
    assert [column.format for column in (packed.input_ids, packed.flags, packed.logprobs, packed.versions)] == list(
        "IBfi"
    )
    assert not any(column.readonly for column in (packed.input_ids, packed.prompts, packed.rows))


def test_a_tree_stands_once_with_shares_and_mean_advantages() -> None:
    packed = pack_tree(*PLAIN.columns(), values=[1.0, 2.0, 4.0])
    assert list(packed.ids) == [1, 2, 3, 4, 5]
    assert list(packed.position_ids) == [0, 1, 2, 3, 2]
    assert list(packed.parents) == [-1, 0, 1, 2, 1]
    assert list(packed.subtree_ends) == [5, 5, 4, 4, 5]
    assert list(packed.loss_mask) == [0, 0, 1, 1, 1]
    assert list(packed.weights) == pytest.approx([1, 1, 2 / 3, 2 / 3, 1 / 3])
    assert list(packed.advantages) == [0, 0, 2.5, 2.5, 2]
    assert list(pack_tree(*PLAIN.columns(), weights="count").weights) == [3, 3, 2, 2, 1]
    assert list(pack_tree(*PLAIN.columns(), weights="once").weights) == [1] * 5
    split = pack_tree(*PLAIN.columns(), max_tokens=4, oversize="split")
    assert (list(split.offsets), list(split.ids)) == ([0, 4, 7], [1, 2, 3, 4, 1, 2, 5])
    assert (list(split.segment_offsets), list(split.segment_nodes)) == ([0, 2, 4], [0, 1, 0, 2])
    assert (list(split.segment_repeated), list(split.segment_parents)) == ([0, 0, 1, 0], [-1, 0, -1, 0])
    assert (list(split.segment_starts), list(split.segment_ends)) == ([0, 2, 0, 2], [2, 4, 2, 3])
    assert (list(split.segment_subtree_ends), list(split.segment_rollouts)) == ([4, 4, 3, 3], [3, 2, 3, 1])
    assert (list(split.rows), list(split.last_segments), split.report["repeated"]) == ([0, 1, 0], [1, 1, 1], 2)


def test_what_is_merged_masked_cut_or_dropped_is_counted() -> None:
    def report(packed: Ragged) -> dict[str, int]:
        return {name: count for name, count in packed.report.items() if count}

    columns = PLAIN.columns()
    merged = pack_ragged(*columns, values=[1.0, 2.0, 4.0], merge=True)
    assert (list(merged.weights), list(merged.rollouts), list(merged.rows)) == ([2, 1], [0, 1], [0, 1, 0])
    assert (list(merged.advantages), report(merged)) == ([0, 0, 2.5, 2.5, 0, 0, 2], {"merged": 1})
    masked = pack_ragged(*columns, masked=[0, 1, 1], rollouts=[2, 0])
    assert (list(masked.loss_mask), list(masked.rows), report(masked)) == ([0] * 4 + [0, 0, 1, 1], [1, -1, 0], {})
    left = pack_ragged(*columns, masked=memoryview(bytes([0, 1, 1])).cast("?"), keep_masked=False)
    assert (list(left.lengths), list(left.rows), report(left)) == ([4], [0, -1, -1], {"left_out": 2})
    cut = pack_ragged(*columns, max_prompt=1, max_response=1, long_prompt="cut", long_response="cut")
    assert (list(cut.ids), list(cut.cut_prompts), list(cut.cut_responses)) == ([2, 3, 2, 5, 2, 3], [1] * 3, [1, 0, 1])
    assert report(cut) == {"cut_prompts": 3, "cut_responses": 2, "cut_tokens": 5}
    assert [token[0] for token in facts(cut, 0)] == [2, 3]
    dropped = pack_ragged(*columns, max_response=1, long_response="drop")
    assert (list(dropped.rollouts), report(dropped)) == ([1], {"dropped": 2})
    split = pack_ragged(*columns, splits=[1, 0, 0])
    assert (list(split.loss_mask), list(split.prompt_lengths)) == ([0] * 4 + [0, 0, 1] + [0, 0, 1, 1], [4, 2, 2])


def test_an_unknown_log_probability_is_refused_or_masked_and_comes_back() -> None:
    odd = struct.unpack("f", struct.pack("I", 0x7FC01234))[0]
    columns = PLAIN.columns()
    columns[4][2] = odd
    with pytest.raises(ArgumentError, match="log-probability of sampled token 0 of node 1 is NaN"):
        pack_tree(*columns)
    for pack in (pack_ragged, pack_padded, pack_tree):
        packed = pack(*columns, unknown="mask")
        assert packed.report["unknown"] == 1
        assert all(math.isfinite(logprob) for logprob in array("f", packed.logprobs.tobytes()))
        assert packed.unpack(0).logprobs.tobytes()[8:12] == struct.pack("I", 0x7FC01234)
    assert list(pack_ragged(*columns, unknown="mask").loss_mask) == [0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"values": [1.0]}, "1 values of rollouts where 3 are needed"),
        ({"values": [1.0, math.inf, 1.0]}, "the value of rollout 1 is inf"),
        ({"values": [0.0] * 3, "per": "token"}, "3 values of tokens where 5 are needed"),
        ({"values": array("i", [1, 2, 3])}, "values: a column holds int32; it must be float64"),
        ({"per": "leaf"}, 'per is "leaf"; it must be one of rollout, node, token'),
        ({"unknown": "drop"}, 'unknown is "drop"; it must be one of error, mask'),
        ({"rollouts": [3]}, "rollout 3 of those to export; it must be a rollout of the forest"),
        ({"rollouts": [-1]}, "rollouts: a number in a column of uint32 is out of range"),
        ({"masked": [2, 0, 0]}, "the mask of rollout 0 is 2"),
        ({"splits": [0, 1, 0]}, "the split node of rollout 1 is 1"),
    ],
)
def test_what_no_layout_can_pack_is_refused_by_name(change: dict[str, Any], text: str) -> None:
    for pack in (pack_ragged, pack_padded, pack_tree):
        with pytest.raises(ArgumentError) as caught:
            pack(*PLAIN.columns(), **change)
        assert text in str(caught.value)


def test_options_of_one_layout_are_refused_by_name() -> None:
    columns = PLAIN.columns()
    for pack, change, text in (
        (pack_ragged, {"max_response": 1}, "the response of rollout 0 has 2 tokens where 1 fit"),
        (pack_padded, {"max_prompt": 1}, "the prompt of rollout 0 has 2 tokens where 1 fit"),
        (pack_padded, {"max_prompt": -1}, "out of range"),
        (pack_padded, {"long_prompt": "keep"}, 'long_prompt is "keep"; it must be one of error, cut, drop'),
        (pack_tree, {"weights": "mean"}, 'weights is "mean"; it must be one of share, once, count'),
        (pack_tree, {"max_tokens": 4}, "the tree of root 0 has more than the 4 tokens that fit in a row"),
        (pack_tree, {"max_tokens": 3, "oversize": "split"}, "the path to node 1 has 4 tokens where 3 fit in a row"),
        (pack_tree, {"oversize": "cut"}, 'oversize is "cut"; it must be one of error, split'),
    ):
        with pytest.raises(ArgumentError) as caught:
            pack(*columns, **change)
        assert text in str(caught.value)
    for packed, number in (
        (pack_ragged(*columns), 3),
        (pack_padded(*columns), 3),
        (pack_tree(*columns, rollouts=[0]), 1),
    ):
        with pytest.raises(ArgumentError, match=f"{number}; it must be one of"):
            packed.unpack(number)


def test_nothing_packs_to_nothing() -> None:
    columns = Forest([], [], []).columns()
    assert list(pack_ragged(*columns).offsets) == [0]
    assert pack_padded(*columns).input_ids.tolist() == []
    assert list(pack_tree(*columns).offsets) == [0]
    empty, masked = Forest([0], [0, 0], [[]]).columns(), [1, 1]
    ragged, padded = pack_ragged(*empty, masked=masked), pack_padded(*empty, masked=masked)
    assert (list(ragged.offsets), padded.prompts.tolist()) == ([0, 0, 0], [])
    tree = pack_tree(*empty, masked=masked)
    assert (list(tree.rows), facts(tree, 1)) == ([-1, -1], [])


@given(forests(), st.sampled_from(["rollout", "node", "token"]), st.data())
def test_values_that_are_not_kept_train_nothing_whatever_they_are(
    forest: Forest, per: str, data: st.DataObject
) -> None:
    if forest.bare():
        return
    counts = {"rollout": len(forest.leaves), "node": len(forest.runs), "token": sum(map(len, forest.runs))}
    kept = data.draw(st.lists(st.integers(0, 1), min_size=counts[per], max_size=counts[per]))
    values = [1.0 + at if keep else math.nan for at, keep in enumerate(kept)]
    token_kept = kept
    if per == "node":
        token_kept = [keep for keep, run in zip(kept, forest.runs, strict=True) for _ in run]
    # The same by another way: what is not kept was not sampled, or is of a masked rollout.
    runs, at = [], 0
    for run in forest.runs:
        flags = [
            token[3] if per == "rollout" or token_kept[at + i] else token[3] & ~SAMPLED for i, token in enumerate(run)
        ]
        runs.append([(*token[:3], flag) for token, flag in zip(run, flags, strict=True)])
        at += len(run)
    other = Forest(forest.parents, forest.leaves, runs)
    prompts = [forest.prompt(rollout) for rollout in range(len(forest.leaves))]
    masked = [1 - keep for keep in kept] if per == "rollout" else None
    finite = [0.0 if math.isnan(value) else value for value in values]
    for pack in (pack_ragged, pack_tree):
        mine = pack(*forest.columns(), values=values, kept=kept, per=per)
        theirs = pack(*other.columns(), values=finite, per=per, masked=masked)
        assert list(mine.loss_mask) == list(theirs.loss_mask)
        assert list(mine.advantages) == list(theirs.advantages)
        if pack is pack_ragged:
            assert list(mine.prompt_lengths) == prompts
    with pytest.raises(ArgumentError, match="kept without values"):
        pack_ragged(*forest.columns(), kept=kept)


def test_marks_of_kept_values_are_0_or_1_and_one_for_each() -> None:
    with pytest.raises(ArgumentError, match="the mark of kept value 1 is 2; it must be 0 or 1"):
        pack_ragged(*PLAIN.columns(), values=[0.0] * 3, kept=[0, 2, 1])
    with pytest.raises(ArgumentError, match="marks of kept values"):
        pack_tree(*PLAIN.columns(), values=[0.0] * 3, kept=[0, 1])
