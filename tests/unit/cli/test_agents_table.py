"""What ``trunkline show`` says of a run with several agents."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from duo_team import SOLO, TASKS, Duo, generate

from trunkline.cli.show import show_run
from trunkline.cli.tables import agents_table, times_table
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.runner.run import run
from trunkline.store.stats.calls import Times
from trunkline.store.stats.profile import AgentProfile, Profile, RoleRows

SOLVER = AgentProfile(
    name="sol\x1bver",
    calls=1200,
    failed=3,
    seconds=600.0,
    at_once=6.0,
    share=0.75,
    times=Times(0.5, 1.25, 20.0),
    prompt=120_000,
    cached=60_000,
    generated=9_000,
    unreported=2,
    busy=0.8,
    rows=RoleRows(active=1000, inactive=197, valid=900, rounds=3, whole=1500, active_ratio=2 / 3, valid_share=0.9),
)
CACHED = AgentProfile(
    name="cached",
    calls=0,
    failed=0,
    seconds=0.0,
    at_once=0.0,
    share=0.0,
    times=None,
    prompt=0,
    cached=0,
    generated=0,
    unreported=0,
    busy=0.0,
)


def test_an_agent_is_a_line_with_its_calls_tokens_time_and_rows():
    lines = agents_table([SOLVER, CACHED]).splitlines()
    assert [" ".join(line.split()) for line in lines[2:4]] == [
        "sol\\x1bver 1,200 3 120,000 60,000 9,000 75.0 % 80.0 % 0.500 s 0.500 s 1.250 s 1,000 197 66.7 % 90.0 %",
        "cached 0 0 0 0 0 0.0 % 0.0 % - - - - - - -",
    ]
    assert max(map(len, lines[:4])) <= 140


def test_agents_of_no_team_have_no_rows():
    table = agents_table([CACHED])
    assert "rows" not in table
    assert "ratio" not in table


def test_all_that_is_known_of_an_agent_is_under_its_name():
    found = times_table(Profile(seconds=100.0, busy=0.9, out=6.25, agents=[SOLVER, CACHED], tools=[], slowest=[]))
    assert found == "\n".join(
        [
            "wall time  1 min 40 s",
            "calls      in flight in 90.0 % of it, 6.2 on average",
            "agent sol\\x1bver",
            "  calls     1,200, 3 failed",
            "  time      10 min 00 s  (75.0 % of all, 6.0 at once)",
            "  one call  p50 0.500 s, p95 1.250 s, max 20 s",
            "  in flight in 80.0 % of the wall time",
            "  tokens    120,000 prompt, 60,000 cached; 9,000 generated; 2 calls without usage",
            "  rows      1,000 active, 197 inactive; 900 valid actions  (90.0 %)",
            "  active    66.7 % of 1,500 that whole batches carry in 3 rounds",
            "agent cached",
            "  calls     0",
            "  time      0.0 s  (0.0 % of all, 0.0 at once)",
        ]
    )


def test_a_run_of_a_team_shows_its_agents_and_one_of_an_agent_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(Duo(model="m"), TASKS, llm=BatchLLM(generate), out=tmp_path / "team", seed=1)
    run(SOLO, TASKS, llm=BatchLLM(lambda prompts: ["7"] * len(prompts)), out=tmp_path / "solo", seed=1)
    show_run(tmp_path / "team")
    shown = capsys.readouterr().out
    assert {"solver", "verifier"} <= {line.split()[0] for line in shown.splitlines() if line}
    assert "task approved" in shown, "and a tree"
    show_run(tmp_path / "solo")
    assert "\nagent" not in capsys.readouterr().out
    show_run(tmp_path / "team", json=True)
    data = json.loads(capsys.readouterr().out)
    assert {agent["name"]: agent["rows"]["active"] for agent in data["agents"]} == {"solver": 6, "verifier": 6}
    assert "time" not in data
    show_run(tmp_path / "team", time=True, json=True)
    assert {agent["name"] for agent in json.loads(capsys.readouterr().out)["time"]["agents"]} == {"solver", "verifier"}
    show_run(tmp_path / "solo", json=True)
    assert "agents" not in json.loads(capsys.readouterr().out)


def test_names_in_anybodys_file_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(Duo(model="m"), TASKS, llm=BatchLLM(generate), out=tmp_path / "team", seed=1)
    with sqlite3.connect(tmp_path / "team") as connection:
        connection.execute("UPDATE agents SET name = char(27) || '[2J' || char(8238) WHERE agent = 0")
        connection.execute("PRAGMA user_version = 7")  # a schema without checksums
    connection.close()
    for time in (False, True):
        show_run(tmp_path / "team", time=time)
        shown = capsys.readouterr().out
        assert "\\x1b[2J\\u202e" in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
