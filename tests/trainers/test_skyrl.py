"""SkyRL 0.4: its validator, its advantage step and its trainer's tensors, on the output of our generator."""

from __future__ import annotations

import copy
import random
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import growing
import pytest
from frameworks import MARKS, load
from growing import ROLLOUTS, Sampler, printed, prompts
from random_trees import random_tree
from tiny import policy

import trunkline as tl
from trunkline.errors import ConfigError, UsageError
from trunkline.train import skyrl as ours

loguru, base, checks, ppo, configs, preprocess, trainers = load(
    "loguru",
    "skyrl.train.generators.base",
    "skyrl.train.utils.trainer_utils",
    "skyrl.backends.skyrl_train.utils.ppo_utils",
    "skyrl.train.config",
    "skyrl.train.dataset.preprocess",
    "skyrl.train.trainer",
)
torch, numpy = load("torch", "numpy")
loguru.logger.disable("skyrl")
pytestmark = MARKS


class Engine:
    """SkyRL's inference engine client over random tokens."""

    weight_version = 3

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.asked: list[dict[str, Any]] = []

    async def generate(self, input_batch: dict[str, Any], model: str) -> dict[str, Any]:
        self.asked.append(input_batch | {"model": model})
        (prompt,) = input_batch["prompt_token_ids"]
        ids, logprobs, whole = self.sampler.sample(prompt, input_batch["sampling_params"])
        stop = "stop" if whole else "length"
        return {"responses": [""], "response_ids": [ids], "response_logprobs": [logprobs], "stop_reasons": [stop]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return policy(tmp_path_factory.mktemp("model"))[1]


def configured(*, step_wise: bool = False) -> Any:
    """SkyRL's configuration."""
    config = configs.SkyRLTrainConfig()
    config.trainer.algorithm.advantage_estimator = ours.STEPS if step_wise else ours.TOKENS
    config.trainer.algorithm.use_kl_in_reward = False
    config.generator.step_wise_trajectories = step_wise
    config.generator.n_samples_per_prompt = ROLLOUTS
    config.generator.eval_n_samples_per_prompt = 2
    return config


def given(count: int, n: int, phase: str = "train") -> dict[str, Any]:
    """A ``GeneratorInput`` as SkyRL's trainer makes it."""
    asked = [messages for messages in prompts(count) for _ in range(n)]
    return {
        "prompts": asked,
        "env_classes": ["x"] * len(asked),
        "env_extras": [{"reward_spec": {"ground_truth": "x"}} for _ in asked],
        "sampling_params": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 9, "stop": None, "logprobs": 1},
        "trajectory_ids": [base.TrajectoryID(f"p{place // n}", place % n) for place in range(len(asked))],
        "batch_metadata": base.BatchMetadata(global_step=2, training_phase=phase),
    }


def generator(tokenizer: Any, config: Any, run: Any = growing.grow, **options: Any) -> tuple[ours.Generator, Engine]:
    engine = Engine(Sampler(tokenizer))
    settings = {"estimator": "tree_grpo", "censored": "mask", **options}
    return ours.Generator(config, tokenizer, engine, run, **settings), engine


def passed(output: dict[str, Any], config: Any) -> Any:
    """The advantages of an output after SkyRL's own steps."""
    tensors = preprocess.convert_prompts_responses_to_batch_tensors(
        0,
        *(output[name] for name in ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "rollout_logprobs")),
    )
    data = {"rewards": tensors[3], "response_mask": tensors[2], "values": None}
    metadata = {"uids": [one.instance_id for one in output["trajectory_ids"]], "avg_response_length": 1.0}
    metadata["is_last_step"] = output["is_last_step"]
    found = trainers.RayPPOTrainer.compute_advantages_and_returns(
        SimpleNamespace(cfg=config, all_metrics={}), Batch(data, metadata)
    )
    return found["advantages"]


class Batch(dict[str, Any]):
    """What of SkyRL's ``TrainingInputBatch`` its advantage step reads."""

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        super().__init__(data)
        self.metadata = metadata

    def to(self, device: str) -> Batch:
        return self


async def test_the_generator_grows_trees_that_pass_skyrls_validator_and_advantage_step(tokenizer: Any):
    config = configured()
    made, engine = generator(tokenizer, config)
    assert isinstance(made, base.GeneratorInterface)
    batch = given(3, ROLLOUTS)
    output = await made.generate(batch)
    checks.validate_generator_output(len(batch["prompts"]), copy.deepcopy(output))
    assert [one.to_string() for one in output["trajectory_ids"]] == [one.to_string() for one in batch["trajectory_ids"]]
    assert set(base.GeneratorOutput.__annotations__) == set(output)
    trained = 0
    for place, mask in enumerate(output["loss_masks"]):
        whole = tuple(output["prompt_token_ids"][place] + output["response_ids"][place])
        if any(mask):
            trained += 1
            assert batch["prompts"][place][0]["content"] in tokenizer.decode(whole)
            assert any(whole[: len(prompt) + len(own)] == prompt + own for prompt, own in engine.sampler.calls)
        else:
            assert (mask, output["rewards"][place]) == ([0], [0.0])
    assert trained > 3
    assert output["rollout_metrics"]["rollout/tokens_tree"] <= output["rollout_metrics"]["rollout/tokens_flat"]
    advantages = passed(output, config)
    largest = 0.0
    for row, wanted in zip(advantages.tolist(), output["rewards"], strict=True):
        assert set(row[: len(row) - len(wanted)]) <= {0.0}
        largest = max(largest, *(abs(a - b) for a, b in zip(row[len(row) - len(wanted) :], wanted, strict=True)))
    print(f"\nskyrl {version('skyrl')} | compute_advantages_and_returns | trunkline | {largest:.1e}")
    assert largest == 0.0
    asked = engine.asked[0]
    assert asked["sampling_params"]["max_tokens"] == 9
    assert asked["cache_salt"].endswith(":3") or asked["cache_salt"] == "3"
    assert len({one["session_ids"][0] for one in engine.asked}) == 3


async def test_evaluation_has_rewards_and_nan_where_there_is_none(tokenizer: Any):
    made, _ = generator(tokenizer, configured())
    batch = given(5, 2, "eval")
    output = await made.generate(batch)
    checks.validate_generator_output(len(batch["prompts"]), output)
    rewards = numpy.array(output["rewards"])
    assert numpy.isnan(rewards).any()
    assert (rewards[~numpy.isnan(rewards)] * 10 % 1).max() == pytest.approx(0, abs=1e-9)
    assert output["rollout_metrics"]["rollout/reward"] == pytest.approx(numpy.nanmean(rewards))


async def test_step_wise_a_trajectory_has_rows_side_by_side_with_one_advantage(tokenizer: Any):
    config = configured(step_wise=True)
    made, _ = generator(tokenizer, config)
    batch = given(2, ROLLOUTS)
    output = await made.generate(batch)
    checks.validate_generator_output(len(batch["prompts"]), output, step_wise=True)
    # A row a turn, as SkyRL's own generator makes them.
    trees = [random_tree(f"q{place}", random.Random(place), 5, 50) for place in range(4)]
    turns = tl.train.batch(trees, estimator="tree_grpo", shared="repeat").by_turn()
    output = ours.output(turns, step_wise=True)
    checks.validate_generator_output(len(output["response_ids"]), copy.deepcopy(output), step_wise=True)
    assert len(output["is_last_step"]) > sum(output["is_last_step"])
    advantages = passed(output, config).tolist()
    for row, rewards, mask in zip(advantages, output["rewards"], output["loss_masks"], strict=True):
        own = row[len(row) - len(mask) :]
        assert [value for value, one in zip(own, mask, strict=True) if one] == [
            pytest.approx(value) for value, one in zip(rewards, mask, strict=True) if one
        ]
    by_node = tl.train.batch(trees, estimator="spo_rloo", shared="repeat").by_turn()
    with pytest.raises(UsageError, match="has several advantages"):
        ours.output(by_node, step_wise=True)


async def test_what_cannot_be_a_batch_of_skyrl_is_said(tokenizer: Any):
    made, _ = generator(tokenizer, configured())
    half = {name: value[:2] if isinstance(value, list) else value for name, value in given(1, ROLLOUTS).items()}
    with pytest.raises(UsageError, match='the batch has 2 of the 4 samples of prompt "p0", and a tree cannot be cut'):
        await made.generate(half)

    def more(tasks: list[tl.Task], llm: Any, *, n: int, seed: int, validate: bool) -> Any:
        return growing.grow(tasks, llm, n=n + 1, seed=seed, validate=validate)

    made, _ = generator(tokenizer, configured(), more)
    with pytest.raises(UsageError, match="its tree has 5 rollouts, and SkyRL wants 4"):
        await made.generate(given(1, ROLLOUTS))
    config = configured()
    config.trainer.algorithm.advantage_estimator = "grpo"
    with pytest.raises(ConfigError, match=r"advantage_estimator is 'grpo'.*set it to trunkline"):
        generator(tokenizer, config)
    config = configured(step_wise=True)
    config.trainer.algorithm.use_kl_in_reward = True
    with pytest.raises(ConfigError, match="use_kl_in_reward would change advantages"):
        generator(tokenizer, config)
    config = configured()
    config.generator.chat_template_kwargs = {"enable_thinking": False}
    with pytest.raises(ConfigError, match="chat_template_kwargs have no effect"):
        generator(tokenizer, config)
    made, _ = generator(tokenizer, configured())
    batch = given(1, ROLLOUTS)
    batch["sampling_params"]["stop"] = ["other"]
    with pytest.raises(ConfigError, match=r"stop=\['~'\].*leave it out"):
        await made.generate(batch)


def test_the_experiment_of_the_guide_has_our_generator(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_rollouts.py").write_text(printed("def grow("))
    monkeypatch.syspath_prepend(tmp_path)
    scope: dict[str, Any] = {}
    exec(printed("class Experiment("), scope)
    for name in (ours.TOKENS, ours.STEPS):
        assert name in ppo.AdvantageEstimatorRegistry.list_available()
    engine = Engine(Sampler(tokenizer))
    made = scope["Experiment"].get_generator(None, configured(), tokenizer, engine)
    assert isinstance(made, base.GeneratorInterface)
