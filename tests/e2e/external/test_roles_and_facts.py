"""Agents that are several roles, and agents that return facts beside their answer; verifiers without its package."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from commands import trunkline
from external_agents import TOOLS, Walker, walk

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.rollout.external import verifiers
from trunkline.scoring.rewards.base import Scored
from trunkline.tree.records import Failure

TASKS = [tl.Task.ask(f"Walk {number}.", id=f"q{number}") for number in range(2)]
TREES = tl.TreeGRPO(trees=1, forks=2, rounds=1)


async def play(agent: Any, *, roles: Any = (), strategy: Any = TREES, max_turns: int = 12) -> tl.Run:
    program = tl.External(agent=agent, effects="none", roles=roles)
    who = tl.Agent(model="m", name="other", max_turns=max_turns)
    return await tl.arun(who, TASKS, llm=Walker(), program=program, strategy=strategy, seed=3, workers=0)


async def pair(client: Any, task: tl.Task) -> tuple[str | None, dict[str, Any]]:
    """Two roles ask the same at the same time, then one of them walks."""
    messages = [{"role": "system", "content": "Both."}, *task.messages]
    asked = [client.chat.completions.create(model=role, messages=messages, tools=TOOLS) for role in ("one", "two", "m")]
    replies = await asyncio.gather(*(asyncio.sleep(0.001 * (id(one) % 3), one) for one in asked))
    texts = [(await reply).choices[0].message.content for reply in replies]
    answer = await walk(client, task)
    return answer, {"said": texts, "url": str(client.base_url), "answer": answer}


async def test_roles_are_told_apart_by_the_models_they_ask_and_facts_stay_with_the_rollout():
    first, again = [await play(pair, roles=["one", "two"]) for _ in range(2)]
    assert [tree.digest() for tree in first] == [tree.digest() for tree in again]
    assert first.summary().agent_calls.diverged == 0
    for rollout in (rollout for tree in first for rollout in tree.rollouts):
        names = [node.agent for node in rollout.nodes if node.kind.name == "TURN"]
        assert sorted(names[:3]) == ["one", "other", "two"], "a model of another name is the run's agent"
        assert set(names[3:]) == {"other"}
        assert rollout.final_info["answer"] == rollout.answer
        assert rollout.final_info["url"].startswith("http://127.0.0.1:")
        assert "[key]" in rollout.final_info["url"], "the secret is in no fact"
    plain = await play(pair)
    assert {node.agent for node in plain["q0"].rollouts[0].nodes if node.kind.name == "TURN"} == {"other"}


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("facts", [3, {"a": b"\xff", "b": object()}, {"long": "x" * 70_000}, {1: {2, 3}, "z": 1 + 2j}])
async def test_facts_that_cannot_be_kept(facts: Any):
    async def agent(client: Any, task: tl.Task) -> Any:
        return await walk(client, task), facts

    run = await play(agent, strategy=tl.Chain(1))
    assert run.summary().terminations == {"lost": 2}
    errors = [tree.core.rollout(0).error for tree in run]
    assert all("the agent's facts are" in Failure.decode(error).message for error in errors if error)


async def test_facts_of_an_agent_that_a_limit_ended():
    async def agent(client: Any, task: tl.Task) -> Any:
        try:
            return await walk(client, task)
        except openai.RateLimitError as error:
            return None, {"stopped": type(error).__name__} if task.id == "q0" else None

    run = await play(agent, max_turns=2, strategy=tl.Chain(1))
    assert run.summary().terminations == {"max_turns": 2}
    assert [tree.rollouts[0].final_info for tree in run] == [{"stopped": "RateLimitError"}, None]


@pytest.mark.parametrize("roles", ["one", [3], [""], ["\ud800"], {"one": 1}])
def test_roles_are_names(roles: Any):
    with pytest.raises(ConfigError, match=r"roles? must be|a role holds a lone surrogate"):
        tl.External(agent=pair, roles=roles)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(ConfigError, match=r"from_verifiers needs an extra .*trunkline\[verifiers\]"):
        tl.from_verifiers("gsm8k-v1")
    with pytest.raises(ConfigError, match=r"trunkline\[verifiers\]"):
        getattr(verifiers, 'episodes"gsm8k-v1"')
    with pytest.raises(ConfigError, match="limit"):
        tl.from_verifiers("gsm8k-v1", limit=0)
    assert not hasattr(verifiers, "other")


def trace(agent: str, reward: float | None, counts: bool = True, **metrics: float | None) -> dict[str, Any]:
    return {
        "agent": agent,
        "counts": counts,
        "reward": reward,
        "rewards": {"reward": None if reward is None else [reward, 1.0], "none": None},
        "metrics": metrics,
    }


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        ([trace("agent", 2.5, looks=3.0)], {"reward": 2.5, "agent.reward": 2.5, "looks": 3.0}),
        (
            [trace("agent", 1.0, best=1.0), trace("agent", 0.0, best=0.0)],
            {"reward": 0.5, "agent.reward": 0.5, "best": 0.5},
        ),
        (
            [trace("user", 7.0, False, n=None), trace("solver", 1.0, n=2.0)],
            {"reward": 1.0, "solver.reward": 1.0, "user.reward": 7.0, "solver.n": 2.0},
        ),
    ],
)
def test_the_reward_is_the_mean_over_trainable_traces_and_has_parts(traces: Any, said: Any):
    assert verifiers.episode_reward(SimpleNamespace(final_info={"traces": traces})) == said


@pytest.mark.parametrize("info", [None, {}, {"traces": []}, {"traces": [trace("agent", None)]}])
def test_an_episode_without_a_reward_is_not_scored(info: Any):
    said = verifiers.episode_reward(SimpleNamespace(final_info=info))
    assert isinstance(said, Scored)
    assert said.value != said.value
    assert said.problem == "the environment gave no reward"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["questions.jsonl"], "--verifiers and QUESTIONS"),
        (["--reward", "exact_match"], "--verifiers and --reward"),
        (["--agent", "python agent.py"], "--verifiers and --agent"),
        (["--agent-env", "A=1"], "--verifiers and --agent-env"),
        (["--program", "a:b"], "--verifiers and --program"),
        ([], "trunkline[verifiers]"),
    ],
)
def test_the_command_line_takes_a_taskset_alone(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    done = trunkline(tmp_path, "run", "--verifiers", "any", "-m", "m", "--base-url", "http://localhost:9/v1", *words)
    assert done.returncode == 2
    assert said in done.stderr
