"""The guide to teams: its example, its commands and its trainer, run as printed but for the address of the server."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import trunkline
from trunkline.cli.demo import simulator
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.types import Task

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs" / "guide" / "teams.md").read_text()
EXAMPLE, _, TRAINER = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
PREPARE, RUN = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
HERE = "http://localhost:8000/v1"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with simulator("default", False) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the guide's first terminal makes, on a smaller world."""
    (tmp_path / "world").mkdir()
    write_world(make_world(0, 400, 60), tmp_path / "world")
    (grep,) = [line for line in PREPARE.splitlines() if line.startswith("grep")]
    subprocess.run(grep, shell=True, cwd=tmp_path, check=True)
    return tmp_path


def execute(folder: Path, *command: str) -> str:
    env = os.environ | {CORPUS_VARIABLE: str(folder / "world" / "corpus.jsonl")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_team_of_ones_own_is_under_40_lines_and_works_as_printed(folder: Path, url: str):
    team = EXAMPLE.partition("\n\n\nif __name__")[0]
    assert len([line for line in team.splitlines() if line.strip()]) < 40
    (folder / "pair.py").write_text(EXAMPLE.replace(HERE, url))
    printed = execute(folder, "pair.py")
    assert float(re.findall(r"value=(0\.\d+)", printed)[0]) > 0.4
    options = ("--team", "pair:Pair:rounds=2", "-m", "sim-team", "--base-url", url, "-w", "2", "-o", "again.run")
    shown = execute(folder, "-m", "trunkline.cli", "run", "sums.jsonl", *options)
    assert "tasks done" in shown


def test_the_commands_work_as_printed(folder: Path, url: str):
    for line in RUN.replace("\\\n", " ").replace(HERE, url).splitlines():
        shown = execute(folder, "-m", "trunkline.cli", *shlex.split(line)[1:])
        assert "experts" in line or "accuracy" in shown


def test_the_trainer_works_as_printed():
    class Texts:
        """A trainer's engine: lists of messages in, texts out."""

        def __init__(self) -> None:
            self.calls: list[int] = []

        def generate(self, conversations: list) -> list[str]:
            self.calls.append(len(conversations))
            return ["It is \\boxed{4}. <verify>approve</verify>" for _ in conversations]

    made: dict = {"tl": trunkline, "engine": Texts(), "team": trunkline.MathTeam(model="m")}
    made["tasks"] = [Task.ask("2 + 2?", "4", id=f"{number}") for number in range(3)]
    assert len(TRAINER.splitlines()) <= 10
    exec(TRAINER, made)
    assert made["engine"].calls == [24, 24]
    assert {row.agent for row in made["rows"]} == {"solver", "verifier"}


def test_every_switch_of_a_team_is_in_the_table():
    told = set(re.findall(r"^\| `(\w+)` \|", GUIDE.partition("## Settings")[2], re.MULTILINE))
    fields = msgspec.structs.fields(trunkline.Team)
    switches = {field.name for field in fields if field.default is True}
    assert told == switches
