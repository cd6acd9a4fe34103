"""Rollouts for SkyRL (0.4, Python 3.12): a generator that grows whole groups, so trees, and its output.

::

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return Generator(cfg, tokenizer, inference_engine_client, grow, estimator="tree_grpo")


    def grow(tasks, llm, *, n, seed, validate):
        strategy = tl.Chain(n) if validate else tl.TreeGRPO(2, 2, 2)
        return tl.stream(agent, tasks, llm=llm, strategy=strategy, reward=tl.exact_match, seed=seed)

with ``register()`` before SkyRL validates its configuration, and in that
``trainer.algorithm.advantage_estimator=trunkline``, or ``trunkline_steps`` with
``generator.step_wise_trajectories=true``. The rewards of its training batches are then advantages of tokens, and its
metrics of rewards are sums of these; ``rollout/reward`` is the mean reward.

SkyRL is imported when something here is first used; ``pip install "trunkline[skyrl]"`` brings it.
"""

from __future__ import annotations

import math
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any

from trunkline._internal.registry import load_extra
from trunkline._internal.text import quoted
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError, UsageError
from trunkline.train.adapters.rows import SampleRow, masked_row, row_task, sampled_rows, trained_rows
from trunkline.train.adapters.token_engine import Sampled, TokenEngine, TokenizerFolder, token_llm
from trunkline.train.batch import batch
from trunkline.train.selection import Rules, select
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from trunkline.train.batch import TrainBatch
    from trunkline.tree.views import Tree

TOKENS, STEPS = "trunkline", "trunkline_steps"
"""Names of the estimators in SkyRL: of tokens, and of step-wise training."""

_LENGTH = {Termination.MAX_TOKENS, Termination.MAX_CONTEXT}


def register() -> None:
    """Register with SkyRL, in this process, the estimators ``trunkline`` and ``trunkline_steps``.

    Raises:
        ConfigError: SkyRL is not installed.
    """
    registry = _skyrl("skyrl.backends.skyrl_train.utils.ppo_utils").AdvantageEstimatorRegistry
    for name, estimator in ((TOKENS, advantages), (STEPS, step_advantages)):
        if name not in registry.list_available():
            registry.register(name, estimator)


def advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """SkyRL's estimator ``trunkline``: what stands in the rewards are the advantages of tokens, and remains.

    Args:
        token_level_rewards: Advantages (float, [B, R]).
        response_mask: 1 on tokens of the response ([B, R]).

    Returns:
        Advantages and returns, which are the same.
    """
    passed = token_level_rewards * response_mask
    return passed, passed.clone()


def step_advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """SkyRL's estimator ``trunkline_steps``: the one advantage of a trajectory, on every token of a row.

    SkyRL asks for the last row of each trajectory and gives its values to the others by position.

    Args:
        token_level_rewards: The advantage, on at least one token of each row, and 0 elsewhere (float, [B, R]).
        response_mask: 1 on tokens that want a value ([B, R]).

    Returns:
        Advantages and returns, which are the same.
    """
    places = token_level_rewards.abs().argmax(dim=-1, keepdim=True)
    passed = token_level_rewards.gather(-1, places) * response_mask
    return passed, passed.clone()


def output(
    made: TrainBatch,
    *,
    order: Sequence[tuple[int, int]] | None = None,
    trajectory_ids: Sequence[Any] | None = None,
    step_wise: bool = False,
    filler: int = 0,
) -> dict[str, Any]:
    """Make a ``GeneratorOutput`` of a batch, for SkyRL's trainer with the estimators of ``register``.

    Lists, one element a row: ``prompt_token_ids``, ``response_ids``, ``loss_masks``, ``rollout_logprobs`` and
    ``rewards`` (the advantages of tokens; the last three have one value a token of the response), ``trajectory_ids``,
    ``is_last_step`` (None unless step-wise). Other fields are None. A rollout of which nothing is trained is one token
    that is masked.

    Args:
        made: A batch; of ``TrainBatch.by_turn`` with ``step_wise`` for a row a turn.
        order: The rollouts that are wanted, in this order, each as the number of its tree and its own; those of the
            batch if left out.
        trajectory_ids: The ``TrajectoryID`` of each; of the numbers if left out.
        step_wise: Whether a rollout may be several rows, which stand side by side. SkyRL then has one advantage for
            all of them.
        filler: The token id of a row that trains nothing.

    Raises:
        ConfigError: SkyRL is not installed.
        UsageError: A rollout is several rows and ``step_wise`` is not said, or has several advantages and it is.
    """
    if order is None:
        order = list(dict.fromkeys(zip(made.groups, made.rollouts, strict=True)))
    if trajectory_ids is None:
        identify = _skyrl("skyrl.train.generators.base").TrajectoryID
        trajectory_ids = [identify(str(group), rollout) for group, rollout in order]
    rows = trained_rows(made)
    for (group, rollout), own in rows.items():
        if not step_wise and len(own) > 1:
            raise UsageError(
                f"rollout {rollout} of group {group} is {len(own)} rows, as a prompt was not what its path holds, and "
                "SkyRL takes one: keep the ids with TokenMode(drift='bridge') or api='completions', or train step-wise"
            )
        values = {value for row in own for value, mask in zip(row.advantages, row.mask, strict=True) if mask}
        if step_wise and len(values) > 1:
            raise UsageError(
                f"rollout {rollout} of group {group} has several advantages, and SkyRL's step-wise training has one "
                "for a trajectory: choose an estimator of rollouts, or do not train step-wise"
            )
    found = [(one, rows.get(key) or [masked_row(filler)]) for key, one in zip(order, trajectory_ids, strict=True)]
    return _lists(found, step_wise)


class Generator:
    """A ``GeneratorInterface`` of SkyRL that grows a tree for each prompt, with SkyRL's engines.

    In training, rewards are advantages of tokens; in evaluation, rewards, NaN where a rollout has none. A rollout that
    is not trained, or that a filter dropped, is one token that is masked.

    Args:
        cfg: SkyRL's configuration.
        tokenizer: Of transformers.
        engine: SkyRL's inference engine client.
        run: Given tasks made of rows of the dataset, an LLM, and by name ``n`` rollouts that are wanted of each task, a
            ``seed`` that differs from call to call, and whether it is to ``validate``, returns an async generator of
            trees.
        estimator: As of ``trunkline.train.batch``, like ``options``.
        max_concurrency: The most requests at once.
        options: ``on_failed``, ``censored``, ``filters``, options of the preset and so on.

    Raises:
        ConfigError: SkyRL is not installed, or has a setting that changes advantages; or an option is wrong.
    """

    def __init__(
        self,
        cfg: Any,
        tokenizer: Any,
        engine: Any,
        run: Callable[..., AsyncGenerator[Tree]],
        *,
        estimator: str,
        max_concurrency: int = 1024,
        **options: Any,
    ) -> None:
        register()
        _skyrl("skyrl.train.generators.base").GeneratorInterface.register(Generator)
        self._settings = {"estimator": estimator, "shared": "repeat", "keep_masked": True, **options}
        batch([], **self._settings)  # says what is wrong with them
        given = (options.get("filters", ()), options.get("dialect", "native"))
        self._rules = Rules(options.get("censored"), options.get("on_failed", "mask"), *given).check()
        _check(cfg)
        self._cfg = cfg
        self._tokenizer = tokenizer
        self._engine = engine
        self._run = run
        self._most = max_concurrency
        self._folder = TokenizerFolder(tokenizer)
        self._seeds = count()
        self._filler = int(tokenizer.pad_token_id)

    async def generate(self, input_batch: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Grow the groups of a batch, and return its rows in the order of its prompts.

        Raises:
            UsageError: The batch has a part of a group, ``run`` made more or fewer rollouts than are wanted or no tree
                of a task, or a rollout is several rows where SkyRL takes one.
        """
        phase = input_batch.get("batch_metadata")
        validate = phase is not None and phase.training_phase == "eval"
        wanted = list(input_batch["trajectory_ids"] or ())
        tasks, n = self._groups(input_batch, wanted, validate=validate)
        llm = token_llm(self._token_engine(input_batch.get("sampling_params") or {}), self._folder.path, self._most)
        seed = next(self._seeds)
        grown = self._run(list(tasks.values()), llm, n=n, seed=seed, validate=validate)
        async with aclosing(grown) as trees:
            found = {tree.task.id: tree async for tree in trees}
        if missing := tasks.keys() - found.keys():
            raise UsageError(f"run made no tree of task {quoted(min(missing))}")
        ordered = [found[name] for name in tasks]
        rollouts = {tree.task.id: self._rollouts(tree, n) for tree in ordered}
        places = {name: place for place, name in enumerate(tasks)}
        order = [(places[one.instance_id], rollouts[one.instance_id][one.repetition_id]) for one in wanted]
        step_wise = bool(self._cfg.generator.step_wise_trajectories)
        if validate:
            made = self._evaluated(ordered, order, wanted, step_wise=step_wise)
        else:
            trained = batch(ordered, **self._settings)
            made = output(trained, order=order, trajectory_ids=wanted, step_wise=step_wise, filler=self._filler)
        cut = {
            one.to_string()
            for one, (place, rollout) in zip(wanted, order, strict=True)
            if rollout >= 0 and ordered[place].rollouts[rollout].termination in _LENGTH
        }
        made["stop_reasons"] = ["length" if one.to_string() in cut else "stop" for one in made["trajectory_ids"]]
        return made | {"rollout_metrics": self._metrics(made, ordered)}

    def _groups(self, given: Mapping[str, Any], wanted: list[Any], *, validate: bool) -> tuple[dict[str, Any], int]:
        """The tasks of a batch by instance, and how many rollouts each is to have."""
        generator = self._cfg.generator
        n = int(generator.eval_n_samples_per_prompt if validate else generator.n_samples_per_prompt)
        if len(wanted) != len(given["prompts"]):
            raise UsageError(f"the batch has {len(given['prompts'])} prompts and {len(wanted)} trajectory_ids")
        extras = given.get("env_extras") or [{}] * len(wanted)
        tasks: dict[str, Any] = {}
        repeats: dict[str, list[int]] = {}
        for one, prompt, extra in zip(wanted, given["prompts"], extras, strict=True):
            repeats.setdefault(one.instance_id, []).append(one.repetition_id)
            if one.instance_id not in tasks:
                tasks[one.instance_id] = row_task(one.instance_id, prompt, extra.get("reward_spec"), extra)
        for name, own in repeats.items():
            if sorted(own) != list(range(n)):
                raise UsageError(
                    f"the batch has {len(own)} of the {n} samples of prompt {quoted(name)}, and a tree cannot be cut: "
                    "give whole groups to generate"
                )
        return tasks, n

    def _rollouts(self, tree: Tree, n: int) -> list[int]:
        """The rollouts of a tree for its n rows: those that were not dropped, then, to be masked, -1."""
        selected = [chosen.rollout for chosen in select(tree, self._rules)]
        made = tree.core.rollouts
        if made < n or len(selected) > n:
            raise UsageError(
                f"task {quoted(tree.task.id)}: its tree has {made if made < n else len(selected)} rollouts, and SkyRL "
                f"wants {n}: let the strategy make as many, or set generator.n_samples_per_prompt"
            )
        return selected + [-1] * (n - len(selected))

    def _evaluated(
        self, trees: list[Tree], order: Iterable[tuple[int, int]], ids: list[Any], *, step_wise: bool
    ) -> dict[str, Any]:
        """Return the rows of trees with their rewards."""
        sampled = [sampled_rows(tree) for tree in trees]
        rewards, found = [], []
        for (place, rollout), one in zip(order, ids, strict=True):
            rows = [row for row in sampled[place].get(rollout, ()) if row.response]
            rows = (rows if step_wise else rows[-1:]) or [masked_row(self._filler)]
            found.append((one, rows))
            rewards += [math.nan if rollout < 0 else trees[place].rollouts[rollout].reward] * len(rows)
        return _lists(found, step_wise) | {"rewards": rewards}

    def _token_engine(self, params: Mapping[str, Any]) -> TokenEngine:
        generator = self._cfg.generator
        name = _skyrl("skyrl.backends.skyrl_train.inference_servers.utils").resolve_policy_model_name(self._cfg)
        version = getattr(self._engine, "weight_version", None)
        salt = None
        if generator.use_cache_salt and version is not None:
            salt = _skyrl("skyrl.train.generators.utils").build_vllm_cache_salt(version, name)
        params = dict(params)
        if params.get("logprobs") is None:
            params["logprobs"] = 1

        async def sample(ids: list[int], sampling: dict[str, Any], key: int) -> Sampled:
            asked = {"prompt_token_ids": [ids], "sampling_params": sampling, "session_ids": [f"{key:08x}"]}
            answer = await self._engine.generate(asked if salt is None else asked | {"cache_salt": salt}, model=name)
            logprobs = answer["response_logprobs"]
            cut = answer["stop_reasons"][0] == "length"
            return Sampled(list(answer["response_ids"][0]), list(logprobs[0]) if logprobs else [], cut)

        return TokenEngine(sample, self._tokenizer, params)

    def _metrics(self, made: dict[str, Any], trees: list[Tree]) -> dict[str, Any]:
        utils = _skyrl("skyrl.train.generators.utils")
        metrics: dict[str, Any] = utils.get_rollout_metrics(
            made["response_ids"], made["rewards"], loss_masks=made["loss_masks"]
        )
        rewards = [rollout.reward for tree in trees for rollout in tree.rollouts if not math.isnan(rollout.reward)]
        if rewards:
            metrics["rollout/reward"] = math.fsum(rewards) / len(rewards)
        metrics["rollout/tokens_flat"] = sum(tree.tokens.flat for tree in trees)
        metrics["rollout/tokens_tree"] = sum(tree.tokens.tree for tree in trees)
        return metrics


def _check(cfg: Any) -> None:
    """Refuse settings of SkyRL that would change advantages, or that would be without effect."""
    algorithm = cfg.trainer.algorithm
    generator, name = cfg.generator, STEPS if cfg.generator.step_wise_trajectories else TOKENS
    if algorithm.advantage_estimator != name:
        raise ConfigError(
            f"trainer.algorithm.advantage_estimator is {short_repr(algorithm.advantage_estimator)}, and rewards are "
            f"advantages here: set it to {name}, and choose among ours with Generator(estimator=)"
        )
    if generator.chat_template_kwargs or generator.chat_template.name_or_path is not None:
        raise ConfigError(
            "generator.chat_template and chat_template_kwargs have no effect here: set tokenizer.chat_template before"
        )
    if algorithm.use_kl_in_reward:
        raise ConfigError("trainer.algorithm.use_kl_in_reward would change advantages: use use_kl_loss instead")


_UNSET = (
    *("stop_reasons", "rollout_metrics", "trajectory_generation_times", "trajectory_time_splits"),
    *("rollout_expert_indices", "rollout_sample_support", "env_metrics", "pixel_values", "image_grid_thw"),
)
"""Fields of a GeneratorOutput that are not filled here."""


def _lists(found: Iterable[tuple[Any, Sequence[SampleRow]]], step_wise: bool) -> dict[str, Any]:
    """Return rows by trajectory as the lists of a GeneratorOutput."""
    names = {"prompt": "prompt_token_ids", "response": "response_ids", "mask": "loss_masks"}
    names |= {"logprobs": "rollout_logprobs", "advantages": "rewards"}
    made: dict[str, Any] = {name: [] for name in (*names.values(), "trajectory_ids", "is_last_step")}
    for one, rows in found:
        for place, row in enumerate(rows):
            for name, value in row._asdict().items():
                made[names[name]].append(value)
            made["trajectory_ids"].append(one)
            made["is_last_step"].append(place == len(rows) - 1)
    if not step_wise:
        made["is_last_step"] = None
    return dict.fromkeys(_UNSET) | made


def _skyrl(module: str) -> Any:
    """Import a module of SkyRL."""
    return load_extra(module, "skyrl", "trunkline.train.skyrl")
