"""Stateful tools in real runs: worker processes, a server over HTTP, run files and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import walking
from batching import LONG, turns
from foreign import message, serving
from notebook import Clock, Liar, Notebook, Paper, account, forget, look
from places import python_path
from slates import PaperSlate, Slate

from trunkline.agent import Agent
from trunkline.cli.tables import table
from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.batch.completion import Prompt
from trunkline.runner.amend import rescore
from trunkline.runner.result import Run
from trunkline.runner.run import arun, run
from trunkline.scoring.rewards import exact_match, step_sum
from trunkline.store.reader import RunReader
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tools.environment import Environment
from trunkline.tools.environment_pool import EnvironmentPool
from trunkline.tree.views import Trajectory
from trunkline.types import Task, Termination

TASKS = [Task.ask(f"Write about {name}.", "yes", id=name) for name in ("ants", "bees", "cats", "dogs", "eels", "frogs")]


def writer(body: dict) -> dict:
    """Writes one or two words a turn, drawn by the seed; answers after two turns, or later."""
    choices = []
    turns = sum(each["role"] == "assistant" for each in body["messages"])
    for index in range(body.get("n") or 1):
        draws = random.Random(body["seed"] + index)
        if turns >= 2 and draws.random() < 0.5:
            said = message(f"<answer>{draws.choice(['yes', 'no'])}</answer>")
        else:
            said = message(
                None, [("look", json.dumps({"what": word})) for word in draws.choices("abcdef", k=1 + turns % 2)]
            )
        choices.append(said["choices"][0] | {"index": index})
    return said | {"choices": choices}


def hermes(body: dict) -> dict:
    """The same in plain text; some calls forget to close, and some are no JSON."""
    answer = writer(body)
    for choice in answer["choices"]:
        said = choice["message"]
        calls = said.pop("tool_calls", [])
        written = [f'{{"name": "look", "arguments": {call["function"]["arguments"]}}}' for call in calls]
        if calls and (body["seed"] + choice["index"]) % 3 == 0:
            written[0] = written[0][:-2]
        said["content"] = said["content"] or "<think>so</think>" + "".join(f"<tool_call>\n{each}\n" for each in written)
    return answer


def broken(body: dict) -> dict:
    """The same as tool calls some of which are no JSON, and some lead to no tool."""
    answer = writer(body)
    for choice in answer["choices"]:
        for call in choice["message"].get("tool_calls", []):
            function = call["function"]
            kind = (body["seed"] + choice["index"]) % 3
            if kind == 0:
                function["arguments"] = function["arguments"][:-1]
            elif kind == 1:
                function["name"] = "lo ok"
    return answer


def grown(url: str, environment: type[Environment] | EnvironmentPool, workers: int, out: Path, **changes: Any) -> Run:
    return run(
        Agent(**({"model": "m", "tools": [look], "environment": environment, "max_turns": 6} | changes)),
        TASKS,
        llm=url,
        strategy=TreeGRPO(trees=2, forks=2, rounds=2),
        reward=exact_match,
        workers=workers,
        seed=11,
        out=out,
    )


def digests(result: Run) -> dict[str, str]:
    return {tree.task.id: tree.digest() for tree in result}


def test_trees_are_the_same_for_any_number_of_workers_by_snapshot_and_by_replay(tmp_path: Path):
    forget()
    with serving(writer) as server:
        here = grown(server.url, Notebook, 0, tmp_path / "0")
        done = account()
        assert done.count("restore") > 6, "most states are in the middle"
        assert digests(grown(server.url, Notebook, 2, tmp_path / "2")) == digests(here)
        assert digests(grown(server.url, Paper, 2, tmp_path / "r")) == digests(here)
        assert digests(grown(server.url, Paper, 0, tmp_path / "p")) == digests(here)
        assert "restore" not in account()
    for tree in here:
        assert len(tree.rollouts) == 10, "M (1 + N L) = 2 (1 + 2 x 2)"
        assert {rollout.termination for rollout in tree.rollouts} <= {Termination.ANSWER, Termination.MAX_TURNS}
        for rollout in tree.rollouts:
            texts = [node.text for node in rollout.nodes if node.message.get("role") == "tool"]
            assert all(after.split()[:-1] == before.split() for before, after in pairwise([tree.task.id, *texts])), (
                "each observation is the one before it and one word more"
            )


@pytest.mark.parametrize("workers", [0, 2])
def test_trees_are_the_same_with_a_pool_of_environments(tmp_path: Path, workers: int):
    pool = EnvironmentPool("slates:Slate", size=2, warm=1, reset=True, max_uses=5)
    with serving(writer) as server:
        plain = digests(grown(server.url, Notebook, 0, tmp_path / "plain"))
        Slate.live = Slate.most = 0
        assert digests(grown(server.url, pool, workers, tmp_path / "pool")) == plain
        assert digests(grown(server.url, EnvironmentPool(PaperSlate, size=1, reset=True), 0, tmp_path / "p")) == plain
    assert (Slate.live, Slate.most <= 2) == (0, True)


@pytest.mark.parametrize(
    ("server", "changes"),
    [
        (broken, {"malformed": "return"}),
        (broken, {"malformed": "repair"}),
        (hermes, {"dialect": "hermes", "malformed": "return"}),
        (hermes, {"dialect": "hermes", "malformed": "repair"}),
    ],
)
def test_whatever_the_dialect_what_is_replayed_is_what_ran(tmp_path: Path, server: Any, changes: dict[str, Any]):
    with serving(server) as listening:
        snapped = grown(listening.url, Notebook, 0, tmp_path / "s", **changes)
        replayed = grown(listening.url, Paper, 0, tmp_path / "r", **changes)
    assert digests(snapped) == digests(replayed)
    assert {rollout.error for tree in replayed for rollout in tree.rollouts} == {None}, "no fork was refused"
    summary, usage = replayed.summary(), replayed.summary().usage
    assert summary.replayed > 0 == snapped.summary().replayed
    assert f"; {summary.replayed:,} more were run again for forks" in table(summary)
    assert (usage.tools if "repair" in changes.values() else usage.tool_errors) > 0
    assert usage == snapped.summary().usage, "what is replayed is no call"


class Batches:
    """A batch engine that writes as :func:`writer` does, and tells how many prompts each of its batches had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.called = asyncio.Event()

    async def generate(self, prompts: list[Prompt]) -> list[dict]:
        self.sizes.append(len(prompts))
        self.called.set()
        answers = [writer(msgspec.json.decode(prompt.body) | {"n": 1, "seed": prompt.seed}) for prompt in prompts]
        return [
            {
                "text": said["content"] or "",
                "tool_calls": [{"id": "", **call["function"]} for call in said.get("tool_calls", [])],
            }
            for said in (answer["choices"][0]["message"] for answer in answers)
        ]

    async def drive(self, environment: type[Environment], tool_wait: float, out: Path) -> None:
        agent = Agent(model="m", tools=[look], environment=environment, max_turns=6)
        llm = BatchLLM(self, max_wait=LONG, tool_wait=tool_wait)
        await asyncio.wait_for(
            arun(agent, TASKS[:1], llm=llm, strategy=TreeGRPO(trees=5, forks=1), seed=11, out=out), 30
        )


async def test_a_batch_waits_for_who_is_about_to_get_an_environment(tmp_path: Path):
    class Slow(Notebook):
        """Takes longer from one to the next, by turns of the event loop, to be there."""

        async def fresh(self, task: Task) -> None:
            await super().fresh(task)
            await turns(50 * self.done.count("fresh"))

    forget()
    batches = Batches()
    await batches.drive(Slow, LONG, tmp_path / "r")
    account()
    assert batches.sizes[:2] == [5, 5], "nobody answers before the third turn"


@pytest.mark.parametrize("method", ["fresh", "snapshot", "close"])
async def test_without_patience_no_batch_waits_for_an_environment(tmp_path: Path, method: str):
    batches = Batches()
    waited: list[bool] = []
    plain = getattr(Notebook, method)

    async def wait(self: Notebook, *given: Any) -> Any:
        """The first one waits until the others have gone on."""
        if not waited:
            waited.append(True)
            batches.called.clear()
            await batches.called.wait()
        return await plain(self, *given)

    forget()
    await batches.drive(type("Lasting", (Notebook,), {method: wait}), 0, tmp_path / "r")
    account()
    assert waited


@pytest.mark.parametrize("environment", [Clock, Liar])
def test_refused_forks_are_in_the_run_file_and_on_screen(tmp_path: Path, environment: type[Environment]):
    with serving(writer) as server:
        result = grown(server.url, environment, 2, tmp_path / "run")
    refused = [rollout for tree in result for rollout in tree.rollouts if rollout.termination is Termination.CANCELLED]
    assert refused
    assert {rollout.error.kind for rollout in refused} == {"ForkRefused"}
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        summary = reader.summary()
    assert summary.forks_refused == len(refused)
    assert sum(count for _, count in summary.refusals) <= summary.forks_refused
    assert summary.failed == 0
    assert summary.scored == summary.rollouts - len(refused)
    (line,) = [line for line in table(summary).splitlines() if line.startswith("forks refused")]
    assert f" {len(refused)}, most often because " in line


def test_the_command_line_takes_an_environment(tmp_path: Path):
    (tmp_path / "questions.jsonl").write_text('{"id": "q", "question": "Write.", "answer": "yes"}\n')
    path = python_path()

    def trunkline(*more: str) -> subprocess.CompletedProcess[str]:
        arguments = ["run", "questions.jsonl", "-m", "m", "--base-url", server.url, "--seed", "3", "-o", "r.run"]
        return subprocess.run(
            [sys.executable, "-m", "trunkline.cli", *arguments, "--tools", "notebook:look", *more],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=90,
        )

    with serving(writer) as server:
        refused = trunkline()
        assert refused.returncode == 2
        assert "set environment=Paper" in refused.stderr
        done = trunkline("--environment", "notebook:Notebook")
    assert done.returncode == 0, done.stderr
    with RunReader.open(tmp_path / "r.run") as reader:
        assert reader.settings["agent"]["environment"] == "Notebook"
        texts = [node.text for node in reader.tree("q").nodes if node.message.get("role") == "tool"]
    assert texts
    assert all(text.startswith("q ") for text in texts)


def walked(url: str, workers: int, out: Path, reward: Any) -> Run:
    agent = Agent(model="m", tools=[walking.look], environment=walking.SnappedWalk, max_turns=6)
    strategy = TreeGRPO(trees=2, forks=2, rounds=2)
    return run(agent, TASKS, llm=url, strategy=strategy, reward=reward, workers=workers, seed=11, out=out)


def words_left(trajectory: Trajectory) -> float:
    """A reward for after the run."""
    return float(len((trajectory.final_info or {}).get("words", [])))


@pytest.mark.parametrize("reward", [None, walking.length_walked])
def test_what_environments_said_is_in_the_run_file_for_any_number_of_workers(tmp_path: Path, reward: Any):
    with serving(writer) as server:
        runs = [walked(server.url, workers, tmp_path / f"{workers}", reward) for workers in (0, 2)]
    assert digests(runs[0]) == digests(runs[1])
    seen = [
        {
            (tree.task.id, rollout.id): (rollout.termination, repr(rollout.step_rewards), rollout.final_info)
            for tree in result
            for rollout in tree.rollouts
        }
        for result in runs
    ]
    assert seen[0] == seen[1]
    assert {one[0] for one in seen[0].values()} == {Termination.ANSWER, Termination.MAX_TURNS}
    for tree in runs[1]:
        for rollout in tree.rollouts:
            assert repr(rollout.step_rewards) == repr(walking.expected_rewards(rollout))
            given = [value for value in rollout.step_rewards if value == value]
            if reward is not None:
                assert rollout.reward == len(rollout.final_info["words"]) + (rollout.answer == "1") / 2
            else:
                assert rollout.reward == pytest.approx(sum(given)) if given else rollout.reward != rollout.reward
    with RunReader.open(tmp_path / "2") as reader:
        assert reader.check() == []
        assert reader.settings["reward"] == ("step_sum" if reward is None else "length_walked")
    assert rescore(tmp_path / "0", step_sum).changed == (0 if reward is None else 60)
    with pytest.raises(ConfigError, match="takes the rollouts' environments, which are closed since the run"):
        rescore(tmp_path / "2", walking.length_walked)
    rescore(tmp_path / "2", words_left)
    with RunReader.open(tmp_path / "2") as reader:
        assert all(
            rollout.reward == len(rollout.final_info["words"])
            for task in TASKS
            for rollout in reader.tree(task.id).rollouts
        )
