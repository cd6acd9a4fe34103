"""Recorded runs that end early: budgets of tasks and runs, settled answers, enough tries."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import product
from typing import Any

from agent_cases import WORDS, scripted, scripted_agent, sim_agent, simulated
from every_strategy import STRATEGIES
from replies import Body, cast, lost_in, says
from small_teams import TEAMS
from stage import Stage
from table import case

import trunkline as tl

PRICE = tl.llms.Price(prompt=1e4, generated=2e4, cached=5e3)
SHORT = tl.Sampling(max_tokens=20, logprobs=True, top_logprobs=4)
BUDGETS: dict[str, tl.Budget] = {
    "tokens": tl.Budget(tokens=3_000),
    "prompt": tl.Budget(prompt=3_000),
    "generated": tl.Budget(generated=60),
    "money": tl.Budget(money=30),
    "tools": tl.Budget(tools=5),
    "calls": tl.Budget(calls=7),
    "seconds that are never over": tl.Budget(seconds=1e6, calls=7),
    "several things": tl.Budget(tokens=20_000, tools=6, generated=90, rollouts=12),
}
GREW = {"chains": tl.Chain(4), "tree-grpo": tl.TreeGRPO(trees=2, forks=2, rounds=2), "mcts": STRATEGIES["mcts"]}


def priced(stage: Stage, **server: Any) -> tl.LLM:
    return tl.LLM(stage.serve(lost_in(**server)), price=PRICE)


for (name, budget), (shape, strategy) in product(BUDGETS.items(), GREW.items()):
    if shape == "chains" or name in {"tokens", "tools", "calls"}:
        case(f"task budget of {name}, {shape}")(
            lambda stage, budget=budget, strategy=strategy: scripted(
                stage, strategy, agent=scripted_agent(sampling=SHORT), llm=priced(stage), task_budget=budget
            )
        )

case("task budget of tokens and tools, simulated")(
    partial(
        simulated,
        strategy=tl.Chain(3),
        agent=sim_agent(sampling=tl.Sampling(max_tokens=400)),
        task_budget=tl.Budget(tokens=9_000, tools=6),
    )
)


@case("task budget, no usage")
def uncounted(stage: Stage) -> None:
    scripted(
        stage,
        tl.Chain(4),
        agent=scripted_agent(sampling=tl.Sampling(max_tokens=20)),
        llm=priced(stage, usage=False),
        task_budget=tl.Budget(tokens=4_000),
    )


for name in ("council", "math"):
    case(f"task budget of a team, {name}")(
        lambda stage, name=name: stage.run(
            TEAMS[name], WORDS, llm=stage.serve(cast), strategy=tl.Chain(3), task_budget=tl.Budget(calls=12, tools=2)
        )
    )


@case("run budget that pays for all")
def rich(stage: Stage) -> None:
    budget = tl.Budget(tokens=10**7, money=1e6, tools=1000, seconds=1e6)
    scripted(stage, tl.Chain(4), agent=scripted_agent(sampling=SHORT), llm=priced(stage), budget=budget)


@case("run budget of calls, one at a time")
def poor(stage: Stage) -> None:
    llm = tl.LLM(stage.serve(lost_in()), max_concurrency=1)
    scripted(
        stage,
        agent=scripted_agent(sampling=SHORT),
        llm=llm,
        tasks=WORDS[:1],
        budget=tl.Budget(calls=3),
        strategy=tl.Chain(2),
    )


for settled in ("answer", 0.7):
    for shape, strategy in {
        "waves": tl.Chain(6, wave=2),
        "tree-grpo": tl.TreeGRPO(trees=2, forks=2, rounds=2),
        "mcts": tl.strategies.MCTS(8, parallel=2, children=2),
    }.items():
        case(f"settled {settled}, {shape}")(
            lambda stage, settled=settled, strategy=strategy: scripted(
                stage, strategy, handler=lost_in(words=1 if settled == "answer" else 2), stop_when=settled
            )
        )


def stragglers(body: Body, nth: int) -> Any:
    """Never replies to a draw of an odd seed."""
    if body["seed"] % 2:
        return asyncio.Event().wait()
    return says(f"<answer>{body['seed'] % 3}</answer>")


for tail in ("censor", "keep"):
    # Whether stragglers have asked before they are cut depends on the time.
    case(f"enough, stragglers never reply, tail {tail}", "digests", "trees")(
        lambda stage, tail=tail: scripted(
            stage,
            tl.Chain(6),
            agent=scripted_agent(sampling=SHORT),
            llm=tl.LLM(stage.serve(stragglers), siblings=False),
            enough=3,
            cut_tail=tail,
        )
    )
