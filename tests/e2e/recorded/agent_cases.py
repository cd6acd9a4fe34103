"""Recorded runs of the agent loop: strategies, dialects, tools, sampling, several draws at once, endpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

from every_strategy import STRATEGIES
from killed_runs import SURE, WORDS
from own_strategy import Recheck
from replies import lost_in
from scripted import look as looks_up
from stage import Stage
from table import case
from worlds import worth

import trunkline as tl
from trunkline.sim.tools import search, visit


def sim_agent(**changes: Any) -> tl.Agent:
    return tl.Agent(**({"model": "sim-agent", "tools": [search, visit], "max_turns": 8, "sampling": SURE} | changes))


def scripted_agent(**changes: Any) -> tl.Agent:
    return tl.Agent(**({"model": "scripted", "tools": [looks_up], "max_turns": 5, "sampling": SURE} | changes))


def simulated(stage: Stage, strategy: Any = None, tasks: int = 2, **options: Any) -> None:
    agent = options.pop("agent", None) or sim_agent()
    llm = options.pop("llm", None) or stage.sim()
    stage.run(agent, stage.questions(tasks), llm=llm, strategy=strategy, **{"reward": tl.exact_match} | options)


def scripted(stage: Stage, strategy: Any = None, agent: tl.Agent | None = None, **options: Any) -> None:
    llm = options.pop("llm", None) or stage.serve(options.pop("handler", None) or lost_in())
    options = {"reward": worth} | options
    stage.run(agent or scripted_agent(), options.pop("tasks", WORDS), llm=llm, strategy=strategy, **options)


for name, strategy in {**STRATEGIES, "own": Recheck(most=4)}.items():
    case(f"strategy {name}, simulated")(partial(simulated, strategy=strategy))
    case(f"strategy {name}, scripted")(partial(scripted, strategy=strategy))

for siblings in (True, False):
    for honours in (True, False):
        case(f"draws {'together' if siblings else 'one by one'}, n {'honoured' if honours else 'ignored'}")(
            lambda stage, siblings=siblings, honours=honours: scripted(
                stage, tl.Chain(4), llm=tl.LLM(stage.serve(lost_in(honours_n=honours)), siblings=siblings)
            )
        )
