"""Runs in a process of their own, which is killed: ``python killed_runs.py KIND WORKERS URL OUT`` begins one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import players
from scripted import look
from small_teams import TEAMS
from worlds import worth

import trunkline as tl

WORDS = [tl.Task.ask(f"what is word {n}?", str(n), id=f"q{n}") for n in range(3)]
SURE = tl.Sampling(logprobs=True, top_logprobs=4, max_tokens=400)


def agent(**more: Any) -> tl.Run:
    """The agent loop, with forks."""
    who = tl.Agent(model="scripted", tools=[look], max_turns=5, sampling=SURE)
    strategy = tl.TreeGRPO(trees=2, forks=2, rounds=2)
    return tl.run(who, WORDS, strategy=strategy, reward=worth, seed=5, **more)


def team(**more: Any) -> tl.Run:
    """A team whose roles are asked together, with forks."""
    return tl.run(TEAMS["council"], WORDS, strategy=tl.TreeGRPO(trees=1, forks=2), seed=5, **more)


def program(**more: Any) -> tl.Run:
    """A program of groups in groups."""
    lead = tl.Agent(model="m", name="lead", max_turns=12)
    return tl.run(lead, WORDS, strategy=tl.Chain(2), program=players.in_a_group, seed=5, **more)


KINDS: dict[str, Callable[..., tl.Run]] = {"agent": agent, "team": team, "program": program}

if __name__ == "__main__":
    kind, workers, url, out = sys.argv[1:]
    KINDS[kind](llm=tl.LLM(url, max_concurrency=4), workers=int(workers), out=out)
