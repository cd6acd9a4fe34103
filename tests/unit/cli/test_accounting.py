"""How accounting and diversity are told: the rows of the summary, and the table of tasks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from test_table import META, cells, row, totals, tree

from trunkline.cli.show import show
from trunkline.cli.tables import tasks_table
from trunkline.store.derive import rows
from trunkline.store.schema import CallRow, TakenRow
from trunkline.store.stats.summary import Summary, summarise
from trunkline.store.stats.tasks import TaskSummary
from trunkline.store.writer import RunWriter
from trunkline.tree.tokens import Tokens
from trunkline.tree.views import Tree
from trunkline.types import Task, Usage


def test_turns_that_chains_would_have_made_are_said_where_they_are_more() -> None:
    shared = msgspec.structs.replace(row(1, "answer", "b", 0.0), turns=7)
    assert cells(totals(row(0, "answer", "a", 1.0), shared))["model turns"] == "4  (9 if every rollout were a chain)"
    assert cells(totals(row(0, "answer", "a", 1.0)))["model turns"] == "2"


def carried(**changes: object) -> Summary:
    """Two rollouts of a task, one of which an earlier run had paid for; and what was carried of a task not finished."""
    again = {"note": "tool calls replayed: 3"}
    rollouts = [msgspec.structs.replace(row(number, "answer", "a", 1.0), **again) for number in range(2)]
    paid = TakenRow(1, 1, 0, 0, "d", 2, 100, 40, 20, tools=3, paths=2, replayed=3)
    waiting = TakenRow(1, 50, 9, 30, "d", 70, replayed=90)
    meta = META | {"continues": '"first.run"'}
    listed = [(0, entry) for entry in rollouts]
    return summarise(meta, 2, [tree()], listed, taken=[(0, msgspec.structs.replace(paid, **changes)), (1, waiting)])


def test_what_an_earlier_run_had_made_is_told_apart() -> None:
    summary = carried()
    assert summary.taken is not None
    assert (summary.taken.run, summary.taken.growing, summary.taken.ended, summary.taken.failed) == (
        "first.run",
        9,
        1,
        0,
    )
    assert (summary.usage.calls, summary.usage.tools, summary.replayed, summary.paths) == (2, 3, 3, 2)
    assert summary.rate == pytest.approx(1 / 62), "one rollout is this run's; another task's are in no figure yet"
    found = cells(summary)
    assert found["model turns"] == "2", "chains would have made no more"
    assert found["tool calls"] == "3; 3 more were run again for forks"
    shared = msgspec.structs.replace(summary, paths=9)
    assert cells(shared)["model turns"] == "2  (9 if every rollout were a chain)"


def test_what_is_from_ids_and_what_from_usage_is_said() -> None:
    mixed = summarise(META, 2, [tree(exact=1), tree()], [(0, row(0, "answer", "a", 1.0))])
    found = cells(mixed)
    assert found["tokens flat (token ids and server usage)"] == "2,000  (160 generated)"
    assert found["of these from token ids"] == "1,000 flat, 600 as a tree"
    assert "of these from token ids" not in cells(totals(row(0, "answer", "a", 1.0)))


def test_prompts_that_several_draws_share_are_counted_by_request_too() -> None:
    call = CallRow("e", 2, 90, 30, 40, 1, 0, -1, 9, 0)
    rollouts = [(0, row(0, "answer", "a", 1.0)), (0, row(1, "answer", "a", 1.0))]
    summary = summarise(META, 1, [tree()], rollouts, [(0, call)])
    assert (summary.prompt, summary.uncached) == (90, 60)
    found = cells(summary)
    assert found["prompt tokens by turn"] == "200, 80 of them cached  (40.0 %), 120 not"
    assert found["prompt tokens by request"] == "90, 60 of them not cached"
    equal = summarise(META, 1, [tree()], rollouts[:1], [(0, CallRow("e", 1, 100, 40, 20, 1, 0, -1, 9, 0))])
    assert "prompt tokens by request" not in cells(equal), "it would say the same again"


def test_lengths_are_compared_where_something_was_cut() -> None:
    cut = msgspec.structs.replace(row(1, "censored", None, None), turns=9, length=90)
    unknown = msgspec.structs.replace(row(2, "censored", None, None), turns=6, length=None)
    found = cells(totals(row(0, "answer", "a", 1.0), cut, unknown))
    assert found["mean length, ended"] == "2.0 turns, 20 generated tokens  (1 rollout)"
    remark = "; stopping early favours short rollouts"
    assert found["mean length, cut"] == f"7.5 turns, 90 generated tokens  (2 rollouts){remark}"
    assert cells(totals(unknown))["mean length, cut"] == f"6.0 turns  (1 rollout){remark}"
    assert not any("mean length" in label for label in cells(totals(row(0, "answer", "a", 1.0))))


def test_what_tries_are_worth_is_said_in_one_line() -> None:
    # Chains (1, 1), (0): MSB = (2/9 + 4/9) / 1, MSW = 0: rho 1; and 9 / (2 x 2 + 1) = 1.8.
    tries = [row(0, "answer", "a", 1.0), row(1, "answer", "a", 1.0), row(2, "answer", "b", 0.0)]
    tries[1] = msgspec.structs.replace(tries[1], subgroup=0)
    line = "1.8 of 3.0  (rewards of rollouts off one initial chain correlate by 1.00)"
    assert cells(totals(*tries))["effective tries per task"] == line
    same = [msgspec.structs.replace(given, subgroup=0) for given in tries]
    unknown = "not known: rewards do not vary, or each task has one initial chain only"
    assert cells(totals(*same))["effective tries per task"] == unknown
    assert "effective tries per task" not in cells(totals(row(0, "answer", "a", 1.0))), "one try is no group"
    assert "effective tries per task" not in cells(totals(row(0, "lost", None, None), row(1, "lost", None, None)))


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"strategy": {"kind": "TreeGRPO", "options": {"trees": 2, "rounds": 1}}}, "TreeGRPO(trees=2, rounds=1)"),
        ({"strategy": {"kind": "Mine", "options": "<Mine at 0x7f>"}}, "Mine"),
        ({"strategy": {"kind": "\x1b[2J", "options": {}}}, "\\x1b[2J()"),
        ({"strategy": 3}, None),
        ({}, None),
    ],
)
def test_the_strategy_is_named_with_its_options(settings: dict, shown: str | None) -> None:
    summary = summarise(META | {"settings": json.dumps(settings)}, 1, [tree()], [])
    assert cells(summary).get("strategy") == shown


def a_task(**changes: object) -> TaskSummary:
    known = TaskSummary(
        task="q1",
        rollouts=6,
        scored=5,
        reward=0.4,
        tokens=Tokens(12_000, 8_000, 900, 600, 3_000, 0),
        usage=Usage(calls=14, prompt=50_000, cached=20_000, generated=600),
        paths=18,
        actions=2,
        answers=3,
        effective=3.456,
    )
    return msgspec.structs.replace(known, **changes)


def test_the_table_of_tasks() -> None:
    exact = Tokens(1, 1, 1, 1, 1, 0, True)
    broken = a_task(task="\x1b[2J" + "x" * 90, reward=None, effective=None, tokens=exact)
    lines = tasks_table([a_task(), broken]).split("\n")
    first = "q1 6 5 0.400 ~12,000 ~8,000 ~900 ~600 33.3 % 20,000 30,000 18 14 2 3 3.5"
    assert " ".join(lines[2].split()) == first
    assert lines[3].startswith("\\x1b[2Jxxx")
    assert len({len(line) for line in lines[1:4]}) == 1, "columns stand under one another"
    assert lines[3].split()[3] == lines[3].split()[-1] == "-", "nothing that was not measured is shown as 0"
    assert lines[3].split()[4] == "1", "counted from ids"
    assert tasks_table([]) == "no task is finished"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tries.run"
    tasks = [Task.ask("Who?", "Ada", id="one"), Task.ask("Where?", "Rome", id="two")]
    writer = RunWriter.create(path, {}, tasks)
    for number, task in enumerate(tasks):
        core = Tree(task).core
        point = core.append(0, 1, json.dumps(task.messages[0]).encode())
        for draw, answer in enumerate(("Ada", "Bob")):
            rollout = core.open(point, [0, draw], draw)
            core.turn(rollout, json.dumps({"role": "assistant", "content": answer}).encode(), 0, 0, 0, 5, 1, 2, 0, 9)
            core.close(rollout, "answer", answer)
            core.score(rollout, float(draw == 0))
        delta = core.delta()
        assert delta is not None
        writer.commit([(number, 0, delta)], [(number, *rows(core))])
    writer.finish()
    return path


def test_show_prints_a_line_for_each_task(path: Path) -> None:
    result = CliRunner().invoke(show, [str(path), "--tasks"])
    assert result.exit_code == 0
    assert "effective tries per task" not in result.output, "the summary was not asked for"
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    # A prompt of 5 twice and 2 x 2 generated ones flat, the prompt once as a tree.
    figures = "2 2 0.500 ~14 ~9 ~4 ~4 35.7 % 2 8 2 2 2 2 2.0"
    assert lines.count(f"one {figures}") == lines.count(f"two {figures}") == 1
    assert "nodes, " not in result.output, "no tree was named"
    both = CliRunner().invoke(show, [str(path), "--tasks", "--task", "two"])
    assert "task two: 3 nodes, 2 rollouts" in both.output


def test_json_has_the_tasks_and_the_diversity(path: Path) -> None:
    data = json.loads(CliRunner().invoke(show, [str(path), "--tasks", "--json"]).output)
    assert [(task["task"], task["tokens"]["flat"], task["tokens"]["reuse"]) for task in data["tasks"]] == [
        ("one", 14, 5 / 14),
        ("two", 14, 5 / 14),
    ]
    assert data["tasks"][0]["usage"]["cached"] == 2
    assert data["summary"]["diversity"] == {
        "actions": {"found": 2.0, "of": 2.0},
        "answers": {"found": 2.0, "of": 2.0},
        "scored": 2.0,
        "shared": False,
        "rho": 0.0,
        "effective": 2.0,
        "design_effect": 1.0,
    }
    assert data["summary"]["paths"] == 4
    assert data["summary"]["kept"] == {"rollouts": 4, "turns": 1.0, "generated": 2.0}
    assert data["summary"]["cut"] is None
    assert "tasks" not in json.loads(CliRunner().invoke(show, [str(path), "--json"]).output)
