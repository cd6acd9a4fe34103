"""``trunkline export``, as a user starts it: runs of agents, of trees and of teams, and what is said on mistakes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, lookup, tasks
from commands import Done, trunkline
from exporting import begun, read_lines, say, write_run
from foreign import capital_cities, serving
from plain_reply import assistant
from small_teams import SURE, TEAMS, reply, run_here

from trunkline.llm.config import LLM
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.strategies.partial import Partial
from trunkline.types import Task


@pytest.fixture(scope="module")
def cities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five questions, three tries each, all of which say the same."""
    path = tmp_path_factory.mktemp("cities") / "a.run"
    with serving(capital_cities) as server:
        run(agent(), tasks(), llm=LLM(server.url), workers=0, strategy=Chain(3), reward=exact_match, out=path)
    return path


def only_line(done: Done | subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_standard_output_has_the_records_and_standard_error_what_became_of_them(cities: Path, tmp_path: Path):
    done = trunkline(tmp_path, "export", cities, "--format", "messages")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["task"] for record in records] == list(CAPITALS)
    assert {(record["weight"], record["reward"], record["termination"]) for record in records} == {(3, 1.0, "answer")}
    assert {record["answer"] for record in records} == set(CAPITALS.values())
    assert all(record["tools"] == [lookup.definition] for record in records)
    assert done.stderr == "wrote 5 records of 5 tasks as messages, which stand for 15 rollouts\n"


def test_the_format_is_what_the_name_of_the_file_says(cities: Path, tmp_path: Path):
    pytest.importorskip("pyarrow")
    for name, written in (("x.jsonl", "messages"), ("x.parquet", "parquet")):
        done = trunkline(tmp_path, "export", cities, "-o", name, "--task", "Japan", "--task", "Chile")
        assert (done.returncode, done.stdout) == (0, "")
        expected = f"wrote 2 records of 2 tasks to {name} as {written}, which stand for 6 rollouts\n"
        assert done.stderr == expected
    assert [record["task"] for record in read_lines(tmp_path / "x.jsonl")] == ["Japan", "Chile"]
    done = trunkline(tmp_path, "export", cities, "-o", "y.jsonl", "-f", "parallelmuse")
    assert "as parallelmuse" in done.stderr
    for record in read_lines(tmp_path / "y.jsonl"):
        assert record["prediction"] == record["answer"]
        assert [message["role"] for message in record["rollout"][:3]] == ["system", "user", "assistant"]


def test_what_is_left_out_is_said(tmp_path: Path):
    tree, point = begun(Task.ask("what?", id="q"))
    for draw, (word, reward) in enumerate([("answer", 1.0), ("answer", 0.25), ("cancelled", None), (None, None)]):
        rollout = tree.core.open(point, [0, draw], 0)
        say(tree, rollout, assistant(f"{draw}"))
        if word is not None:
            tree.core.close(rollout, word, None)
        if reward is not None:
            tree.core.score(rollout, reward)
    path = write_run(tmp_path / "a.run", [tree], unfinished=1)
    done = trunkline(tmp_path, "export", path, "-o", "x.jsonl", "--min-reward", "0.5", "--ended")
    assert done.stderr == (
        "wrote 1 record of 1 task to x.jsonl as messages; left out 3 rollouts: 1 reward below 0.5, 1 still growing, "
        "1 unscored\n"
    )
    done = trunkline(tmp_path, "export", path, "-f", "parallelmuse", "--scored")
    assert "left out 2 rollouts: 2 unscored" in done.stderr
    done = trunkline(tmp_path, "export", path, "-f", "parallelmuse", "--only", "termination")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"termination": "answer"}] * 2
    assert "left out 2 rollouts: 1 cancelled has no counterpart, 1 still growing" in done.stderr


def test_mistakes_are_one_line(cities: Path, tmp_path: Path):
    (tmp_path / "x.jsonl").write_text("mine")
    for arguments, said in (
        (("nowhere.run", "-f", "messages"), "nowhere.run: no such run file"),
        ((cities,), "name a file with --out, or a --format: messages, parallelmuse, parquet, csv"),
        ((cities, "-f", "parquet"), "parquet is no format for standard output: name a file"),
        ((cities, "-f", "tsv"), "no export format 'tsv'; there is messages, parallelmuse, parquet, csv"),
        ((cities, "-o", "x.jsonl"), "x.jsonl: it is there already; force=True (--force) replaces it"),
        ((cities, "-o", "\x1b[31m.txt"), "\\x1b[31m.txt does not say"),
        ((cities, "-o", cities, "-f", "messages", "--force"), "that is the run itself"),
        ((cities, "-f", "messages", "--task", "Spain"), 'no task "Spain"'),
        ((cities, "-f", "messages", "--only", "colour"), "messages has no field 'colour'; there is messages, tools"),
        ((cities, "-f", "messages", "--min-reward", "nan"), "min_reward must be a finite number"),
    ):
        done = trunkline(tmp_path, "export", *arguments)
        assert done.returncode == 2
        assert said in done.stderr.replace("\n", " ")
        assert done.stdout == ""
    assert (tmp_path / "x.jsonl").read_text() == "mine"
    assert trunkline(tmp_path, "export", cities, "-o", "x.jsonl", "--force").returncode == 0
    assert len(read_lines(tmp_path / "x.jsonl")) == 5


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "trunkline.cli", "export", *map(str, arguments)]


def test_a_reader_that_leaves_is_no_error(tmp_path: Path):
    tree, point = begun(Task.ask("what?", id="q"))
    for draw in range(40):
        say(tree, tree.core.open(point, [0, draw], 0), assistant(f"{draw}" * 20_000))
    path = write_run(tmp_path / "a.run", [tree])
    with subprocess.Popen(
        command(path, "-f", "messages"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == '{"messages'
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(60), said) == (0, "")


def test_a_full_standard_output_is_one_line(cities: Path):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(cities, "-f", "messages"), stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 3
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_a_terminal_sees_no_control_character(tmp_path: Path):
    tree, point = begun(Task.ask("what?", id="q"))
    said = "\x1b]0;title\x07 \x9b31m \u202e \U0001f600"
    say(tree, tree.core.open(point, [0, 0], 0), assistant(said))
    path = write_run(tmp_path / "a.run", [tree])
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            command(path, "-f", "messages", "--only", "messages"), stdout=theirs, stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == 0
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert all(" " <= char <= "~" or char in "\r\n" for char in shown)
    assert json.loads(shown)["messages"][1]["content"] == said


def test_forked_tries_say_where_they_began(tmp_path: Path):
    def sure(body: dict) -> dict:
        found = capital_cities(body)
        likely = [{"token": f"t{rank}", "logprob": -0.5 - rank} for rank in range(4)]
        if found["choices"][0]["message"]["content"]:
            found["choices"][0]["message"]["content"] += f" ({body['seed']})"
        found["choices"][0]["logprobs"] = {"content": [{**likely[0], "top_logprobs": likely}]}
        return found

    path = tmp_path / "a.run"
    with serving(sure) as server:
        strategy = Partial(initial=1, top_k=2, samples=1, region="all", budget=3)
        # These two call a tool in two turns, of which the second is no beginning.
        asked = [tasks()[1], tasks()[3]]
        run(agent(sampling=SURE), asked, llm=LLM(server.url), workers=0, strategy=strategy, out=path)
    assert trunkline(tmp_path, "export", path, "-f", "parallelmuse", "-o", "x.jsonl").returncode == 0
    with RunReader.open(path) as reader:
        trees = {tree.task.id: tree for tree in reader.trees()}
    records = read_lines(tmp_path / "x.jsonl")
    assert sum(record["weight"] for record in records) == sum(len(tree.rollouts) for tree in trees.values()) == 6
    assert [record["rollout_type"] for record in records].count("partial_rollout") == 2
    for record in records:
        assert any("step_ppl" in message for message in record["rollout"])
        rollout = trees[record["task"]].rollouts[record["rollout_id"]]
        begun_with = record["prepand_msg"]
        assert record["rollout"][: len(begun_with)] == begun_with
        assert (record["rollout_type"] == "partial_rollout") == (len(rollout.path) > 2)


@pytest.mark.parametrize("name", ["council", "search"])
def test_of_a_team_the_path_is_written(tmp_path: Path, name: str):
    pq = pytest.importorskip("pyarrow.parquet")
    with serving(reply) as server:
        run_here(server.url, tmp_path / "t.run", name, 2, workers=0)
    with RunReader.open(tmp_path / "t.run") as reader:
        trees = {tree.task.id: tree for tree in reader.trees()}
    assert trunkline(tmp_path, "export", "t.run", "-o", "x.parquet").returncode == 0
    assert trunkline(tmp_path, "export", "t.run", "-o", "x.jsonl").returncode == 0
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert sum(row["weight"] for row in rows) == sum(len(tree.rollouts) for tree in trees.values())
    for row, record in zip(rows, read_lines(tmp_path / "x.jsonl"), strict=True):
        rollout = trees[row["task"]].rollouts[row["rollout"]]
        assert json.loads(row["messages"]) == record["messages"] == rollout.messages
        assert row["agents"] == [node.agent for node in rollout.nodes]
        assert set(TEAMS[name].own_roles()) & set(row["agents"])
        assert "tools" not in record
