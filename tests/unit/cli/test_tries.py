"""Tries that are looked at: chosen by what came of them or by an expression, by category, and whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import trunkline
from exporting import write_run

from trunkline._core import PROMPT
from trunkline.tree.records import Failure
from trunkline.tree.views import Tree
from trunkline.types import Task

LONG = "w" * 3_000


def said(role: str, content: str | None, **more: object) -> bytes:
    return json.dumps({"role": role, "content": content} | more).encode()


def grown(task: Task, ends: list[tuple[str, str | None, float | None]]) -> Tree:
    tree = Tree(task)
    core = tree.core
    point = core.append(0, PROMPT, said("user", task.messages[-1]["content"]))
    call = {"id": "1", "type": "function", "function": {"name": "look\x1b[1m", "arguments": '{"where": "here"}'}}
    for draw, (ended, answer, reward) in enumerate(ends):
        rollout = core.open(point, [0, draw], draw)
        agent = core.name("agent")
        core.turn(
            rollout,
            said("assistant", None, tool_calls=[call], reasoning_content="hm\x1b[2J\nwell"),
            agent,
            agent,
            agent,
            9,
            0,
            4,
            0,
            1,
        )
        core.observe(rollout, said("tool", LONG, tool_call_id="1"), agent, 1)
        core.turn(rollout, said("assistant", f"<answer>{answer or ''}</answer>"), agent, agent, agent, 9, 0, 4, 0, 1)
        error = Failure("LLMError", "no way\x1b[0m", tries=("once", "twice")).encode() if ended == "llm_error" else None
        core.close(rollout, ended, answer, error)
        if reward is not None:
            core.score(rollout, reward)
    return tree


@pytest.fixture
def run(tmp_path: Path) -> Path:
    def task(name: str, category: str) -> Task:
        return Task(
            id=name,
            messages=[{"role": "user", "content": f"Question {name}?"}],
            reference=("yes",),
            metadata={"category": category, "level": len(name), "my field": category * 2},
        )

    trees = [
        grown(task("good", "a"), [("answer", "yes", 1.0), ("answer", "no", 0.0)]),
        grown(task("bad\x1b[2J", "a"), [("answer", "no", 0.0), ("answer", "", 0.0), ("answer", "no", 0.0)]),
        grown(task("broken", "b"), [("llm_error", None, None), ("max_turns", None, 0.0)]),
        grown(task("unscored", "b"), [("llm_error", None, None)]),
    ]
    return write_run(tmp_path / "r.run", trees, {"reward": "exact_match"})


def shown(run: Path, *options: object) -> str:
    done = trunkline(run.parent, "show", run.name, *options)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    return done.stdout


def test_tasks_that_no_try_solved_with_what_was_answered(run: Path):
    lines = shown(run, "--wrong").splitlines()
    assert lines[0] == "2 tasks that no rollout solved"
    assert lines[1].split("  ")[0] == "bad\\x1b[2J"
    assert "no x2; (empty)" in lines[1]
    assert lines[2].startswith("broken")
    assert "(llm_error); (max_turns)" in lines[2]
    data = json.loads(shown(run, "--wrong", "--json"))
    assert (data["total"], [one["task"] for one in data["found"]]) == (2, ["bad\x1b[2J", "broken"])
    assert data["found"][0]["answers"] == {"no": 2, "(empty)": 1}
    assert shown(run, "--wrong", "--limit", 1).splitlines()[-1] == "1 more: --limit 0 shows all"


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--errors"], ["broken#0", "unscored#0"]),
        (["--empty"], ["bad\\x1b[2J#1"]),
        (["--where", "outcome == 'empty' or reward == 1"], ["good#0", "bad\\x1b[2J#1"]),
        (["--where", "category == 'b' and not reward == None"], ["broken#1"]),
        (["--where", "level > 6", "--errors"], ["unscored#0"]),
        (["--wrong", "--where", "tools == 1 and answer == 'no'"], ["bad\\x1b[2J#0", "bad\\x1b[2J#2"]),
        (["--where", "turns > 9"], []),
    ],
)
def test_tries_that_are_chosen(options: list[str], found: list[str], run: Path):
    first, *lines = shown(run, *options).splitlines()
    assert first == f"{len(found)} rollout{'' if len(found) == 1 else 's'}"
    assert [line.split("  ")[0] for line in lines] == found
    assert len(json.loads(shown(run, *options, "--json"))["found"]) == len(found)


def test_accuracy_by_a_field(run: Path):
    lines = shown(run, "--by", "category").splitlines()
    assert lines[0].split() == ["category", "tasks", "rollouts", "accuracy", "of", "one", "try"]
    assert lines[1].split()[:4] == ["a", "2", "5", "25.0"]
    assert lines[2].split()[:4] == ["b", "1", "3", "0.0"]
    data = json.loads(shown(run, "--by", "metadata.category", "--json"))
    assert [(one["value"], one["rollouts"]) for one in data["found"]] == [("a", 5), ("b", 3)]
    assert "llm_error" in shown(run, "--by", "outcome", "--where", "category == 'b'")
    for name in (" category ", "my field", "metadata.my field"):
        assert [line.split()[1:4] for line in shown(run, "--by", name).splitlines()[1:]] == [
            ["2", "5", "25.0"],
            ["1", "3", "0.0"],
        ]
    assert shown(run, "--where", "metadata['my field'] == 'bb'").startswith("3 rollouts\n")
    with pytest.raises(AssertionError, match=r"did you mean category\?"):
        shown(run, "--by", "categry")
    with pytest.raises(AssertionError, match=r"there is no field turns > 5 .*; there is task, rollout"):
        shown(run, "--by", "turns > 5")
    assert shown(run, "--by", " category ").splitlines()[1:] == lines[1:]


def test_a_whole_try(run: Path):
    text = shown(run, "--task", "broken", "--rollout", 0)
    assert "Question broken?" in text
    assert "  │ hm\\x1b[2J\n  │ well" in text
    assert '→ look\\x1b[1m("here")' in text
    assert "1,000 more characters: --full" in text
    assert LONG not in text
    assert LONG in shown(run, "--task", "broken", "--rollout", 0, "--full")
    assert "outcome    llm_error\n" in text
    assert "error      no way\\x1b[0m\n           once\n           twice\n" in text
    assert "answer     yes\nreference  yes\nreward     1\n" in shown(run, "--task", "good", "--rollout", 0)
    data = json.loads(shown(run, "--task", "good", "--rollout", 1, "--json"))
    assert [one["kind"] for one in data["messages"]] == ["prompt", "turn", "observation", "turn"]


def test_only_what_is_asked_for_is_printed(run: Path):
    for option in ("--tasks", "--calls", "--time", "--metrics", "--wrong"):
        assert " · done in " not in shown(run, option)
    assert "answer 3, llm_error 2, empty answer 1, max_turns 1" not in shown(run, "--tasks")
    summary = shown(run)
    assert " · done in " in summary
    assert "1 empty answer" in summary
    assert json.loads(shown(run, "--json"))["summary"]["empty"] == 1


def test_options_that_do_not_go_together_are_refused(run: Path):
    for options, words in (
        (["--rollout", 1], "--rollout 1 is of a task: give --task ID"),
        (["--task", "good", "--full"], "--full is for one try"),
        (["--task", "good", "--rollout", 9], "has no rollout 9; it has 2"),
        (["--task", "good", "--rollout", 1, "--wrong"], "--wrong looks at tries of all tasks, and --task at one"),
        (["--by", "category", "--metrics"], "--by and --metrics are two different views"),
        (["--where", ""], "the expression is empty"),
        (["--by", "turns>5"], "there is no field turns>5 (did you mean turns?)"),
    ):
        done = trunkline(run.parent, "show", run.name, *options)
        assert done.returncode == 2
        assert words in done.stderr


def test_votes_leave_empty_answers_out(run: Path):
    decided = json.loads(trunkline(run.parent, "answers", run.name, "--json").stdout)["answers"]
    assert {one["task"]: one["answer"] for one in decided}["bad\x1b[2J"] == "no"
