"""Budgets of tokens hold whatever a program sends: messages of its own may be longer than its path, or shorter."""

from __future__ import annotations

from typing import Any

import pytest

import trunkline as tl
from trunkline.llm.batch.completion import Prompt
from trunkline.rollout.programs.context import ProgramContext
from trunkline.store.reader import RunReader

AGENT = tl.Agent(model="m", sampling=tl.Sampling(max_tokens=10))
OTHER = tl.Agent(model="m", name="other", sampling=tl.Sampling(max_tokens=10))
SHORT, LONG = ([{"role": "user", "content": "x" * size}] for size in (1, 4000))


def a_token_a_byte(prompts: list[Prompt]) -> list[dict[str, Any]]:
    """An engine that counts a token for each byte of what is said."""
    sizes = [sum(len(message["content"]) for message in prompt.messages) for prompt in prompts]
    return [{"text": "yes", "usage": {"prompt_tokens": size, "completion_tokens": 1}} for size in sizes]


async def short_then_long(rollout: ProgramContext) -> str:
    await rollout.ask(AGENT, SHORT)
    return (await rollout.ask(AGENT, LONG)).text


async def short_then_path(rollout: ProgramContext) -> str:
    await rollout.observe("x" * 4000)
    await rollout.ask(AGENT, SHORT)
    return (await rollout.ask()).text


async def long_then_short(rollout: ProgramContext) -> str:
    await rollout.ask(OTHER, LONG)
    return (await rollout.ask(OTHER, SHORT)).text


def spent(program: Any, budget: tl.Budget) -> tuple[str, int]:
    """How a rollout ends, and how many prompt tokens it spent."""
    tasks = [tl.Task.ask("?")]
    result = tl.run(AGENT, tasks, program=program, llm=tl.BatchLLM(a_token_a_byte), task_budget=budget, seed=1)
    with RunReader.open(result.path) as reader:
        return next(iter(result)).rollouts[0].termination, reader.summary().usage.prompt


@pytest.mark.parametrize("program", [short_then_long, short_then_path])
def test_what_a_short_prompt_did_cost_pays_for_no_long_one(program: Any):
    assert spent(program, tl.Budget(prompt=4_000)) == ("censored", 1)


def test_a_short_prompt_is_paid_for_after_a_long_one():
    assert spent(long_then_short, tl.Budget(prompt=5_000)) == ("answer", 4_001)
