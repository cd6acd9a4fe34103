"""Recorded runs in worker processes, over TLS, continued, killed and resumed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import killed_runs
import players
from agent_cases import WORDS, scripted, scripted_agent, sim_agent, simulated
from goers import More
from notebook import Notebook, Paper, look
from panels import Panel
from places import python_path
from replies import cast, lost_in
from resuming import undo
from small_teams import TEAMS
from stage import TLS, Handler, Stage, environment
from table import Case, case
from team_cases import LEADER, SIM_TEAMS, of, scout

import trunkline as tl
from trunkline.runner.pool import Pool

TREES = ("digests", "trees")
GREW = tl.TreeGRPO(trees=2, forks=2, rounds=2)


def everywhere(play: Callable[..., None]) -> Case:
    """Make a run here, in a worker process, and in two."""

    def make(stage: Stage) -> None:
        for workers in (0, 1, 2):
            play(stage, workers=workers, name=f"{workers} workers")

    return make


EXACT = sim_agent(sampling=tl.Sampling(max_tokens=400))
SHORT = scripted_agent(sampling=tl.Sampling(max_tokens=20))
ENGINES: dict[str, Callable[..., None]] = {
    "simulated": lambda stage, **where: simulated(stage, GREW, tasks=4, **where),
    "scripted": lambda stage, **where: scripted(stage, GREW, **where),
    "token ids": lambda stage, **where: simulated(
        stage, tl.Chain(2), agent=EXACT, llm=tl.LLM(stage.sim(), tokens=tl.TokenMode(api="generate")), **where
    ),
    "team council": lambda stage, **where: stage.run(
        TEAMS["council"], WORDS, llm=stage.serve(cast), strategy=tl.TreeGRPO(trees=1, forks=2), **where
    ),
    "team stubborn": lambda stage, **where: stage.run(
        TEAMS["stubborn"], WORDS, llm=stage.serve(cast), strategy=tl.Chain(2), **where
    ),
    "simulated team": lambda stage, **where: stage.run(
        SIM_TEAMS["search"](), stage.questions(2), llm=stage.sim(), strategy=tl.Chain(2), **where
    ),
    "program": lambda stage, **where: stage.run(
        LEADER, WORDS, llm=stage.serve(scout), strategy=GREW, program=players.in_a_group, **where
    ),
    "task budget": lambda stage, **where: scripted(
        stage, tl.Chain(4), agent=SHORT, task_budget=tl.Budget(tokens=9_000, tools=5), **where
    ),
    "several LLMs": lambda stage, **where: stage.run(
        Panel(model="m"),
        WORDS,
        llm={name: tl.LLM(stage.serve(of(name), name or "main")) for name in ("", "judge")},
        **where,
    ),
    "environment with snapshots": lambda stage, **where: scripted(
        stage, GREW, agent=scripted_agent(tools=[look], environment=Notebook), **where
    ),
    "environment with replay": lambda stage, **where: scripted(
        stage, GREW, agent=scripted_agent(tools=[look], environment=Paper), **where
    ),
}
for name, play in ENGINES.items():
    case(f"workers, {name}")(everywhere(play))


@case("workers, cache")
def cached(stage: Stage) -> None:
    url = stage.serve(lost_in())
    for name in ("first", "again"):
        scripted(stage, tl.Chain(2), llm=url, cache=stage.folder / "cache", workers=1, name=name)


@case("TLS")
def encrypted(stage: Stage) -> None:
    with environment(SSL_CERT_FILE=str(TLS / "certificate.pem")), Pool(workers=1) as pool:
        scripted(stage, GREW, llm=stage.serve(lost_in(), tls=True), pool=pool, name="scripted")
        simulated(stage, tl.Chain(2), llm=stage.sim("other", tls=True), pool=pool, name="simulated")
        stage.run(TEAMS["council"], WORDS[:2], llm=stage.serve(cast, "cast", tls=True), pool=pool, name="team")


@case("trees of an earlier run go on")
def continued(stage: Stage) -> None:
    url = stage.serve(lost_in())
    earlier = stage.folder / "earlier.run"
    scripted(stage, tl.Chain(2), llm=url, name="earlier", out=earlier)
    scripted(stage, More(2), llm=url, name="more", continue_from=earlier, seed=None)
    partial = tl.strategies.Partial(initial=1, budget=7, top_k=1, region="all")
    scripted(stage, partial, llm=url, name="partial", continue_from=earlier, tasks=WORDS[:2], seed=None)


@case("trees of an earlier simulated run go on")
def continued_sim(stage: Stage) -> None:
    url, earlier = stage.sim(), stage.folder / "earlier.run"
    simulated(stage, tl.Chain(2), llm=url, name="earlier", out=earlier)
    partial = tl.strategies.Partial(initial=2, budget=14)
    simulated(stage, partial, llm=url, name="partial", continue_from=earlier, seed=None, workers=1)


@case("trees of an earlier team go on")
def continued_team(stage: Stage) -> None:
    url, earlier = stage.serve(cast), stage.folder / "earlier.run"
    stage.run(TEAMS["council"], WORDS, llm=url, strategy=tl.Chain(2), name="earlier", out=earlier)
    stage.run(TEAMS["council"], None, llm=url, strategy=More(2), name="more", continue_from=earlier, seed=None)


@case("undone tasks are done again", "digests", "trees", "requests")
def undone(stage: Stage) -> None:
    url, out = stage.serve(lost_in()), stage.folder / "r.run"
    scripted(stage, GREW, llm=url, name="whole", out=out)
    undo(out, "q1")
    scripted(stage, GREW, llm=url, name="again", out=out, resume=True)


HANDLERS = {"agent": lost_in(), "team": cast, "program": scout}


class Executioner:
    """A handler that signals to a process at one of the requests.

    Args:
        inner: What replies.
        at: The request, from 1.
        signum: The signal.
    """

    def __init__(self, inner: Any, at: int, signum: signal.Signals) -> None:
        self.inner = inner
        self.signum = signum
        self.left = at
        self.process: subprocess.Popen[bytes] | None = None

    async def __call__(self, body: Any, nth: int) -> Any:
        await asyncio.sleep(0.005)
        self.left -= 1
        if self.left == 0 and self.process is not None:
            self.process.send_signal(self.signum)
        return self.inner(body, nth)


def begun(stage: Stage, kind: str, workers: int, signum: signal.Signals) -> tuple[Path, str]:
    """Begin a run in a process that gets a signal at one of its requests; return its file, and its server's URL."""
    executioner = Executioner(HANDLERS[kind], 20, signum)
    url, out = stage.serve(executioner), stage.folder / "run.run"
    command = [sys.executable, killed_runs.__file__, kind, str(workers), url, str(out)]
    env = os.environ | {"PYTHONPATH": python_path()}
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
        executioner.process = process
        process.wait()
    executioner.process = None
    assert process.returncode != 0
    return out, url


def killed(stage: Stage, kind: str, workers: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """End a run's process at one of its requests, and resume the run here."""
    out, url = begun(stage, kind, workers, signum)
    killed_runs.KINDS[kind](llm=url, workers=0, out=out, resume=True)
    stage.record(out, "run")


for kind in killed_runs.KINDS:
    for workers in (0, 2):
        case(f"killed and resumed, {kind}, {workers} workers", *TREES)(partial(killed, kind=kind, workers=workers))
    case(f"interrupted and resumed, {kind}", *TREES)(partial(killed, kind=kind, workers=1, signum=signal.SIGINT))


def dying(stage: Stage, agent: tl.Agent, handler: Handler, strategy: Any, **options: Any) -> None:
    """A run whose one worker dies once."""
    mark = stage.folder / "mark"
    with environment(**{players.MARK: str(mark)}), Pool(workers=1) as pool:
        scripted(stage, strategy, agent=agent, handler=handler, pool=pool, **options)
    assert mark.exists()


case("a worker dies in a tool", *TREES)(
    partial(dying, agent=scripted_agent(tools=[players.mortal]), handler=lost_in(), strategy=tl.Chain(2))
)
case("a worker dies in a tool with side effects", *TREES)(
    partial(
        dying,
        agent=scripted_agent(tools=[players.fatal]),
        handler=lost_in(stop=0.0),
        strategy=tl.Chain(1),
        tasks=WORDS[:1],
    )
)
case("a worker dies in a program", *TREES)(
    partial(dying, agent=LEADER, handler=scout, strategy=tl.Chain(2), program=players.dies)
)
