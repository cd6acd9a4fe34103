"""TRL's own trainers over trees of a live model: log-probabilities, advantages and groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frameworks import MARKS, load
from live_server import LiveServer, serving
from playing import agent, lengthy, tasks
from tiny import ends, policy

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.train import trl as module

torch, trl, datasets = load("torch", "trl", "datasets")
pytestmark = MARKS

QUESTIONS = 4
ROLLOUTS = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any, LiveServer]]:
    """A folder with a policy, its tokenizer, and a server over it."""
    folder = tmp_path_factory.mktemp("policy")
    model, tokenizer = policy(folder)
    with serving(model, tokenizer, ends=ends(tokenizer)) as server:
        yield folder, tokenizer, server


def llm(folder: Path, server: LiveServer) -> tl.LLM:
    return tl.LLM(server.url, tokens=tl.TokenMode(api="completions", tokenizer=str(folder)), max_concurrency=64)


def config(folder: Path, **changes: Any) -> Any:
    """Settings for two steps, one generation each."""
    settings = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 12,
        "num_generations": ROLLOUTS,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "beta": 0.0,
        "max_completion_length": 512,
    }
    return trl.GRPOConfig(**(settings | changes))


class Watching(module.TreeAdvantages, trl.GRPOTrainer):
    """Keeps what its loss was given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.losses: list[dict[str, Any]] = []
        super().__init__(*arguments, **options)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            found, *_ = self._get_per_token_logps_and_entropies(model, ids, mask, inputs["completion_ids"].shape[1])
        self.losses.append({**inputs, "found": found})
        return super()._compute_loss(model, inputs)


def trainer_of(kind: Any, made: tuple[Path, Any, LiveServer], generate: Any, **changes: Any) -> Any:
    folder, tokenizer, server = made
    prompts = datasets.Dataset.from_list([{"prompt": task.messages} for task in tasks(QUESTIONS)])
    settings = config(folder, **changes)
    return kind(
        server.model,
        reward_funcs=module.reward,
        args=settings,
        train_dataset=prompts,
        processing_class=tokenizer,
        rollout_func=generate,
    )


def test_two_steps_on_trees(made: tuple[Path, Any, LiveServer]):
    folder, _, server = made
    returned: list[dict[str, Any]] = []
    with tl.Pool("inline") as pool:
        generate = module.rollout_func(
            lambda tasks, seed: pool.run(
                agent(), tasks, llm=llm(folder, server), strategy=tl.TreeGRPO(2, 2, 1), reward=lengthy, seed=seed
            ),
            tasks(QUESTIONS),
            estimator="tree_grpo",
        )
        trainer = trainer_of(Watching, made, lambda *given: returned.append(generate(*given)) or returned[-1])
        before = [one.detach().clone() for one in server.model.parameters()]
        trainer.train()
    assert len(trainer.losses) == len(returned) == 2
    largest, trained, unscored = 0.0, 0, 0
    for rows, loss in zip(returned, trainer.losses, strict=True):
        mask = (loss["completion_mask"] * loss["tool_mask"]).bool()
        difference = (loss["found"] - loss["sampling_per_token_logps"])[mask].abs()
        largest, trained = max(largest, difference.max().item()), trained + int(mask.sum())
        unscored += rows["rollout_reward"].count(None)
        # Rows come to the loss shuffled and padded.
        pad = trainer.processing_class.pad_token_id
        given = zip(rows["prompt_ids"], rows["completion_ids"], rows["rollout_advantages"], strict=True)
        shape = loss["prompt_ids"].shape[1], loss["completion_ids"].shape[1]
        expected = sorted(
            (
                [pad] * (shape[0] - len(prompt)) + prompt,
                ids + [pad] * (shape[1] - len(ids)),
                advantages + [0.0] * (shape[1] - len(ids)),
            )
            for prompt, ids, advantages in given
        )
        columns = (loss[name].tolist() for name in ("prompt_ids", "completion_ids", "advantages"))
        assert sorted(zip(*columns, strict=True)) == expected
        marks = zip(rows["env_mask"], rows["rollout_advantages"], strict=True)
        assert all(mark or not value for row in marks for mark, value in zip(*row, strict=True))
        assert sum(map(sum, rows["env_mask"])) == int(mask.sum())
    print(
        f"\n{trained} trained tokens, {unscored} rollouts without a reward; log-probabilities differ by {largest:.1e}"
    )
    assert largest < 1e-5
    assert unscored, "some rollouts ended without a reward"
    assert any(not torch.equal(one, other) for one, other in zip(before, server.model.parameters(), strict=True))
    assert any("rewards/reward/mean" in entry for entry in trainer.state.log_history)


def test_advantages_of_the_preset_trl_are_those_of_the_trainer(made: tuple[Path, Any, LiveServer]):
    folder, _, server = made
    largest = 0.0

    class Comparing(module.TreeAdvantages, trl.GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            nonlocal largest
            own = trl.GRPOTrainer._generate_and_score_completions
            seen: list[Any] = []

            def noted(trainer: Any, given: Any) -> Any:
                seen.append(own(trainer, given))
                return seen[-1]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", noted)
                output = super()._generate_and_score_completions(inputs)
            mask = output["completion_mask"] * output["tool_mask"]
            difference = (output["advantages"] - seen[0]["advantages"][:, None] * mask).abs().max().item()
            largest = max(largest, difference)
            return output

    with tl.Pool("inline") as pool:
        generate = module.rollout_func(
            lambda tasks, seed: pool.run(
                agent(), tasks, llm=llm(folder, server), strategy=tl.Chain(ROLLOUTS), reward=lengthy, seed=seed
            ),
            tasks(QUESTIONS),
            estimator="trl",
        )
        trainer_of(Comparing, made, generate, max_steps=3).train()
    print(f"\ntrl {trl.__version__} | GRPOTrainer | trl | {largest:.1e}")
    assert largest < 1e-5


@pytest.mark.parametrize("changes", [{"use_liger_kernel": True}, {"loss_type": "vespo"}])
def test_losses_that_take_one_advantage_are_refused(changes: dict[str, Any]):
    trainer = object.__new__(Watching)
    vars(trainer).update({"use_liger_kernel": False, "loss_type": "dapo"} | changes)
    with pytest.raises(ConfigError, match="take one advantage a rollout"):
        trainer._generate_and_score_completions([])


def test_advantages_need_the_rollout_function(monkeypatch: pytest.MonkeyPatch):
    trainer = object.__new__(Watching)
    vars(trainer).update(use_liger_kernel=False, loss_type="dapo")
    monkeypatch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", lambda *_: {})
    with pytest.raises(ConfigError, match=r"TreeAdvantages needs GRPOTrainer\(rollout_func="):
        trainer._generate_and_score_completions([{"prompt": "what?"}])
