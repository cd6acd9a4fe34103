"""``AsyncGRPOTrainer`` over turns of trees, with weights that change under the rollouts."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from frameworks import MARKS, load
from live_server import serving
from playing import agent, lengthy, tasks
from tiny import ends, policy

import trunkline as tl
from trunkline.train import trl as module

torch, datasets, packing, trainers, asynchronous = load(
    "torch",
    "datasets",
    "trl.experimental.async_grpo.packing",
    "trl.experimental.async_grpo.async_grpo_trainer",
    "trl.experimental.async_grpo",
)
pytestmark = MARKS


def varlen(
    query: Any, key: Any, value: Any, starts: Any, key_starts: Any, *_: Any, softmax_scale: float, **__: Any
) -> Any:
    """Attention of each segment to its own path, in the place of a kernel for GPUs."""
    out = torch.empty_like(query)
    repeat = query.shape[1] // key.shape[1]
    bounds = zip(starts.tolist(), starts.tolist()[1:], key_starts.tolist(), key_starts.tolist()[1:], strict=False)
    for start, end, first, last in bounds:
        one, keys, values = query[start:end], key[first:last], value[first:last]
        keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
        # The last query sees the last key.
        seen = torch.ones(end - start, last - first, dtype=torch.bool).tril(last - first - (end - start))
        found = torch.nn.functional.scaled_dot_product_attention(
            *(each.transpose(0, 1)[None] for each in (one, keys, values)), attn_mask=seen, scale=softmax_scale
        )
        out[start:end] = found[0].transpose(0, 1)
    return out


@pytest.mark.parametrize(("shared", "kind"), [("once", "inline"), ("repeat", "local")])
def test_two_steps_while_rollouts_go_on(shared: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=varlen))
    monkeypatch.setattr(trainers, "get_peak_flops_per_device", lambda *_: None)
    model, tokenizer = policy(tmp_path)
    workers = {"inline": None, "local": 2}[kind]
    with serving(model, tokenizer, ends=ends(tokenizer)) as server, tl.Pool(kind, workers=workers) as pool:
        llm = tl.LLM(server.url, tokens=tl.TokenMode(api="completions", tokenizer=str(tmp_path)), max_concurrency=64)
        worker = module.RolloutWorker(
            lambda tasks, seed: pool.stream(
                agent(), tasks, llm=llm, strategy=tl.TreeGRPO(2, 2, 1), reward=lengthy, seed=seed
            ),
            tasks(4),
            estimator="tree_grpo",
            shared=shared,
            tasks_at_once=2,
            queue_size=40,
        )
        trainer = asynchronous.AsyncGRPOTrainer(
            str(tmp_path),
            args=asynchronous.AsyncGRPOConfig(
                output_dir=str(tmp_path / "out"),
                per_device_train_batch_size=16,
                max_steps=2,
                learning_rate=1e-3,
                token_budget=0,
                report_to=[],
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=datasets.Dataset.from_dict({"prompt": ["none"]}),
            processing_class=tokenizer,
            rollout_worker=worker,
            weight_transfer=module.WeightTransfer(pool, server.load, worker),
        )
        trainer.train()
        assert worker.loop is None, "the worker has stopped"
        assert pool.weights == "step-3", "one version before the first step, and one after each"
        own = dict(model.named_parameters())
        for name, parameter in trainer.model.named_parameters():
            assert torch.equal(own[name], parameter.detach())
    first, second = (entry for entry in trainer.state.log_history if "ratio" in entry)
    print(f"\n{shared}: {first}\n{second}")
    assert math.isclose(first["ratio"], 1, abs_tol=1e-5)
    assert abs(first["kl"]) < 1e-6
    assert first["batch/packing_ratio"] > 1
    assert 0 <= first["sample/staleness_max"] <= second["sample/staleness_max"] <= 1


@pytest.mark.parametrize("shared", ["once", "repeat"])
def test_samples_fold_into_the_rows_of_their_tree(shared: Any, tmp_path: Path):
    model, tokenizer = policy(tmp_path)
    with serving(model, tokenizer, ends=ends(tokenizer)) as server, tl.Pool("inline") as pool:
        llm = tl.LLM(server.url, tokens=tl.TokenMode(api="completions", tokenizer=str(tmp_path)), max_concurrency=64)
        trees = list(pool.run(agent(), tasks(3), llm=llm, strategy=tl.TreeGRPO(2, 3, 2), reward=lengthy, seed=3))
    settings: dict[str, Any] = {"estimator": "tree_grpo", "shared": shared}
    worker = module.RolloutWorker(None, tasks(1), **settings)
    for tree in trees:
        row, raw = packing.TreeRow(), 0
        for sample in worker._samples(tree, 1, module._sample_class()):
            assert isinstance(sample.advantage, float)
            raw += len(sample.input_ids)
            fields = ("input_ids", "completion_mask", "old_log_probs", "advantage", "group_id")
            row.add({name: getattr(sample, name) for name in fields})
        packed = row.pack()
        columns = tl.train.batch([tree], **settings).tree()
        weights = [mask * weight for mask, weight in zip(columns["loss_mask"], columns["weights"], strict=True)]
        # What a turn weighs in the tree it is in the trie as often as it stands there.
        assert len(packed["token_index"]) == sum(weights)
        worth = sum(weight * value for weight, value in zip(weights, columns["advantages"], strict=True))
        assert math.isclose(packed["advantages"].sum(), worth, abs_tol=1e-4)
        # Where samples part the trie has the token before once for each.
        print(f"\n{shared}: {raw} tokens of samples, {len(row.tokens)} in the trie, {len(columns['ids'])} in the tree")
        assert len(row.tokens) < raw
