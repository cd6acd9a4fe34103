"""Part a: one recorded list of trees, trained flat and packed; ``python -m rl_tools.flat_and_packed`` compares both.

Both trainings read the same trees, step by step, and take the same PPO steps with Adam. Flat, each rollout is a row of
its own; packed, what rollouts share stands once. In 64 bits they agree to rounding; 32 bits are reported beside it.
The columns ``advantages`` and ``gains``, which have 32 bits, are worked out anew for this. A test holds the update of
``train.py``, which takes them as they are and splits long rows, against the flat loss in 32 bits.
"""

from __future__ import annotations

import argparse
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

import trunkline as tl
from rl_tools.policy import Policy, causal, imitate, load
from rl_tools.study import IMITATED, TREE, append, check_folder, code_version, imitations
from rl_tools.task import questions, write_tokenizer
from rl_tools.train import CLIP, QUESTIONS, Rollouts
from trunkline.train.torch import policy_loss, tree_logprobs, tree_mask, tree_rows


def record(model: Policy, tokenizer: str, *, steps: int, strategy: Any, seed: int = 0) -> list[list[tl.Tree]]:
    """Grow the trees of each step, all of them by the policy as it is."""
    with Rollouts(model, tokenizer) as rollouts:
        return [rollouts.run(questions(f"recorded {seed} {step}", QUESTIONS), strategy, step) for step in range(steps)]


def advantages(trees: Sequence[tl.Tree]) -> dict[tuple[int, int], float]:
    """Return the advantage of each rollout by tree and rollout, in 64 bits: columns of a batch have 32."""
    rollouts = [(group, rollout) for group, tree in enumerate(trees) for rollout in tree.rollouts]
    values, _ = tl.train.estimate(
        "tree_grpo",
        array("d", [rollout.reward for _, rollout in rollouts]),
        group=array("I", [group for group, _ in rollouts]),
        subgroup=array("I", [rollout.subgroup for _, rollout in rollouts]),
    )
    return {(group, rollout.id): float(value) for (group, rollout), value in zip(rollouts, values, strict=True)}


def flat_loss(model: Policy, trees: Sequence[tl.Tree]) -> tuple[torch.Tensor, int]:
    """Return the loss of rollouts one by one, a mean over their sampled tokens, and the tokens that were forwarded."""
    batch = tl.train.batch(trees, estimator="tree_grpo", shared="repeat")
    columns, values = batch.ragged(dtype="i64"), advantages(trees)
    bounds = columns["offsets"].tolist()
    spans = [slice(*pair) for pair in pairwise(bounds)]
    rows = ([torch.tensor(columns[name][one].tolist()) for one in spans] for name in ("ids", "loss_mask", "logprobs"))
    ids, own, old = (torch.nn.utils.rnn.pad_sequence(one, batch_first=True) for one in rows)
    size = ids.shape[1] - 1
    logits = model(ids[:, :-1], torch.arange(size)[None], causal(size))
    new = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    worth = torch.tensor([values[pair] for pair in zip(batch.groups, batch.rollouts, strict=True)], dtype=new.dtype)
    own, ratio = own[:, 1:].bool(), torch.exp(new - old[:, 1:].to(new.dtype))
    losses = -torch.minimum(worth[:, None] * ratio, worth[:, None] * ratio.clamp(1 - CLIP[0], 1 + CLIP[1]))
    return losses[own].sum() / own.sum(), bounds[-1]


def packed_loss(model: Policy, trees: Sequence[tl.Tree]) -> tuple[torch.Tensor, int]:
    """Return the same of packed trees."""
    batch = tl.train.batch(trees, estimator="tree_grpo", shared="repeat")
    columns, values = batch.tree(), advantages(trees)
    own = [values[pair] for pair in zip(batch.groups, batch.rollouts, strict=True)]
    exact = in_64_bits(columns, own)
    weights = torch.tensor(columns["weights"].tolist(), dtype=torch.float64)
    count = float((weights * torch.tensor(columns["loss_mask"].tolist())).sum())
    total, start = torch.zeros((), dtype=model.embed.weight.dtype), 0
    for row in tree_rows(columns):
        end = start + len(row["ids"])
        row |= {name: column[start:end].to(total.dtype) for name, column in exact.items()}
        logits = model(row["ids"][None], row["positions"][None], tree_mask(row["subtree_ends"]))[0]
        new = tree_logprobs(logits, row["ids"], row["parents"])
        total, start = total + policy_loss(new, row, clip=CLIP), end
    return total / count, len(columns["ids"])


def in_64_bits(columns: Any, values: Sequence[float]) -> dict[str, torch.Tensor]:
    """Return ``advantages`` and ``gains`` of a tree layout in 64 bits, of the values of its samples."""
    sums, gains = torch.zeros(2, len(columns["ids"]), dtype=torch.float64)
    starts, ends, parents = columns["segment_starts"], columns["segment_ends"], columns["segment_parents"]
    for row, last, value in zip(columns["rows"], columns["last_segments"], values, strict=True):
        first, base = columns["segment_offsets"][row], columns["offsets"][row]
        segment = last
        while segment >= 0:
            part = slice(base + starts[first + segment], base + ends[first + segment])
            sums[part] += value
            gains[part] += max(0.0, value)
            segment = parents[first + segment]
    weights = torch.tensor(columns["weights"].tolist(), dtype=torch.float64).clamp(min=1)
    shares = torch.tensor(columns["loss_mask"].tolist()) / weights
    return {"advantages": sums * shares, "gains": gains * shares}


class Agreement(NamedTuple):
    """The largest differences over all steps, as shares: of losses of the largest loss, of gradients and weights of
    each step's largest one; and the tokens that both forwarded."""

    loss: float
    gradient: float
    weight: float
    flat_tokens: int
    packed_tokens: int


def compare(start: Policy, recorded: Sequence[Sequence[tl.Tree]], dtype: torch.dtype, rate: float = 3e-4) -> Agreement:
    """Train two copies of a policy on recorded trees, one flat and one packed."""
    models = [Policy(len(start.blocks), start.embed.embedding_dim) for _ in range(2)]
    for model in models:
        model.load_state_dict(start.state_dict())
        model.to(dtype)
    optimizers = [torch.optim.Adam(model.parameters(), lr=rate) for model in models]
    losses: list[list[float]] = []
    gradient = weight = 0.0
    tokens = [0, 0]
    for trees in recorded:
        losses.append([])
        for side, (model, loss_of) in enumerate(zip(models, (flat_loss, packed_loss), strict=True)):
            optimizers[side].zero_grad()
            loss, count = loss_of(model, trees)
            loss.backward()
            losses[-1].append(loss.item())
            tokens[side] += count
        gradient = max(gradient, apart(*([one.grad for one in model.parameters()] for model in models)))
        for optimizer in optimizers:
            optimizer.step()
        weight = max(weight, apart(*(list(model.parameters()) for model in models)))
    largest = max(abs(one) for pair in losses for one in pair)
    return Agreement(max(abs(one - two) for one, two in losses) / (largest or 1.0), gradient, weight, *tokens)


@torch.no_grad()
def apart(ones: Sequence[Any], others: Sequence[Any]) -> float:
    """Return the largest difference of two lists of tensors as a share of the largest number."""
    differences = (float((one - other).abs().max()) for one, other in zip(ones, others, strict=True))
    return max(differences) / (max(float(one.abs().max()) for one in ones) or 1.0)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/rl_tools"), help="folder (default: runs/rl_tools)")
    parser.add_argument("--steps", type=int, default=20, help="updates (default: 20)")
    given = parser.parse_args(arguments)
    check_folder(parser, given.out)
    if given.steps < 1:
        parser.error(f"--steps must be at least 1, not {given.steps}")
    folder = imitations(given.out, IMITATED)
    if not (folder / "imitation-0.pt").exists():
        print("imitating a teacher first, which takes minutes", flush=True)
        imitate(0, folder, batches=IMITATED)
    model = load(0, folder)
    recorded = record(model, write_tokenizer(given.out / "tokenizer"), steps=given.steps, strategy=tl.TreeGRPO(*TREE))
    print("| | loss | gradients | weights | flat tokens | packed tokens | fewer |\n|---|---|---|---|---|---|---|")
    for name, dtype in (("64 bits", torch.float64), ("32 bits", torch.float32)):
        found = compare(model, recorded, dtype)
        line = {"numbers": name, "code": code_version(), "steps": given.steps, "tree": TREE}
        append(given.out / "flat_and_packed.jsonl", line | found._asdict())
        fewer = found.flat_tokens / found.packed_tokens
        print(
            f"| {name} | {found.loss:.1e} | {found.gradient:.1e} | {found.weight:.1e} | {found.flat_tokens:,} |"
            f" {found.packed_tokens:,} | {fewer:.1f} times |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
