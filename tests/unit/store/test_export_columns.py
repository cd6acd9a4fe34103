"""Parquet as pyarrow reads it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import msgspec
import pytest
from exporting import begun, say, write_run
from groves import D6, Try, grove
from plain_reply import assistant

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.scoring.notes import Verdict, note
from trunkline.store.export import parquet as columns
from trunkline.store.reader import RunReader
from trunkline.types import Task, Usage

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = {
    "task": pa.string(),
    "question": pa.string(),
    "references": pa.list_(pa.string()),
    "metadata": pa.string(),
    "rollout": pa.int32(),
    "rollouts": pa.list_(pa.int32()),
    "weight": pa.int32(),
    "path": pa.list_(pa.int64()),
    "subgroup": pa.int64(),
    "termination": pa.string(),
    "answer": pa.string(),
    "reward": pa.float64(),
    "error": pa.string(),
    "turns": pa.int32(),
    "generated": pa.int64(),
    "usage": pa.struct([(name, pa.int64()) for name in Usage.__struct_fields__]),
    "messages": pa.string(),
    "agents": pa.list_(pa.string()),
    "reasoning": pa.list_(pa.string()),
    "note": pa.string(),
    "verdicts": pa.list_(
        pa.struct(
            [
                ("filter", pa.string()),
                ("action", pa.string()),
                ("reason", pa.string()),
                ("count_in_baseline", pa.bool_()),
                ("amount", pa.float64()),
            ]
        )
    ),
    "compressed_reasoning": pa.string(),
    "step_rewards": pa.list_(pa.float64()),
    "final_info": pa.string(),
}
"""What readers may rely on."""


def test_every_rollout_is_in_a_typed_row(tmp_path: Path) -> None:
    judged = grove([Try(["A"], 1.0), Try(["A"], 1.0), Try(["A"], ended="llm_error"), Try(["B"], 0.5)], "judged")
    note(judged.core, 3, Verdict("lengths", "penalty", "too long", amount=-0.25))
    judged.core.note(2, "a remark")
    path = write_run(tmp_path / "a.run", [grove(D6, "d6"), judged])
    assert tl.export(path, tmp_path / "x.parquet") == tl.runs.Exported("parquet", 9, 10, 2, {})
    table = pq.read_table(tmp_path / "x.parquet")
    assert {field.name: field.type for field in table.schema} == SCHEMA
    assert list(SCHEMA) == list(columns.FIELDS)
    assert table.schema.metadata[b"trunkline.export"] == b"1"
    with RunReader.open(path) as reader:
        trees = {tree.task.id: tree for tree in reader.trees()}
    usage = Usage()
    for row in table.to_pylist():
        rollout = trees[row["task"]].rollouts[row["rollout"]]
        assert json.loads(row["messages"]) == rollout.messages
        assert tuple(row["path"]) == rollout.path
        assert (row["turns"], row["generated"], row["answer"]) == (rollout.turns, rollout.generated, rollout.answer)
        assert row["termination"] == rollout.termination
        assert row["reward"] == (None if math.isnan(rollout.reward) else rollout.reward)
        assert row["agents"] == [node.agent for node in rollout.nodes]
        assert row["references"] == ["yes"]
        usage += Usage(**row["usage"])
    assert usage == trees["d6"].usage + trees["judged"].usage
    merged, failed, penalised = table.to_pylist()[6:]
    assert (merged["rollouts"], merged["weight"], merged["reward"]) == ([0, 1], 2, 1.0)
    assert (failed["reward"], failed["note"], failed["verdicts"]) == (None, "a remark", [])
    (verdict,) = penalised["verdicts"]
    assert Verdict(**verdict) == Verdict("lengths", "penalty", "too long", amount=-0.25)


def test_what_a_row_says_of_its_task_and_its_failure(tmp_path: Path) -> None:
    task = Task(id="q", messages=[{"role": "user", "content": "Where?"}], metadata={"level": 3, "who": "\u2028\x00"})
    tree, point = begun(task)
    rollout = tree.core.open(point, [0, 0], 4)
    say(tree, rollout, assistant("x"), "I think.")
    tree.core.close(rollout, "llm_error", None, '{"kind":"LLMError","message":"no reply"}')
    tl.export(write_run(tmp_path / "a.run", [tree]), tmp_path / "x.parquet")
    (row,) = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert msgspec.json.decode(row["metadata"]) == task.metadata
    assert (row["question"], row["references"], row["subgroup"]) == ("Where?", [], 4)
    assert (row["error"], row["reasoning"]) == ("no reply", [None, "I think."])


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [grove([Try(["x" * 500 + str(number)]) for number in range(10)], str(task)) for task in range(3)]
    path = write_run(tmp_path / "a.run", trees)
    monkeypatch.setattr(columns, "_MOST_ROWS", 4)
    tl.export(path, tmp_path / "rows.parquet")
    monkeypatch.setattr(columns, "_MOST_ROWS", 1000)
    monkeypatch.setattr(columns, "_MOST_TEXT", 3000)
    tl.export(path, tmp_path / "bytes.parquet")
    for name, sizes in (("rows", [4] * 7 + [2]), ("bytes", [6] * 5)):
        with pq.ParquetFile(tmp_path / f"{name}.parquet") as file:
            found = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        assert found == sizes
        ids = pq.read_table(tmp_path / f"{name}.parquet", columns=["task", "rollout"]).to_pylist()
        assert ids == [{"task": str(task), "rollout": number} for task in range(3) for number in range(10)]


def test_columns_can_be_chosen_and_nothing_is_a_file_too(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.run", [grove(D6)])
    tl.export(path, tmp_path / "x.parquet", only=["reward", "task"])
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == ["task", "reward"]
    assert table["reward"].to_pylist() == [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    assert tl.export(path, tmp_path / "none.parquet", min_reward=2).records == 0
    empty = pq.read_table(tmp_path / "none.parquet")
    assert (empty.num_rows, {field.name: field.type for field in empty.schema}) == (0, SCHEMA)


def test_without_the_extra_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "a.run", [grove(D6)])
    before = sorted(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"writing Parquet needs an extra \(.*\): pip install 'trunkline\[parquet\]'"):
        tl.export(path, tmp_path / "x.parquet")
    assert sorted(tmp_path.iterdir()) == before


def test_tasks_are_read_back_from_an_export(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.run", [grove(D6[:1], "one"), grove(D6[:1], "two")])
    tl.export(path, tmp_path / "x.parquet", only=["question", "references"])
    assert [task.question for task in tl.load_tasks(tmp_path / "x.parquet")] == ["what?", "what?"]
