"""What each optimisation of teams is worth, on and off; and what it is worth not to wait for the slowest row.

Switches: batches of 64 at approval 0.5, and an engine that takes 20 ms a call and 0.2 ms a row. Answers and the rows
that count are the same with every setting, which is checked; what changes is what is done for them. The engine reads no
context, so a shorter one changes nothing here either.

Drivers: the same team and the same replies, whose time is lognormal with the 99th percentile ten times the median of
30 ms. Barrier-free, each row goes on as soon as it has its reply; in lock-step, a batch takes as long as its slowest
row.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest

import teams
import trunkline as tl
from studies.interval import Interval, ratio

BATCH, APPROVAL, ROUNDS = 64, 0.5, 3
CALL, ROW, LATENCY = 0.02, 0.0002, 0.03

TEAM = {
    "early_termination": ("math", True, False),
    "agent_skip": ("search", True, False),
    "early_termination, agent_skip": ("search", True, False),
    "parallel_agents": ("experts", True, False),
    "preprocessing_cache": ("math", True, False),
    "context_fragments": ("math", True, False),
    "late_join": ("math", True, False),
    "active_only": ("search", True, False),
    "max_context_length": ("math", 500, None),
    "profiling": ("math", True, False),
}
"""Settings of a team: the team that shows it, on and off. With the first two off, all rows are asked in every step."""

DRIVER = {
    "fuse_calls": ("search", True, False),
    "regroup": ("math", True, False),
    "core_masks": ("math", True, False),
}
"""Settings of the batch engine, likewise."""


def played(name: str, value: object) -> teams.Played:
    """Play with a setting."""
    kind, *_ = (TEAM | DRIVER)[name]
    given = dict.fromkeys(name.split(", "), value)
    own, driver = (given, {}) if name in TEAM else ({}, given)
    count = BATCH
    if name == "regroup":
        # Rows of one batch are always in the same step; lanes that are filled again are not.
        count, driver["max_concurrency"] = 3 * BATCH, BATCH
    engine = teams.Engine(teams.Script(APPROVAL), CALL, ROW)
    return teams.play(teams.team(kind, **own), teams.tasks(count), engine, **driver)


def told(runs: list[teams.Played]) -> dict[str, float]:
    """What is told of some runs of the same."""
    one = runs[0]
    return {
        "calls": one.calls,
        "rows": one.asked,
        "us_a_row": median(run.us_a_row for run in runs),
        "wall_ms": 1e3 * median(run.wall for run in runs),
    }


def saved(shares: Interval) -> str:
    """One less a share, in percent."""
    return f"{100 * (1 - shares.value):+.1f} % [{100 * (1 - shares.high):+.1f}, {100 * (1 - shares.low):+.1f}]"


@pytest.mark.parametrize("name", [*TEAM, *DRIVER])
def test_a_switch_on_and_off(benchmark, capsys, pytestconfig, name: str):
    """Runs on and off take turns; the intervals of what is saved hold together for all settings."""
    kind, on, off = (TEAM | DRIVER)[name]
    with_it: list[teams.Played] = []
    without: list[teams.Played] = []
    benchmark.pedantic(
        lambda: with_it.append(played(name, on)),
        setup=lambda: without.append(played(name, off)),
        rounds=pytestconfig.getoption("--pairs"),
    )
    assert len({(tuple(run.answers), frozenset(run.rows.items())) for run in with_it + without}) == 1
    figures = {"on": told(with_it), "off": told(without)}
    family = 2 * len(TEAM | DRIVER)
    wall = ratio([run.wall for run in with_it], [run.wall for run in without], family)
    cpu = ratio([run.us_a_row for run in with_it], [run.us_a_row for run in without], family)
    benchmark.extra_info.update(figures, active=with_it[0].active, wall=wall, cpu=cpu)
    with capsys.disabled():
        print(f"\n{name} ({kind}, {with_it[0].active} rows that count):")
        for state, shown in figures.items():
            print(f"  {state:3} " + "  ".join(f"{field} {value:,.0f}" for field, value in shown.items()))
        print(f"  saves {saved(wall)} of the wall, {saved(cpu)} of the CPU a row; {wall.questions} pairs of runs")


@pytest.mark.parametrize("count", [64, 256])
def test_drivers_under_lognormal_latency(benchmark, capsys, count: int):
    """Tasks on 64 lanes: one batch, and lanes that are filled again."""
    free: list[float] = []
    locked: list[float] = []
    answers: set[tuple[str | None, ...]] = set()

    def clock(into: list[float], *, barrier: bool) -> None:
        slow = teams.Slow(teams.Script(APPROVAL), LATENCY, BATCH)
        llm: Any = tl.BatchLLM(slow, max_batch=BATCH) if barrier else slow
        start = time.perf_counter()
        run = tl.run(teams.team("math"), teams.tasks(count), llm=llm, seed=1)
        into.append(time.perf_counter() - start)
        answers.add(tuple(tree.answer for tree in run))

    benchmark.pedantic(lambda: clock(free, barrier=False), setup=lambda: clock(locked, barrier=True), rounds=ROUNDS)
    assert len(answers) == 1
    figures = {
        "barrier_free_samples_per_s": count / median(free),
        "lock_step_samples_per_s": count / median(locked),
        "times_as_fast": median(locked) / median(free),
    }
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        print(
            f"\n{count} tasks, {BATCH} lanes: " + "  ".join(f"{name} {value:,.2f}" for name, value in figures.items())
        )
