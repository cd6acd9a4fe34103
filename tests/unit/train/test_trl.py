"""Rows and samples for TRL, without TRL: what a rollout function returns, and what it refuses."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from exact_runs import grow, serving
from groves import said, take, with_ids

from trunkline._core import PROMPT, TokenBuffer
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.token_ids.base import TokenMode
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.train import trl
from trunkline.tree.views import Tree
from trunkline.types import Task, Termination

QUESTION = [{"role": "user", "content": "what?"}]
PAD = 99


def trainer(size: int, *, training: bool = True) -> Any:
    tokenizer = SimpleNamespace(pad_token_id=PAD)
    return SimpleNamespace(
        model=SimpleNamespace(training=training),
        num_generations=size if training else 1,
        num_generations_eval=1 if training else size,
        processing_class=tokenizer,
    )


def generate(tree: Tree, prompts: list[Any], size: int = 3, **options: Any) -> dict[str, Any]:
    """Rows of one tree, whose task is asked as often as it is wanted."""
    asked: list[tuple[list[str], int]] = []

    def run(tasks: list[Task], seed: int) -> list[Tree]:
        asked.append(([task.id for task in tasks], seed))
        return [Tree(task, tree.core, tree.ended) for task in reversed(tasks)]

    settings = {"estimator": "dr_grpo"} | options
    function = trl.rollout_func(run, [tree.task], **settings)
    assert asked == []
    rows = function(prompts, trainer(size))
    assert asked == [([tree.task.id, f"{tree.task.id} (2)"][: len(prompts) // size], 0)]
    return rows


def test_each_rollout_is_a_row_with_its_reward_and_advantages():
    rows = generate(with_ids(), [QUESTION] * 6)
    third = pytest.approx(1 / 3)
    assert rows == {
        "prompt_ids": [[1, 2]] * 6,
        "completion_ids": [[3, 4], [3, 5], [3, 6]] * 2,
        "logprobs": [[-0.5, -1.0]] * 6,
        "env_mask": [[1, 1]] * 6,
        "rollout_reward": [1.0, 0.0, 1.0] * 2,
        "rollout_advantages": [[third] * 2, [pytest.approx(-2 / 3)] * 2, [third] * 2] * 2,
    }
    assert trl.reward(prompts=[], completions=[], **rows) == rows["rollout_reward"]


@pytest.mark.parametrize("prompt", ["what?", [{"role": "system", "content": "be brief"}, *QUESTION]])
def test_a_prompt_is_known_by_its_last_message(prompt: Any):
    assert generate(with_ids(), [prompt] * 3)["completion_ids"] == [[3, 4], [3, 5], [3, 6]]


def test_what_trains_nothing_is_one_masked_token_and_unscored_is_none():
    tree = made([1.0, 0.0, 1.0, 0.5, math.nan], ["answer", "answer", "answer", "llm_error", "max_turns"])
    notes.note(tree.core, 0, Verdict("some", "drop", "too long"))
    notes.note(tree.core, 1, Verdict("some", "mask", "too short"))
    rows = generate(tree, ["what?"] * 5, 5)
    nothing = ([1, 2], [PAD], [0.0], [0], [0.0])
    shown = list(zip(*(rows[name] for name in rows if name != "rollout_reward"), strict=True))
    # The masked one counts in the baseline; that which was dropped has a row of its group, but no place in it.
    assert shown[0] == nothing
    assert rows["rollout_reward"] == [0.0, 1.0, None, None, None]
    assert shown[1] == ([1, 2], [3, 6], [-0.5, -1.0], [1, 1], [0.5, 0.5])
    assert shown[2:4] == [nothing] * 2
    assert shown[4] == ([PAD], *nothing[1:])


def test_a_group_that_is_left_out_is_all_masked():
    tree = made([1.0, 0.0, 1.0], ["answer", "llm_error", "answer"])
    rows = generate(tree, ["what?"] * 3, on_failed="drop_group")
    assert rows["completion_ids"] == [[PAD]] * 3
    assert rows["rollout_reward"] == [None] * 3


def made(rewards: list[float], ended: list[str]) -> Tree:
    """A tree of rollouts of one turn; NaN is not scored."""
    tree = Tree(Task.ask("what?", id="small"))
    core = tree.core
    prompt = core.append(0, PROMPT, said("user", "what?"), 0, TokenBuffer([1, 2]))
    for draw, (reward, end) in enumerate(zip(rewards, ended, strict=True)):
        rollout = core.open(prompt, [0, draw])
        tokens = TokenBuffer([3, 4 + draw], [-0.5, -1.0], [7, 7])
        take(core, rollout, said("assistant", f"a{draw}"), core.name("agent"), core.name("m"), tokens)
        core.close(rollout, end)
        if not math.isnan(reward):
            core.score(rollout, reward)
    return tree


def test_half_a_group_and_other_sizes_are_refused():
    with pytest.raises(
        UsageError, match=r'this process has 2 of the 3 generations of "what\?", and a tree cannot be cut'
    ):
        generate(with_ids(), ["what?"] * 2)
    with pytest.raises(UsageError, match='"small": its tree has 3 rollouts, and num_generations is 4'):
        generate(with_ids(), ["what?"] * 4, 4)
    with pytest.raises(UsageError, match='"small": its tree has 3 rollouts, and num_generations is 2'):
        generate(with_ids(), ["what?"] * 2, 2)
    with pytest.raises(ConfigError, match=r'no task ends with the prompt "where\?"'):
        generate(with_ids(), ["where?"] * 3)
    with pytest.raises(ConfigError, match='no task ends with the prompt ""'):
        generate(with_ids(), [[]] * 3)
    two = [Task.ask("what?", id="a"), Task.ask("what?", id="b")]
    with pytest.raises(ConfigError, match='tasks "a" and "b" end with the same message'):
        trl.rollout_func(lambda *_: [], two, estimator="trl")
    function = trl.rollout_func(lambda *_: [], two[:1], estimator="trl")
    with pytest.raises(UsageError, match='the run has no tree of task "a"'):
        function(["what?"] * 2, trainer(2, training=False))


def test_settings_are_checked_before_a_trainer_runs():
    with pytest.raises(ConfigError, match="estimator"):
        trl.rollout_func(lambda *_: [], [], estimator="best")
    with pytest.raises(ConfigError, match="censored"):
        trl.rollout_func(lambda *_: [], [], estimator="trl", censored="drop")
    with pytest.raises(ConfigError, match=r"rollout_func=trunkline.train.trl.rollout_func\(\)"):
        trl.reward(prompts=[], completions=[])


def test_advantages_stand_before_the_trainer():
    class GRPOTrainer:
        def _generate_and_score_completions(self, inputs: Any) -> Any: ...

    class Right(trl.TreeAdvantages, GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any: ...

    class Further(Right): ...

    with pytest.raises(ConfigError, match="Wrong: TreeAdvantages must stand before GRPOTrainer"):

        class Wrong(GRPOTrainer, trl.TreeAdvantages): ...


@pytest.mark.parametrize("policy", ["bridge", "fork"])
async def test_rows_are_the_paths_of_rollouts_and_a_fork_is_refused(policy: str, tasks: list[Task]):
    mode = TokenMode(api="completions", drift=policy)
    async with serving(mode, noncanonical=0.2) as (llm, noting):
        trees = await grow(mode, llm, tasks, strategy=TreeGRPO(2, 2, 1))
    for tree in trees:
        for rollout in tree.rollouts:
            if rollout.termination is Termination.ANSWER:
                tree.core.score(rollout.id, float(rollout.id % 2))
    function = trl.rollout_func(lambda *_: trees, tasks, estimator="tree_grpo", censored="mask")
    prompts = [task.messages for task in tasks for _ in range(6)]
    if policy == "fork":
        with pytest.raises(UsageError, match="GRPOTrainer takes one: keep the ids with TokenMode"):
            function(prompts, trainer(6))
        worker = trl.RolloutWorker(None, tasks, estimator="tree_grpo", censored="mask")
        asked = []
        for sample in (one for tree in trees for one in worker._samples(tree, 1, SimpleNamespace)):
            first = sample.completion_mask.tolist().index(1)
            assert all(sample.completion_mask[first:])
            asked.append((tuple(sample.input_ids[:first]), tuple(sample.input_ids[first:])))
        assert 0 < len(asked) == len(set(asked))
        assert set(asked) <= set(noting.sampled()), "a turn is trained after what the engine was given for it"
        return
    rows = function(prompts, trainer(6))
    number = 0
    for tree in trees:
        for rollout in tree.rollouts:
            tokens = [tree.core.tokens_of(node.id) for node in rollout.nodes]
            path = [token for one in tokens if one is not None for token in one.ids]
            flags = [flag & 1 for one in tokens if one is not None for flag in one.flags]
            mask = [*[0] * len(rows["prompt_ids"][number]), *rows["env_mask"][number]]
            if rollout.termination is Termination.ANSWER:
                assert rows["prompt_ids"][number] + rows["completion_ids"][number] == path[: len(mask)]
                assert mask == flags[: len(mask)]
                assert not any(flags[len(mask) :])
                assert rows["rollout_reward"][number] == rollout.reward
            else:
                assert rows["completion_ids"][number] == [PAD]
                assert rows["rollout_reward"][number] is None
            number += 1
    assert number == len(prompts) == len(rows["logprobs"])


def test_a_worker_says_what_is_missing():
    async def stream(tasks: list[Task], seed: int) -> Any:
        yield with_ids()

    with pytest.raises(ConfigError, match="there are no tasks"):
        trl.RolloutWorker(stream, [], estimator="trl")
    with pytest.raises(ConfigError, match="shared"):
        trl.RolloutWorker(stream, [with_ids().task], estimator="trl", shared="both")
    with pytest.raises(ConfigError, match="RolloutWorker: the estimator reinforce_pp_baseline has whiten='batch'"):
        trl.RolloutWorker(stream, [with_ids().task], estimator="reinforce_pp_baseline")
    with pytest.raises(ConfigError, match="queue_size"):
        trl.RolloutWorker(stream, [with_ids().task], estimator="trl", queue_size=0)
    worker = trl.RolloutWorker(stream, [with_ids().task], estimator="trl")
    with pytest.raises(UsageError, match="no rollout was made for 0 s"):
        worker.check_health(0)
    worker.stop()
    with pytest.raises(ConfigError, match="policy"):
        trl.WeightTransfer(None, None, worker, policy="now")
    if importlib.util.find_spec("trl") is None:
        with pytest.raises(ConfigError, match=r"need TRL 1.16 or later .*pip install 'trunkline\[trl\]'"):
            worker.start()


def working(monkeypatch: pytest.MonkeyPatch, stream: Any, tasks: list[Task], **options: Any) -> trl.RolloutWorker:
    """Start a worker whose samples are plain objects."""
    monkeypatch.setattr(trl, "_sample_class", lambda: SimpleNamespace)
    worker = trl.RolloutWorker(stream, tasks, **({"estimator": "dr_grpo"} | options))
    worker.start()
    return worker


def test_a_sample_is_a_turn_with_the_version_it_was_asked_under(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[list[str], int]] = []

    async def stream(tasks: list[Task], seed: int) -> Any:
        asked.append(([task.id for task in tasks], seed))
        yield with_ids()
        yield with_ids(tokens=TokenBuffer([3, 4], [-0.5, -1.0]))

    tasks = [Task.ask(str(one), id=f"q{one}") for one in range(3)]
    worker = working(monkeypatch, stream, tasks, tasks_at_once=2, queue_size=2)
    with pytest.raises(UsageError, match="has begun"):
        worker.start()
    samples = [worker.rollout_buffer.get(timeout=60) for _ in range(12)]
    worker.check_health(60)
    worker.stop()
    assert worker.loop is None
    assert asked[:2] == [(["q0", "q1"], 0), (["q2", "q0"], 1)]
    first = samples[1]
    assert first.prompt == QUESTION
    assert first.completion == [{"role": "assistant", "content": "a1"}]
    assert [first.input_ids.tolist(), first.completion_mask.tolist()] == [[1, 2, 3, 5], [0, 0, 1, 1]]
    assert first.old_log_probs.tolist() == [0, 0, -0.5, -1.0]
    assert first.advantage == pytest.approx(-2 / 3)
    assert first.metrics == {"reward": pytest.approx(2 / 3)}
    assert [sample.group_id for sample in samples[:8]] == [0, 0, 0, 1, 2, 2, 2, 3]
    # The three rollouts of the second tree share their turn, and its tokens have no version: the trainer's counts.
    assert [sample.model_version for sample in samples[:4]] == [7, 7, 7, 0]


def test_a_broken_run_and_one_that_trains_nothing_reach_the_trainer(monkeypatch: pytest.MonkeyPatch):
    async def broken(tasks: list[Task], seed: int) -> Any:
        yield with_ids()
        raise UsageError("the server is gone")

    async def unscored(tasks: list[Task], seed: int) -> Any:
        yield made([math.nan, math.nan], ["max_turns", "max_turns"])

    task = with_ids().task
    for stream, text in ((broken, "have ended: the server is gone"), (unscored, "has anything to train")):
        worker = working(monkeypatch, stream, [task])
        thread = worker._thread
        assert thread is not None
        thread.join()
        with pytest.raises(UsageError, match=text):
            worker.check_health(60)
        worker.stop()


class Versions:
    """A pool that notes its versions."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def aupdate_weights(self, version: str, update: Any, policy: str) -> None:
        if asyncio.iscoroutine(loaded := update()):
            await loaded
        self.seen.append((version, policy))

    def update_weights(self, version: str, update: Any, policy: str) -> None:
        update()
        self.seen.append((version, policy))


def test_a_change_of_weights_that_meets_a_broken_run_says_so(monkeypatch: pytest.MonkeyPatch):
    class Waiting(Versions):
        async def aupdate_weights(self, version: str, update: Any, policy: str) -> None:
            reached.set()
            await asyncio.Event().wait()

    async def broken(tasks: list[Task], seed: int) -> Any:
        while not reached.is_set():
            await asyncio.sleep(0.001)
        raise UsageError("the server is gone")
        yield

    reached = threading.Event()
    worker = working(monkeypatch, broken, [with_ids().task])
    with pytest.raises(UsageError, match="have ended: the server is gone"):
        trl.WeightTransfer(Waiting(), list, worker).send_weights(iter([]))
    worker.stop()


def test_weights_are_versions_of_the_pool(monkeypatch: pytest.MonkeyPatch):
    async def stream(tasks: list[Task], seed: int) -> Any:
        yield with_ids()

    pool, loaded = Versions(), []

    def load(weights: Any) -> None:
        found = list(weights)
        if not found:
            raise RuntimeError("no weights")
        loaded.extend(found)

    worker = working(monkeypatch, stream, [with_ids().task], queue_size=1)
    transfer = trl.WeightTransfer(pool, load, worker)
    for call in (transfer.init_weight_transfer, transfer.pause, transfer.resume):
        call()
    transfer.send_weights(iter([("a", 1)]))
    with pytest.raises(RuntimeError, match="no weights"):
        transfer.send_weights(iter([]))
    worker.stop()
    transfer.send_weights(iter([("b", 2)]))
    transfer.destroy()
    assert loaded == [("a", 1), ("b", 2)]
    assert pool.seen == [("step-1", "drain"), ("step-2", "drain")]
