"""What an export holds: every rollout once, by its weight, in every format."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from exporting import NATIVE, begun, read_lines, say, write_run
from groves import D6, E6, Try, grove
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_reply import assistant

import trunkline as tl
from trunkline.errors import ConfigError, DamagedRunFile, UsageError
from trunkline.llm import messages
from trunkline.scoring.notes import Verdict, note
from trunkline.store.export.formats import CHAT_FIELDS, PARALLELMUSE_FIELDS
from trunkline.store.export.target import leaves, line
from trunkline.store.reader import RunReader
from trunkline.tree.views import Tree
from trunkline.types import UNSCORED, Task, Termination, Usage

MERGED = (
    Try(["A", "A1"], 1.0),
    Try(["A", "A1"], 1.0),
    Try(["A", "A1"], 0.0),
    Try(["A"], ended="llm_error"),
    Try(["A"], ended="llm_error"),
    Try(["A", "A2"], ended="max_turns"),
    Try(["A", "A1"], 1.0),
    Try([], ended="cancelled"),
)
"""Four rollouts end on A1, of which one was scored otherwise; two broke on A."""


def growing(id: str) -> Tree:
    """A tree of which one rollout has ended and one has not."""
    tree, point = begun(Task.ask("what?", "yes", id=id))
    for draw, answer in enumerate(["yes", None]):
        rollout = tree.core.open(point, [0, draw], 0)
        say(tree, rollout, assistant(answer or "let me see"))
        if answer:
            tree.core.close(rollout, "answer", answer)
    return tree


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of trees, a flat group, merged leaves, nothing at all, and a task that is under way."""
    trees = [grove(D6, "d6"), grove(E6, "e6"), grove(MERGED, "merged"), grove([], "empty"), growing("growing")]
    return write_run(tmp_path / "a.run", trees, unfinished=1)


def every_tree(path: Path) -> list[Tree]:
    with RunReader.open(path) as reader:
        return [reader.tree(name) for name in reader.task_ids()]


def test_messages_hold_every_rollout_once_by_weight(run: Path, tmp_path: Path) -> None:
    found = tl.export(run, tmp_path / "x.jsonl")
    trees = {tree.task.id: tree for tree in every_tree(run)}
    records = read_lines(tmp_path / "x.jsonl")
    assert found == tl.runs.Exported("messages", len(records), 6 + 6 + 8 + 2, 4, {})
    weights = Counter()
    for record in records:
        rollout = trees[record["task"]].rollouts[record["rollout"]]
        assert record["messages"] == rollout.messages
        assert tuple(record["path"]) == rollout.path
        assert (record["answer"], record["termination"]) == (rollout.answer, rollout.termination)
        assert record["reward"] == (None if math.isnan(rollout.reward) else rollout.reward)
        assert record["references"] == ["yes"]
        weights[record["task"]] += record["weight"]
    assert weights == {"d6": 6, "e6": 6, "merged": 8, "growing": 2}


def test_one_leaf_is_one_record_where_the_same_became_of_its_rollouts(run: Path, tmp_path: Path) -> None:
    tl.export(run, tmp_path / "x.jsonl", tasks=["merged"])
    told = [
        (record["rollout"], record["weight"], record["reward"], record["termination"])
        for record in read_lines(tmp_path / "x.jsonl")
    ]
    assert told == [
        (0, 3, 1.0, "answer"),
        (2, 1, 0.0, "answer"),
        (3, 2, None, "llm_error"),
        (5, 1, None, "max_turns"),
        (7, 1, None, "cancelled"),
    ]


def test_leaves_add_up_to_their_tree_and_nobody_is_scored_that_may_not_be() -> None:
    tree = grove([*MERGED, Try(["B"], ended="censored")])
    tree.core.score(8, 0.7)
    found = leaves(tree)
    assert sorted(number for leaf in found for number in leaf.rollouts) == list(range(9))
    assert sum((leaf.usage for leaf in found), Usage()) == tree.usage
    assert [leaf.reward for leaf in found if leaf.first.termination in UNSCORED] == [None] * 3
    note(tree.core, 1, Verdict("f", "drop"))
    assert [leaf.rollouts for leaf in leaves(tree)][:2] == [(0, 6), (1,)], "of one of them something else is said"


def test_rollouts_of_one_leaf_are_apart_where_something_else_is_told_of_them() -> None:
    tree, point = begun(Task.ask("what?", id="q"))
    ends = [("answer", "a", None), ("answer", "b", None), ("answer", "a", None)]
    ends += [("llm_error", None, "down"), ("llm_error", None, "gone"), ("bad_request", None, "gone")]
    for draw, end in enumerate(ends):
        rollout = tree.core.open(point, [0, draw], 0)
        say(tree, rollout, assistant("a or b"))
        tree.core.close(rollout, *end)
    assert [leaf.rollouts for leaf in leaves(tree)] == [(0, 2), (1,), (3,), (4,), (5,)]


@pytest.mark.parametrize(
    ("options", "records", "left"),
    [
        ({"ended": True}, 18, {"still growing": 1}),
        ({"scored": True}, 14, {"unscored": 6}),
        ({"min_reward": 1.0}, 7, {"unscored": 6, "reward below 1": 7}),
        ({"min_reward": 0.5, "tasks": ["d6", "d6"]}, 3, {"reward below 0.5": 3}),
        ({"tasks": ["e6", "d6"]}, 12, {}),
    ],
)
def test_what_is_wanted_is_written_and_the_rest_is_counted(
    run: Path, tmp_path: Path, options: dict, records: int, left: dict
) -> None:
    found = tl.export(run, tmp_path / "x.jsonl", **options)
    rows = read_lines(tmp_path / "x.jsonl")
    assert len(rows) == found.records
    assert found.left_out == left
    total = 14 + 8 if not options.get("tasks") else 6 * len(set(options["tasks"]))
    assert found.rollouts + sum(left.values()) == total
    assert sum(row["weight"] for row in rows) == found.rollouts
    assert found.records == records
    order = [row["task"] for row in rows]
    assert order == sorted(order, key=["d6", "e6", "merged", "empty", "growing"].index), "tasks come in their order"


def test_only_some_fields(run: Path, tmp_path: Path) -> None:
    tl.export(run, tmp_path / "x.jsonl", only=["messages"], tasks=["d6"])
    trees = {tree.task.id: tree for tree in every_tree(run)}
    assert read_lines(tmp_path / "x.jsonl") == [{"messages": rollout.messages} for rollout in trees["d6"].rollouts]
    tl.export(run, tmp_path / "y.jsonl", only=["weight", "reward"], tasks=["d6"])
    assert {tuple(row) for row in read_lines(tmp_path / "y.jsonl")} == {("weight", "reward")}
    with pytest.raises(ConfigError, match="messages has no field 'colour'; there is messages, tools, task"):
        tl.export(run, tmp_path / "z.jsonl", only=["colour"])
    with pytest.raises(ConfigError, match="only must be a list of fields"):
        tl.export(run, tmp_path / "z.jsonl", only="messages")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, True),
        ({"team": {"kind": "T"}}, False),
        ({"program": "m:f"}, False),
        ({"agent": NATIVE["agent"] | {"dialect": {"kind": "hermes", "options": {}}}}, False),
        ({"agent": NATIVE["agent"] | {"tools": []}}, False),
        ({"agent": None}, False),
    ],
)
def test_tools_are_told_where_the_model_was_offered_them_beside_the_messages(
    tmp_path: Path, changed: dict, told: bool
) -> None:
    path = write_run(tmp_path / "a.run", [grove(D6)], NATIVE | changed)
    tl.export(path, tmp_path / "x.jsonl")
    for record in read_lines(tmp_path / "x.jsonl"):
        assert record.get("tools") == (NATIVE["agent"]["tools"] if told else None)
    tl.export(path, tmp_path / "y.jsonl", format="parallelmuse")
    for record in read_lines(tmp_path / "y.jsonl"):
        assert (record["rollout"][0]["role"] == "system") is told
        assert (record["prepand_msg"][0]["role"] == "system") is told


def walked() -> Tree:
    """A tree of which an environment said something."""
    tree = grove(D6)
    for rollout in tree.rollouts:
        tree.core.mark(f'{{"step":[{rollout.id},1],"reward":0.5}}')
        tree.core.mark(f'{{"info":{rollout.id},"facts":{{"at":{rollout.id}}}}}')
    return tree


def test_what_environments_said_is_written_where_they_said_it(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.run", [walked(), grove(E6, "e6")])
    tl.export(path, tmp_path / "x.jsonl")
    records = read_lines(tmp_path / "x.jsonl")
    assert [record.get("final_info") for record in records] == [{"at": number} for number in range(6)] + [None] * 6
    turns = [2, 2, 2, 3, 3, 2]
    assert [record.get("step_rewards") for record in records[:6]] == [
        [None, 0.5, *[None] * (number - 2)] for number in turns
    ]
    assert all("step_rewards" not in record for record in records[6:])
    alike = grove([Try(["A"], 1.0)] * 2)
    alike.core.mark('{"step":[1,0],"reward":0.5}')
    tl.export(write_run(tmp_path / "b.run", [alike]), tmp_path / "y.jsonl")
    assert [record["weight"] for record in read_lines(tmp_path / "y.jsonl")] == [1, 1], "one record has one of each"


def test_fields_are_those_that_are_described(run: Path, tmp_path: Path) -> None:
    path = write_run(tmp_path / "b.run", [walked()], NATIVE)
    for name, fields in (("messages", CHAT_FIELDS), ("parallelmuse", PARALLELMUSE_FIELDS)):
        tl.export(path, tmp_path / name, format=name)
        assert all(list(record) == list(fields) for record in read_lines(tmp_path / name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "csv"}, "no export format 'csv'; there is messages, parallelmuse, parquet"),
        ({"out": "x.txt"}, "which format\\? x.txt does not say"),
        ({"out": "x.parquet", "format": "messages"}, "a file of format messages is not called .parquet"),
        ({"out": "x.jsonl", "format": "parquet"}, "a file of format parquet is not called .jsonl"),
        ({"out": "-", "format": "parquet"}, "parquet is no format for standard output"),
        ({"out": ""}, "which format"),
        ({"out": "", "format": "messages"}, "the file to write has no name"),
        ({"tasks": "d6"}, "tasks must be a list of ids"),
        ({"tasks": ["d7\x1b[1m"]}, r'no task "d7\\x1b\[1m" in .*a.run; it begins with "d6", "e6"'),
        ({"min_reward": math.nan}, "min_reward must be a finite number"),
        ({"min_reward": True}, "min_reward must be a finite number"),
        ({"min_reward": 10**400}, "min_reward must be a finite number"),
        ({"tasks": None}, "tasks must be a list of ids, not None"),
        ({"tasks": [["d6"]]}, "tasks must be a list of ids"),
        ({"only": [3]}, r"only must be a list of fields, not \[3\]"),
        ({"scored": "no"}, "scored must be true or false, not 'no'"),
        ({"ended": None}, "ended must be true or false, not None"),
        ({"format": ["messages"]}, "no export format"),
    ],
)
def test_mistakes_are_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict, message: str):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=message):
        tl.export(run, **{"out": "x.jsonl"} | options)
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_that_is_being_written_can_be_exported(tmp_path: Path) -> None:
    from trunkline.store.writer import RunWriter

    tree, point = begun(Task.ask("what?", id="q"))
    writer = RunWriter.create(tmp_path / "a.run", {"model": "m"}, [tree.task, Task.ask("later?", id="later")])
    seen = []
    for draw in range(3):
        rollout = tree.core.open(point, [0, draw], 0)
        say(tree, rollout, assistant(f"answer {draw}"))
        writer.commit([(0, draw, tree.core.delta())])
        found = tl.export(tmp_path / "a.run", tmp_path / "x.jsonl", force=True)
        seen.append((found.records, found.tasks, read_lines(tmp_path / "x.jsonl")[-1]["messages"][-1]["content"]))
    assert seen == [(draw + 1, 1, f"answer {draw}") for draw in range(3)]
    writer.finish("interrupted")


def test_damage_leaves_nothing_behind(run: Path, tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(run) as connection:
        (key, data), *_ = connection.execute("SELECT delta, data FROM deltas ORDER BY delta DESC").fetchall()
        connection.execute("UPDATE deltas SET data = ? WHERE delta = ?", (data[:-3] + b"???", key))
    connection.close()
    before = sorted(tmp_path.iterdir())
    for name in ("x.jsonl", "x.parquet"):
        with pytest.raises(DamagedRunFile, match='task "growing"'):
            tl.export(run, tmp_path / name)
        assert sorted(tmp_path.iterdir()) == before
    assert tl.export(run, tmp_path / "x.jsonl", tasks=["d6"]).records == 6, "what is whole can be had"


TEXT = st.text(st.characters(blacklist_categories=[]), max_size=30)


@settings(max_examples=60)
@given(TEXT, TEXT, TEXT)
@example("\x85\u2028\u2029", "\x00\x0b\x1c\r\n\x7f\x9b\u202e", "\ud800 \U0001f600")
def test_any_text_is_one_line_that_says_the_same(tmp_path_factory: pytest.TempPathFactory, one: str, two: str, id: str):
    question = json.loads(messages.encode({"role": "user", "content": f"what {one}"}))
    said = assistant(two)
    tree, point = begun(Task(id="x" + id.encode("utf-8", "replace").decode(), messages=[question]))
    rollout = tree.core.open(point, [0, 0], 0)
    say(tree, rollout, said)
    tree.core.close(rollout, "answer", two.encode("utf-8", "replace").decode())
    folder = tmp_path_factory.mktemp("any")
    path = write_run(folder / "a.run", [tree])
    for name, field in (("messages", "messages"), ("parallelmuse", "rollout")):
        out = folder / name
        tl.export(path, out, format=name)
        (record,) = read_lines(out)
        (raw,) = out.read_bytes().splitlines()
        assert record["task"] == tree.task.id
        assert record[field][0] == question
        assert record[field][-1] == json.loads(said)
        assert json.loads(raw) == record
        shown = line(record, ascii_only=True)
        assert json.loads(shown) == record
        assert all(0x20 <= byte < 0x7F for byte in shown[:-1])


def test_every_termination_has_its_place_in_parallelmuse(tmp_path: Path) -> None:
    tries = [Try([f"turn {word}"], ended=word) for word in Termination]
    found = tl.export(write_run(tmp_path / "a.run", [grove(tries)]), tmp_path / "x.jsonl", format="parallelmuse")
    told = {record["rollout"][-1]["content"]: record["termination"] for record in read_lines(tmp_path / "x.jsonl")}
    assert told == {
        "turn answer": "answer",
        "turn max_turns": "max_turn_exceeded",
        "turn tool_limit": "max_turn_exceeded",
        "turn max_tokens": "max_length_exceeded",
        "turn max_context": "max_length_exceeded",
        "turn content_filter": "llm_error_occurred",
        "turn bad_request": "llm_error_occurred",
        "turn llm_error": "llm_error_occurred",
    }
    assert found.left_out == {
        f"{word} has no counterpart": 1
        for word in ("cancelled", "censored", "filtered", "lost", "retried", "tool_error", "unknown_effect")
    }


def test_a_report_on_a_leaf_is_in_every_format(tmp_path: Path) -> None:
    tree = grove(D6)
    path = tree.rollouts[0].nodes
    tree.core.report(path[-1].id, "It asked twice.")
    tree.core.report(path[-2].id, "It asked once.")
    path = write_run(tmp_path / "a.run", [tree])
    expected = ["It asked twice."] + [None] * 5
    for name in ("messages", "parallelmuse"):
        tl.export(path, tmp_path / name, format=name)
        assert [record["compressed_reasoning"] for record in read_lines(tmp_path / name)] == expected
    parquet = pytest.importorskip("pyarrow.parquet")
    tl.export(path, tmp_path / "x.parquet")
    assert parquet.read_table(tmp_path / "x.parquet")["compressed_reasoning"].to_pylist() == expected
