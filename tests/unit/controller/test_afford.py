"""Budgets that can pay for nothing are refused before the first request, with the arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from atlas import agent, tasks

from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.llm.pricing import Price
from trunkline.llm.request import Sampling
from trunkline.protocol.job import pack_job, unpack_job
from trunkline.rollout.budget import Budget
from trunkline.runner.plan import PreparedRun
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO

NOWHERE = "http://127.0.0.1:9/v1"


def plan(folder: Path, *, limited: bool = True, price: Price | None = None, **options: object) -> PreparedRun:
    who = agent(sampling=Sampling(max_tokens=100)) if limited else agent()
    return PreparedRun(who, tasks(), llm=LLM(NOWHERE, price=price), workers=0, out=folder / "r", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"task_budget": Budget(rollouts=5), "strategy": TreeGRPO(trees=2, forks=2, rounds=1)},
            r"task_budget allows 5 rollouts, but TreeGRPO makes M \(1 \+ N L\) = 2 \(1 \+ 2 x 1\) = 6 of one task",
        ),
        ({"budget": Budget(rollouts=3), "strategy": Chain(4)}, "budget allows 3 rollouts, but Chain makes n = 4 of"),
        (
            {"budget": Budget(tokens=1000), "limited": False},
            r"budget limits tokens, but nothing limits what a turn generates: set sampling.max_tokens \(--max-tokens\)",
        ),
        ({"budget": Budget(money=1), "limited": False}, "budget limits money, but nothing limits what a turn"),
        ({"budget": Budget(money=1)}, r"budget limits money, but the LLM has no price: give it one, price=Price"),
        ({"task_budget": Budget(generated=99)}, "task_budget allows 99 generated, .* one turn: max_tokens is 100"),
        (
            {"budget": Budget(tokens=400)},
            r"budget allows 400 tokens, .* one turn: the shortest prompt may have \d+ tokens and max_tokens is",
        ),
        ({"budget": Budget(prompt=100)}, "budget allows 100 prompt, .* the shortest prompt may have"),
        (
            {"budget": Budget(money=1e-5), "price": Price(prompt=1, generated=1)},
            "budget allows 1e-05 of money, .* and 100 generated ones may cost 0.00",
        ),
        ({"budget": 5}, "budget must be a Budget, not 5"),
        ({"task_budget": {"calls": 3}}, "task_budget must be a Budget, not"),
    ],
)
def test_what_cannot_be_paid_for_is_refused_at_start(tmp_path: Path, options: dict, text: str):
    with pytest.raises(ConfigError, match=text):
        plan(tmp_path, **options)
    assert list(tmp_path.iterdir()) == [], "no file is left"


def test_what_just_pays_for_one_turn_is_allowed(tmp_path: Path):
    made = plan(tmp_path, task_budget=Budget(generated=100, calls=1, tools=1))
    made._writer.discard()
    assert made._job.task_budget == Budget(generated=100, calls=1, tools=1)


def test_budgets_and_what_ends_a_tree_cross_to_workers(tmp_path: Path):
    made = plan(
        tmp_path,
        budget=Budget(calls=9, seconds=2.5),
        task_budget=Budget(generated=500),
        strategy=Chain(4, wave=2),
        enough=3,
        cut_tail="keep",
        stop_when="answer",
    )
    there = unpack_job(pack_job(made._job))
    made._writer.discard()
    assert (there.budget, there.task_budget) == (Budget(calls=9, seconds=2.5), Budget(generated=500))
    assert there.stopping == made._job.stopping
    assert there.timing == ["enough", "budget"]
    assert there.strategy == Chain(4, wave=2)
