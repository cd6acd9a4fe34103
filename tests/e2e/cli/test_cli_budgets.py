"""Budgets, enough and settled as a user gives them on the command line, and as ``show`` prints what came of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from atlas import CAPITALS
from foreign import message, serving

from trunkline.cli.app import app
from trunkline.errors import ConfigError

NOWHERE = "http://127.0.0.1:9/v1"
USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


def trunkline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TRUNKLINE_"))}
    command = [sys.executable, "-m", "trunkline.cli", *arguments]
    return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=60)


@pytest.fixture
def questions(tmp_path: Path) -> str:
    rows = [
        {"id": country, "question": f"Capital of {country}?", "answer": found} for country, found in CAPITALS.items()
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "questions.jsonl"


def test_a_run_says_what_its_budget_came_to_and_how_its_trees_ended(questions: str, tmp_path: Path):
    with serving(lambda body: message("<answer>x</answer>", usage=USAGE)) as server:
        done = trunkline(
            "run", questions, "-m", "m", "--base-url", server.url, "-r", "4", "-w", "0", "-o", "r.run", "-c", "1",
            "--wave", "2", "--settled", "answer", "--budget", "calls=11,generated=1e4", "--max-tokens", "50",
            cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == int("of the run" in done.stderr), done.stderr
    shown = trunkline("show", "r.run", cwd=tmp_path).stdout
    lines = {line[:26].strip(): line[26:].strip() for line in shown.splitlines()}
    for out in (done.stdout, shown):
        assert "calls 11 of 11, generated 110 of 10,000; refused" in out
        assert "run budget: 1 calls wanted, 0 left of 11" in out
    assert "depends on timing" in shown
    assert "trees ended" in shown, lines
    assert "settled" not in shown.partition("trees ended")[2].splitlines()[0], "2 of 4 votes can still be a tie"
    data = json.loads(trunkline("show", "r.run", "--json", cwd=tmp_path).stdout)["summary"]
    assert data["budget"]["spent"] == {"calls": 11, "generated": 110}
    assert data["ended"]["budget"] >= 1
    assert data["timing"] == ["budget"]


def test_a_run_that_a_budget_ended_says_so_and_goes_on_with_a_larger_one(questions: str, tmp_path: Path):
    asked: list[str] = []

    def answer(body: dict) -> object:
        asked.append(body["messages"][0]["content"])
        return message("<answer>x</answer>", usage=USAGE)

    with serving(answer) as server:
        command = [
            "run", questions, "-m", "m", "--base-url", server.url, "-w", "0", "-o", "r.run", "-c", "1",
            "--budget", "calls=2",
        ]  # fmt: skip
        short = trunkline(*command, cwd=tmp_path)
        assert short.returncode == 1, short.stderr
        said = re.search(r"the budget of the run (.*); with a larger one: ", short.stderr)
        assert said is not None, short.stderr
        assert sum(map(int, re.findall(r"\d+", said[1]))) == 3, "not begun, or cut"
        assert "trunkline resume r.run --budget" in short.stderr
        asked_first = len(asked)
        assert asked_first == 2
        done = trunkline("resume", "r.run", "--budget", "calls=9", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert len(asked) == 5, "what was not begun and what was cut are run now"
    assert f"calls {len(asked)} of 9" in done.stdout, "what was spent before counts"
    assert len(set(asked)) == len(asked), "nobody is asked twice"


def test_a_budget_that_leaves_too_few_groups_is_exit_code_1(questions: str, tmp_path: Path):
    with serving(lambda body: message("<answer>x</answer>", usage=USAGE)) as server:
        done = trunkline(
            "run", questions, "-m", "m", "--base-url", server.url, "-w", "0", "-o", "r.run", "-c", "1",
            "--groups", "4", "--budget", "calls=2", cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 1
    assert "only 2 of 4 groups were kept" in done.stderr
    assert "ended by budget" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "tokens"], "budget: tokens must be a number, not ''"),
        (["--budget", "euros=5"], "'euros' is nothing that a budget limits; write tokens=1e6,money=5"),
        (["--task-budget", "calls=0"], "Budget: calls must be a whole number from 1"),
        (["--budget", "tokens=1e6"], "set sampling.max_tokens (--max-tokens)"),
        (["--budget", "money=5", "--max-tokens", "9"], "give it one, price=Price(...) (--price)"),
        (["--settled", "soon"], "'soon' is neither answer nor a reward"),
        (
            ["--settled", "answer", "-r", "4"],
            "stop_when is looked at between rounds, and Chain starts its 4 rollouts at once",
        ),
        (["--enough", "5", "-r", "4"], "enough=5 is never reached: Chain plans 4 rollouts a task"),
        (["--tail", "keep"], "set enough as well"),
        (["--wave", "2", "--strategy", "tree-grpo"], "--wave 2 is for chains"),
        (["--wave", "3", "-r", "2"], "Chain: wave must be a whole number from 1 to 2"),
    ],
    ids=lambda value: value[0] + value[1] if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused_with_exit_code_2_before_a_file_is_made(
    questions: str, tmp_path: Path, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, click.UsageError)) as refused:
        app.main(["run", questions, "-m", "m", "--base-url", NOWHERE, *arguments], standalone_mode=False)
    assert says in str(refused.value)
    assert refused.value.exit_code == 2
    assert not (tmp_path / "runs").exists()
