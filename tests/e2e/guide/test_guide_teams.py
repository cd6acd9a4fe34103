"""The guide to teams: its example, its commands and its trainer, run as printed but for the address of the server."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from commands import trunkline
from places import ROOT

import trunkline as tl
from trunkline.types import Task

GUIDE = (ROOT / "docs" / "guide" / "teams.md").read_text()
EXAMPLE, ELSEWHERE, TRAINER = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
PREPARE, RUN = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
HERE = "http://localhost:8000/v1"


@pytest.fixture
def folder(tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the guide's first terminal makes, of a smaller world."""
    (tmp_path / "world").symlink_to(world)
    (grep,) = [line for line in PREPARE.splitlines() if line.startswith("grep")]
    subprocess.run(grep, shell=True, cwd=tmp_path, check=True)
    (variable,) = re.findall(r"`export (\w+)=world/corpus.jsonl`", GUIDE)
    monkeypatch.setenv(variable, "world/corpus.jsonl")
    return tmp_path


def test_the_first_terminal_is_made_of_commands_that_there_are(tmp_path: Path):
    world, _, serve = PREPARE.splitlines()
    done = trunkline(tmp_path, *shlex.split(world)[1:], "--documents", "100", "--questions", "9")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "world").iterdir()} == {"corpus.jsonl", "questions.jsonl"}
    assert serve == "trunkline sim serve --port 8000"


def test_a_team_of_ones_own_is_under_40_lines_and_works_as_printed(folder: Path, url: str):
    team = EXAMPLE.partition("\n\n\nif __name__")[0]
    assert len([line for line in team.splitlines() if line.strip()]) < 40
    (folder / "pair.py").write_text(EXAMPLE.replace(HERE, url))
    done = subprocess.run(
        [sys.executable, "pair.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"value=(\d\.\d+)", done.stdout)[0]) > 0.4
    (option,) = re.findall(r"it is also `(--team [^`]+)`", GUIDE)
    shown = trunkline(
        folder, "run", "sums.jsonl", *option.split(), "-m", "sim-team", "--base-url", url, "-w", "0", "-o", "again.run"
    )
    assert shown.returncode == 0, shown.stderr
    assert " · done in " in shown.stdout


def test_the_commands_work_as_printed(folder: Path, url: str):
    for line in RUN.replace("\\\n", " ").replace(HERE, url).splitlines():
        shown = trunkline(folder, *shlex.split(line)[1:])
        assert shown.returncode == 0, shown.stderr
        assert "experts" in line or "accuracy" in shown.stdout


def test_roles_that_other_servers_answer_work_as_printed(folder: Path, url: str):
    made: dict = {"tl": tl}
    exec(ELSEWHERE.replace(HERE, url).replace("http://localhost:8001/v1", url), made)
    team = made["team"]
    assert (team.members["verifier"].agent.llm, team.members["verifier"].agent.model) == ("judge", "large")
    change = {"model": "sim-verifier", "llm": "judge"}
    asked = tl.teams.MathTeam(model="sim-solver", rounds=2, roles=team.roles | {"verifier": change})
    run = tl.run(asked, tl.load_tasks(folder / "sums.jsonl", limit=2), llm=made["llm"])
    assert run.summary().failed == 0
    (options,) = re.findall(r"On the command line: `([^`]+)`", GUIDE)
    shown = trunkline(
        folder, "run", "sums.jsonl", "-n", "2", "--team", "math", "-m", "sim-team", "--base-url", url, "-w", "0",
        "-o", "two.run", *shlex.split(options.replace("http://localhost:8001/v1", url)),
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr


def test_the_trainer_works_as_printed():
    class Texts:
        """A trainer's engine: lists of messages in, texts out."""

        def __init__(self) -> None:
            self.calls: list[int] = []

        def generate(self, conversations: list) -> list[str]:
            self.calls.append(len(conversations))
            return ["It is \\boxed{4}. <verify>approve</verify>" for _ in conversations]

    made: dict = {"tl": tl, "engine": Texts(), "team": tl.teams.MathTeam(model="m")}
    made["tasks"] = [Task.ask("2 + 2?", "4", id=f"{number}") for number in range(3)]
    assert len(TRAINER.splitlines()) <= 10
    exec(TRAINER, made)
    assert made["engine"].calls == [24, 24]
    assert {row.agent for row in made["rows"]} == {"solver", "verifier"}


def test_every_setting_of_every_team_and_of_a_batch_engine_is_in_the_table():
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", GUIDE.partition("## Settings")[2], re.MULTILINE)
    written = {True: "on", None: "none"}
    fields = {field.name: field.default for field in msgspec.structs.fields(tl.Team)}
    settings = {name: written[default] for name, default in fields.items() if default is True or default is None}
    for name, parameter in inspect.signature(tl.BatchLLM).parameters.items():
        if name in ("fuse_calls", "regroup", "core_masks"):
            settings[f"BatchLLM({name}=)"] = written[parameter.default]
    assert dict(rows) == settings
    assert len(settings) == 14
