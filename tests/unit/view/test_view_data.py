"""The data of the page, against a plain reading of the same tasks."""

from __future__ import annotations

import json
import lzma
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_runs import FOLDER
from viewed_runs import HOSTILE, Try, message, write_run

from trunkline import _core
from trunkline.errors import ConfigError, RunFileError, UsageError
from trunkline.store.reader import RunReader
from trunkline.tree.views import Tree
from trunkline.types import Task
from trunkline.view.data import OUTCOMES, SORTS, RunData, TaskQuery, failed_nodes

WORDS = ["Ada", 'say "hello"', "naïve\nline", "ÄRGER", "plus 50%", "under_score", "", HOSTILE]
ENDS = ["answer", "answer", "answer", "max_turns", "llm_error", "censored", "cancelled", "retried"]
UNSCORED = {"retried", "llm_error", "tool_error", "bad_request", "unknown_effect", "lost", "censored", "cancelled"}


def tasks() -> list[tuple[Task, list[Try] | None]]:
    drawn = random.Random(3)
    made: list[tuple[Task, list[Try] | None]] = []
    for number in range(60):
        question = f"{drawn.choice(WORDS)} {number}?"
        metadata = {
            "kind": drawn.choice(["x", "y", 'q"']),
            "level": drawn.randrange(3),
            "deep": [1],
            "on": number % 2 == 0,
        }
        tries: list[Try] | None = None
        if drawn.random() < 0.85:
            tries = []
            for _ in range(drawn.randrange(1, 5)):
                ended = drawn.choice(ENDS)
                answer = drawn.choice(["Ada", "", "  ", "Eve"]) if ended == "answer" else None
                reward = drawn.choice([0.0, 0.5, 1.0, None])
                tries.append(Try(ended, answer, reward, drawn.choice(WORDS), drawn.random() < 0.3))
        made.append((msgspec.structs.replace(Task.ask(question, "Ada", id=f"t{number:02}"), metadata=metadata), tries))
    return made


TASKS = tasks()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunData]:
    path = tmp_path_factory.mktemp("view") / "a.run"
    write_run(path, TASKS)
    with closing(RunData(path)) as data:
        yield data


def rewards(tries: list[Try]) -> list[float]:
    return [one.reward for one in tries if one.reward is not None and one.ended not in UNSCORED]


def fits(query: TaskQuery, task: Task, tries: list[Try] | None) -> bool:
    """Whether a task is asked for, worked out plainly."""
    own = tries or []
    found = rewards(own)
    mean = sum(found) / len(found) if found else None
    outcome = {
        "": True,
        "solved": bool(found) and max(found) >= 1,
        "unsolved": bool(found) and max(found) < 1,
        "mixed": bool(found) and min(found) < max(found),
        "unscored": tries is not None and not found,
        "broken": any(one.ended == "llm_error" for one in own),
        "empty": any(one.ended == "answer" and not (one.answer or "").strip() for one in own),
        "unfinished": tries is None,
    }
    if not outcome.get(query.outcome, any(one.ended == query.outcome for one in own)):
        return False
    if query.least is not None and (mean is None or mean < query.least):
        return False
    if query.most is not None and (mean is None or mean > query.most):
        return False
    if query.field and msgspec.json.encode(task.metadata[query.field]).decode() != query.value:
        return False
    texts = [task.id, task.question]
    if query.turns:
        texts += [text for nth, one in enumerate(own) for text in spoken(one, forked=0 < nth == len(own) - 1)]
    if query.where and not any(
        one.reward is not None and one.reward < 1 and one.ended != "retried"
        for one in own
        if task.metadata["level"] == 1
    ):
        return False
    return not query.text or any(query.text.lower() in text.lower() for text in texts)


def spoken(one: Try, *, forked: bool) -> list[str]:
    """What :func:`viewed_runs.grown` makes of a try: content, reasoning, a tool's name, arguments and result."""
    if forked:
        return [f"{one.answer}: {one.said}"]
    arguments = [json.dumps({"q": one.said}), one.said, "q", "look" + one.said[:40]]
    return [one.said, f"thought: {one.said}", *arguments, f"found {one.said}", f"{one.answer}: {one.said}"]


QUERIES = st.builds(
    lambda field, **rest: TaskQuery(field=field[0], value=field[1], **rest),
    field=st.sampled_from([("", ""), ("kind", '"x"'), ("kind", '"q\\""'), ("level", "1"), ("on", "true"), ("on", "1")]),
    outcome=st.sampled_from(["", *OUTCOMES]),
    least=st.sampled_from([None, None, 0.25, 1.0]),
    most=st.sampled_from([None, None, 0.5]),
    text=st.sampled_from(
        [
            "",
            "",
            *(word[:30] for word in WORDS),
            "aDa",
            "ärger",
            "50%",
            "c0%",
            "content",
            "assistant",
            '{"q',
            "ow: ",
            "ndash",
            "\\u00c4",
            'd: say "',
        ]
    ),
    where=st.sampled_from(["", "", "reward < 1 and level == 1"]),
    turns=st.booleans(),
    sort=st.sampled_from(SORTS),
    descending=st.booleans(),
    page=st.integers(0, 4),
    size=st.sampled_from([1, 7, 100]),
)


@given(QUERIES)
def test_pages_hold_the_tasks_that_were_asked_for_and_no_others(data: RunData, query: TaskQuery) -> None:
    wanted = {task.id for task, tries in TASKS if fits(query, task, tries)}
    whole: Any = data.tasks(msgspec.structs.replace(query, page=0, size=500))
    assert {row["id"] for row in whole["rows"]} == wanted
    keys = [row[query.sort] for row in whole["rows"] if row[query.sort] is not None]
    assert keys == sorted(keys, reverse=query.descending)
    assert all(row[query.sort] is None for row in whole["rows"][len(keys) :])
    page: Any = data.tasks(query)
    assert page["total"] == len(wanted)
    assert page["rows"] == whole["rows"][query.page * query.size : (query.page + 1) * query.size]


def test_rows_and_overview_count_what_the_tries_came_to(data: RunData) -> None:
    found: Any = data.tasks(TaskQuery(size=500))
    for row, (task, tries) in zip(found["rows"], TASKS, strict=True):
        own = tries or []
        scored = rewards(own)
        again = sum(one.ended == "retried" for one in own)
        assert (row["id"], row["rollouts"], row["retried"], row["scored"]) == (
            task.id, len(own) - again, again, len(scored),
        )  # fmt: skip
        assert row["reward"] == (pytest.approx(sum(scored) / len(scored)) if scored else None)
        assert set(row["ends"]) == {one.ended for one in own}
    overview: Any = data.overview()
    every = [one for _, tries in TASKS for one in tries or []]
    assert overview["rollouts"] + overview["retried"] == len(every) == sum(n for _, n in overview["ends"])
    assert overview["retried"] == sum(one.ended == "retried" for one in every) > 0
    assert overview["scored"] == len(rewards(every))
    assert overview["fields"] == ["kind", "level", "on"]
    assert dict(data.values("kind")) == {
        word: sum(msgspec.json.encode(task.metadata["kind"]).decode() == word for task, _ in TASKS)
        for word in ('"x"', '"y"', '"q\\""')
    }


def test_accuracy_by_category_is_that_of_each_categorys_tasks(data: RunData) -> None:
    found: Any = data.categories()
    assert list(found) == ["kind", "level", "on"]
    assert data.categories(["level"]) == {"level": found["level"]}
    for name, categories in found.items():
        by: dict[str, list[list[float]]] = {}
        counts: Counter[str] = Counter()
        for task, tries in TASKS:
            value = task.metadata[name]
            told = value if isinstance(value, str) else json.dumps(value)
            counts[told] += sum(one.ended != "retried" for one in tries or [])
            if scored := rewards(tries or []):
                by.setdefault(told, []).append(scored)
        assert {one["value"]: one["rollouts"] for one in categories} == counts
        for one in categories:
            means = [sum(scored) / len(scored) for scored in by[one["value"]]]
            assert one["accuracy"]["value"] == pytest.approx(sum(means) / len(means))
            assert one["accuracy"]["low"] <= one["accuracy"]["value"] <= one["accuracy"]["high"]
    with pytest.raises(ConfigError, match="there is no field kinds"):
        data.categories(["kinds"])


@given(st.lists(st.lists(st.lists(st.booleans(), min_size=1, max_size=3), max_size=4), max_size=4), st.booleans())
def test_observations_of_failed_tool_calls_are_named(rollouts: list[list[list[bool]]], together: bool) -> None:
    """Rollouts of turns with tool calls, whose observations are a node each or one for the turn."""
    core = _core.CoreTree()
    point = core.append(0, 1, message("user", "?"))
    names = [core.name(word) for word in ("m", "stop", "agent")]
    calls: list[tuple[int, int, int]] = []
    wanted: set[int] = set()
    for draw, turns in enumerate(rollouts):
        rollout = core.open(point, [0, draw], draw)
        for nth, failed in enumerate(turns):
            core.turn(rollout, message("assistant", f"{draw} {nth}"), names[2], names[0], names[1], 1, 0, 1, 0, 1)
            calls += [(rollout, fault, 1000 * draw + nth) for fault in failed]
            for place, faults in enumerate([failed] if together else [[fault] for fault in failed]):
                node = core.observe(rollout, message("tool", f"{draw} {nth} {place}"), names[2], 1, any(faults))
                wanted |= {node} if any(faults) else set()
    tree = Tree(Task.ask("?", id="t"), core)
    assert failed_nodes(tree, calls) == wanted
    # Of calls that no observation shows, nothing is said.
    assert failed_nodes(tree, [*calls, *((0, 1, -n) for n in range(1, 30))]) <= wanted


def test_a_tree_has_its_tries_calls_reasoning_and_forks(data: RunData) -> None:
    number = next(
        n
        for n, (_, tries) in enumerate(TASKS)
        if tries and len(tries) == 4 and any(one.tool_failed for one in tries[:3]) and tries[1].ended == "retried"
    )
    tries = TASKS[number][1] or []
    found: Any = data.task(TASKS[number][0].id)
    assert [one["termination"] for one in found["rollouts"]] == [one.ended for one in tries]
    nodes = {node["id"]: node for node in found["nodes"]}
    assert all(node["parent"] == 0 or node["parent"] in nodes for node in nodes.values())
    assert nodes[found["rollouts"][-1]["point"]]["kind"] == "observation", "the last one forks behind a tool"
    first = nodes[found["rollouts"][0]["nodes"][1]]
    assert first["calls"][0]["name"].startswith("look")
    assert first["reasoning"] == f"thought: {tries[0].said}"
    assert first["logprobs"] == pytest.approx([-0.1, -2.0, -6.0])
    assert found["rollouts"][0]["parts"][0]["value"] == tries[0].reward
    marked = [nodes[one["nodes"][2]]["failed"] for one in found["rollouts"][:-1]]
    assert marked == [one.tool_failed for one in tries[:-1]]
    assert any(one.tool_failed for one in tries[:-1])
    for one, tried in zip(found["rollouts"], tries, strict=True):
        told = {"was": "llm_error", "by": one["id"] + 1, "chosen": True, "reward": 0.25}
        assert one["retried"] == (told if tried.ended == "retried" else None)
    assert b"NaN" not in msgspec.json.encode(found)


def test_long_texts_are_cut_and_keys_are_hidden(tmp_path: Path) -> None:
    key = "sk-" + "a1B2" * 10
    write_run(tmp_path / "a.run", [(Task.ask(f"key {key}?", "Ada", id="t"), [Try(said=f"{key} " + "x" * 500)])])
    with closing(RunData(tmp_path / "a.run")) as data:
        found: Any = data.task("t", 100)
        row: Any = data.tasks(TaskQuery())["rows"]
    assert key not in repr(found) + repr(row)
    assert "444 more characters" in repr(found)
    assert "x" * 101 not in repr(found)


@pytest.mark.parametrize(
    "asked",
    [{"sort": "reward; DROP TABLE tasks"}, {"outcome": "x"}, {"page": "-1"}, {"size": "501"}, {"colour": "red"},
     {"least": "much"}, {"field": 'a"b'}, {"page": "1" * 30}, {"text": "\0"}, {"where": "\0"}],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_said(asked: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        TaskQuery.of(asked)


def test_statements_over_the_tables_are_read_only(data: RunData) -> None:
    with RunReader.open(data.path) as reader:
        assert reader.query("SELECT id FROM tasks WHERE task = ?", 3) == [("t03",)]
        assert reader.task(3) == TASKS[3][0]
        with pytest.raises(UsageError, match="no task number 60"):
            reader.task(60)
        for statement in ("SELECT x FROM tasks", "NONSENSE", "DELETE FROM tasks"):
            with pytest.raises(UsageError, match=statement):
                reader.query(statement)
    with pytest.raises(RunFileError, match="was closed"):
        reader.query("SELECT 1")


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="no such run file"):
        RunData(tmp_path / "none.run")


@pytest.mark.parametrize("packed", sorted(FOLDER.glob("*.run.xz")), ids=lambda path: path.name)
def test_runs_of_every_kind_and_of_earlier_versions_are_read(packed: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    with closing(RunData(path)) as data:
        overview: Any = data.overview()
        found: Any = data.tasks(TaskQuery())
        assert found["total"] == overview["tasks"] == len(found["rows"])
        for row in found["rows"]:
            tree: Any = data.task(row["id"])
            assert row["ended"] is None or len(tree["rollouts"]) == row["rollouts"]
        summary: Any = data.summary()
        assert (summary["finished"], summary["rollouts"]) == (overview["finished"], overview["rollouts"])
        assert summary["empty"] == overview["empty"]
        if overview["reward"] is not None and summary["accuracy"] is not None and summary["short"] == 0:
            assert summary["accuracy"]["value"] == pytest.approx(overview["reward"])
