"""Filters and refill in whole runs: over any pool, in the run file, on screen, and from the command line."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, suicide, tasks
from commands import started
from foreign import capital_cities, error, message, serving
from judges import Breaking, Unlucky

from trunkline import filters, train
from trunkline.agent import Agent
from trunkline.cli.app import app
from trunkline.cli.demo import simulator
from trunkline.cli.tables import table
from trunkline.cli.tree_view import picture
from trunkline.errors import ConfigError, EndpointError
from trunkline.llm.config import LLM
from trunkline.observability.observers import Progress
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.scoring import notes
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.strategies.base import Fork, View
from trunkline.strategies.chain import Chain

ORDER = list(CAPITALS)  # France, Brazil, Japan, Benin, Chile


def atlas_run(url: str, workers: int = 0, **options: object) -> Run:
    given = {"strategy": Chain(2), "reward": exact_match, "seed": 1} | options
    return run(agent(), tasks(), llm=LLM(url, max_concurrency=8, max_retries=0), workers=workers, **given)


def handed(result: Run) -> list[str]:
    return [tree.task.id for tree in result]


@pytest.mark.parametrize("workers", [0, 2])
def test_tasks_are_handed_out_until_enough_groups_were_kept(workers: int):
    seen: list[Progress] = []
    with serving(capital_cities) as server:
        result = atlas_run(server.url, workers, filters=[Unlucky()], groups=2, watch=seen.append)
    # France is kept, Brazil and Japan are not, Benin is the second: Chile is not needed.
    assert handed(result) == ORDER[:4]
    assert result.state == "done"
    summary = result.summary()
    assert (summary.groups, summary.groups_kept, summary.tasks, summary.finished) == (2, 2, 5, 4)
    (counted,) = summary.filters
    assert (counted.filter, counted.dropped, counted.groups, counted.masked) == ("unlucky", 4, 2, 0)
    shown = table(summary)
    assert "4 of 5  (1 not needed)" in shown
    assert "2 of 2 wanted" in shown
    assert "4 dropped (2 whole groups)" in shown
    assert (seen[-1].groups, seen[-1].kept, seen[-1].rollouts) == (2, 2, 4)
    with RunReader.open(result.path) as reader:
        assert reader.check() == [], "a task that was not needed is not missing"
    (said,) = notes.read(result["Brazil"].rollouts[0].note)
    assert said.reason == "Brazil is out"


@pytest.mark.parametrize("most", [None, 4])
def test_a_run_whose_tasks_run_out_says_so(most: int | None, caplog: pytest.LogCaptureFixture):
    with serving(capital_cities) as server, caplog.at_level(logging.WARNING):
        out = Unlucky(("France", "Brazil", "Japan"))
        result = atlas_run(server.url, filters=[out], groups=3, max_tasks=most)
    assert result.state == "exhausted"
    assert len(result) == (most or 5)
    kept = 1 if most else 2
    assert f"only {kept} of 3 groups were kept of {most or 5} tasks" in caplog.text
    assert result.summary().groups_kept == kept
    assert "(exhausted)" in table(result.summary())


@pytest.mark.breaks_rollouts
def test_a_group_that_broke_is_not_kept_and_another_takes_its_place():
    def failing(body: dict) -> object:
        text = json.dumps(body["messages"])
        return error(400, "no", "bad") if "France" in text else capital_cities(body)

    with serving(failing) as server:
        result = atlas_run(server.url, groups=2)
    assert handed(result) == ORDER[:3]
    assert result.summary().groups_kept == 2


def test_an_endpoint_that_refuses_all_of_the_tasks_that_may_be_taken_stops_the_run():
    with serving(lambda body: error(400, "no such parameter", "bad")) as server, pytest.raises(EndpointError):
        atlas_run(server.url, strategy=Chain(5), groups=1, max_tasks=2)


@pytest.mark.breaks_rollouts
def test_a_task_that_is_lost_with_its_worker_is_replaced():
    def call_the_tool(body: dict) -> dict:
        country = body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")
        if any(one["role"] == "tool" for one in body["messages"]):
            return message(f"<answer>{CAPITALS[country]}</answer>")
        return message(None, [("suicide", json.dumps({"country": country}))])

    with serving(call_the_tool) as server:
        result = run(
            agent(tools=[suicide]),
            tasks(),
            llm=LLM(server.url, max_concurrency=8, max_retries=0),
            reward=exact_match,
            workers=2,
            groups=2,
            filters=[filters.VoidTurns()],
        )
    (said,) = notes.read(result["Brazil"].rollouts[0].note)
    assert (said.filter, said.action) == ("void_turns", "failed"), "it has judged nothing"
    assert "SIGKILL" in said.reason
    assert handed(result) == ORDER[:3], "each worker had one of the first two"
    assert result.state == "done"
    assert {one.termination for one in result["Brazil"].rollouts} == {"lost"}
    assert result.summary().groups_kept == 2


def test_a_filter_that_breaks_sinks_nothing():
    with serving(capital_cities) as server:
        result = atlas_run(server.url, filters=[Breaking()])
    assert result.state == "done"
    assert len(result) == 5
    (failed,) = notes.read(result["Japan"].rollouts[0].note)
    assert (failed.action, failed.reason) == ("failed", "RuntimeError: cannot say")
    assert result.summary().accuracy.value == 1.0
    assert {found.filter: (found.masked, found.failed) for found in result.summary().filters} == {
        "Breaking": (0, 1),
        "breaking": (4, 0),
    }
    assert "1 group not judged" in table(result.summary())


class Fragile(Chain):
    """Breaks on Japan once its rollouts have ended."""

    def ended(self, view: View) -> list[Fork]:
        if view.tree.task.id == "Japan":
            raise RuntimeError("no more")
        return []


@pytest.mark.breaks_rollouts
def test_a_group_whose_task_broke_before_filters_judged_it_is_not_trained():
    with serving(capital_cities) as server:
        result = atlas_run(server.url, strategy=Fragile(2), filters=[filters.VoidTurns(), Unlucky()])
    assert [rollout.reward for rollout in result["Japan"].rollouts] == [1.0, 1.0], "it has rewards, and no verdict"
    failed = notes.read(result["Japan"].rollouts[0].note)
    assert [(one.filter, one.action) for one in failed] == [("void_turns", "failed"), ("Unlucky", "failed")]
    assert "no more" in failed[0].reason
    trained = {sample.task for sample in train.turns(result, estimator="dr_grpo", shared="once") if sample.trained}
    assert trained == {"France", "Benin", "Chile"}
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


def test_a_group_that_nobody_has_judged_is_not_kept():
    with serving(capital_cities) as server:
        result = atlas_run(server.url, filters=[Breaking()], groups=3)
    # Of each group one rollout is masked and one is left; nobody has judged Japan.
    assert handed(result) == ORDER[:4]
    assert result.summary().groups_kept == 3


def test_filters_change_no_digest():
    with serving(capital_cities) as server:
        plain, judged = atlas_run(server.url), atlas_run(server.url, filters=[Unlucky(), filters.ZeroVariance()])
    assert [tree.digest() for tree in plain] == [tree.digest() for tree in judged]
    assert judged.summary().accuracy == plain.summary().accuracy, "filters are about training"
    assert judged.summary().groups_kept == 0, "every reward is 1"


@pytest.mark.parametrize("void", ["tell", "stop"])
def test_a_void_turn_is_told_or_ends_the_rollout(void: str):
    def undecided(body: dict) -> dict:
        return message("<answer>Paris</answer>" if "Try again" in str(body["messages"]) else "hm")

    with serving(undecided) as server:
        result = run(
            agent(dialect="search-r1", on_void_turn=void),
            tasks()[:1],
            llm=LLM(server.url, max_concurrency=8, max_retries=0),
            reward=exact_match,
            workers=0,
            filters=[filters.VoidTurns()],
        )
    (rollout,) = result["France"].rollouts
    (verdict,) = notes.read(rollout.note)
    assert verdict.reason == "turn 1 neither calls a tool nor answers"
    if void == "tell":
        assert (rollout.termination, rollout.reward, rollout.turns) == ("answer", 1.0, 2)
    else:
        assert (rollout.termination, rollout.answer, rollout.turns) == ("filtered", None, 1)
        assert rollout.error.kind == "Stopped"
        assert math.isnan(rollout.reward), "unscored, never 0"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"filters": [3]}, r"filters\[0\] must have judge"),
        ({"filters": [filters.ZeroVariance()], "reward": None}, "zero_variance compares rewards"),
        ({"groups": 9}, "groups is 9, and there are 5 tasks"),
        ({"max_tasks": 2}, "give groups as well"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_run(options: dict, says: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=says):
        atlas_run("http://127.0.0.1:9/v1", out=tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()


def test_what_happens_after_a_void_turn_is_one_of_two_words():
    with pytest.raises(ConfigError, match="Agent: on_void_turn must be tell or stop, not 'shrug'"):
        agent(on_void_turn="shrug")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 200, 30), folder)
    return folder


def test_the_same_tasks_are_handed_out_for_any_pool_and_order_of_arrival(world: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    listed = load_tasks(str(world / "questions.jsonl"), limit=24)
    found = []
    # Short times that vary widely: who is first is another one in every run.
    with simulator("default", True, "--latency", "overhead=0.002,token=0.00005,tail=1.5") as url:
        for workers, concurrency in ((0, 3), (1, 40), (2, 16)):
            result = run(
                Agent(model="sim-agent", tools=[search, visit], max_turns=6),
                listed,
                llm=LLM(url, max_concurrency=concurrency),
                strategy=Chain(2),
                reward=exact_match,
                workers=workers,
                seed=5,
                filters=[filters.VoidTurns(), filters.ZeroVariance()],
                groups=3,
            )
            assert result.state == "done"
            kept = [not all(notes.dropped(notes.read(one.note)) for one in tree.rollouts) for tree in result]
            assert sum(kept) == 3
            assert kept[-1], "the shortest beginning ends with a kept group"
            found.append({tree.task.id: (tree.digest(), [one.note for one in tree.rollouts]) for tree in result})
    assert found[0] == found[1] == found[2]
    assert list(found[0]) == [task.id for task in listed[: len(found[0])]]
    assert 3 < len(found[0]) < 24, "some groups are dropped, and some tasks not needed"


def questions(folder: Path) -> str:
    rows = [{"id": c, "question": f"Capital of {c}?", "answer": a} for c, a in CAPITALS.items()]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "q.jsonl"


def test_filters_and_groups_are_options_of_the_command_line(tmp_path: Path):
    common = ("-m", "m", "--tools", "atlas:lookup", "-r", "2", "-w", "0", "--seed", "1")
    with serving(capital_cities) as server:
        done = started(
            "run", questions(tmp_path), *common, "--base-url", server.url, "--out", "r.run", "--groups", "2",
            "--filter", "judges:Unlucky:countries=Brazil/Japan", "--filter", "void-turns:action=drop", "--void", "stop",
            cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "done, 1 not needed" in done.stdout
        assert "2/2 groups kept of 4 tasks" in done.stderr
        short = started(
            "run", "q.jsonl", *common, "--base-url", server.url, "--out", "s.run", "--groups", "4", "--filter",
            "zero-variance:threshold=0.1", cwd=tmp_path,
        )  # fmt: skip
    assert short.returncode == 1
    assert "only 0 of 4 groups were kept of 5 tasks" in short.stderr
    shown = started("show", "r.run", "--json", "--task", "Brazil", cwd=tmp_path)
    data = json.loads(shown.stdout)
    assert data["summary"]["filters"][0]["filter"] == "unlucky"
    assert data["tree"]["rollouts"][0]["verdicts"][0]["reason"] == "Brazil is out"
    with RunReader.open(tmp_path / "r.run") as reader:
        assert "reward 1  dropped by unlucky" in picture(reader.tree("Brazil"))
        assert reader.check() == []
        assert reader.settings["agent"]["void"] == "stop"
        assert reader.settings["refill"] == {"groups": 2, "max_tasks": 5}
        assert [one["kind"] for one in reader.settings["filters"]] == ["Unlucky", "void_turns"]
        assert reader.settings["filters"][1]["options"]["action"] == "drop"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--filter", "dapo2"], "is none of void-turns"),
        (["--filter", "void-turns:colour=red"], "its options are action, count_in_baseline, truncated"),
        (["--filter", "repetition:window=0"], "window must be a whole number from 1 to 1024"),
        (["--filter", "zero-variance", "--reward", "none"], "compares rewards"),
        (["--groups", "0"], "groups must be a whole number"),
        (["--max-tasks", "3"], "give groups as well"),
    ],
)
def test_bad_filters_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], says: str):
    monkeypatch.chdir(tmp_path)
    common = ["run", questions(tmp_path), "-m", "m", "--base-url", "http://127.0.0.1:9/v1", "-w", "0"]
    with pytest.raises(ConfigError, match=says) as caught:
        app.main([*common, *options], standalone_mode=False)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["q.jsonl"]


def test_a_dry_run_counts_the_tasks_that_may_be_taken_and_names_the_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    options = ("--groups", "2", "--max-tasks", "3", "--filter", "overlong-mask", "--dry-run", "-r", "2")
    common = ["run", questions(tmp_path), "-m", "m", "--base-url", "http://127.0.0.1:9/v1"]
    app.main([*common, *options], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "3 at most, until 2 groups were kept" in shown
    assert "6 at most" in shown, "2 rollouts of 3 tasks"
    assert "overlong_mask (action=mask, count_in_baseline=True, turns=False)" in shown


def test_a_budget_that_ends_before_enough_groups_were_kept_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    with serving(capital_cities) as server:
        common = ["run", questions(tmp_path), "-m", "m", "--base-url", server.url, "-w", "0", "--out", "r.run"]
        left = app.main([*common, "--groups", "3", "--budget", "rollouts=2"], standalone_mode=False)
    assert left == 1
    shown = capsys.readouterr().err
    assert "only 2 of 3 groups were kept" in shown
    assert "ended by budget" in shown
