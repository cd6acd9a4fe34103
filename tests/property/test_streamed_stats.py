"""The figures of a run, made of one task's rows at a time, are those that lists of all rows give."""

from __future__ import annotations

import json
import math
import tracemalloc

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_stats import Rows, intraclass_of, metrics_of, summary_of, tries_of

from trunkline.scoring.metrics.columns import NestedColumn, RaggedColumn
from trunkline.scoring.metrics.intervals import correlation
from trunkline.scoring.notes import Verdict, encode
from trunkline.store.reader import RunReader
from trunkline.store.schema import RolloutRow, TreeRow
from trunkline.store.stats.metrics import run_metrics
from trunkline.store.stats.summary import summarise
from trunkline.store.stats.tasks import by_task, each_task
from trunkline.store.writer import RunWriter
from trunkline.types import Task

VERDICTS = st.lists(
    st.builds(Verdict, st.sampled_from(["short", "long"]), st.sampled_from(["mask", "drop", "failed"])), max_size=2
)


@st.composite
def rollouts(draw: st.DrawFn, number: int) -> RolloutRow:
    """One rollout's row."""
    small = st.integers(0, 30)
    counts = {name: draw(small) for name in ("turns", "calls", "prompt", "cached", "generated", "unreported")}
    zero = dict.fromkeys(("retries", "tools", "tool_errors", "bridged", "realigned", "forked"), 0)
    return RolloutRow(
        rollout=number,
        path=f"0,{number}",
        subgroup=draw(st.integers(0, 2)),
        leaf=1,
        termination=draw(
            st.sampled_from(["answer", "answer", "max_turns", "llm_error", "censored", "cancelled", None])
        ),
        answer=draw(st.sampled_from([None, "", "a", "The A", "b", "c"])),
        error=None,
        reward=draw(st.sampled_from([None, 0.0, 1.0, 0.5, -2.0])),
        note=draw(st.none() | VERDICTS.map(encode)),
        llm_micros=draw(small),
        tool_micros=draw(small),
        length=draw(st.none() | small),
        action=draw(st.sampled_from([None, "x", "y"])),
        **counts,
        **zero,
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[int, TreeRow], Rows]:
    """The rows of finished tasks; a task that broke may have no rollout."""
    trees, rows = {}, {}
    for task in sorted(draw(st.sets(st.integers(0, 9), max_size=6))):
        listed = [draw(rollouts(number)) for number in range(draw(st.integers(0, 5)))]
        figures = {name: draw(st.integers(0, 99)) for name in ("flat", "tree", "longest", "unreported")}
        broken = not listed or draw(st.booleans())
        trees[task] = TreeRow(
            nodes=3,
            rollouts=len(listed),
            digest="d",
            flat_generated=0,
            tree_generated=0,
            exact=draw(st.integers(0, 1)),
            error="it broke" if broken else None,
            ended="broken" if broken else "finished",
            **figures,
        )
        if listed:
            rows[task] = listed
    return trees, rows


def pairs(rows: Rows) -> list[tuple[int, RolloutRow]]:
    return [(task, row) for task, listed in rows.items() for row in listed]


@given(runs(), st.booleans())
@settings(max_examples=150)
def test_a_summary_is_that_of_all_rows(drawn: tuple[dict[int, TreeRow], Rows], scored: bool):
    trees, rows = drawn
    broken = {task for task, tree in trees.items() if tree.error is not None}
    meta = {"settings": json.dumps({"reward": "r"} if scored else {})}
    found = summarise(meta, 10, iter(trees.values()), iter(pairs(rows)), broken=broken)
    wanted = summary_of(list(trees.values()), rows, broken, scored=scored)
    lengths = [None if one is None else (one.rollouts, one.turns) for one in (found.kept, found.cut)]
    many = found.diversity
    given = msgspec.structs.asdict(found) | {
        "filters": {one.filter: (one.masked, one.dropped, one.groups) for one in found.filters},
        "lengths": lengths,
        "diversity": None if many is None else (many.actions.found, many.answers.found, many.rho, many.effective),
        "flat": found.tokens.flat,
        "longest": found.tokens.longest,
    }
    assert {name: given[name] for name in wanted} == wanted
    assert found.tokens.exact == (bool(trees) and all(tree.exact for tree in trees.values()))


@given(runs())
@settings(max_examples=100)
def test_each_task_is_summed_up_by_itself(drawn: tuple[dict[int, TreeRow], Rows]):
    trees, rows = drawn
    found = by_task(iter(trees.items()), iter(pairs(rows)), [str(number) for number in range(10)])
    assert [one.task for one in found] == [str(task) for task in trees]
    rho = intraclass_of([tries_of(listed) for listed in rows.values()])
    for task, one in zip(trees, found, strict=True):
        tries = tries_of(rows.get(task, []))
        assert (one.rollouts, one.paths) == (len(tries), sum(row.turns for row in rows.get(task, [])))
        assert one.scored == sum(not math.isnan(given.reward) for given in tries)
        assert (one.effective is None) == (rho is None or not one.scored)
        assert one.actions == len({given.action for given in tries if given.action})


@given(runs())
@settings(max_examples=25)
def test_metrics_are_those_of_all_rows(tmp_path_factory, drawn: tuple[dict[int, TreeRow], Rows]):
    trees, rows = drawn
    path = tmp_path_factory.mktemp("metrics") / "run"
    with RunWriter.create(path, {}, [Task.ask("q", id=str(number)) for number in range(10)]) as writer:
        writer.commit([], [(task, tree, rows.get(task, [])) for task, tree in trees.items()])
    with RunReader.open(path) as reader:
        found, wanted = run_metrics(reader), metrics_of(list(trees), rows)
        differing = reader.differing()
    given = msgspec.structs.asdict(found)
    assert {name: given[name] for name in wanted} == wanted
    mixed = [task for task, listed in rows.items() if len({row.reward for row in listed} - {None}) > 1]
    assert differing == (str((mixed or list(trees))[0]) if trees else None)


@given(st.lists(st.lists(st.floats(allow_nan=False), max_size=4), max_size=8), st.integers(-9, 9))
def test_columns_are_lists(lists: list[list[float]], place: int):
    columns, nested = RaggedColumn(lists), NestedColumn()
    nested.append(lists)
    nested.append([])
    assert [list(one) for one in columns] == lists == [list(one) for one in nested[0]]
    assert [[list(one) for one in many] for many in nested] == [lists, []]
    if -len(lists) <= place < len(lists):
        assert list(columns[place]) == lists[place]
    assert [list(one) for one in columns[place:]] == lists[place:]


def test_rows_are_read_a_few_tasks_at_a_time():
    """All rows of a thousand tasks would be some 10 MB."""
    row = msgspec.structs.replace(ROW, answer="x" * 500)
    seen = 0

    def many():
        nonlocal seen
        for task in range(1000):
            for number in range(10):
                seen += 1
                yield task, msgspec.structs.replace(row, rollout=number, answer=f"{task} {row.answer}")

    tracemalloc.start()
    try:
        found = summarise({}, 1000, [], many())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.rollouts == seen == 10_000
    assert peak < 5_000_000
    assert [len(rows) for _, rows in each_task(many())] == [10] * 1000


ROW = RolloutRow(0, "0,0", 0, 1, "answer", "a", None, 1.0, None, *[1] * 14, length=1, action="x")


def test_a_correlation_of_many_tasks_is_that_of_a_few():
    few = [0.0, 1.0, 2.0, 5.0]
    other = [1.0, 0.0, 3.0, 3.0]
    assert math.isclose(correlation(few * 50_000, other * 50_000), correlation(few, other))


def test_rows_that_are_read_in_part_outlive_the_file(tmp_path):
    with RunWriter.create(tmp_path / "run", {}, [Task.ask("q", id="0")]) as writer:
        tree = TreeRow(3, 2, "d", 0, 0, 0, 0, 0, 0)
        writer.commit([], [(0, tree, [ROW, msgspec.structs.replace(ROW, rollout=1)])])
    with RunReader.open(tmp_path / "run") as reader:
        rows = reader.rollouts()
        assert next(rows)[1] == ROW
    del rows
