"""``trunkline run --team``, as a user starts it, against the simulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import chat_templates
import pytest
from commands import trunkline
from places import python_path

from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.store.reader import RunReader
from trunkline.tree.views import Kind


@pytest.fixture
def folder(tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with questions: those that need a search, and word problems."""
    for row in (world / "questions.jsonl").read_text().splitlines():
        kind = json.loads(row)["metadata"]["kind"]
        with (tmp_path / f"{kind}.jsonl").open("a") as file:
            file.write(f"{row}\n")
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "TRUNKLINE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    monkeypatch.setenv("PYTHONPATH", python_path())
    return tmp_path


def play(folder: Path, url: str, questions: str, *options: str, model: str = "sim-team") -> dict:
    """Run to the end, and return the summary."""
    done = trunkline(
        folder, "run", questions, "-m", model, "--base-url", url, "--seed", "7", "-w", "0", "--json", *options
    )
    assert done.returncode == 0, done.stderr
    found: dict = json.loads(done.stdout)
    return found


def trees(path: Path) -> list[object]:
    with RunReader.open(path) as reader:
        return [(tree.task.id, tree.digest()) for tree in reader.trees()]


def roles(path: Path) -> set[str]:
    with RunReader.open(path) as reader:
        return {node.agent for tree in reader.trees() for node in tree.nodes if node.kind is Kind.TURN}


def test_any_number_of_workers_plays_the_same_trees(folder: Path, url: str):
    options = ("--team", "math:rounds=2", "-n", "6", "-r", "2")
    play(folder, url, "arithmetic.jsonl", *options, "-o", "one.run")
    told = play(folder, url, "arithmetic.jsonl", *options, "-o", "two.run", "-w", "2")
    assert (told["tasks"], told["rollouts"], told["failed"]) == (6, 12, 0)
    assert trees(folder / "one.run") == trees(folder / "two.run")
    assert roles(folder / "one.run") == {"solver", "verifier"}


def test_the_search_team_finds_with_the_tool_that_it_is_given(folder: Path, url: str):
    tools = ("--tools", "trunkline.sim.tools:search")
    told = play(
        folder, url, "lookup.jsonl", "--team", "search:max_steps=8,history=8", *tools, "-o", "s.run",
    )  # fmt: skip
    assert roles(folder / "s.run") == {"verifier", "searcher", "answerer"}
    assert told["accuracy"]["value"] > 0.15, "nobody knows an answer without having searched"


def test_experts_are_each_asked_once(folder: Path, url: str):
    told = play(folder, url, "arithmetic.jsonl", "-n", "4", "--team", "experts", "-o", "e.run")
    assert told["usage"]["calls"] == 4 * 4
    assert roles(folder / "e.run") == {"theorist", "practitioner", "sceptic", "synthesiser"}


def test_a_team_of_ones_own_with_roles_changed(folder: Path, url: str):
    changes = ("--role", "checker.model=sim-verifier", "--role", "solver.sampling.max_tokens=400", "--temperature", "0")
    options = ("--team", "pair_team:Pair:rounds=3", *changes, "-n", "5")
    play(folder, url, "arithmetic.jsonl", *options, "-o", "own.run", "-w", "2", model="sim-solver")
    with RunReader.open(folder / "own.run") as reader:
        described = reader.settings["team"]
    assert described["rounds"] == 3
    asked = {name: (role["model"], role["sampling"]) for name, role in described["roles"].items()}
    assert asked["solver"] == ("sim-solver", {"temperature": 0, "max_tokens": 400})
    assert asked["checker"] == ("sim-verifier", {"temperature": 0.5})
    assert trunkline(folder, "check", "own.run").returncode == 0


def test_a_run_of_a_team_is_resumed_from_its_file_alone(folder: Path, url: str):
    options = ("--team", "pair_team:Pair:rounds=3", "--role", "checker.sampling.temperature=0.3", "-n", "6")
    play(folder, url, "arithmetic.jsonl", *options, "-o", "whole.run")
    cut = trunkline(
        folder, "run", "arithmetic.jsonl", "-m", "sim-team", "--base-url", url, "--seed", "7", "-w", "0", *options,
        "-c", "1", "--budget", "calls=4", "-o", "cut.run",
    )  # fmt: skip
    assert cut.returncode == 1, cut.stderr
    assert "the budget of the run" in cut.stderr
    gone_on = trunkline(folder, "resume", "cut.run", "--budget", "calls=1000", "-w", "2")
    assert gone_on.returncode == 0, gone_on.stderr
    before, after = dict(trees(folder / "whole.run")), dict(trees(folder / "cut.run"))
    with RunReader.open(folder / "cut.run") as reader:
        found = {tree.task.id: tree for tree in reader.trees()}
    cut_before = {name for name, tree in found.items() if any(one.termination == "retried" for one in tree.rollouts)}
    assert cut_before, "a larger budget goes on with what was cut"
    whole = found.keys() - cut_before
    assert before.keys() == after.keys() == found.keys()
    assert whole, "what had not begun is as if nothing had been cut"
    assert {task: after[task] for task in whole} == {task: before[task] for task in whole}


def test_another_setting_of_the_team_is_another_run(folder: Path, url: str):
    common = ("arithmetic.jsonl", "-n", "2", "-o", "same.run")
    play(folder, url, *common, "--team", "pair_team:Pair")
    other = trunkline(
        folder, "run", *common, "-m", "sim-team", "--base-url", url, "--seed", "7", "-w", "0",
        "--team", "pair_team:Pair", "--role", "checker.sampling.temperature=0.3",
    )  # fmt: skip
    assert other.returncode == 2
    assert "team" in other.stderr


def test_a_run_says_in_which_unit_its_context_is_limited(folder: Path, url: str):
    (folder / "model").mkdir()
    chat_templates.write("chatml", folder / "model")
    for more, unit in (
        ("", "characters at most (tokens with tokenizer=PATH)"),
        (",tokenizer=model", "tokens at most, by model"),
    ):
        team, out = f"math:rounds=2,max_context_length=40{more}", f"{len(more)}.run"
        done = trunkline(
            folder, "run", "arithmetic.jsonl", "-n", "2", "-m", "sim-team", "--base-url", url, "--team", team, "-o", out
        )
        assert done.returncode == 0, done.stderr
        resumed = trunkline(folder, "resume", out)
        assert resumed.returncode == 0, resumed.stderr
        assert f"context: 40 {unit}\n" in done.stderr
        assert f"context: 40 {unit}\n" in resumed.stderr
        assert trunkline(folder, "check", out).returncode == 0


def test_a_dry_run_shows_the_team(folder: Path):
    done = trunkline(
        folder, "run", "arithmetic.jsonl", "-m", "m", "--base-url", "http://localhost:1/v1", "--dry-run", "--team",
        "pair_team:Looking:rounds=3,late_join=false,max_context_length=2000", "--tools", "trunkline.sim.tools",
        "--role", "checker.model=large", "--role", "solver.tools=trunkline.sim.tools:visit", "--max-turns", "5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = {line[:17].strip(): line[19:] for line in done.stdout.splitlines()}
    assert lines["team"].startswith("pair_team:Looking (rounds=3, eager=False, tools=")
    assert lines["role solver"] == "m, tools visit"
    assert lines["role checker"] == "large, temperature 0.5"
    assert lines["switches"] == "all on but late_join"
    assert lines["context"] == "2,000 characters at most (tokens with tokenizer=PATH)"
    assert lines["model turns"].endswith("(5 per rollout)")
    (folder / "config.toml").write_text("[agent.performance]\nenable_agent_skip = false\nmax_context_length = 9\n")
    done = trunkline(
        folder, "run", "arithmetic.jsonl", "-m", "m", "--base-url", "http://localhost:1/v1", "--dry-run",
        "--team", "math:performance=config.toml",
    )  # fmt: skip
    assert (
        "switches           all on but agent_skip\ncontext            9 characters at most (tokens with" in done.stdout
    )
    assert "program" not in lines
    assert "tools" not in lines


def test_a_mistake_is_one_line_and_leaves_no_file(folder: Path):
    before = sorted(folder.rglob("*"))
    given = ["run", "arithmetic.jsonl", "-m", "m", "--base-url", "http://localhost:1/v1", "--role", "solver.model=x"]
    done = subprocess.run(
        [sys.executable, "-m", "trunkline.cli", *given], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--role solver.model=x changes a role of a team: name one with --team" in line
    assert sorted(folder.rglob("*")) == before


def test_a_tree_of_a_team_shows_who_spoke(folder: Path, url: str):
    play(folder, url, "arithmetic.jsonl", "-n", "1", "--team", "math:rounds=2,early_termination=false", "-o", "t.run")
    shown = trunkline(folder, "show", "t.run").stdout
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("turn ")] == [
        "solver:",
        "verifier:",
        "solver:",
    ]
    assert re.search(r"^verifier +1 ", shown, re.MULTILINE), "a row of the table of agents"


def test_a_team_that_asks_named_llms_alone_is_played_and_resumed(folder: Path, url: str):
    given = ("arithmetic.jsonl", "-m", "sim-team", "--seed", "7", "-w", "0", "-o", "named.run")
    roles = ("--role", "solver.llm=here", "--role", "verifier.llm=there", "--team", "math:rounds=2", "-n", "6")
    llms = ("--llm", f"here={url},max_concurrency=1", "--llm", f"there={url},max_concurrency=1")
    done = trunkline(folder, "run", *given, *roles, *llms, "--budget", "calls=4")
    assert done.returncode == 1, done.stderr
    gone_on = trunkline(folder, "resume", "named.run", "--budget", "calls=1000")
    assert gone_on.returncode == 0, gone_on.stderr
    with RunReader.open(folder / "named.run") as reader:
        assert reader.settings["llm"] is None
        assert set(reader.settings["llms"]) == {"here", "there"}


def figures(lines: list[str]) -> dict[str, tuple[int, int]]:
    """Calls and active rows of each agent, out of the lines of a table."""
    found = {}
    for line in lines:
        columns = line.split()
        if columns and columns[0] in {"solver", "verifier"}:
            found[columns[0]] = (int(columns[1]), int(columns[-6]))
    return found


@pytest.mark.parametrize("every", [2, 6])
def test_figures_of_the_agents_while_the_run_takes_its_tasks(folder: Path, url: str, every: int):
    done = trunkline(
        folder, "run", "arithmetic.jsonl", "-m", "sim-team", "--base-url", url, "-w", "0", "--team", "math:rounds=2",
        "-n", "6", "-r", "2", "--agents-every", str(every), "-o", "r.run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stderr.split("the last ")[1:]
    assert len(said) == 6 // every
    assert all(one.startswith(f"{every} tasks, ") for one in said)
    windows = [figures(one.splitlines()) for one in said]
    with RunReader.open(folder / "r.run") as reader:
        whole = {agent.name: (agent.calls, agent.rows.active) for agent in reader.profile().agents}
    for name, (calls, active) in whole.items():
        assert sum(window[name][1] for window in windows) == active, "each row is in the figures of its task"
        assert sum(window[name][0] for window in windows) == calls, "no call is missing, as the last task ends a window"
    assert figures(done.stdout.splitlines()) == whole, "those of the whole run are under its summary"
