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
from places import python_path

USAGE = {"prompt_tokens": 1000, "completion_tokens": 200, "prompt_tokens_details": {"cached_tokens": 600}}
KEY = "sk-hunter2hunter2hunter2"


def trunkline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TRUNKLINE_"))}
    path = python_path()
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
    price = f"{asked * each:.5f}  ({asked * each / 5:.5f} per task, {asked * each / 5:.5f} per solved task)"
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("price")]
    assert line.split(maxsplit=1)[1] == price
    shown = trunkline("show", "r", "--calls", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    section = shown.stdout.splitlines()
    assert section[0].startswith(server.url)
    assert [line.split(maxsplit=1)[1] for line in section if line.startswith("  requests")] == [f"{asked}, 0 retries"]
    assert line in trunkline("show", "r", cwd=tmp_path).stdout.splitlines()
    assert trunkline("check", "r", cwd=tmp_path).returncode == 0
    assert KEY.encode() not in (tmp_path / "r").read_bytes()


def first_alone(body: dict) -> dict:
    """Completions of 20 words and more, with the usage of the first alone, and without a word of what was cached."""
    contents = [f"{'word ' * (20 + (body['seed'] + i) % 5)}<answer>x</answer>" for i in range(body.get("n", 1))]
    choices = [
        {"index": i, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        for i, content in enumerate(contents)
    ]
    return {"choices": choices, "usage": {"prompt_tokens": 100, "completion_tokens": len(contents[0].split())}}


def test_usage_of_the_first_completion_and_no_word_of_what_was_cached(questions: str, tmp_path: Path):
    with serving(first_alone) as server:
        done = trunkline(
            "run", questions, "-m", "m", "--base-url", server.url, "-w", "1", "--out", "r", "--rollouts", "4",
            "--price", "prompt=1,cached=0.1,generated=10", "-v", cwd=tmp_path,
        )  # fmt: skip
        real = sum(len(c["message"]["content"].split()) for b in server.bodies for c in first_alone(b)["choices"])
    assert done.returncode == 0, done.stderr
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines() if "  " in line)
    assert "estimated" in done.stderr
    generated = int(lines["tokens flat (server usage)"].strip().split("(~")[1].split()[0].replace(",", ""))
    assert abs(generated - real) <= 0.1 * real
    assert "cached not reported (vLLM: --enable-prompt-tokens-details" in lines["prompt tokens by turn"]
    assert "priced as uncached" in lines["price"]
    data = json.loads(trunkline("show", "r", "--json", cwd=tmp_path).stdout)["summary"]
    assert 0 < data["estimated"] < data["usage"]["generated"]
    assert (data["usage"]["cached"], data["cached"], data["endpoints"][0]["cached"]) == (None, None, None)
    assert trunkline("check", "r", cwd=tmp_path).returncode == 0


def test_seeds_are_left_out_of_requests_where_that_is_asked_for(questions: str, tmp_path: Path):
    given = ["run", questions, "-m", "m", "-w", "1", "--tools", "atlas:lookup", "--limit", "1", "--out", "r"]
    with serving(capital_cities) as server:
        done = trunkline(*given, "--base-url", server.url, "--no-send-seed", cwd=tmp_path)
        bodies = list(server.bodies)
    assert done.returncode == 0, done.stderr
    assert bodies
    assert all("seed" not in body for body in bodies)
    with sqlite3.connect(tmp_path / "r") as connection:
        ((text,),) = connection.execute("SELECT value FROM meta WHERE key = 'settings'")
    connection.close()
    assert json.loads(text)["llm"]["send_seed"] is False


def test_help_shows_values_as_they_are_written():
    done = trunkline("run", "--help", cwd=Path.cwd())
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    for option in (
        "--price prompt=P,generated=G[,cached=C] What a million tokens cost",
        "--fail-on-error N|0.x ",
        "--cache FILE Answers, kept: a run of the same --seed does not ask again",
        "--rpm FLOAT Requests a minute",
        "--tpm FLOAT Tokens a minute",
        "--dialect NAME|MODULE:ATTR How tools are spoken about: native, hermes, search-r1, or your own.",
        "--malformed [return|repair] A tool call of broken JSON goes back to the model",
    ):
        assert option in words
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


WRONG = [
    (("--cache", ""), "cache must be the path of a file, not ''"),
    (("--cache", "."), "the cache '{here}' cannot be used: unable to open database file; give another path"),
    (("--cache", "questions.jsonl"), "the cache '{here}/questions.jsonl' cannot be used: file is not a database"),
    (("--rpm", "0"), "limits.requests_per_minute (--rpm) must be a number above 0, not 0.0"),
    (("--tpm", "nan"), "limits.tokens_per_minute (--tpm) must be a number above 0, not nan"),
    (("--rpm", "many"), "Invalid value for '--rpm': 'many' is not a valid float"),
    (("--price", "prompt=1,output=2"), "Invalid value for '--price': 'output' is no part of a price; write prompt="),
    (("--price", "prompt=1e99,generated=1"), "Invalid value for '--price': price: prompt must be a number from 0"),
    (("--dialect", "latin"), "--dialect 'latin' is none of native, hermes, search-r1; your own is written"),
    (("--malformed", "hide"), "Invalid value for '--malformed': 'hide' is not one of 'return', 'repair'"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_a_wrong_value_is_one_line_that_names_it(options: tuple[str, str], words: str, questions: str, tmp_path: Path):
    given = ("run", questions, "-m", "m", "--base-url", "http://127.0.0.1:9/v1", "--out", "r", *options)
    done = trunkline(*given, cwd=tmp_path)
    assert done.returncode == 2, "before any worker is started"
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: " + words.replace("{here}", str(tmp_path)))
    assert [entry.name for entry in tmp_path.iterdir()] == [questions]
