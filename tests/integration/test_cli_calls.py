"""``trunkline run --price`` and ``trunkline show --calls`` as a user starts them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import CAPITALS
from foreign import capital_cities, serving

ATLAS = Path(__file__).parent.parent / "support"
USAGE = {"prompt_tokens": 1000, "completion_tokens": 200, "prompt_tokens_details": {"cached_tokens": 600}}
KEY = "sk-hunter2hunter2hunter2"


def trunkline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TRUNKLINE_"))}
    path = os.pathsep.join([str(ATLAS), os.environ.get("PYTHONPATH", "")])
    env = clean | {"PYTHONPATH": path, "OPENAI_API_KEY": KEY}
    command = [sys.executable, "-m", "trunkline.cli", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=90)


@pytest.fixture
def questions(tmp_path: Path) -> str:
    rows = [{"id": c, "question": f"Capital of {c}?", "answer": a} for c, a in CAPITALS.items()]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "questions.jsonl"


def test_totals_on_screen_are_those_of_the_rows(questions: str, tmp_path: Path):
    with serving(lambda body: capital_cities(body) | {"usage": USAGE}) as server:
        done = trunkline(
            "run", questions, "-m", "m", "--base-url", server.url, "--tools", "atlas:lookup", "-w", "1", "--out", "r",
            "--price", "prompt=3,cached=0.3,generated=15", cwd=tmp_path,
        )  # fmt: skip
        asked = len(server.bodies)
    assert done.returncode == 0, done.stderr
    each = (400 * 3 + 600 * 0.3 + 200 * 15) / 1e6
    with sqlite3.connect(tmp_path / "r") as connection:
        requests, prompt, generated = connection.execute(
            "SELECT count(*), sum(prompt), sum(generated) FROM calls"
        ).fetchone()
    connection.close()
    assert (requests, prompt, generated) == (asked, 1000 * asked, 200 * asked)
    price = f"{asked * each:.5f}  ({asked * each / 5:.5f} a task, {asked * each / 5:.5f} a solved task)"
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("price")]
    assert line.split(maxsplit=1)[1] == price
    shown = trunkline("show", "r", "--calls", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    section = shown.stdout.split("\n\n")[1].splitlines()
    assert section[0].startswith(server.url)
    assert [line.split(maxsplit=1)[1] for line in section if line.startswith("  requests")] == [f"{asked}, 0 retries"]
    assert line in shown.stdout.splitlines()
    assert trunkline("check", "r", cwd=tmp_path).returncode == 0
    assert KEY.encode() not in (tmp_path / "r").read_bytes()


def test_a_price_that_cannot_be_read_is_one_line_and_no_request(questions: str, tmp_path: Path):
    done = trunkline(
        "run", questions, "-m", "m", "--base-url", "http://127.0.0.1:9/v1", "--price", "prompt=1,output=2", cwd=tmp_path
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: Invalid value for '--price': 'output' is no part of a price; write prompt=")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [questions]
