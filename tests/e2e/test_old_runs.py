"""Run files of an earlier version are read, compared, exported, scored and gone on with as they were then.

``tests/fixtures/runs/make.py`` says how the files were made; what was read of them then stands in ``figures.json``.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from commands import Done, trunkline
from old_runs import FIGURES, begun, digests, dotted, figures, names, unpack, write_questions
from resuming import undo
from sim_engine import SimEngine

import trunkline as tl
from trunkline import _RENAMED
from trunkline._core import FORMAT, OLDEST_FORMAT
from trunkline._internal import old_names
from trunkline.protocol.messages import WorkerState
from trunkline.scoring.filters.base import Group
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit

KNOWN = json.loads(FIGURES.read_text("utf-8"))
RUNS = KNOWN["runs"]
INTERRUPTED = [name for name in RUNS if "whole" in RUNS[name]]

SCRIPTS = ["batch"]
"""Files that no command can go on with: their engine is an object of a script."""

ELSEWHERE = {
    "enough": "which tries are done first depends on the time",
    "judge": "its judge is asked at an address of its own",
    "partial": "its trees were taken over",
}
"""Finished files of which no task can be grown again here, and why."""

FINISHED = [name for name in RUNS if name not in (*INTERRUPTED, *SCRIPTS)]


@pytest.fixture(autouse=True)
def corpus(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))


def said(done: Done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_figures_of_every_file() -> None:
    assert names() == sorted(RUNS)
    assert len(INTERRUPTED) == 4


def test_the_names_of_modules_in_the_files_are_those_that_were_there(tmp_path: Path) -> None:
    found = dotted(unpack(name, tmp_path) for name in names())
    assert found == KNOWN["names"]
    ours = {
        place.removeprefix("meta.job.packed.")
        for place, listed in found.items()
        if any(name.startswith("trunkline.") for name in listed)
    }
    assert {"strategy", "reward", "filters[]", "tools[]", "program", "dialect", "meta.settings.program"} <= ours
    assert {"reward.fields.rewards.f1", "program.fields.tool"} <= ours, "code that other code is made of"
    assert "old_runs:twice" in found["meta.job.packed.program"]


@pytest.mark.parametrize("name", RUNS)
def test_a_file_is_sound_and_says_what_it_said(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    held = path.read_bytes()
    assert said(trunkline(tmp_path, "check", path.name)).count("\n") == 1
    known = {field: value for field, value in RUNS[name].items() if field != "whole"}
    assert figures(path) == known
    said(trunkline(tmp_path, "show", path.name, "--tasks", "--metrics", "--calls", "--time"))
    assert f"{known['finished']} of {known['tasks']}" in said(trunkline(tmp_path, "show", path.name, "-v"))
    for task in list(known["digests"])[:2]:
        assert said(trunkline(tmp_path, "show", path.name, "--task", task)).count(f"task {task}:") == 1
    assert path.read_bytes() == held


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_gone_on_with_where_a_task_is_undone(name: str, tmp_path: Path, url: str) -> None:
    path, whole = unpack(name, tmp_path), RUNS[name]["digests"]
    if name not in ELSEWHERE:
        undo(path, list(whole)[-1])
        assert len(digests(path)) == len(whole) - 1
    options = ["--llm", f"other={url}"] if name == "experts" else []
    said(trunkline(tmp_path, "resume", path.name, "--base-url", url, *options, "--fail-on-error", "9"))
    assert digests(path) == whole
    said(trunkline(tmp_path, "check", path.name))


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_run_comes_to_what_it_would_have_come_to(name: str, tmp_path: Path, url: str) -> None:
    path, known = unpack(name, tmp_path), RUNS[name]
    before = begun(path)
    assert 0 < known["finished"] < len(known["digests"]) < known["tasks"], "some done, some begun, some untouched"
    options = ("--workers", "1" if name == "killed-program" else "0", "--fail-on-error", "9", "--json")
    summary = json.loads(said(trunkline(tmp_path, "resume", path.name, "--base-url", url, *options)))
    assert (summary["state"], summary["finished"]) == ("done", known["tasks"])
    assert digests(path) == known["whole"]
    assert before.items() < begun(path).items(), "what had grown is gone on with"
    said(trunkline(tmp_path, "check", path.name))
    with tl.RunReader.open(path) as reader:
        made = json.loads(reader.meta["versions"])
    assert made["delta"] == FORMAT, "an earlier version refuses the file from now on, and names the format"
    formats = {int.from_bytes(data[4:6], "little") for data in begun(path).values()}
    assert formats == {OLDEST_FORMAT, FORMAT}, "deltas of both formats stand side by side"


@pytest.mark.parametrize("name", INTERRUPTED)
def test_the_command_that_began_a_run_goes_on_with_it(name: str, tmp_path: Path, world: Path, url: str) -> None:
    path = unpack(name, tmp_path)
    write_questions(world, tmp_path)
    with tl.RunReader.open(path) as reader:
        command = json.loads(reader.meta["command"])[1:]
    command[command.index("--base-url") + 1] = url
    done = trunkline(tmp_path, *command, "-w", "0", "--fail-on-error", "9")
    said(done)
    assert f"resumes {path.name}: {RUNS[name]['finished']} of" in done.stderr
    assert digests(path) == RUNS[name]["whole"]


@pytest.mark.parametrize(("name", "mark"), [("stopped-math", "19db6586"), ("stopped-mcts", "29297a89")])
def test_a_run_without_a_name_is_found_by_what_it_was_called_after(
    name: str, mark: str, tmp_path: Path, world: Path, url: str
) -> None:
    write_questions(world, tmp_path)
    with tl.RunReader.open(unpack(name, tmp_path)) as reader:
        command = json.loads(reader.meta["command"])[1:]
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / f"2026-11-22T090000-{command[command.index('-m') + 1]}-{mark}.run"
    (tmp_path / f"{name}.run").rename(path)
    command[command.index("--base-url") + 1] = url
    place = command.index("-o")
    del command[place : place + 2]
    assert f"resumes runs/{path.name}: " in trunkline(tmp_path, *command, "-w", "0", "--fail-on-error", "9").stderr
    assert digests(path) == RUNS[name]["whole"]


def test_a_script_goes_on_with_what_it_began(tmp_path: Path, url: str) -> None:
    path = unpack("stopped-math", tmp_path)
    team = tl.teams.MathTeam(model="sim-team", rounds=2)
    made = tl.run(
        team, llm=url, strategy=tl.Chain(2), reward=tl.exact_match, seed=5, workers=0, out=path, resume=True
    )  # fmt: skip
    assert {tree.task.id: tree.digest() for tree in made} == RUNS["stopped-math"]["whole"]


def test_a_script_with_an_engine_of_its_own_goes_on(tmp_path: Path) -> None:
    path = unpack("batch", tmp_path)
    known = RUNS["batch"]["digests"]
    undo(path, list(known)[-1])
    agent, engine = tl.Agent(model="sim-agent", tools=[search, visit]), SimEngine()
    made = tl.run(
        agent, llm=tl.BatchLLM(engine.generate), strategy=tl.Chain(2), reward=tl.exact_match, seed=5, workers=0,
        out=path, resume=True,
    )  # fmt: skip
    assert {tree.task.id: tree.digest() for tree in made} == known
    assert engine.batches


def test_the_trees_of_a_run_go_on_in_a_new_one(tmp_path: Path, url: str) -> None:
    unpack("chain", tmp_path)
    tools = (word for tool in (search, visit) for word in ("--tools", f"{tool.module}:{tool.qualname}"))
    given = ("-m", "sim-agent", *tools, "--strategy", "partial:initial=1,budget=7", "--base-url", url, "-w", "0")
    said(trunkline(tmp_path, "run", "--from", "chain.run", *given, "-o", "on.run"))
    assert digests(tmp_path / "on.run") == RUNS["partial"]["digests"]
    unpack("partial", tmp_path)
    found = json.loads(said(trunkline(tmp_path, "compare", "partial.run", "on.run", "--json")))
    assert (found["reward"], found["changed"]) == ("exact_match", [])
    assert found["a"]["estimate"] == found["b"]["estimate"]


@pytest.mark.parametrize(("a", "b"), [("chain", "tree-grpo"), ("math", "own-team")])
def test_two_runs_are_compared(a: str, b: str, tmp_path: Path) -> None:
    for name in (a, b):
        unpack(name, tmp_path)
    found = json.loads(said(trunkline(tmp_path, "compare", f"{a}.run", f"{b}.run", "--json")))
    assert [found[side]["estimate"]["value"] for side in "ab"] == [RUNS[name]["accuracy"] for name in (a, b)]


@pytest.mark.parametrize("name", ["chain", "filters", "rescored", "math", "reports", "judge"])
def test_a_run_is_scored_by_another_reward_and_by_its_own_again(name: str, tmp_path: Path) -> None:
    path, known = unpack(name, tmp_path), RUNS[name]
    said(trunkline(tmp_path, "score", path.name, "--reward", "f1@2", "--reward", "contains", "-o", "again.run"))
    assert digests(path) == known["digests"]
    again = figures(tmp_path / "again.run")
    assert (again["scored"], again["answers"]) == (known["scored"], known["answers"])
    assert again["accuracy"] != known["accuracy"]
    if name in {"chain", "filters", "math"}:
        said(trunkline(tmp_path, "score", "again.run", "--reward", "exact_match"))
        assert figures(tmp_path / "again.run")["accuracy"] == known["accuracy"]


@pytest.mark.parametrize("aggregator", ["weighted", "best"])
def test_tries_are_weighed_by_what_stands_in_the_file(aggregator: str, tmp_path: Path) -> None:
    unpack("chain", tmp_path)
    decided = json.loads(said(trunkline(tmp_path, "answers", "chain.run", "--aggregator", aggregator, "--json")))
    assert [one["task"] for one in decided["answers"]] == list(RUNS["chain"]["answers"])
    assert {one["method"] for one in decided["answers"]} == {aggregator}


def test_public_names_of_earlier_days_lead_on_and_warn(tmp_path: Path):
    for old, new in _RENAMED.items():
        group, _, name = new.partition(".")
        with pytest.warns(DeprecationWarning, match=f"^trunkline.{old} is called trunkline.{new} now$"):
            assert getattr(tl, old) is getattr(getattr(tl, group), name)
        assert old not in tl.__all__
    with pytest.warns(DeprecationWarning, match="rewards.Part is called trunkline.rewards.RewardPart now"):
        assert tl.rewards.Part is tl.rewards.RewardPart
    with pytest.raises(AttributeError, match="has no attribute 'Whole'"):
        tl.rewards.Whole  # noqa: B018
    assert old_names.renamed("trunkline.score.rewards:Part") == "trunkline.scoring.rewards:RewardPart"
    for owner, old, new in (
        (tl.programs.ProgramContext, "talk", "transcript"),
        (Group, "said", "output"),
        (WorkerState, "doors", "endpoints"),
        (WorkerState, "slow", "oldest"),
    ):
        assert hasattr(owner, new)
        stand_in = type("Stand", (), {new: 7, old: vars(owner)[old]})()
        with pytest.warns(DeprecationWarning, match=f"Stand.{old} is called {new} now"):
            assert getattr(stand_in, old) == 7
    with tl.RunReader.open(unpack("chain", tmp_path)) as reader:
        with pytest.warns(DeprecationWarning, match="RunReader.uses is called tool_calls now"):
            rows = list(reader.uses())
        assert rows == list(reader.tool_calls())
        assert rows


def test_every_old_name_leads_to_something_that_is_there():
    modules, names = old_names._tables()
    for old, new in [*modules.items(), *names.items()]:
        module, _, name = new.partition(":")
        found = importlib.import_module(f"trunkline.{module}")
        assert not name or hasattr(found, name), f"{old} leads to {new}"
    assert old_names.renamed("trunkline.team.programs.math:MathTeam") == "trunkline.team.builtin:MathTeam"
    assert old_names.current_name("trunkline.llm.batch", "BatchLLM.open") == (
        "trunkline.llm.batch.batcher",
        "BatchLLM.open",
    )
    assert old_names.renamed("mytools:search") == "mytools:search"
    assert old_names.renamed("a text: with a colon") == "a text: with a colon"
