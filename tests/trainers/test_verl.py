"""verl 0.9: its loss on a batch of ours, its advantage step, its agent loop worker, its TransferQueue."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import growing
import pytest
from frameworks import MARKS, load
from growing import ROLLOUTS, Sampler, printed, prompts
from hypothesis import given, settings
from live_server import serving
from playing import agent, lengthy, tasks
from random_trees import random_tree
from tiny import ends, policy, tiny_model
from token_trees import token_trees

import trunkline as tl
from trunkline.errors import ArgumentError, ConfigError, UsageError
from trunkline.train import verl as ours
from trunkline.tree.views import Tree
from trunkline.types import UNSCORED

numpy, torch, core_algos, configs = load("numpy", "torch", "verl.trainer.ppo.core_algos", "verl.workers.config")
pytestmark = MARKS

VOCABULARY = 50


def forest(seed: int, trees: int = 3, rollouts: int = 6) -> list[Tree]:
    dice = random.Random(seed)
    return [random_tree(f"q{number}", dice, rollouts, VOCABULARY) for number in range(trees)]


def logprobs_of(model: Any, proto: Any) -> Any:
    """The log-probabilities of responses, as verl's workers compute them."""
    tensors = proto.batch
    given = {"input_ids": tensors["input_ids"], "attention_mask": tensors["attention_mask"]}
    logits = model(**given, position_ids=tensors["position_ids"]).logits
    width = tensors["responses"].shape[1]
    chosen = logits[:, -width - 1 : -1].log_softmax(-1).gather(2, tensors["responses"][:, :, None])
    return chosen[:, :, 0]


def loss_of(logprobs: Any, proto: Any) -> Any:
    """verl's own policy loss of a batch."""
    actor = configs.ActorConfig(strategy="fsdp", rollout_n=6, ppo_micro_batch_size_per_gpu=1)
    tensors = proto.batch
    found = core_algos.compute_policy_loss_vanilla(
        old_log_prob=tensors["rollout_log_probs"],
        log_prob=logprobs,
        advantages=tensors["advantages"],
        response_mask=tensors["response_mask"],
        loss_agg_mode="seq-mean-token-sum",
        config=actor,
    )
    return found[0]


def test_the_loss_of_a_batch_in_verl_is_that_of_its_rows_one_by_one():
    trees, model = forest(1), tiny_model(VOCABULARY)
    made = tl.train.batch(trees, estimator="tree_grpo", shared="repeat")
    proto = ours.data_proto(made, uids=[tree.task.id for tree in trees])
    assert [trees[group].task.id for group in made.padded()["groups"]] == list(proto.non_tensor_batch["uid"])
    assert proto.batch["response_mask"].dtype == torch.int64
    # The rollout's log-probabilities are made up here: those of the model make the ratio 1.
    proto.batch["rollout_log_probs"] = logprobs_of(model, proto).detach()
    loss = loss_of(logprobs_of(model, proto), proto)
    loss.backward()
    padded = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    total = 0.0
    columns = made.ragged(dtype="i64")
    offsets = columns["offsets"].tolist()
    names = ("ids", "loss_mask", "advantages")
    ids, mask, advantages = (torch.from_numpy(numpy.asarray(columns[name]).copy()) for name in names)
    for start, end in pairwise(offsets):
        part = slice(start + 1, end)
        logits = model(ids[None, start:end]).logits[0, :-1]
        own = logits.log_softmax(-1).gather(1, ids[part, None])[:, 0]
        row = -((own - own.detach()).exp() * advantages[part] * mask[part]).sum() / (len(offsets) - 1)
        row.backward()
        total += row.item()
    print(f"\nverl {version('verl')} | compute_policy_loss_vanilla | {abs(total - loss.item()):.1e}")
    assert loss.item() == pytest.approx(total, abs=1e-4)
    largest = max(float(value.abs().max()) for value in padded.values())
    for name, value in model.named_parameters():
        assert float((value.grad - padded[name]).abs().max()) < 1e-5 * largest, name


def step(model: Any, optimizer: Any, trees: list[Tree]) -> tuple[float, float]:
    """Take a step as verl's actor does; returns the loss, and how far log-probabilities are from the rollouts'."""
    batch = tl.train.batch(trees, estimator="tree_grpo", shared="repeat", censored="mask")
    proto = ours.data_proto(batch, max_prompt=1024, max_response=2048, long_prompt="drop", long_response="cut")
    given = {name: proto.batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    responses, mask = proto.batch["responses"], proto.batch["response_mask"]
    logits = model(**given).logits[:, -responses.shape[1] - 1 : -1]
    logprobs = logits.log_softmax(-1).gather(2, responses[..., None])[..., 0]
    loss, _ = core_algos.compute_policy_loss_vanilla(
        old_log_prob=proto.batch["rollout_log_probs"],
        log_prob=logprobs,
        advantages=proto.batch["advantages"],
        response_mask=mask,
        config=configs.ActorConfig(strategy="fsdp", rollout_n=6, ppo_micro_batch_size_per_gpu=1),
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), ((logprobs - proto.batch["rollout_log_probs"]) * mask).abs().max().item()


def test_a_step_of_verl_finds_the_log_probabilities_of_the_rollouts(tmp_path: Path):
    live, tokenizer = policy(tmp_path)
    optimizer = torch.optim.SGD(live.parameters(), lr=0.05)
    with serving(live, tokenizer, ends=ends(tokenizer)) as server:
        llm = tl.LLM(server.url, tokens=tl.TokenMode(api="completions", tokenizer=str(tmp_path)))
        for number in range(2):
            run = tl.run(agent(), tasks(4), llm=llm, strategy=tl.TreeGRPO(2, 2, 1), reward=lengthy, seed=number)
            with server.update():
                loss, difference = step(live, optimizer, list(run))
            print(f"\nverl {version('verl')} | log-probabilities of step {number} | {difference:.1e}")
            assert loss != 0
            assert difference < 1e-5


def test_a_batch_that_trains_nothing_is_no_batch_for_verl():
    made = tl.train.batch([], estimator="dr_grpo", shared="repeat")
    with pytest.raises(UsageError, match="has no rows"):
        ours.data_proto(made)


@pytest.mark.parametrize("estimator", ["tree_grpo", "spo_rloo", "gigpo_mean"])
def test_advantages_pass_verls_trainer_unchanged(estimator: str):
    ours.register()
    ours.register()
    protocol, steps, tools = load("verl.protocol", "verl.trainer.ppo.v1.utils", "verl.utils.tensordict_utils")
    rows, values = [], []
    loops = load("verl.experimental.agent_loop.agent_loop")[0]
    for number, tree in enumerate(forest(2)):
        made = tl.train.batch([tree], estimator=estimator, shared="repeat")
        for (_, rollout), own in ours.trained_rows(made).items():
            for row in own:
                output = loops.AgentLoopOutput(
                    prompt_ids=row.prompt,
                    response_ids=row.response,
                    response_mask=row.mask,
                    response_logprobs=row.logprobs,
                    metrics=loops.AgentLoopMetrics(),
                )
                rows.append(output.as_dict() | {"rm_scores": torch.tensor(row.advantages), "uid": f"{number}"})
                values.append((f"{number}_{rollout}_0", row.advantages))
    nested = tools.list_of_dict_to_tensordict(rows)
    data = nested.select("response_mask", "rm_scores", "rollout_log_probs").to_padded_tensor()
    data = protocol.DataProto(batch=data)
    data.non_tensor_batch["uid"] = numpy.array([row["uid"] for row in rows], dtype=object)
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    found = steps.compute_advantage_for_multi_trajectories(
        data, batch_keys=[key for key, _ in values], adv_estimator="trunkline", config=None
    )
    largest = 0.0
    for row, (_, wanted) in zip(found.batch["advantages"].tolist(), values, strict=True):
        assert set(row[len(wanted) :]) <= {0.0}
        largest = max(largest, *(abs(a - b) for a, b in zip(row, wanted, strict=False)))
    print(f"\nverl {version('verl')} | compute_advantage_for_multi_trajectories | {estimator} | {largest:.1e}")
    assert largest == 0.0


def test_every_process_of_verl_knows_the_estimator_and_the_agent_loop(tmp_path: Path):
    points = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]["verl.plugins"]
    installed = tmp_path / "trunkline_of_a_test-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: trunkline-of-a-test\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[verl.plugins]", *lines, ""]))
    asks = (
        "import verl.trainer.ppo.core_algos as a, verl.experimental.agent_loop.agent_loop as b;"
        "from hydra.utils import get_class;"
        "kind = get_class(b._agent_loop_registry['trunkline']['_target_']);"
        "print(a.get_adv_estimator_fn('trunkline').__module__, issubclass(kind, b.AgentLoopBase))"
    )
    package = str(Path(tl.__file__).parent.parent)
    plain = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": "auto", "PYTHONPATH": os.pathsep.join([str(tmp_path), package])}
    module = {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": points["trunkline"]}
    for env in (plain, {**plain, "PYTHONPATH": package} | module):
        said = subprocess.run([sys.executable, "-W", "ignore", "-c", asks], env=env, capture_output=True, text=True)
        assert said.stdout.split() == ["trunkline.train.verl", "True"], said.stderr


class Client:
    """verl's ``LLMServerClient`` over random tokens."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        ids, logprobs, whole = self.sampler.sample(prompt_ids, sampling_params)
        step = len(self.sampler.calls) % 3 + 5
        output = load("verl.workers.rollout.replica")[0].TokenOutput(token_ids=ids, log_probs=logprobs)
        output.stop_reason = "completed" if whole else "length"
        output.extra_fields |= {"global_steps": step, "min_global_steps": step, "max_global_steps": step + 1}
        return output


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a model, and its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    return folder, policy(folder)[1]


def composed(folder: Path, *overrides: str) -> Any:
    """verl's configuration of its command line, for the model in a folder."""
    hydra = load("hydra")[0]
    root = str(Path(load("verl")[0].__file__).parent / "trainer" / "config")
    given = [f"actor_rollout_ref.model.path={folder}", "actor_rollout_ref.rollout.name=vllm"]
    with hydra.initialize_config_dir(root, version_base=None):
        return hydra.compose("ppo_trainer", overrides=[*given, *overrides])


def configured(folder: Path, *overrides: str) -> Any:
    """The same with rollouts of these tests."""
    custom = "+actor_rollout_ref.rollout.custom.trunkline"
    own = [f"{custom}.run=growing:grow", f"{custom}.estimator=tree_grpo", f"{custom}.censored=mask"]
    given = ["algorithm.adv_estimator=trunkline", f"actor_rollout_ref.rollout.n={ROLLOUTS}"]
    given += ["algorithm.rollout_correction.bypass_mode=true", "actor_rollout_ref.rollout.val_kwargs.n=2"]
    return composed(folder, *given, *own, *overrides)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("algorithm.adv_estimator=grpo", "adv_estimator is 'grpo'.*set it to trunkline"),
        ("algorithm.use_kl_in_reward=true", "use_kl_in_reward would change advantages"),
        ("distillation.enabled=true", "asks no teacher"),
        ("data.apply_chat_template_kwargs.enable_thinking=true", "prompts are rendered without"),
        ("+actor_rollout_ref.rollout.custom.trunkline.estimator=no", "estimator"),
        ("~actor_rollout_ref.rollout.custom.trunkline.estimator", "estimator is missing: choose one of"),
        ("~actor_rollout_ref.rollout.custom.trunkline.run", "trunkline.run is None: name your function"),
        ("+actor_rollout_ref.rollout.custom.trunkline.run=growing:grew", "has no 'grew'"),
        ("+actor_rollout_ref.rollout.custom.trunkline.whiten=batch", "say whiten='none'"),
        ("+actor_rollout_ref.rollout.custom.trunkline.wrong=1", "wrong"),
    ],
)
def test_a_setting_of_verl_that_does_not_fit_is_named(model: tuple[Path, Any], override: str, problem: str):
    path, _, value = override.lstrip("+~").partition("=")
    omegaconf = load("omegaconf")[0].OmegaConf
    config = configured(model[0])
    omegaconf.set_struct(config, False)
    if override.startswith("~"):
        omegaconf.update(config, path, None)
        section = config.actor_rollout_ref.rollout.custom.trunkline
        section.pop(path.rsplit(".", 1)[1])
    else:
        omegaconf.update(config, path, {"true": True}.get(value, value))
    with pytest.raises((ConfigError, ArgumentError), match=problem):
        ours.AgentLoopManager.create(config=config, llm_client=None, reward_loop_worker_handles=[])


def test_a_colocated_reward_model_is_refused(model: tuple[Path, Any]):
    with pytest.raises(ConfigError, match="colocated reward model"):
        ours.AgentLoopManager.create(config=configured(model[0]), llm_client=None)


async def test_the_agent_loop_makes_an_output_of_a_row(model: tuple[Path, Any]):
    folder, tokenizer = model
    loops = load("verl.experimental.agent_loop.agent_loop")[0]
    hydra = load("hydra.utils")[0]
    ours.register()
    sampler, config = Sampler(tokenizer), configured(folder)
    kept = 0
    for place, messages in enumerate(prompts(6)):
        loop = hydra.instantiate(
            loops._agent_loop_registry["trunkline"],
            trainer_config=loops.DictConfigWrap(config),
            server_manager=Client(sampler),
            tokenizer=tokenizer,
            processor=None,
            hf_model_type="qwen2",
            dataset_cls=None,
            data_config=loops.DictConfigWrap(config.data),
            tools=loops.ToolListWrap([]),
        )
        assert isinstance(loop, loops.AgentLoopBase)
        before = len(sampler.calls)
        given = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
        row = {"raw_prompt": numpy.array(messages, dtype=object), "index": numpy.int64(place), "uid": f"u{place}"}
        output = await loop.run(dict(given), **row, reward_model={"ground_truth": "x"}, session_id=0)
        calls = sampler.calls[before:]
        assert given.items() <= sampler.params[-1].items()
        if output == []:
            continue
        kept += 1
        assert isinstance(output, loops.AgentLoopOutput)
        assert tuple(output.prompt_ids) == calls[0][0]
        assert tuple(output.prompt_ids + output.response_ids)[: sum(map(len, calls[-1]))] == sum(calls[-1], ())
        sampled = [one for one, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
        assert sampled == [one for _, own in calls for one in own]
        # The last observation may be one that was never answered.
        assert output.num_turns - 2 * len(calls) in (0, 1)
        steps = [call % 3 + 5 for call in range(before + 1, len(sampler.calls) + 1)]
        extra = output.extra_fields
        assert (extra["min_global_steps"], extra["max_global_steps"]) == (min(steps), max(steps) + 1)
        assert output.reward_score is None or 0 <= output.reward_score <= 1
        fields = output.as_dict()
        assert ("rm_scores" in fields) == (output.reward_score is not None)
    assert kept > 2


@settings(max_examples=40, deadline=None)
@given(token_trees())
def test_a_rollout_whose_prompt_forked_is_a_row_for_each_stretch(tree: Tree):
    manager = object.__new__(ours.AgentLoopManager)
    manager._settings = ours._Section(growing.grow, {"estimator": "dr_grpo", "shared": "repeat"})
    manager._rollout, manager._tokenizer = SimpleNamespace(response_length=512), SimpleNamespace(pad_token_id=0)
    row = {"uid": "u", "global_steps": 3}
    fields = manager._fields(tree, ours._Steps(1, 2), row, validate=False)
    rows = ours.trained_rows(tl.train.batch([tree], estimator="dr_grpo", shared="repeat"))
    wanted = {f"u_{rollout}_{place}": one for (_, rollout), own in rows.items() for place, one in enumerate(own)}
    assert fields.keys() == wanted.keys()
    for key, one in wanted.items():
        names = ("prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores")
        assert [fields[key][name].tolist() for name in names] == list(map(list, one))
        assert fields[key]["extra_fields"]["reward_extra_info"]["rollout_reward"] == tree.rollouts[int(key[2])].reward
    # Validation has what was sampled of rollouts with a reward, trained or not.
    scores = manager._fields(tree, ours._Steps(1, 2), row, validate=True)
    assert {int(key[2]) for key in scores} == {one.id for one in tree.rollouts if one.reward == one.reward}
    for key, field in scores.items():
        assert field["rm_scores"][-1].item() == tree.rollouts[int(key[2])].reward
    outputs = list(ours._outputs(tree, ours._Steps(1, 2)))
    broke = tree.rollouts[0].termination in UNSCORED
    assert not (broke and outputs)


async def test_the_agent_loop_takes_one_rollout(model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch):
    folder, tokenizer = model
    config, grow = configured(folder), growing.grow

    def several(tasks: list[tl.Task], llm: Any, *, n: int, seed: int, validate: bool) -> Any:
        return grow(tasks, llm, n=n + 1, seed=seed, validate=validate)

    monkeypatch.setattr(growing, "grow", several)
    loops = load("verl.experimental.agent_loop.agent_loop")[0]
    loop = ours.AgentLoop(loops.DictConfigWrap(config), Client(Sampler(tokenizer)), tokenizer)
    with pytest.raises(UsageError, match="run made 2 rollouts, and verl asks its agent loop for one"):
        await loop.run({}, raw_prompt=prompts(1)[0])
    with pytest.raises(ConfigError, match="return_raw_chat"):
        await loop.run({})


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    """The real TransferQueue, with one storage unit, on a local Ray."""
    ray, tq, omegaconf = load("ray", "transfer_queue", "omegaconf")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        tq.init(omegaconf.OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        yield tq
        tq.close()
    finally:
        ray.shutdown()


def submitted(queue: Any, manager: Any, partition: str, count: int = 3, **told: Any) -> dict[str, str]:
    """Give the manager prompts as verl's trainer does; the question of each by uid."""
    asked, batch = registered(queue, partition, count, **told)
    assert manager.generate_sequences(batch) is None
    return asked


def registered(queue: Any, partition: str, count: int, **told: Any) -> tuple[dict[str, str], Any]:
    """Make prompts as verl's trainer does: the question of each by uid, and a TensorDict."""
    tensors = load("verl.utils.tensordict_utils")[0]
    uids = [str(uuid.uuid4()) for _ in range(count)]
    asked = prompts(count)
    columns = {
        "raw_prompt": asked,
        "uid": uids,
        "data_source": ["questions"] * count,
        "reward_model": [{"ground_truth": "x"}] * count,
        "index": torch.arange(count),
    }
    batch = tensors.get_tensordict(columns)
    tensors.assign_non_tensor_data(batch, "global_steps", 4)
    for name, value in told.items():
        tensors.assign_non_tensor_data(batch, name, value)
    tags = [{"is_prompt": True, "status": "pending", "global_steps": 4} for _ in uids]
    queue.kv_batch_put(keys=uids, partition_id=partition, tags=tags)
    return {uid: messages[0]["content"] for uid, messages in zip(uids, asked, strict=True)}, batch


def sampled(config: Any, partition: str, count: int) -> Any:
    """What verl's trainer takes from the queue."""
    replay = load("verl.trainer.ppo.v1.replay_buffer")[0]
    buffer = replay.ReplayBuffer("sync", config.trainer, None, "drop", {}, poll_interval=0.2)
    return buffer.sample(global_steps=4, partition_id=partition, batch_size=count)[0]


async def test_verls_own_worker_runs_the_agent_loop(model: tuple[Path, Any], queue: Any):
    folder, tokenizer = model
    config = configured(folder, "actor_rollout_ref.rollout.agent.default_agent_loop=trunkline")
    ours.register()
    worker_class = load("verl.trainer.ppo.v1.agent_loop_tq")[0].AgentLoopWorkerTQ.__ray_metadata__.modified_class
    sampler = Sampler(tokenizer)
    worker = worker_class(config, Client(sampler))
    asked, batch = registered(queue, "train", 3)
    await worker.generate_sequences(batch)
    while worker.background_tasks:
        await asyncio.wait(worker.background_tasks)
    taken = await asyncio.to_thread(sampled, config, "train", len(asked))
    assert 0 < len(taken.keys) <= ROLLOUTS * len(asked)
    data = queue.kv_batch_get(taken.keys, "train", ["input_ids", "response_mask", "uid"])
    for whole, uid in zip(data["input_ids"], data["uid"].tolist(), strict=True):
        ids = tuple(whole.tolist())
        assert asked[uid] in tokenizer.decode(ids)
        assert any(ids[: len(prompt) + len(own)] == prompt + own for prompt, own in sampler.calls)
    queue.kv_clear(keys=taken.keys, partition_id="train")


def test_the_manager_writes_groups_that_verls_trainer_takes_advantages_from(model: tuple[Path, Any], queue: Any):
    folder, tokenizer = model
    config = configured(folder)
    sampler = Sampler(tokenizer)
    manager = ours.AgentLoopManager.create(
        config=config, llm_client=Client(sampler), teacher_client=None, reward_loop_worker_handles=[]
    )
    asked = submitted(queue, manager, "train")
    batch = sampled(config, "train", len(asked))
    names = ["prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs", "input_ids", "position_ids"]
    data = queue.kv_batch_get(batch.keys, "train", [*names, "uid", "raw_prompt", "extra_fields", "loss_mask"])
    ends = set()
    for place, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        row = {name: data[name][place].tolist() for name in (*names, "loss_mask")}
        uid = key.split("_")[0]
        assert tag["seq_len"] == len(row["input_ids"]) == tag["prompt_len"] + tag["response_len"]
        assert row["input_ids"] == row["prompts"] + row["responses"]
        assert row["position_ids"] == list(range(tag["seq_len"]))
        assert row["loss_mask"] == row["response_mask"]
        assert asked[uid] in tokenizer.decode(row["prompts"])
        assert 5 <= tag["min_global_steps"] <= tag["max_global_steps"] <= 8
        last = max(place for place, mask in enumerate(row["response_mask"]) if mask)
        ends.add(tuple(row["prompts"] + row["responses"][: last + 1]))
        whole = tuple(row["input_ids"])
        assert any(whole[: len(prompt) + len(own)] == prompt + own for prompt, own in sampler.calls), whole
    assert ends <= {prompt + own for prompt, own in sampler.calls}
    # verl's own steps, on a trainer that is nothing but its configuration.
    trainer = load("verl.trainer.ppo.v1.trainer_base")[0].PPOTrainer
    alone = SimpleNamespace(config=config)
    batch = trainer._compute_old_log_prob(alone, batch, {})
    batch = trainer._compute_advantage(alone, batch, {})
    data = queue.kv_batch_get(batch.keys, "train", ["advantages", "rm_scores", "old_log_probs", "rollout_log_probs"])
    for ours_, theirs in (("rm_scores", "advantages"), ("rollout_log_probs", "old_log_probs")):
        assert [one.tolist() for one in data[ours_]] == [one.tolist() for one in data[theirs]]
    assert any(any(one.tolist()) for one in data["advantages"])
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_the_rollouts_of_the_guide_are_made_as_its_command_says(
    model: tuple[Path, Any], queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "my_rollouts.py").write_text(printed("def grow("))
    monkeypatch.syspath_prepend(tmp_path)
    command = printed("python -m verl.trainer.main_ppo ").replace("\\\n", " ").split()[3:]
    config = composed(model[0], *command)
    sampler = Sampler(model[1])
    manager = ours.AgentLoopManager.create(config, Client(sampler), None, [])
    asked = submitted(queue, manager, "train")
    # Nothing random is right: no advantage differs from 0, and each rollout is a row all the same.
    batch = sampled(config, "train", len(asked))
    assert len(batch.keys) == 6 * len(asked)
    data = queue.kv_batch_get(batch.keys, "train", ["rm_scores", "response_mask"])
    assert not any(any(one.tolist()) for one in data["rm_scores"])
    assert all(any(one.tolist()) for one in data["response_mask"])
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_validation_has_a_row_for_each_reward(model: tuple[Path, Any], queue: Any):
    folder, tokenizer = model
    config, sampler = configured(folder), Sampler(tokenizer)
    manager = ours.AgentLoopManager.create(config, Client(sampler), None, [])
    asked = submitted(queue, manager, "val", count=6, validate=True)
    batch = sampled(config, "val", len(asked))
    fields = ["uid", "rm_scores", "num_turns", "reward_model", "data_source", "extra_fields", "responses"]
    data = queue.kv_batch_get(batch.keys, "val", fields)
    for uid, scores, turns in zip(data["uid"].tolist(), data["rm_scores"], data["num_turns"].tolist(), strict=True):
        assert uid in asked
        assert turns >= 2
        assert set(scores.tolist()[:-1]) <= {0.0}
        assert scores[-1] * 10 == pytest.approx(round(float(scores[-1]) * 10), abs=1e-5)
    # Some of two rollouts a prompt are unscored.
    assert 0 < len(batch.keys) <= 12
    assert sampler.params[0]["temperature"] == config.actor_rollout_ref.rollout.val_kwargs.temperature
    queue.kv_clear(keys=batch.keys, partition_id="val")


def test_groups_fail_whose_rollouts_cannot_be_made_and_the_trainer_is_told(model: tuple[Path, Any], queue: Any):
    folder, tokenizer = model
    config = configured(folder, "actor_rollout_ref.rollout.custom.trunkline.run=growing:broken")
    manager = ours.AgentLoopManager.create(config, Client(Sampler(tokenizer)), None, [])
    asked = submitted(queue, manager, "train")
    with pytest.raises(RuntimeError, match="no materializable trajectories"):
        sampled(config, "train", len(asked))
    with pytest.raises(UsageError, match="have ended: there is no agent for 3 tasks"):
        submitted(queue, manager, "train")
