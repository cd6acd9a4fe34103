"""Rows of teams that really ran: what was sent is what stands in them, whoever ran them and however often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trunkline as tl
from trunkline.llm.batch.completion import Prompt
from trunkline.team.projection import Reading


class Tagged:
    """Reads what stands behind a colon; there is nothing to be read otherwise."""

    def read(self, text: str, reasoning: str | None) -> Reading:
        """Read a reply."""
        _, colon, rest = text.partition(":")
        return Reading(rest, bool(colon))


class Pair(tl.Team):
    """A solver with a penalty, and a verifier whose second word nothing depends on."""

    solver = tl.Role(prompt="Solve {question}\n{context}", reads=Tagged(), penalty=0.25)
    verifier = tl.Role(prompt="Check {question}\n{context}", model="large")

    async def play(self, rollout: tl.teams.TeamPlay) -> str:
        said = await rollout.ask(self.solver)
        await rollout.ask(self.verifier)
        await rollout.observe("checked")
        await rollout.ask(self.verifier, active=False)
        return said or await rollout.ask(self.solver)


class Engine:
    """Says by its seed, and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def __call__(self, prompts: list[Prompt]) -> list[str]:
        self.sent += [prompt.messages for prompt in prompts]
        return [f"{'right' if prompt.seed % 3 else 'right:'}{prompt.seed}" for prompt in prompts]


def graded(rollout: tl.Trajectory) -> float:
    return float(rollout.turns == 3)


def played(**options: Any) -> tuple[tl.Run, Engine]:
    engine = Engine()
    team = Pair(model="small", **options)
    tasks = [tl.Task.ask(f"{name}?", id=name) for name in "ab"]
    return tl.run(team, tasks, llm=tl.BatchLLM(engine), strategy=tl.Chain(4), reward=graded, seed=2), engine


@pytest.mark.parametrize("fragments", [True, False])
def test_what_was_sent_is_what_stands_in_the_rows(fragments: bool):
    run, engine = played(context_fragments=fragments)
    rows = list(tl.train.rows(run, only_active=False, shared="repeat"))
    conversations = sorted(json.dumps(msgspec.json.decode(row.conversation)) for row in rows)
    assert conversations == sorted(map(json.dumps, engine.sent))
    assert conversations == sorted(
        json.dumps(msgspec.json.decode(one.conversation))
        for one in tl.train.turns(run, estimator="dr_grpo", shared="repeat")
    ), "turns say what was sent, too"


def test_what_the_team_noted_stands_in_its_rows():
    run, _ = played()
    found = list(tl.train.rows(run, only_active=False, shared="once"))
    assert {row.agent: row.model for row in found} == {"solver": "small", "verifier": "large"}
    for row in found:
        said = row.messages[-1]["content"]
        assert row.valid == (row.agent == "verifier" or ":" in said)
        assert row.penalty == (0.0 if row.valid else 0.25)
        assert row.score == row.reward - row.penalty
        assert row.active == (row.agent == "solver" or row.step == 1)
        assert row.step == (1 if row.turn < 2 else 2)
    assert {row.valid for row in found} == {row.active for row in found} == {True, False}
    assert len(tl.train.rows(run, shared="once")) == sum(row.active for row in found)


def test_rows_of_a_run_file_are_those_of_its_trees(tmp_path: Path):
    run, _ = played()
    trees = list(run)
    first, second = (tmp_path / name for name in ("run", "trees"))
    tl.train.write_jsonl(tl.train.rows(run, shared="once"), first)
    tl.train.write_jsonl(tl.train.rows(trees, shared="once"), second)
    assert first.read_bytes() == second.read_bytes()
