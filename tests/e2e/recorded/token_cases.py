"""Recorded runs with exact token ids: how servers are asked for them, what drifts, and what is drawn inside turns."""

from __future__ import annotations

from functools import partial
from typing import Any

from agent_cases import SURE, sim_agent, simulated
from stage import Stage
from table import case

import trunkline as tl
from trunkline.sim.tools import search

PLAIN = tl.Sampling(max_tokens=400)


def exact(stage: Stage, mode: tl.TokenMode, strategy: Any, agent: tl.Agent | None = None, **server: Any) -> None:
    llm = tl.LLM(stage.sim(**server), tokens=mode)
    simulated(stage, strategy, llm=llm, agent=agent or sim_agent(sampling=PLAIN))


for api in ("chat", "completions", "generate"):
    mode = tl.TokenMode(api=api)
    case(f"token ids, {api}")(partial(exact, mode=mode, strategy=tl.TreeGRPO(trees=2, forks=2)))
    case(f"token ids, {api}, likeliest tokens")(partial(exact, mode=mode, strategy=tl.Chain(2), agent=sim_agent()))
    case(f"token ids, {api}, hermes")(
        partial(exact, mode=mode, strategy=tl.Chain(2), agent=sim_agent(dialect="hermes", sampling=PLAIN))
    )
    for drift in ("bridge", "realign", "fork"):
        case(f"token ids, {api}, drift {drift}")(
            partial(
                exact,
                mode=tl.TokenMode(api=api, drift=drift),
                strategy=tl.Chain(2),
                noncanonical=0.3,
                history_thinking="drop",
            )
        )
    if api != "chat":
        case(f"token ids, {api}, inside turns")(
            partial(exact, mode=mode, strategy=tl.strategies.EntropyTree(chains=1, points=1, rounds=2, samples=2))
        )
        case(f"token ids, {api}, tags")(
            partial(
                exact,
                mode=mode,
                strategy=tl.Chain(2),
                agent=sim_agent(model="sim-tagged", tools=[search], dialect=tl.llms.SearchR1(), sampling=PLAIN),
            )
        )


@case("token ids, chat, realigned at most 8")
def few(stage: Stage) -> None:
    exact(stage, tl.TokenMode(drift="realign", realign_limit=8), tl.Chain(2), noncanonical=0.5)


@case("token ids, cache")
def cached(stage: Stage) -> None:
    llm = tl.LLM(stage.sim(), tokens=tl.TokenMode(api="completions"))
    for name in ("first", "again"):
        simulated(stage, tl.Chain(2), llm=llm, agent=sim_agent(sampling=PLAIN), cache=stage.folder / "c", name=name)


@case("token ids, weights")
def versions(stage: Stage) -> None:
    llm = tl.LLM(stage.sim(), tokens=tl.TokenMode(api="generate"))
    simulated(stage, tl.Chain(2), llm=llm, agent=sim_agent(sampling=PLAIN), policy_version="step-7")


for region in ("think", "tool", "all", "mixed"):
    case(f"region {region}")(
        partial(
            simulated,
            strategy=tl.strategies.Partial(initial=2, top_k=1, rounds=1, samples=2, budget=6, region=region),
            agent=sim_agent(sampling=SURE),
        )
    )


@case("region that no server gives")
def missing(stage: Stage) -> None:
    strategy = tl.strategies.Partial(initial=1, top_k=1, budget=6, region="tool")
    simulated(stage, strategy, llm=stage.sim(tool_logprobs=False))
