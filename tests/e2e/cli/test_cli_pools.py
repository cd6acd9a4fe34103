"""``trunkline run`` over every pool, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import CAPITALS
from foreign import capital_cities, serving
from places import python_path

NOT_CLOSED = """
import asyncio, signal, sys
from atlas import agent, tasks
import trunkline as tl
pool = tl.Pool("ray", workers=1)
for seed in range(2):
    pool.run(agent(), tasks()[:1], llm=tl.LLM(sys.argv[1]), seed=seed)
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
print("not closed")
"""


def command(*arguments: str, cwd: Path, mark: str = "") -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TRUNKLINE_"))}
    path = python_path()
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=clean | {"PYTHONPATH": path, "COLUMNS": "80", "POOL_TEST": mark},
        capture_output=True,
        text=True,
        timeout=150,
    )


@pytest.fixture
def questions(tmp_path: Path) -> str:
    file = tmp_path / "questions.jsonl"
    rows = [{"id": c, "question": f"Capital of {c}?", "answer": a} for c, a in CAPITALS.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file.name


def marked(mark: str) -> list[str]:
    """Commands of processes that were started with a mark in their environment and are still there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"POOL_TEST={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [found_ for found_ in found if found_]


@pytest.mark.parametrize("pool", ["local", "inline", pytest.param("ray", marks=pytest.mark.pool)])
def test_a_run_over_each_pool_prints_its_summary_alone_and_leaves_no_process(questions: str, tmp_path: Path, pool: str):
    mark = f"{tmp_path.name}-{os.getpid()}"
    with serving(capital_cities) as server:
        to = ["--base-url", server.url, "-m", "m", "--tools", "atlas:lookup", "-o", "r", "--json"]
        done = command("-m", "trunkline.cli", "run", questions, *to, "--pool", pool, "-w", "1", cwd=tmp_path, mark=mark)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"]["value"] == 1.0
    assert "ray" not in done.stderr.lower()
    assert marked(mark) == []


@pytest.mark.parametrize("pool", ["local", "inline"])
def test_what_tools_print_is_shown_beside_the_results_and_is_bounded(questions: str, tmp_path: Path, pool: str):
    with serving(capital_cities) as server:
        to = ["--base-url", server.url, "-m", "m", "--tools", "atlas:loud", "-o", "r", "--json"]
        done = command("-m", "trunkline.cli", "run", questions, *to, "--pool", pool, "-w", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"]["value"] == 1.0
    assert any(f"\\x1b[2J{country}\n" in done.stderr for country in CAPITALS), "whichever is first"
    assert "\x1b" not in done.stderr
    assert "printed more than is shown: " in done.stderr
    assert len(done.stderr) < 2_000_000, "of 50 MB"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--address", "auto"), "--address auto is for --pool ray"),
        (("--pool", "cloud"), "'cloud' is not one of"),
        (("--pool", "ray", "-w", "0"), "--workers"),
    ],
)
def test_a_pool_that_cannot_be_is_named(questions: str, tmp_path: Path, given: tuple[str, ...], says: str):
    done = command("-m", "trunkline.cli", "run", questions, "-m", "m", *given, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.pool
@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nowhere"])
def test_a_cluster_that_is_not_there_is_one_line(questions: str, tmp_path: Path, address: str):
    to = ["--base-url", "http://127.0.0.1:9/v1", "-m", "m", "-o", "r", "--pool", "ray", "--address", address]
    done = command("-m", "trunkline.cli", "run", questions, *to, cwd=tmp_path)
    assert done.returncode != 0
    assert f"Ray at '{address}' cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.pool
def test_an_interpreter_that_ends_with_a_pool_on_ray_leaves_no_process(tmp_path: Path):
    mark = f"{tmp_path.name}-{os.getpid()}"
    with serving(capital_cities) as server:
        done = command("-W", "error", "-c", NOT_CLOSED, server.url, cwd=tmp_path, mark=mark)
    assert (done.returncode, done.stdout) == (0, "not closed\n"), done.stderr
    # A busy machine may take half a minute to start Ray's worker, which is said.
    assert [line for line in done.stderr.splitlines() if not line.startswith("no progress for ")] == []
    assert len(server.bodies) > 0
    assert marked(mark) == []
