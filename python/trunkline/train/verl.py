r"""Rollouts for verl (0.9): whole groups, so trees, for its trainer; single rows; batches for actor updates.

A function of yours makes the rollouts; verl's configuration names it, and the estimator whose advantages train::

    # my_rollouts.py
    def grow(tasks, llm, *, n, seed, validate):
        strategy = tl.Chain(n) if validate else tl.TreeGRPO(2, 2, 2)
        return tl.stream(agent, tasks, llm=llm, strategy=strategy, reward=tl.exact_match, seed=seed)

    python -m verl.trainer.main_ppo algorithm.adv_estimator=trunkline \
        +actor_rollout_ref.rollout.agent.agent_loop_manager_class=trunkline.train.verl.AgentLoopManager \
        +actor_rollout_ref.rollout.custom.trunkline.run=my_rollouts:grow \
        +actor_rollout_ref.rollout.custom.trunkline.estimator=tree_grpo

``run`` is given tasks made of rows of the dataset and an LLM that samples with verl's servers, and by name ``n``, how
many rollouts verl wants of each task, a ``seed`` that differs from call to call, and whether it is to ``validate``; it
returns an async generator of trees. The section takes the options of ``trunkline.train.batch`` as well.

verl is imported when something here is first used; ``pip install "trunkline[verl]"`` brings it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import uuid
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from trunkline._internal.registry import load_extra, load_named
from trunkline._internal.text import format_error
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError, LLMError, TrunklineError, UsageError
from trunkline.train.adapters.rows import SampleRow, known, masked_row, row_task, sampled_rows, trained_rows
from trunkline.train.adapters.token_engine import Sampled, TokenEngine, TokenizerFolder, token_llm
from trunkline.train.advantages import check_one_group
from trunkline.train.batch import batch
from trunkline.train.columns import presets
from trunkline.train.selection import Rules, select
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence

    from trunkline.llm.batch.batcher import BatchLLM
    from trunkline.train.batch import TrainBatch
    from trunkline.tree.views import Tree
    from trunkline.types import Task

logger = logging.getLogger(__name__)

NAME = "trunkline"
"""The name of the estimator and of the agent loop in verl, and of the section of its configuration."""


def register() -> None:
    """Register with verl, in this process, the estimator and the agent loop ``trunkline``. More often does no harm.

    verl's processes do it by themselves through the entry point of this package, or with
    ``VERL_USE_EXTERNAL_MODULES=trunkline.train.adapters.verl_plugin``.

    Raises:
        ConfigError: verl is not installed.
    """
    _verl("verl.trainer.ppo.core_algos").register_adv_est(NAME)(advantages)
    loops = _verl("verl.experimental.agent_loop.agent_loop")
    loops.register(NAME)(AgentLoop)
    loops.AgentLoopBase.register(AgentLoop)


def advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """The estimator ``trunkline`` of verl: what stands in the rewards are the advantages of tokens, and remains.

    Args:
        token_level_rewards: Advantages (float, [B, R]).
        response_mask: 1 on tokens that are trained ([B, R]).

    Returns:
        Advantages and returns, which are the same.
    """
    passed = token_level_rewards * response_mask
    return passed, passed.clone()


def data_proto(made: TrainBatch, *, uids: Sequence[str] | None = None, **options: Any) -> Any:
    """Make a ``verl.DataProto`` of a batch, as verl's workers and losses take it.

    Tensors, as of ``TrainBatch.padded``: ``prompts`` [B, P]; ``responses``, ``response_mask`` [B, R];
    ``input_ids``, ``attention_mask``, ``position_ids`` [B, P + R] (i64); ``rollout_log_probs``, ``advantages`` and
    ``rm_scores`` [B, R] (f32). ``rm_scores`` are the advantages, for the estimator ``trunkline``. Not tensors: ``uid``,
    which rows of one tree share, and ``__num_turns__`` (i32), the stretches of trained tokens of a row.

    Args:
        made: A batch.
        uids: The ``uid`` of each tree of the batch; its number if left out.
        options: Of ``TrainBatch.padded``, without ``merge`` and ``dtype``.

    Raises:
        ConfigError: verl is not installed.
        UsageError: The batch has nothing to train.
        ArgumentError: A row is longer than a limit, or a log-probability of a trained token is not known.
    """
    proto = _verl("verl.protocol").DataProto
    import numpy as np  # noqa: PLC0415 - verl brings it
    import torch  # noqa: PLC0415

    columns = made.padded(dtype="i64", **options)
    if not columns["lengths"].nbytes:
        raise UsageError("the batch has no rows: all its rollouts are unscored, masked or dropped")
    names = {"input_ids": "ids", "position_ids": "positions", "response_mask": "loss_mask"}
    names |= {"rollout_log_probs": "logprobs", "rm_scores": "advantages"}
    names |= {name: name for name in ("prompts", "responses", "attention_mask", "advantages")}
    tensors = {name: torch.from_numpy(np.asarray(columns[own]).copy()) for name, own in names.items()}
    mask = np.asarray(columns["loss_mask"])
    turns = (np.diff(mask, axis=1, prepend=0) == 1).sum(axis=1).astype(np.int32)
    uid = np.array([str(group) if uids is None else uids[group] for group in columns["groups"]], dtype=object)
    return proto.from_dict(tensors, non_tensors={"uid": uid, "__num_turns__": turns})


class AgentLoop:
    """An agent loop of verl, ``trunkline``: a rollout for each row of the dataset, for verl's own estimators.

    A rollout whose prompt forked is several outputs, which verl's v1 trainer takes. One that broke, or that a filter
    dropped or masked, has no output. Where ``run`` gives no reward, verl's reward function scores.
    """

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **_: Any) -> None:
        self._config = trainer_config.config
        self._settings = _Section.read(self._config, estimator=False)
        self._client = server_manager
        self._tokenizer = tokenizer

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Return what was sampled for a row: an ``AgentLoopOutput``, or a list of them.

        Raises:
            UsageError: ``run`` made more than one rollout, or verl's v0 trainer would get other than one output.
        """
        engine = _Engine(self._client, self._tokenizer, sampling_params)
        task = task_of(row, uuid.uuid4().hex)
        async with aclosing(self._settings.run([task], engine.llm(), n=1, seed=0, validate=False)) as grown:
            trees = [tree async for tree in grown]
        if len(trees) != 1 or trees[0].core.rollouts != 1:
            made = sum(tree.core.rollouts for tree in trees)
            raise UsageError(
                f"run made {made} rollouts, and verl asks its agent loop for one: use tl.Chain(n), or for trees "
                "agent_loop_manager_class=trunkline.train.verl.AgentLoopManager"
            )
        outputs = list(_outputs(trees[0], engine.steps(task.id)))
        if len(outputs) != 1 and not self._config.trainer.get("use_v1", True):
            raise UsageError(
                f"a rollout has {len(outputs)} outputs, and verl's v0 trainer takes one: set trainer.use_v1=true"
            )
        return outputs[0] if len(outputs) == 1 else outputs


class AgentLoopManager:
    """An agent loop manager of verl's v1 trainer that grows whole groups and trains them with our advantages.

    Rows go to verl's TransferQueue as trees are done. A rollout that is not trained has no row; a group without any
    fails, as one does whose rollouts could not be made. Validation has a row for each rollout with a reward.

    Raises:
        ConfigError: verl's configuration names no ``run`` or estimator, or has a setting that changes advantages.
    """

    def __init__(self, config: Any, llm_client: Any, reward_loop_worker_handles: Any = None) -> None:
        register()
        _check(config, reward_loop_worker_handles)
        self._rollout = config.actor_rollout_ref.rollout
        self._settings = _Section.read(config, estimator=True)
        self._client = llm_client
        model = _verl("verl.utils.config").omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self._tokenizer = model.tokenizer
        if model.get("custom_chat_template") is not None:
            self._tokenizer.chat_template = model.custom_chat_template
        self._seeds = count()
        self._problem: Exception | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="trunkline-verl", daemon=True).start()

    @classmethod
    def create(
        cls, config: Any, llm_client: Any, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> AgentLoopManager:
        """Make the manager; verl calls it."""
        del teacher_client
        return cls(config, llm_client, reward_loop_worker_handles)

    def generate_sequences(self, prompts: Any) -> None:
        """Begin to grow the groups of a batch of prompts (a TensorDict), and return at once.

        Raises:
            UsageError: The rollouts of an earlier batch have ended with an error.
        """
        if self._problem is not None:
            raise UsageError(f"the rollouts have ended: {format_error(self._problem)}") from self._problem
        rows = list(_rows_of(prompts))
        validate = bool(rows[0].pop("validate", False)) if rows else False
        for row in rows:
            row.pop("validate", None)
        asyncio.run_coroutine_threadsafe(self._grow(rows, validate=validate), self._loop)

    async def _grow(self, rows: list[dict[str, Any]], *, validate: bool) -> None:
        import transfer_queue as tq  # noqa: PLC0415 - verl brings it

        partition = "val" if validate else "train"
        waiting = {row["uid"]: row for row in rows}
        try:
            await tq.async_kv_batch_put(list(waiting), partition, tags=[{"status": "running"} for _ in rows])
            wanted: dict[int, list[dict[str, Any]]] = {}
            for row in rows:
                if not row.pop("__do_sample__", True):
                    raise ConfigError("verl asks for greedy baselines, as REMAX does: choose another estimator")
                n = self._rollout.val_kwargs.n if validate else self._rollout.n
                wanted.setdefault(int(row.pop("__rollout_n__", n)), []).append(row)
            for n, some in wanted.items():
                await self._run(some, n, waiting, partition)
        except Exception as error:
            # The groups fail, and the trainer is told at its next batch.
            self._problem = error
            logger.error(  # noqa: TRY400 - an error of ours needs no traceback
                "the rollouts have ended: %s",
                format_error(error),
                exc_info=None if isinstance(error, TrunklineError) else error,
            )
        finally:
            if waiting:
                failed = [{"status": "failure"} for _ in waiting]
                await tq.async_kv_batch_put(list(waiting), partition, tags=failed)

    async def _run(self, rows: list[dict[str, Any]], n: int, waiting: dict[str, Any], partition: str) -> None:
        import transfer_queue as tq  # noqa: PLC0415

        validate = partition == "val"
        engine = _Engine(self._client, self._tokenizer, _sampling(self._rollout, validate=validate))
        tasks = [task_of(row, row["uid"]) for row in rows]
        grown = self._settings.run(tasks, engine.llm(), n=n, seed=next(self._seeds), validate=validate)
        async with aclosing(grown) as trees:
            async for tree in trees:
                uid = tree.task.id
                fields = self._fields(tree, engine.steps(uid), waiting[uid], validate=validate)
                if fields:
                    made = _verl("verl.utils.tensordict_utils").list_of_dict_to_tensordict(list(fields.values()))
                    tags = [_tag(field) for field in fields.values()]
                    await tq.async_kv_batch_put(list(fields), partition, fields=made, tags=tags)
                await tq.async_kv_put(uid, partition, tag={"status": "finished" if fields else "failure"})
                del waiting[uid]

    def _fields(self, tree: Tree, steps: _Steps, given: dict[str, Any], *, validate: bool) -> dict[str, dict[str, Any]]:
        """Return what verl keeps of each row of a tree, by the row's key."""
        import torch  # noqa: PLC0415

        if validate:
            scored = {rollout.id for rollout in tree.rollouts if not math.isnan(rollout.reward)}
            sampled = {key: [row for row in rows if row.response] for key, rows in sampled_rows(tree).items()}
            filler = self._tokenizer.pad_token_id
            found = {key: rows[-1:] or [masked_row(filler)] for key, rows in sampled.items() if key in scored}
        else:
            made = batch([tree], **self._settings.options)
            trained = trained_rows(made, max_response=self._rollout.response_length, long_response="cut")
            found = {rollout: rows for (_, rollout), rows in trained.items()}
        fields = {}
        for rollout, rows in found.items():
            reward = tree.rollouts[rollout].reward
            for place, row in enumerate(rows):
                values = [0.0] * (len(row.response) - 1) + [reward] if validate else row.advantages
                output = _output(tree, rollout, row, steps, None if validate else {"rollout_reward": reward})
                field = output.as_dict() | given | {"session_id": rollout, "multi_modal_inputs": {}}
                field["rm_scores"] = torch.tensor(values, dtype=torch.float32)
                field["loss_mask"] = field["response_mask"]
                field["input_ids"] = torch.cat([field["prompts"], field["responses"]])
                field["position_ids"] = torch.arange(len(field["input_ids"]))
                fields[f"{given['uid']}_{rollout}_{place}"] = field
        return fields


def task_of(row: Mapping[str, Any], id: str) -> Task:
    """Make a task of a row of verl's dataset: its prompt, ``reward_model.ground_truth``, and all else as metadata.

    Raises:
        ConfigError: The row has no ``raw_prompt``.
    """
    if "raw_prompt" not in row:
        raise ConfigError("a row of verl's dataset has no raw_prompt: set data.return_raw_chat=true")
    metadata = {name: value for name, value in row.items() if name != "raw_prompt"}
    return row_task(id, row["raw_prompt"], row.get("reward_model"), metadata)


class _Section(NamedTuple):
    """The section of verl's configuration."""

    run: Callable[..., AsyncGenerator[Tree]]
    options: dict[str, Any]

    @classmethod
    def read(cls, config: Any, *, estimator: bool) -> _Section:
        where = f"actor_rollout_ref.rollout.custom.{NAME}"
        custom = config.actor_rollout_ref.rollout.get("custom") or {}
        options: dict[str, Any] = dict(custom.get(NAME) or {})
        if not isinstance(named := options.pop("run", None), str):
            raise ConfigError(f"{where}.run is {short_repr(named)}: name your function, such as my_rollouts:grow")
        run = load_named(named, f"{where}.run")
        if given := (config.get("data") or {}).get("apply_chat_template_kwargs"):
            raise ConfigError(
                f"data.apply_chat_template_kwargs is {short_repr(dict(given))}, and prompts are rendered without: "
                "write it into a template, actor_rollout_ref.model.custom_chat_template"
            )
        if not estimator:
            return cls(run, {})
        if "estimator" not in options:
            raise ConfigError(f"{where}.estimator is missing: choose one of {', '.join(presets())}")
        options = {"shared": "repeat", **options}
        batch([], **options)  # says what is wrong with them
        check_one_group(where, options["estimator"], options)
        return cls(run, options)


def _check(config: Any, handles: Any) -> None:
    """Refuse settings of verl that would change advantages, or that would be without effect."""
    if config.algorithm.adv_estimator != NAME:
        raise ConfigError(
            f"algorithm.adv_estimator is {short_repr(config.algorithm.adv_estimator)}, and this manager's rows hold "
            f"advantages: set it to {NAME}, and choose among ours with custom.{NAME}.estimator"
        )
    if config.algorithm.use_kl_in_reward:
        raise ConfigError("algorithm.use_kl_in_reward would change advantages: use actor.use_kl_loss instead")
    if handles is None:
        raise ConfigError(
            "a colocated reward model would replace advantages: let run give the rewards, and set reward.reward_model."
            "enable=false, or enable_resource_pool=true"
        )
    if (config.get("distillation") or {}).get("enabled", False):
        raise ConfigError("this manager asks no teacher: set distillation.enabled=false")


class _Steps(NamedTuple):
    """The oldest and the newest weights, by verl's numbers, that turns of a tree were sampled with."""

    oldest: int
    newest: int


class _Engine:
    """The servers of verl, and the weights that they had."""

    def __init__(self, client: Any, tokenizer: Any, params: Mapping[str, Any]) -> None:
        self._client = client
        self._seen: dict[int, _Steps] = {}
        self._folder = _folder_of(tokenizer)
        self._engine = TokenEngine(self._sample, tokenizer, {**params, "logprobs": True})

    def llm(self) -> BatchLLM:
        return token_llm(self._engine, self._folder, 1024)

    def steps(self, task: str) -> _Steps:
        return self._seen.get(_key(task), _Steps(0, 0))

    async def _sample(self, ids: list[int], params: dict[str, Any], key: int) -> Sampled:
        output = await self._client.generate(request_id=f"{key:08x}", prompt_ids=ids, sampling_params=params)
        if output.stop_reason == "aborted":
            raise LLMError("verl's server aborted the request", retryable=True)
        extra = output.extra_fields
        old, new = extra.get("min_global_steps"), extra.get("max_global_steps")
        if old is not None and new is not None:
            seen = self._seen.get(key, _Steps(old, new))
            self._seen[key] = _Steps(min(seen.oldest, old), max(seen.newest, new))
        return Sampled(list(output.token_ids), list(output.log_probs or ()), output.stop_reason == "length")


def _key(task: str) -> int:
    """The key that requests of a task's tree share."""
    return crc32(task.encode("utf-8", "surrogatepass"))


_FOLDERS: dict[int, tuple[Any, TokenizerFolder]] = {}


def _folder_of(tokenizer: Any) -> str:
    """The folder with a tokenizer's files, written once a process."""
    if id(tokenizer) not in _FOLDERS:
        # The tokenizer is kept, so that no other gets its id.
        _FOLDERS[id(tokenizer)] = tokenizer, TokenizerFolder(tokenizer)
    return _FOLDERS[id(tokenizer)][1].path


def _sampling(rollout: Any, *, validate: bool) -> dict[str, Any]:
    """The sampling parameters of verl."""
    source = rollout.val_kwargs if validate else rollout
    return {
        "temperature": source.temperature,
        "top_p": source.top_p,
        "top_k": source.top_k,
        "repetition_penalty": 1.0,
    }


def _outputs(tree: Tree, steps: _Steps) -> Iterator[Any]:
    """Yield the outputs of the one rollout of a tree; none if it broke, or if a filter dropped or masked it."""
    chosen = select(tree, Rules("keep", "mask").check())
    rollout = tree.rollouts[0]
    if not chosen or rollout.termination in UNSCORED or (known(rollout.reward) is not None and not chosen[0].trained):
        return
    for row in sampled_rows(tree)[0]:
        if any(row.mask):
            yield _output(tree, 0, row, steps, {}, known(chosen[0].reward))


def _output(
    tree: Tree,
    rollout: int,
    row: SampleRow,
    steps: _Steps,
    judged: Mapping[str, Any] | None,
    reward: float | None = None,
) -> Any:
    loops = _verl("verl.experimental.agent_loop.agent_loop")
    extra = {"turn_scores": [], "tool_rewards": [], "reward_extra_info": dict(judged or {})}
    return loops.AgentLoopOutput(
        prompt_ids=row.prompt,
        response_ids=row.response,
        response_mask=row.mask,
        response_logprobs=row.logprobs,
        reward_score=reward,
        num_turns=len(tree.rollouts[rollout].nodes),
        metrics=loops.AgentLoopMetrics(),
        extra_fields=extra | {"min_global_steps": steps.oldest, "max_global_steps": steps.newest},
    )


def _tag(field: Mapping[str, Any]) -> dict[str, Any]:
    prompt, response, extra = len(field["prompts"]), len(field["responses"]), field["extra_fields"]
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": field["global_steps"],
        "min_global_steps": extra["min_global_steps"],
        "max_global_steps": extra["max_global_steps"],
    }


def _rows_of(prompts: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a TensorDict."""
    import torch  # noqa: PLC0415
    from tensordict import NonTensorStack  # noqa: PLC0415

    for place in range(len(prompts)):
        row = {}
        for name, column in prompts.items():
            if isinstance(column, NonTensorStack):
                row[name] = column[place].data
            else:
                row[name] = column[place] if isinstance(column, torch.Tensor) else getattr(column, "data", column)
        yield row


def _verl(module: str) -> Any:
    """Import a module of verl."""
    return load_extra(module, "verl", "trunkline.train.verl")
