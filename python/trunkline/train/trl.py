"""Rollouts for TRL (1.16 or later): ``GRPOTrainer`` with trees and their advantages, and ``AsyncGRPOTrainer``.

TRL is imported when the first sample is made for it; ``pip install "trunkline[trl]"`` brings it.
"""

from __future__ import annotations

import asyncio
import json
import math
import queue
import threading
import time
from concurrent.futures import CancelledError
from contextlib import aclosing, suppress
from itertools import count, cycle, groupby, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from trunkline._internal.text import quoted
from trunkline._internal.validation import check_choice, check_int
from trunkline.errors import ConfigError, UsageError
from trunkline.train.advantages import check_one_group
from trunkline.train.batch import batch
from trunkline.train.selection import Rules, select, sent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from trunkline.train.advantages import Estimator
    from trunkline.train.batch import TrainBatch
    from trunkline.tree.views import Tree
    from trunkline.types import Message, Task


class _Row(NamedTuple):
    """What ``GRPOTrainer`` wants of one rollout."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    env_mask: Sequence[int]
    rollout_reward: float | None
    rollout_advantages: Sequence[float]


def rollout_func(
    run: Callable[[list[Task], int], Iterable[Tree]],
    tasks: Iterable[Task],
    *,
    estimator: Estimator,
    **options: Any,
) -> Callable[[list[Any], Any], dict[str, Any]]:
    """Make a ``rollout_func`` for ``trl.GRPOTrainer``: each prompt's generations are the rollouts of one tree.

    ::

        generate = rollout_func(
            lambda tasks, seed: pool.run(agent, tasks, llm=llm, strategy=tl.TreeGRPO(2, 3), reward=..., seed=seed),
            tasks,
            estimator="tree_grpo",
        )


        class Trainer(TreeAdvantages, trl.GRPOTrainer): ...


        Trainer(model, reward_funcs=reward, rollout_func=generate, train_dataset=prompts, args=config)

    A rollout that trains nothing, or that a filter dropped, is a row of one token that is masked; one without a reward
    has None. Rollouts need token ids (``tl.TokenMode``).

    Args:
        run: Runs tasks and returns their trees, in any order; the number is a seed that differs from call to call.
        tasks: The tasks that the dataset's prompts are of. A prompt is a task's ``messages``, or the text of the last
            of them.
        estimator: As of ``trunkline.train.batch``, like ``options`` (``censored``, ``on_failed``, ``filters``,
            options of the preset).
        options: Likewise.

    Returns:
        A function of prompts and trainer. Beside the ids, log-probabilities and mask of each rollout it returns its
        reward for ``reward``, and the advantages of its tokens for ``TreeAdvantages``.

    Raises:
        ConfigError: Two tasks end with the same message; and when it is called, a prompt is that of no task.
        UsageError: When it is called, a process has a part of a group, a strategy made more or fewer rollouts than
            ``num_generations``, or a prompt was forked inside a rollout.
    """
    known, seeds = _by_question(tasks), count()
    batch([], estimator=estimator, shared="repeat", **options)  # says what is wrong with the settings
    given = (options.get("filters", ()), options.get("dialect", "native"))
    rules = Rules(options.get("censored"), options.get("on_failed", "mask"), *given).check()

    def generate(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        training = trainer.model.training
        size = trainer.num_generations if training else trainer.num_generations_eval
        groups = _groups(prompts, size, known)
        trees = {tree.task.id: tree for tree in run(groups, next(seeds))}
        missing = [task.id for task in groups if task.id not in trees]
        if missing:
            raise UsageError(f"the run has no tree of task {quoted(missing[0])}")
        filler = _filler(trainer)
        ordered = [trees[task.id] for task in groups]
        made = batch(ordered, estimator=estimator, shared="repeat", keep_masked=True, **options)
        rows = list(_rows(made, ordered, rules, size, filler))
        return dict(zip(_Row._fields, map(list, zip(*rows, strict=True)), strict=True))

    return generate


def _by_question(tasks: Iterable[Task]) -> dict[str, Task]:
    found: dict[str, Task] = {}
    for task in tasks:
        other = found.setdefault(_question(task.messages), task)
        if other is not task:
            raise ConfigError(
                f"tasks {quoted(other.id)} and {quoted(task.id)} end with the same message, by which prompts are told "
                "apart: leave one of them out"
            )
    return found


def _question(prompt: str | list[Message]) -> str:
    """The text of a prompt, or of its last message."""
    said = prompt if isinstance(prompt, str) else prompt[-1].get("content") if prompt else ""
    return said if isinstance(said, str) else json.dumps(said, sort_keys=True)


def _groups(prompts: list[Any], size: int, known: dict[str, Task]) -> list[Task]:
    """The tasks of prompts that each stand ``size`` times in a row; one that comes again has an id of its own."""
    groups: list[Task] = []
    for question, same in groupby(map(_question, prompts)):
        repeats = len(list(same))
        if question not in known:
            raise ConfigError(f"no task ends with the prompt {quoted(question)}: give the tasks of the dataset")
        if repeats % size:
            raise UsageError(
                f"this process has {repeats} of the {size} generations of {quoted(question)}, and a tree cannot be "
                "cut: make per_device_train_batch_size times steps_per_generation a multiple of num_generations"
            )
        for _ in range(repeats // size):
            task = known[question]
            before = sum(other.messages is task.messages for other in groups)
            groups.append(msgspec.structs.replace(task, id=f"{task.id} ({before + 1})") if before else task)
    return groups


def _filler(trainer: Any) -> int:
    """The token of a row that trains nothing."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    return int(tokenizer.pad_token_id)


def _rows(made: TrainBatch, trees: list[Tree], rules: Rules, size: int, filler: int) -> Iterator[_Row]:
    """Yield ``size`` rows for each tree."""
    columns = made.ragged()
    names = ("ids", "loss_mask", "logprobs", "advantages", "offsets", "prompt_lengths", "rows")
    ids, mask, logprobs, advantages, offsets, prompts, rows = (columns[name].tolist() for name in names)
    samples: dict[tuple[int, int], list[int]] = {}
    for sample, key in enumerate(zip(made.groups, made.rollouts, strict=True)):
        samples.setdefault(key, []).append(sample)
    for group, tree in enumerate(trees):
        selected, name = select(tree, rules), quoted(tree.task.id)
        # Those that were dropped, as by TreeGRPO(keep=), are none of the group.
        found = tree.core.rollouts if tree.core.rollouts < size else len(selected)
        if found > size or found == tree.core.rollouts < size:
            raise UsageError(
                f"task {name}: its tree has {found} rollouts, and num_generations is {size}: let the strategy make as "
                "many"
            )
        for chosen in selected:
            own = [rows[sample] for sample in samples.get((group, chosen.rollout), ()) if rows[sample] >= 0]
            if len(own) > 1 and chosen.trained:
                raise UsageError(
                    f"task {name}: a prompt of rollout {chosen.rollout} was not what its path holds, so that it is "
                    f"{len(own)} samples, and GRPOTrainer takes one: keep the ids with TokenMode(drift='bridge') or "
                    "api='completions', or use RolloutWorker with AsyncGRPOTrainer"
                )
            reward = None if math.isnan(chosen.compared) else chosen.compared
            start, end = (offsets[own[0]], offsets[own[0] + 1]) if own else (0, 0)
            response = start + prompts[own[0]] if own else 0
            if chosen.trained and response < end:
                part = slice(response, end)
                yield _Row(ids[start:response], ids[part], logprobs[part], mask[part], reward, advantages[part])
            else:
                yield _Row(ids[start:response] or [filler], [filler], [0.0], [0], reward, [0.0])
        for _ in range(size - len(selected)):
            yield _Row([filler], [filler], [0.0], [0], None, [0.0])


def reward(
    prompts: Sequence[Any], completions: Sequence[Any], rollout_reward: list[float | None] | None = None, **_: Any
) -> list[float | None]:
    """Return the rewards that ``rollout_func`` forwarded; a reward function for ``GRPOTrainer(reward_funcs=)``.

    Raises:
        ConfigError: The trainer's rollouts are not those of ``rollout_func``.
    """
    if rollout_reward is None:
        raise ConfigError(
            "trunkline.train.trl.reward needs GRPOTrainer(rollout_func=trunkline.train.trl.rollout_func())"
        )
    return rollout_reward


class TreeAdvantages:
    """Mixin before ``trl.GRPOTrainer`` that trains each token with the advantage of ``rollout_func``'s estimator.

    ``class Trainer(TreeAdvantages, trl.GRPOTrainer): ...``. TRL's own advantages, of the rewards, are then only logged.

    Raises:
        ConfigError: It stands after the trainer, which would not call it; or when training, a setting of the trainer
            takes one advantage a rollout, or the rollouts are not those of ``rollout_func``.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__:
            if not issubclass(base, TreeAdvantages) and "_generate_and_score_completions" in vars(base):
                raise ConfigError(f"{cls.__name__}: TreeAdvantages must stand before {base.__name__}")
            if base is TreeAdvantages:
                break

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if getattr(self, "use_liger_kernel", False) or getattr(self, "loss_type", None) == "vespo":
            raise ConfigError(
                "TreeAdvantages: use_liger_kernel and loss_type='vespo' take one advantage a rollout; leave them out, "
                "or train without TreeAdvantages"
            )
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if any("rollout_advantages" not in one for one in inputs):
            raise ConfigError("TreeAdvantages needs GRPOTrainer(rollout_func=trunkline.train.trl.rollout_func())")
        ids = output["completion_ids"]
        advantages = output["advantages"].new_zeros(ids.shape)
        for row, one in zip(advantages, inputs, strict=True):
            values = one["rollout_advantages"]
            row[: len(values)] = row.new_tensor(values)
        return output | {"advantages": advantages}


class _Pool(Protocol):
    """What a pool does for ``WeightTransfer``."""

    async def aupdate_weights(self, version: str, update: Callable[[], object] | None, policy: Any) -> None: ...

    def update_weights(self, version: str, update: Callable[[], object] | None, policy: Any) -> None: ...


class RolloutWorker:
    """Rollouts for ``trl.experimental.async_grpo.AsyncGRPOTrainer(rollout_worker=)``, made in a thread beside training.

    A sample is one model turn, with what was sent for it as its prompt. The trainer forwards what its samples share
    once, so that a tree's shared turns are trained once. A turn keeps the version of the weights that it was asked
    under, for ``max_staleness``.

    Args:
        stream: Runs tasks and yields their trees as they are done, such as ``lambda tasks, seed: pool.stream(agent,
            tasks, llm=llm, strategy=..., reward=..., seed=seed)``; the number is a seed that differs from call to call.
        tasks: The tasks, which are repeated without end.
        estimator: As of ``trunkline.train.batch``, like ``options``.
        shared: ``once``: a turn that rollouts share is one sample, with their mean advantage; ``repeat``: one for each.
        tasks_at_once: How many tasks a call of ``stream`` takes.
        queue_size: The most samples that wait for the trainer; no further tree is asked for while as many do.
        options: Options of the preset, ``censored``, ``on_failed``, ``filters`` and so on.

    Attributes:
        rollout_buffer: The samples, for the trainer.
        metrics_queue: Metrics of the worker, for the trainer.
        loop: The event loop in which ``stream`` runs; None before ``start`` and after ``stop``.

    Raises:
        ConfigError: There are no tasks, or a setting has a value it cannot have.
    """

    def __init__(
        self,
        stream: Callable[[list[Task], int], AsyncGenerator[Tree]],
        tasks: Iterable[Task],
        *,
        estimator: Estimator,
        shared: Literal["once", "repeat"] = "once",
        tasks_at_once: int = 8,
        queue_size: int = 1024,
        **options: Any,
    ) -> None:
        self._stream = stream
        self._tasks = list(tasks)
        if not self._tasks:
            raise ConfigError("RolloutWorker: there are no tasks")
        check_choice("shared", shared, "once", "repeat")
        self._settings = {"estimator": estimator, "shared": shared, **options}
        batch([], **self._settings)  # says what is wrong with them
        check_one_group("RolloutWorker", estimator, options)
        self._at_once = min(check_int("tasks_at_once", tasks_at_once, 1), len(self._tasks))
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(check_int("queue_size", queue_size, 1))
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._version = 0
        self._groups = count()
        self._last_made = time.monotonic()
        self._problem: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the trainer calls it once its first weights are where the rollouts are made.

        Raises:
            ConfigError: TRL 1.16 or later is not installed.
            UsageError: It has begun.
        """
        if self._thread is not None:
            raise UsageError("this RolloutWorker has begun")
        sample, ready = _sample_class(), threading.Event()
        self._last_made, self._problem = time.monotonic(), None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._lead(sample, ready)), name="trunkline-trl", daemon=True
        )
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """End the rollouts under way, and wait until the run has stopped."""
        if self._thread is None:
            return
        loop, task = self.loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # it has just ended by itself
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join()
        self._thread = None

    def update_model_version(self, model_version: int) -> None:
        """Take the version that turns have which are asked from now on, where the run does not say it itself."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise what ended the worker, or UsageError where it has made no sample for so many seconds."""
        if self._problem is not None:
            raise UsageError(f"the rollouts have ended: {self._problem}") from self._problem
        silent = time.monotonic() - self._last_made
        if silent > stale_after_s:
            raise UsageError(f"no rollout was made for {silent:.0f} s (heartbeat_stale_after_s={stale_after_s:g})")

    async def _lead(self, sample: Any, ready: threading.Event) -> None:
        self.loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        ready.set()
        try:
            await self._work(sample)
        except asyncio.CancelledError:
            pass
        except BaseException as problem:  # noqa: BLE001 - the trainer is told, in its own thread
            self._problem = problem
        finally:
            self.loop = self._task = None

    async def _work(self, sample: Any) -> None:
        """Make samples until cancelled."""
        upcoming = cycle(self._tasks)
        idle = 0
        for seed in count():
            version, made = self._version, 0
            trees = self._stream(list(islice(upcoming, self._at_once)), seed)
            async with aclosing(trees):
                async for tree in trees:
                    self._last_made = time.monotonic()
                    for one in self._samples(tree, version, sample):
                        await self._put(one)
                        made += 1
            idle = 0 if made else idle + self._at_once
            if idle >= len(self._tasks):
                raise UsageError(
                    f"no rollout of the last {idle} tasks has anything to train: all are unscored, masked or dropped"
                )

    def _samples(self, tree: Tree, version: int, sample: Any) -> Iterator[Any]:
        """Yield the samples of a tree: its turns."""
        import numpy as np  # noqa: PLC0415 - TRL brings it

        made = batch([tree], **self._settings).by_turn()
        columns = made.ragged(dtype="i64")
        names = ("ids", "loss_mask", "logprobs", "versions", "advantages")
        ids, mask, logprobs, versions, advantages = (np.asarray(columns[name]) for name in names)
        bounds, group = columns["offsets"].tolist(), next(self._groups)
        for number, row in enumerate(columns["rows"].tolist()):
            if row < 0:
                continue
            part = slice(bounds[row], bounds[row + 1])
            trained = mask[part] == 1
            if not trained.any():
                continue
            asked = int(versions[part][trained].min())
            node = made.nodes[number]
            yield sample(
                prompt=msgspec.json.decode(sent(tree.core, node)),
                completion=[tree.node(node).message],
                input_ids=ids[part],
                completion_mask=mask[part],
                old_log_probs=logprobs[part],
                advantage=float(advantages[part][trained][0]),
                model_version=version if asked < 0 else asked,
                group_id=group,
                metrics={"reward": tree.reward},
            )

    async def _put(self, one: Any) -> None:
        """Wait for room, without blocking the loop in which the rollouts run."""
        while self.rollout_buffer.full():
            # The trainer is busy, and all is well.
            self._last_made = time.monotonic()
            await asyncio.sleep(0.02)
        one.enqueued_at = time.time()
        self.rollout_buffer.put_nowait(one)


class WeightTransfer:
    """Brings the trainer's weights to the rollouts, for ``AsyncGRPOTrainer(weight_transfer=)``.

    Versions are numbered as the trainer does, from ``step-1``, and each turn keeps the one that it was asked under.

    Args:
        pool: The pool of the worker's runs.
        load: Takes pairs of name and tensor, such as into an engine; it is called in a thread, and must take them all.
        worker: The worker whose rollouts they are.
        policy: What happens to turns in flight; see ``trunkline.Pool.aupdate_weights``.
    """

    def __init__(
        self,
        pool: _Pool,
        load: Callable[[Iterator[tuple[str, Any]]], object],
        worker: RolloutWorker,
        policy: Literal["finish", "abort_resume", "drain"] = "drain",
    ) -> None:
        check_choice("policy", policy, "finish", "abort_resume", "drain")
        self._pool = pool
        self._load = load
        self._worker = worker
        self._policy = policy
        self._sent = 0

    def init_weight_transfer(self) -> None:
        """Nothing: ``load`` has what it needs."""

    def pause(self) -> None:
        """Nothing: turns wait while weights are sent, as ``policy`` says."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Load the weights while the rollouts wait; if that fails, the old version stays in force, and it is raised."""
        version = f"step-{self._sent + 1}"
        loop = self._worker.loop
        if loop is None:
            self._pool.update_weights(version, lambda: self._load(iterator), self._policy)
        else:
            update = self._pool.aupdate_weights(version, lambda: asyncio.to_thread(self._load, iterator), self._policy)
            try:
                asyncio.run_coroutine_threadsafe(update, loop).result()
            except CancelledError:
                self._worker.check_health(math.inf)
                raise UsageError("the rollouts ended while the weights were changed") from None
        self._sent += 1

    def resume(self) -> None:
        """Nothing: the rollouts go on by themselves."""

    def destroy(self) -> None:
        """Nothing: the engine is the caller's."""


def _sample_class() -> Any:
    try:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample  # noqa: PLC0415 - it takes seconds
    except ImportError as missing:
        raise ConfigError(
            f"AsyncGRPOTrainer's samples need TRL 1.16 or later ({missing}): pip install 'trunkline[trl]'"
        ) from None
    return RolloutSample
