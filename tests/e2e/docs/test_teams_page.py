"""The page on teams: its team is short, its settings are all there are, its roles and its trainer do what they say."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import doc_pages
import msgspec
import pytest
from places import ROOT

import trunkline as tl

PAGE = (ROOT / "docs/how-to/teams.md").read_text("utf-8")
PYTHON = [block for block in doc_pages.blocks(PAGE) if block.language == "python"]
TEAM, SCRIPT, ELSEWHERE, TRAINER = (block.text for block in PYTHON)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"id": f"{number}", "question": "2 + 2?", "answer": "4"} for number in range(3)]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_team_of_ones_own_is_under_40_lines():
    assert len([line for line in TEAM.splitlines() if line.strip()]) < 40


def test_a_role_asks_the_server_that_it_names():
    made: dict = {}
    exec(ELSEWHERE.partition("run = ")[0], made)
    verifier, solver = (made["team"].members[name].agent for name in ("verifier", "solver"))
    assert (verifier.llm, verifier.model) == ("judge", "sim-verifier")
    assert (solver.llm, solver.model) == ("", "sim-team")


def test_the_calls_of_a_trainers_engine_hold_all_tries_of_a_role(folder: Path):
    made: dict = {"calls": []}
    exec(TRAINER.replace("    return [", "    calls.append(len(prompts))\n    return ["), made)
    assert made["calls"] == [24, 24]
    assert {row.agent for row in made["rows"]} == {"solver", "verifier"}


def test_every_setting_of_every_team_and_of_a_batch_engine_is_in_the_table():
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", PAGE.partition("## Settings")[2], re.MULTILINE)
    written = {True: "on", None: "none"}
    fields = {field.name: field.default for field in msgspec.structs.fields(tl.Team)}
    settings = {name: written[default] for name, default in fields.items() if default is True or default is None}
    for name, parameter in inspect.signature(tl.BatchLLM).parameters.items():
        if name in ("fuse_calls", "regroup", "core_masks"):
            settings[f"BatchLLM({name}=)"] = written[parameter.default]
    assert dict(rows) == settings
    assert len(settings) == 14


def test_the_team_of_the_page_is_right_more_often_than_chance(folder: Path, world: Path, url: str):
    lines = (world / "questions.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "sums.jsonl").write_text("".join(line for line in lines if "arithmetic" in line), "utf-8")
    (folder / "pair.py").write_text(TEAM, "utf-8")
    (folder / "script.py").write_text(SCRIPT.replace("http://localhost:8000/v1", url), "utf-8")
    ran = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert float(re.findall(r"value=(\d\.\d+)", ran.stdout)[0]) > 0.4
