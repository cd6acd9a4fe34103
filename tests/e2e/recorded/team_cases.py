"""Recorded runs of programs and teams: side by side, skipping, forks, several LLMs, batches."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import players
from agent_cases import SURE, WORDS
from driven_teams import Panel as Talk
from driven_teams import Review, Rowed, says
from duo_team import TASKS as DUO_TASKS
from duo_team import Duo
from duo_team import generate as duo_engine
from pair_team import READY, Looking, Pair
from panels import LEAD, Apart, Panel, asks_both
from replies import Body, cast, choice, completion, lost_in, refused
from replies import says as reply_of
from sim_engine import SimEngine
from small_teams import TEAMS
from stage import Stage
from table import case
from worlds import worth

import trunkline as tl
from trunkline.sim.tools import search, visit

SHAPES: dict[str, Any] = {
    "chains": tl.Chain(2),
    "tree-grpo": tl.TreeGRPO(trees=2, forks=2, rounds=1),
    "mcts": tl.strategies.MCTS(6, parallel=2, children=2),
}


def teamed(stage: Stage, team: Any, strategy: Any, **options: Any) -> None:
    llm = options.pop("llm", None) or stage.serve(options.pop("handler", cast))
    stage.run(team, options.pop("tasks", WORDS[:2]), llm=llm, strategy=strategy, **options)


for name, team in TEAMS.items():
    for shape, strategy in SHAPES.items():
        reward = tl.exact_match if shape == "mcts" else None
        case(f"team {name}, {shape}")(partial(teamed, team=team, strategy=strategy, reward=reward))

SWITCHES = (
    "early_termination",
    "agent_skip",
    "parallel_agents",
    "preprocessing_cache",
    "context_fragments",
    "late_join",
    "active_only",
    "profiling",
)


def changed(team: tl.Team, **changes: Any) -> tl.Team:
    """The same team with other settings."""
    return msgspec.structs.replace(team, **changes)


def switched_off(stage: Stage, name: str) -> None:
    """Runs of a team, each without one of the switches."""
    for switch in SWITCHES:
        teamed(stage, changed(TEAMS[name], **{switch: False}), tl.Chain(2), name=f"without {switch}")


for name in ("council", "math", "search"):
    case(f"team {name} without a switch")(partial(switched_off, name=name))
case("team with a short context")(
    partial(teamed, team=changed(TEAMS["council"], max_context_length=30), strategy=tl.Chain(2))
)
case("team with few turns")(partial(teamed, team=changed(TEAMS["math"], max_turns=3), strategy=tl.Chain(2)))

SIM_TEAMS: dict[str, Any] = {
    "search": lambda: tl.teams.SearchTeam(model="sim-team", tool=search, history=4),
    "math": lambda: tl.teams.MathTeam(model="sim-team"),
    "experts": lambda: tl.teams.ExpertsTeam(model="sim-team"),
    "pair": lambda: Pair(model="sim-team", rounds=3),
    "looking": lambda: Looking(
        model="sim-team", rounds=3, tools=(search, visit), roles={"solver": {"tools": [search, visit]}}
    ),
}


def both_kinds(stage: Stage) -> list[tl.Task]:
    return stage.questions(1) + stage.questions(2, "arithmetic")


for name, make in SIM_TEAMS.items():
    for shape in ("chains", "tree-grpo"):
        case(f"simulated team {name}, {shape}")(
            lambda stage, make=make, shape=shape: stage.run(
                make(), both_kinds(stage), llm=stage.sim(), strategy=SHAPES[shape], reward=tl.exact_match
            )
        )
BATCHES: dict[str, dict[str, Any]] = {
    "as they come": {},
    "small": {"max_batch": 5},
    "apart": {"fuse_calls": False, "regroup": False},
    "arrays": {"core_masks": False},
}


def in_batches(stage: Stage, name: str) -> None:
    """Runs of a simulated team by an engine, in batches of any kind."""
    for kind, settings in BATCHES.items():
        engine = stage.batches(SimEngine().generate, **settings)
        tasks, strategy = both_kinds(stage), tl.Chain(2)
        stage.run(SIM_TEAMS[name](), tasks, llm=engine, strategy=strategy, reward=tl.exact_match, name=kind)


for name in ("search", "math", "experts"):
    case(f"simulated team {name} in batches")(partial(in_batches, name=name))


async def spoken(body: Body, nth: int) -> Body:
    """The model of the driven teams, whose replies come in no order that is known before."""
    text = says(body["messages"], body["seed"])
    for _ in range(len(text) % 5):
        await asyncio.sleep(0)
    return completion([choice(text)])


def talked(body: Body, nth: int) -> Any:
    return spoken(body, nth)


for kind in (Review, Talk):
    team = kind(model="large")
    case(f"team {kind.__name__}, out of order")(
        lambda stage, team=team: teamed(
            stage, team, tl.Chain(2), llm=tl.LLM(stage.serve(talked), siblings=False), tasks=WORDS
        )
    )
    case(f"team {kind.__name__}, in batches")(
        lambda stage, team=team: teamed(stage, team, tl.Chain(2), llm=stage.batches(Rowed().generate), tasks=WORDS)
    )

for name, changes in {
    "as it is": {},
    "in steps": {"steps": True},
    "to the last round": {"early_termination": False},
    "in steps to the last round": {"steps": True, "early_termination": False},
}.items():
    case(f"team of two, {name}")(
        lambda stage, changes=changes: teamed(
            stage, Duo(model="m", **changes), tl.Chain(2), llm=stage.batches(duo_engine), tasks=DUO_TASKS
        )
    )


def of(who: str) -> Any:
    return lambda body, nth: reply_of(f"{who} {body['seed']}")


def panelled(stage: Stage, team: Any, *names: str, **options: Any) -> None:
    llms = {name: tl.LLM(stage.serve(of(name or "main"), name or "main"), siblings=False) for name in names}
    stage.run(team, WORDS, llm=llms, **options)


case("several LLMs")(lambda stage: panelled(stage, Panel(model="m"), "", "judge", strategy=tl.Chain(2)))
case("several LLMs, all named")(lambda stage: panelled(stage, Apart(model="m"), "solver", "judge"))
case("several LLMs, forks")(
    lambda stage: panelled(stage, Panel(model="m"), "", "judge", strategy=tl.TreeGRPO(trees=1, forks=2))
)
case("several LLMs of a program")(lambda stage: panelled(stage, LEAD, "", "judge", program=asks_both))
case("several LLMs, cached")(
    lambda stage: [
        panelled(stage, LEAD, "", "judge", program=asks_both, cache=stage.folder / "c", name=name)
        for name in ("first", "again")
    ]
)


@case("several LLMs, one in batches")
def mixed(stage: Stage) -> None:
    engine = stage.batches(lambda prompts: [f"batch {prompt.seed}" for prompt in prompts])
    llms = {"": tl.LLM(stage.serve(of("main"), "main"), siblings=False), "judge": engine}
    stage.run(Panel(model="m"), WORDS, llm=llms, strategy=tl.Chain(2))


@case("roles of their own models and sampling")
def roles(stage: Stage) -> None:
    stage.run(READY, WORDS[:2], llm=stage.serve(of("any")), strategy=tl.Chain(2))


def scout(body: Body, nth: int) -> Any:
    """Says who is asked, of what length the conversation is, and the seed; hot requests are refused."""
    if body.get("temperature", 0) > 5:
        return refused(400, "temperature: too hot")
    who = next((message["content"] for message in body["messages"] if message["role"] == "system"), "lead")
    count = body.get("n") or 1
    drawn = [choice(f"{who} {len(body['messages'])} {(body['seed'] + at) % 97}", index=at) for at in range(count)]
    return completion(drawn, {"prompt_tokens": 7, "completion_tokens": 4 * count})


def held(body: Body, nth: int) -> Any:
    """The same, but south never replies."""
    if any(message["content"] == "You are south." for message in body["messages"]):
        return asyncio.Event().wait()
    return scout(body, nth)


LEADER = tl.Agent(model="m", name="lead", max_turns=12)
PROGRAMS: dict[str, tuple[Any, Any, tl.Agent]] = {
    "that gathers": (players.together, scout, LEADER),
    "of groups in groups": (players.in_a_group, scout, LEADER),
    "that gives a request up": (players.first_of, held, LEADER),
    "with tools": (
        players.tooled,
        lost_in(depth=3),
        tl.Agent(model="m", name="lead", tools=[players.failing], sampling=SURE),
    ),
    "that is refused": (players.refused, scout, LEADER),
    "that takes all its turns": (players.many_turns, scout, tl.Agent(model="m", name="lead", max_turns=4)),
}
for name, (program, handler, agent) in PROGRAMS.items():
    for shape in ("chains", "tree-grpo"):
        # Whether a request that is given up has left by then depends on the time.
        case(f"program {name}, {shape}", *(("digests", "trees") if handler is held else ()))(
            partial(
                teamed,
                team=agent,
                strategy=tl.Chain(3) if shape == "chains" else SHAPES[shape],
                handler=handler,
                program=program,
                reward=worth if name == "with tools" else None,
            )
        )
case("program that gathers, in batches")(
    lambda stage: teamed(stage, LEADER, tl.Chain(2), llm=stage.batches(Rowed().generate), program=players.together)
)
case("program of groups in groups, in batches")(
    lambda stage: teamed(stage, LEADER, tl.Chain(2), llm=stage.batches(Rowed().generate), program=players.in_a_group)
)
case("program with tools, task budget")(
    partial(
        teamed,
        team=tl.Agent(model="m", name="lead", tools=[players.failing], sampling=tl.Sampling(max_tokens=20)),
        strategy=tl.Chain(3),
        handler=lost_in(depth=3),
        program=players.tooled,
        task_budget=tl.Budget(tools=4, calls=8),
    )
)
