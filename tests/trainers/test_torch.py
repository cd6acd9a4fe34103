"""Packed trees in torch: masks, log-probabilities, losses and gradients against flat rows."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any

import pytest
from frameworks import MARKS, load
from hypothesis import given
from hypothesis import strategies as st
from tiny import Forest, random_forest, tiny_model

import trunkline as tl
from trunkline.errors import ConfigError, UsageError
from trunkline.train import torch as module

torch, qwen2, flex = load("torch", "transformers.models.qwen2.modeling_qwen2", "torch.nn.attention.flex_attention")
from rl_tools.flat_and_packed import in_64_bits  # noqa: E402

pytestmark = MARKS


FORESTS = st.builds(
    random_forest,
    seed=st.integers(0, 2**32),
    trees=st.integers(1, 3),
    rollouts=st.integers(1, 5),
    vocabulary=st.just(40),
)


def naive_mask(row: dict[str, Any]) -> list[list[bool]]:
    """Who sees whom, by following parents."""
    size = len(row["parents"])
    seen = [[False] * size for _ in range(size)]
    for token in range(size):
        at = token
        while at >= 0:
            seen[token][at] = True
            at = int(row["parents"][at])
    return seen


@given(FORESTS, st.sampled_from([None, 64]))
def test_masks_show_each_token_its_path_alone(forest: Forest, most: int | None):
    columns = forest.pack(max_tokens=None if most is None else 200)
    for row in module.tree_rows(columns):
        expected = torch.tensor(naive_mask(row))
        assert torch.equal(module.tree_mask(row["subtree_ends"])[0, 0], expected)
        added = module.tree_mask(row["subtree_ends"], torch.float32)[0, 0]
        assert torch.equal(added == 0, expected)
        assert added[~expected].eq(torch.finfo(torch.float32).min).all()
        blocks = module.tree_block_mask(row["subtree_ends"])
        size = len(expected)
        dense = flex.create_mask(blocks.mask_mod, 1, 1, size, size, device="cpu")
        assert torch.equal(dense[0, 0], expected)
        block = blocks.BLOCK_SIZE[0]
        for query in range(0, size, block):
            for key in range(0, size, block):
                some = bool(expected[query : query + block, key : key + block].any())
                assert bool(blocks.to_dense()[0, 0, query // block, key // block]) == some


@given(FORESTS, st.integers(0, 2**32))
def test_log_probabilities_follow_the_path(forest: Forest, seed: int):
    (row, *_) = module.tree_rows(forest.pack())
    logits = torch.randn(len(row["ids"]), 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = module.tree_logprobs(logits, row["ids"], row["parents"])
    for token, parent in enumerate(row["parents"].tolist()):
        expected = logits[parent].log_softmax(-1)[row["ids"][token]] if parent >= 0 else torch.tensor(0.0)
        assert math.isclose(found[token], expected, abs_tol=1e-12)


def flat_loss(
    forest: Forest, advantages: list[float], masked: list[int], logprobs: list[Any], clip: tuple | None
) -> tuple[Any, float]:
    """Sum the loss of every trained token of every rollout by itself, and count them."""
    total, count = torch.tensor(0.0, dtype=torch.float64), 0
    for rollout, advantage in enumerate(advantages):
        for place, (_, old, sampled) in enumerate(forest.tokens(rollout)):
            if not sampled or masked[rollout]:
                continue
            # The column is of 32 bits.
            ratio = torch.exp(logprobs[rollout][place] - torch.tensor(old, dtype=torch.float32))
            worth = advantage * ratio
            if clip is not None:
                worth = torch.minimum(worth, advantage * ratio.clamp(1 - clip[0], 1 + clip[1]))
            total, count = total - worth, count + 1
    return total, count


@given(
    FORESTS,
    st.lists(st.tuples(st.floats(-2, 2, width=32), st.booleans()), min_size=15, max_size=15),
    st.integers(0, 2**32),
    st.sampled_from([None, (0.2, 0.2), (0.1, 0.4)]),
)
def test_the_loss_is_that_of_flat_rows(forest: Forest, rollouts: list[Any], seed: int, clip: tuple | None):
    size = len(forest.leaves)
    advantages = [advantage for advantage, _ in rollouts[:size]]
    masked = [int(mask) for _, mask in rollouts[:size]]
    columns = forest.pack(values=advantages, masked=bytes(masked), weights="count")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(sum(map(len, forest.runs)), generator=generator, dtype=torch.float64)
    new = torch.tensor([old for run in forest.runs for _, old, _ in run]) + 0.5 * drawn
    nodes = new.split([len(run) for run in forest.runs])
    paths = [torch.cat([nodes[node] for node in forest.path(leaf)]) for leaf in forest.leaves]
    expected, count = flat_loss(forest, advantages, masked, paths, clip)
    found, weighed = torch.tensor(0.0, dtype=torch.float64), 0.0
    for row in module.tree_rows(columns):
        found += module.policy_loss(new[row["versions"]], row, clip=clip)
        weighed += float((row["weights"] * row["loss_mask"]).sum())
    assert math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-5)
    assert weighed == count, "the weights of trained tokens are as many as flat rows train"


CLIP = (0.2, 0.2)


def drift(ids: Any, dtype: Any) -> Any:
    """How far log-probabilities have moved since the rollouts."""
    return 0.3 * torch.sin(ids.to(dtype))


def flat_gradients(model: Any, forest: Forest, advantages: list[float]) -> tuple[float, list[Any]]:
    """The loss of rollouts one by one, and its gradients."""
    total = torch.tensor(0.0, dtype=model.dtype, device=model.device)
    for rollout, advantage in enumerate(advantages):
        columns = zip(*forest.tokens(rollout), strict=True)
        ids, _, sampled = (torch.tensor(column, device=model.device) for column in columns)
        new = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        ratio = torch.exp(new - new.detach() + drift(ids[1:], model.dtype))
        worth = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - CLIP[0], 1 + CLIP[1]))
        total = total - (worth * sampled[1:]).sum()
    total.backward()
    return total.item(), gradients(model)


def packed_gradients(model: Any, columns: tl.train.PackedColumns, exact: dict[str, Any]) -> tuple[float, list[Any]]:
    """The same of packed trees; ``exact`` are columns in the place of those of 32 bits."""
    flexible = model.config._attn_implementation == "flex_attention"
    total, start = 0.0, 0
    for row in module.tree_rows(columns, model.device):
        end = start + len(row["ids"])
        row |= {name: column[start:end] for name, column in exact.items()}
        ends = row["subtree_ends"]
        mask = module.tree_block_mask(ends) if flexible else module.tree_mask(ends, model.dtype)
        logits = model(row["ids"][None], position_ids=row["positions"][None], attention_mask=mask).logits[0]
        new = module.tree_logprobs(logits, row["ids"], row["parents"])
        loss = module.policy_loss(new, row, clip=CLIP, old_logprobs=new - drift(row["ids"], model.dtype))
        loss.backward()
        total, start = total + loss.item(), end
    return total, gradients(model)


def gradients(model: Any) -> list[Any]:
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return found


def largest(tensors: Iterable[Any]) -> float:
    return max(one.abs().max().item() for one in tensors)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="flex attention trains on a GPU alone")


@pytest.mark.parametrize(
    ("attention", "device", "most"),
    [
        ("eager", "cpu", None),
        ("eager", "cpu", 512),
        ("sdpa", "cpu", None),
        ("sdpa", "cpu", 512),
        pytest.param("sdpa", "cuda", 512, marks=GPU),
        # A row of less than 128 tokens, torch 2.11 does not compile for these heads.
        pytest.param("flex_attention", "cuda", 512, marks=GPU),
    ],
)
def test_gradients_of_packed_trees_are_those_of_flat_rows(attention: str, device: str, most: int | None):
    forest = random_forest(3, trees=3, rollouts=6, vocabulary=300, turns=4)
    model = tiny_model(300, attention).to(device)
    assert 80_000 < sum(one.numel() for one in model.parameters()) < 110_000
    advantages = torch.randn(len(forest.leaves), generator=torch.Generator().manual_seed(1)).tolist()
    flat = model if attention != "flex_attention" else tiny_model(300).to(device)
    loss, expected = flat_gradients(flat, forest, advantages)
    columns = forest.pack(values=advantages, weights="count", max_tokens=most)
    packed, found = packed_gradients(model, columns, {})
    scale = largest(expected)
    difference = largest(one - other for one, other in zip(found, expected, strict=True))
    tokens = sum(len(forest.tokens(rollout)) for rollout in range(len(advantages)))
    packed_tokens = len(columns["ids"])
    print(f"\n{attention} on {device}: {tokens} flat, {packed_tokens} packed; {difference:.1e} of {scale:.3g}")
    assert math.isclose(packed, loss, rel_tol=1e-5)
    assert difference < 1e-5 * scale


def test_in_64_bits_they_differ_by_rounding_alone(monkeypatch: pytest.MonkeyPatch):
    def norm(layer: Any, states: Any) -> Any:
        return layer.weight * states * torch.rsqrt(states.square().mean(-1, keepdim=True) + layer.variance_epsilon)

    # That of transformers computes in 32 bits.
    monkeypatch.setattr(qwen2.Qwen2RMSNorm, "forward", norm)
    forest = random_forest(3, trees=3, rollouts=6, vocabulary=300, turns=4)
    model = tiny_model(300).double()
    advantages = torch.randn(len(forest.leaves), generator=torch.Generator().manual_seed(1)).tolist()
    loss, expected = flat_gradients(model, forest, advantages)
    columns = forest.pack(values=advantages, weights="count")
    exact = in_64_bits(columns, advantages)
    assert torch.allclose(exact["gains"].float(), torch.tensor(columns["gains"].tolist()), atol=1e-6)
    packed, found = packed_gradients(model, columns, exact)
    difference = largest(one - other for one, other in zip(found, expected, strict=True)) / largest(expected)
    print(f"\n64 bits: {difference:.1e} of the largest gradient, {abs(packed / loss - 1):.1e} of the loss")
    assert difference < 1e-13
    assert math.isclose(packed, loss, rel_tol=1e-13)


def test_columns_become_tensors_of_types_that_torch_computes_with():
    columns = {
        "ids": memoryview(array("I", [1, 2**32 - 1])),
        "loss_mask": memoryview(bytes([0, 1])),
        "flags": memoryview(bytes([0, 3])),
        "offsets": array("Q", [0, 2]),
        "logprobs": memoryview(array("f", [0.5, 1.0, 2.0, 4.0])).cast("B").cast("f", (2, 2)),
        "advantages": array("d"),
    }
    found = module.tensors(columns, "cpu")
    assert {name: (one.dtype, list(one.shape)) for name, one in found.items()} == {
        "ids": (torch.int64, [2]),
        "loss_mask": (torch.bool, [2]),
        "flags": (torch.int64, [2]),
        "offsets": (torch.int64, [2]),
        "logprobs": (torch.float32, [2, 2]),
        "advantages": (torch.float64, [0]),
    }
    assert found["ids"].tolist() == [1, 2**32 - 1]
    assert found["logprobs"].tolist() == [[0.5, 1.0], [2.0, 4.0]]
    found["ids"][0] = 5
    assert columns["ids"][0] == 1, "tensors are copies"


def test_what_does_not_fit_is_refused_by_name():
    with pytest.raises(UsageError, match="column 'ids' is list, not a buffer of numbers"):
        module.tensors({"ids": [1]})
    with pytest.raises(UsageError, match="no 'subtree_ends'"):
        next(module.tree_rows({"ids": array("I")}))
    with pytest.raises(UsageError, match="needs a float dtype"):
        module.tree_mask(torch.tensor([1]), torch.int64)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(UsageError, match=r"logits \[1, 2, 3\], ids \[1\] and parents \[1\]"):
        module.tree_logprobs(torch.zeros(1, 2, 3), one, one)
    row = {"loss_mask": torch.ones(1), "weights": torch.ones(1), "advantages": torch.ones(1), "logprobs": one}
    with pytest.raises(UsageError, match=r"logprobs are \[2\], and the row is \[1\]"):
        module.policy_loss(torch.zeros(2), row)
    for clip in (0.2, (0.1, 0.2, 0.3), [0.1, 0.2]):
        with pytest.raises(ConfigError, match="expected a pair such as"):
            module.policy_loss(torch.zeros(1), row, clip=clip)
    with pytest.raises(ConfigError, match="clip: low must be a number from 0 to 1, not 2"):
        module.policy_loss(torch.zeros(1), row, clip=(2, 0.2))
