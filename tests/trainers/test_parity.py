"""Every preset that is named after an installable framework, beside that framework's own function on random groups."""

from __future__ import annotations

import random
from importlib.metadata import version
from typing import Any, NamedTuple

import pytest
from frameworks import MARKS, load
from tiny import random_forest

from trunkline.train import estimate
from trunkline.train.torch import policy_loss, tree_rows

numpy, torch = load("numpy", "torch")
pytestmark = MARKS

BATCHES = 300


class Case(NamedTuple):
    """A function of a framework with its arguments, and a preset with the options that make it the same."""

    function: str
    preset: str
    options: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    least: int = 1
    shift: float = 0.0


VERL = [
    Case("grpo", "verl_grpo"),
    Case("grpo", "dr_grpo", {}, {"norm_adv_by_std_in_grpo": False}),
    Case("grpo_vectorized", "verl_grpo_vectorized"),
    Case("grpo_vectorized", "dr_grpo", {}, {"norm_adv_by_std_in_grpo": False}),
    Case("rloo", "rloo"),
    Case("rloo_vectorized", "rloo_vectorized"),
    Case("grpo_passk", "pass_at_k", {}, {"config": {}}, 2),
    Case("reinforce_plus_plus_baseline", "reinforce_pp_baseline"),
    Case("reinforce_plus_plus", "reinforce_pp_baseline", {"centre": "none"}),
]

SKYRL = [
    Case("grpo", "skyrl"),
    Case("grpo", "dr_grpo", {}, {"grpo_norm_by_std": False}),
    Case("rloo", "rloo_vectorized"),
    Case("maxrl", "max_rl", {"eps": 1e-6, "singleton": "raw"}, {}, 1, 0.125),  # means are above 0
    Case("reinforce++", "reinforce_pp_baseline", {"centre": "none"}, {"gamma": 1.0}),
]


class Groups(NamedTuple):
    """A batch: of each row its group and reward, and a mask over the tokens of its response."""

    groups: list[int]
    rewards: list[float]
    masks: list[list[int]]


def random_groups(dice: random.Random, least: int, shift: float) -> Groups:
    """Draw groups of unequal sizes in any order, many with equal rewards or nearly equal ones."""
    groups = [group for group in range(dice.randint(2, 5)) for _ in range(dice.randint(least, 6))]
    dice.shuffle(groups)
    draw = dice.choice(
        [lambda: float(dice.random() < 0.5), lambda: dice.random() * 3, lambda: dice.randrange(9) / 4096]
    )
    # Where the mask ends the response does: skyrl takes a reward back over no gap.
    lengths = [dice.randint(1, 7) for _ in groups]
    return Groups(groups, [draw() + shift for _ in groups], [[1] * one + [0] * (7 - one) for one in lengths])


def theirs(function: Any, batch: Groups, arguments: dict[str, Any]) -> list[list[float]]:
    """Advantages of each row's tokens by a framework."""
    rewards, masks = torch.zeros(len(batch.groups), 7), torch.tensor(batch.masks, dtype=torch.float32)
    for row, mask in enumerate(batch.masks):
        rewards[row, sum(mask) - 1] = batch.rewards[row]
    found = function(token_level_rewards=rewards, response_mask=masks, index=numpy.array(batch.groups), **arguments)
    return found[0].tolist()


def ours(batch: Groups, case: Case) -> list[list[float]]:
    """The same by a preset."""
    tokens = [sum(mask) for mask in batch.masks]
    values, _ = estimate(case.preset, batch.rewards, group=batch.groups, tokens=tokens, **case.options)
    return [[value * mask for mask in row] for value, row in zip(values, batch.masks, strict=True)]


MOST = 2e-5
"""The largest relative difference, of frameworks that compute in 32 bits."""


def compare(name: str, case: Case, function: Any, arguments: dict[str, Any]) -> float:
    """Print a line of the table, and return the largest relative difference."""
    dice = random.Random(case.function + case.preset)
    largest = 0.0
    for _ in range(BATCHES):
        batch = random_groups(dice, case.least, case.shift)
        for one, other in zip(ours(batch, case), theirs(function, batch, arguments), strict=True):
            # The frameworks compute in 32 bits.
            largest = max(largest, *(abs(a - b) / max(1.0, abs(b)) for a, b in zip(one, other, strict=True)))
    options = "".join(f", {key}={value}" for key, value in (case.options | case.arguments).items())
    print(f"\n{name} {version(name)} | {case.function} | {case.preset}{options} | {largest:.1e}")
    return largest


@pytest.mark.parametrize("case", VERL, ids=lambda case: f"{case.function}-{case.preset}")
def test_verl(case: Case):
    core_algos, config = load("verl.trainer.ppo.core_algos", "verl.trainer.config")
    arguments = {"config": config.AlgoConfig()} | case.arguments
    assert compare("verl", case, core_algos.get_adv_estimator_fn(case.function), arguments) < MOST


@pytest.mark.parametrize("case", SKYRL, ids=lambda case: f"{case.function}-{case.preset}")
def test_skyrl(case: Case):
    loguru, utils = load("loguru", "skyrl.backends.skyrl_train.utils.ppo_utils")
    loguru.logger.disable("skyrl")
    assert compare("skyrl", case, utils.AdvantageEstimatorRegistry.get(case.function), case.arguments) < MOST


class Clipping:
    """What verl's loss reads of an actor's settings."""

    clip_ratio, clip_ratio_low, clip_ratio_high = 0.2, 0.2, 0.3
    global_batch_info: dict[str, Any] = {}

    def get(self, name: str, default: float) -> float:
        return default


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum"])
def test_the_loss_of_packed_trees_is_that_of_verl(mode: str):
    (core_algos,) = load("verl.trainer.ppo.core_algos")
    largest = 0.0
    for seed in range(40):
        dice = random.Random(seed)
        forest = random_forest(seed, trees=2, rollouts=5, vocabulary=50)
        size = len(forest.leaves)
        advantages, masked = [dice.gauss(0, 1) for _ in range(size)], bytes(dice.random() < 0.2 for _ in range(size))
        tokens = sum(map(len, forest.runs))
        change = torch.tensor([dice.gauss(0, 0.3) for _ in range(tokens)]).clamp(-1, 1)
        places = iter(range(tokens))
        numbers = [[next(places) for _ in run] for run in forest.runs]
        paths = [[one for node in forest.path(leaf) for one in numbers[node]] for leaf in forest.leaves]
        width = max(map(len, paths))
        shape = (size, width)
        old, new, worth, mask = (torch.zeros(shape) for _ in range(4))
        for rollout, path in enumerate(paths):
            kept = torch.tensor([float(sampled) for _, _, sampled in forest.tokens(rollout)])
            old[rollout, : len(path)] = torch.tensor([logprob for _, logprob, _ in forest.tokens(rollout)])
            new[rollout, : len(path)] = old[rollout, : len(path)] + change[path]
            worth[rollout, : len(path)] = advantages[rollout]
            mask[rollout, : len(path)] = kept * (not masked[rollout])
        if not mask.any():
            continue
        expected, _ = core_algos.compute_policy_loss_vanilla(old, new, worth, mask, mode, Clipping())
        columns = forest.pack(values=advantages, masked=masked, weights="count", max_tokens=200)
        total = sum(
            policy_loss(row["logprobs"] + change[row["versions"]], row, clip=(0.2, 0.3)) for row in tree_rows(columns)
        )
        trained = (mask.sum(1) > 0).sum() if mode.startswith("seq") else mask.sum()
        largest = max(largest, abs(float(total / trained - expected)))
    print(f"\nverl {version('verl')} | compute_policy_loss_vanilla, {mode} | policy_loss | {largest:.1e}")
    assert largest < 2e-5
