"""Tables of a run: rows against the trees, files against the tables, and what spreadsheets may not compute."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path

import pytest
from exporting import begun, say, write_run
from groves import D6, E6, Try, grove
from hypothesis import given
from hypothesis import strategies as st
from plain_reply import assistant

import trunkline as tl
from trunkline.errors import ConfigError, RunFileError
from trunkline.store.export import tables
from trunkline.store.export.tables import LEVELS, CSVRows, batches
from trunkline.store.reader import RunReader
from trunkline.tree.views import Kind
from trunkline.types import UNSCORED, Task

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "exports.md"
BROKEN = (Try(["A", "A1"], 1.0), Try(["A", "A1"], 0.0), Try(["A"], ended="llm_error"), Try([], ended="cancelled"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of trees, of a task without rollouts, and of one that is under way."""
    tree, point = begun(
        Task(id="growing", messages=[{"role": "user", "content": "what?"}], reference=("yes",), metadata={"kind": "é"})
    )
    say(tree, tree.core.open(point, [0, 0], 0), assistant("=1+1"))
    trees = [grove(D6, "d6"), grove(E6, "e6"), grove(BROKEN, "broken"), grove([], "empty"), tree]
    return write_run(tmp_path / "a.run", trees, unfinished=1)


def rows(path: Path, level: str, *tasks: str) -> list[dict[str, object]]:
    with RunReader.open(path) as reader:
        names = LEVELS[level]
        return [dict(zip(names, row, strict=True)) for batch in batches(reader, level, tasks) for row in batch]


def plain(reward: float) -> float | None:
    return None if math.isnan(reward) else reward


def test_rollouts_are_those_of_the_trees(path):
    found = iter(rows(path, "rollout"))
    for tree in tl.open(path):
        for one in tree.rollouts:
            row = next(found)
            assert (row["task"], row["rollout"], row["path"]) == (tree.task.id, one.id, list(one.path))
            assert row["termination"] == one.termination
            assert row["reward"] == (None if one.termination in UNSCORED else plain(one.reward))
            assert (row["answer"], row["turns"], row["path_tokens"]) == (one.answer, one.turns, one.generated)
            assert (row["calls"], row["generated_tokens"]) == (one.usage.calls, one.usage.generated)
    assert next(found, None) is None


def test_turns_are_those_of_the_trees(path):
    found = iter(rows(path, "turn"))
    for tree in tl.open(path):
        for node in tree.nodes:
            if node.kind is Kind.TURN:
                row = next(found)
                assert (row["task"], row["node"], row["parent"]) == (tree.task.id, node.id, node.parent.id)
                assert (row["text"], row["turn"], row["rollouts"]) == (node.text, node.turns, node.visits)
                assert row["reward"] == plain(node.value)
    assert next(found, None) is None


def test_tasks_are_all_of_the_run_and_figures_those_of_finished_ones(path):
    found = {row["task"]: row for row in rows(path, "task")}
    trees = {tree.task.id: tree for tree in tl.open(path)}
    assert list(found) == ["d6", "e6", "broken", "empty", "growing"]
    for name, tree in trees.items():
        row = found[name]
        assert (row["rollouts"], row["nodes"], row["ended"]) == (len(tree.rollouts), len(tree), "finished")
        assert row["reward"] == (None if math.isnan(tree.reward) else pytest.approx(tree.reward))
    growing = found["growing"]
    assert (growing["references"], json.loads(growing["metadata"])) == (("yes",), {"kind": "é"})
    assert [name for name, value in growing.items() if value is not None] == list(growing)[:4]


def test_columns_are_those_of_the_reference():
    listed: dict[str, dict[str, tuple[str, str]]] = {}
    for line in REFERENCE.read_text("utf-8").partition("## Columns of tables\n")[2].splitlines():
        if line.startswith("### "):
            listed[line.strip("# `")] = {}
        elif line.startswith("| `"):
            name, kind, meaning = line.strip("|").split("|")
            listed[[*listed][-1]][name.strip(" `")] = kind.strip(), meaning.strip()
    assert listed == LEVELS


@pytest.mark.parametrize("level", LEVELS)
def test_files_hold_the_table(path, tmp_path, level, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_ROWS", 2)
    pq = pytest.importorskip("pyarrow.parquet")
    table = tl.open(path).to_arrow(level)
    expected = [{key: list(v) if isinstance(v, tuple) else v for key, v in row.items()} for row in rows(path, level)]
    assert table.to_pylist() == expected
    written = tl.export(path, tmp_path / "t.parquet", level=level)
    assert pq.read_table(tmp_path / "t.parquet").equals(table)
    assert (written.records, written.tasks, written.level) == (len(expected), len({r["task"] for r in expected}), level)
    tl.export(path, tmp_path / "t.csv", level=level)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines[0] == list(LEVELS[level])
    assert len(lines) == len(expected) + 1
    part = tl.export(path, tmp_path / "p.csv", level=level, tasks=["e6"], only=["task"])
    assert (tmp_path / "p.csv").read_text().split() == ["task", *["e6"] * part.records]


def test_data_frames_have_the_rows_of_the_table(path):
    pytest.importorskip("pyarrow")
    run = tl.open(path)
    for library, frame in (("pandas", run.to_pandas), ("polars", run.to_polars)):
        pytest.importorskip(library)
        for level in LEVELS:
            found = frame(level)
            assert list(found.columns) == list(LEVELS[level])
            assert len(found) == run.to_arrow(level).num_rows


@given(st.lists(st.text(st.characters(codec="utf-8")) | st.sampled_from(["=1+1", "-5", "+1e9", "@A1", "\t=1", "-x"])))
def test_csv_says_what_was_said_and_no_cell_is_a_formula(texts):
    stream = io.BytesIO()
    to = CSVRows(stream, "task", [0, 1], terminal=False)
    to.write([("id", text) for text in texts])
    to.close()
    found = [row[1] for row in csv.reader(io.StringIO(stream.getvalue().decode(), newline=""))][1:]
    assert [one.removeprefix("'") if one[1:] == said else one for one, said in zip(found, texts, strict=True)] == texts
    for cell in found:
        if cell[:1] in tuple("=+-@\t\r\n"):
            float(cell)


def test_refusals_say_what_to_do(path, tmp_path, monkeypatch):
    out = tmp_path / "t.parquet"
    for options, says in (
        ({"level": "rolout"}, "level must be one of task, rollout, turn, call, not 'rolout'"),
        ({"level": "task", "format": "messages", "out": "-"}, "level=task is a table: write it as csv or parquet"),
        ({"level": "call", "scored": True}, "ended, scored and min_reward choose records of rollouts"),
        ({"level": "call", "only": ["x"]}, "level call has no column 'x'; there is task, agent"),
        ({"format": "csv"}, "a file of format csv is not called .parquet"),
    ):
        with pytest.raises(ConfigError, match=says):
            tl.export(path, **{"out": out, **options})
    assert not out.exists()
    with pytest.raises(RunFileError, match="no such run file"):
        tl.open(tmp_path / "none.run")
    for module, method, extra in (
        ("pyarrow", "to_arrow", "arrow"),
        ("pandas", "to_pandas", "pandas"),
        ("polars", "to_polars", "polars"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=rf"{method}.* needs an extra .*pip install 'trunkline\[{extra}\]'"):
            getattr(tl.open(path), method)()


def test_an_opened_run_is_the_one_that_was_returned(path):
    run = tl.open(path)
    assert (type(run), run.path, run.state, len(run)) == (tl.Run, path, "interrupted", 4)


def lengths(trees, stream):
    for tree in trees:
        stream.write(f"{tree.task.id} {len(tree)}\n".encode())


def broken(trees, stream):
    stream.write(b"half")
    raise ValueError(f"no {next(iter(trees)).task.id}")


def test_a_package_brings_a_format(path, tmp_path, monkeypatch):
    info = tmp_path / "site" / "formats-1.dist-info"
    info.mkdir(parents=True)
    names = ("lengths = {0}:lengths", "broken = {0}:broken", "absent = {0}:absent", "csv = {0}:broken")
    lines = "\n".join(names).format(__name__)
    (info / "entry_points.txt").write_text(f"[trunkline.exporters]\n{lines}\n")
    monkeypatch.syspath_prepend(str(info.parent))
    out = tmp_path / "x.txt"
    for name, says in (("broken", "ValueError: no d6"), ("absent", "absent")):
        with pytest.raises(ConfigError, match=rf"export format {name} \(.*{says}"):
            tl.export(path, out, format=name)
        assert not out.exists()
    with pytest.raises(ConfigError, match="min_reward and only are no choices of the format lengths"):
        tl.export(path, out, format="lengths", scored=True)
    written = tl.export(path, out, format="lengths", tasks=["e6", "broken"])
    trees = [tl.open(path)[name] for name in ("e6", "broken")]
    assert out.read_text() == "".join(f"{tree.task.id} {len(tree)}\n" for tree in trees)
    assert (written.tasks, written.rollouts) == (2, sum(len(tree.rollouts) for tree in trees))
    assert tl.export(path, tmp_path / "a.csv").level == "rollout"
