"""``trunkline run --from RUN``, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("cli")
    write_world(make_world(3, 200, 20), found)
    return found


def trunkline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TRUNKLINE_"))}
    return subprocess.run(
        [sys.executable, "-m", "trunkline.cli", *arguments],
        cwd=folder,
        env=clean | {CORPUS_VARIABLE: str(folder / "corpus.jsonl")},
        capture_output=True,
        text=True,
        timeout=90,
    )


def playing(url: str) -> tuple[str, ...]:
    return "-m", "sim-agent", "--base-url", url, "--tools", "trunkline.sim.tools", "-w", "1"


def test_a_run_goes_on_from_the_command_line(folder: Path, url: str):
    first = trunkline(
        folder, "run", "questions.jsonl", *playing(url), "-r", "2", "-n", "6", "--seed", "5", "--top-logprobs", "8",
        "-o", "first.run",
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    assert "continues" not in first.stdout
    onward = ("run", "--strategy", "partial", "--from", "first.run", *playing(url), "-o", "on.run")
    dry = trunkline(folder, *onward, "--dry-run")
    assert (dry.returncode, (folder / "on.run").exists()) == (0, False), dry.stderr
    assert [line.split()[1:] for line in dry.stdout.splitlines() if line.startswith("continues")] == [
        [f"{folder / 'first.run'}:", "6", "trees,", "12", "rollouts", "taken", "over"]
    ]
    on = trunkline(folder, *onward)
    assert on.returncode == 0, on.stderr
    line = next(line for line in on.stdout.splitlines() if line.startswith("continues"))
    assert line.endswith("first.run: 6 trees, 12 rollouts taken over")
    assert trunkline(folder, "check", "on.run").returncode == 0
    some = trunkline(
        folder, "run", "questions.jsonl", "-n", "2", "--strategy", "partial:budget=14", "--from", "first.run",
        *playing(url), "-o", "some.run", "--json",
    )  # fmt: skip
    assert some.returncode == 0, some.stderr
    told = json.loads(some.stdout)
    assert told["tasks"] == 2
    assert told["taken"]["rollouts"] == 4
    shown = json.loads(trunkline(folder, "show", "on.run", "--json").stdout)
    assert shown["summary"]["taken"]["trees"] == 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--strategy", "partial"), "QUESTIONS"),
        (("--strategy", "partial", "--from", "nothing.run"), "no such run file"),
        (("--strategy", "partial", "--from", "questions.jsonl"), "is not a Trunkline run"),
        (("questions.jsonl", "--strategy", "partial:budget=3"), "budget must be at least I (1 + K R T) = 7, not 3"),
    ],
)
def test_what_cannot_be_is_one_line(folder: Path, url: str, arguments: tuple[str, ...], says: str):
    done = trunkline(folder, "run", *arguments, *playing(url), "-o", "never.run")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert says in lines[0]
    assert not (folder / "never.run").exists()
