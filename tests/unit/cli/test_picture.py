from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._internal.text import cells
from trunkline.cli.tree_view import call_text, picture
from trunkline.tree.records import Failure
from trunkline.tree.views import Tree
from trunkline.types import Task

UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def body(role: str, content: object, **more: object) -> bytes:
    return json.dumps({"role": role, "content": content, **more}).encode()


def call(name: str, arguments: object) -> dict[str, object]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def grown(chains: list[list[str]], answer: str | None = None, question: str = "Who?") -> Tree:
    """One rollout for each chain of turns; equal beginnings merge."""
    tree = Tree(Task.ask(question, "Ada", id="q"))
    core = tree.core
    point = core.append(0, 1, body("user", question))
    for draw, chain in enumerate(chains):
        rollout = core.open(point, [0, draw], draw)
        for text in chain:
            core.turn(rollout, body("assistant", text), 0, 0, 0, 1, 0, 1, 0, 0)
        core.close(rollout, "answer", answer if answer is not None else chain[-1])
        core.score(rollout, float(chain[-1] == "Ada"))
    return tree


def test_a_whole_picture() -> None:
    tree = Tree(Task.ask("Who?", "Ada", id="q1"))
    core = tree.core
    point = core.append(core.append(0, 1, body("system", "Be  brief.\n")), 1, body("user", "Who?"))
    search = body("assistant", None, tool_calls=[call("search", '{"query": ["x"]}')])
    for draw, answer in enumerate(["Ada", "Ada", "Bob"]):
        rollout = core.open(point, [0, draw], draw)
        core.turn(rollout, search, 0, 0, 0, 1, 0, 1, 0, 0)
        core.observe(rollout, body("tool", "a doc"), 0, 0)
        core.turn(rollout, body("assistant", answer), 0, 0, 0, 1, 0, 1, 0, 0)
        core.close(rollout, "answer", answer)
        core.score(rollout, float(answer == "Ada"))
    core.close(core.open(point, [0, 3], 3), "llm_error", None, '{"kind":"LLMError","message":"no \\u001b reply"}')
    core.open(point, [0, 4], 4)
    expected = (
        ("prompt  (system) Be brief.", "n=5  V=0.67"),
        ("prompt  Who?", "n=5  V=0.67"),
        ("\u25c6 #3 llm_error: no \\x1b reply", ""),
        ("\u25c6 #4 still growing", ""),
        ('turn    search(["x"])', "n=3  V=0.67"),
        ("tool    a doc", "n=3  V=0.67"),
        ("\u251c\u2500turn    Ada", "n=2  V=1.00"),
        ('\u2502 \u25c6 #0 #1 answer: "Ada"  reward 1', ""),
        ("\u2514\u2500turn    Bob", "n=1  V=0.00"),
        ('  \u25c6 #2 answer: "Bob"  reward 0', ""),
    )
    lines = [f"{text:<49}{figures}" if figures else text for text, figures in expected]
    assert picture(tree, width=60).split("\n") == ["task q1: 6 nodes, 5 rollouts", *lines]


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([call("search", '{"query": ["a", "b"]}')], 'search(["a", "b"])'),
        ([call("visit", '{"id": "d1", "goal": "x"}')], 'visit(id="d1", goal="x")'),
        ([call("now", "{}"), call("now", None)], "now() + now()"),
        ([call("bad", '{"a"')], 'bad({"a")'),
        ([call("list", "[1]")], "list([1])"),
        ([call("deep", "[" * 5000)], f"deep({'[' * 5000})"),
        ([{"function": "?"}, 5, {}], ""),
        ("no list", ""),
    ],
)
def test_calls(calls: object, text: str) -> None:
    assert call_text({"role": "assistant", "tool_calls": calls}) == text


@settings(max_examples=80)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.sampled_from(["\x1b[2J\x1b]0;x\x07", "\u202eevil", "a\nb\r\n", "\u2028", "\u200b" * 50, "\u4f60" * 80]),
    st.integers(20, 120),
)
def test_hostile_text_stays_on_its_line(text: str, nasty: str, width: int) -> None:
    drawn = picture(grown([[nasty + text, text + nasty]], answer=text + nasty, question=f"?{nasty}{text}"), width=width)
    rows = drawn.split("\n")
    # heading, prompt, two turns (or one hidden when equal texts merge), one end
    assert len(rows) == 5
    assert all(cells(row) <= width for row in rows)
    assert not any(unicodedata.category(char) in UNSAFE for char in drawn.replace("\n", ""))


def test_a_failure_takes_the_whole_line() -> None:
    tree = Tree(Task.ask("Who " + "really " * 20 + "was it?"))
    core = tree.core
    point = core.append(0, 1, body("user", "Who?"))
    reason = "the endpoint answered 503 to each of 6 attempts, the last after 40 s: " + "upstream is overloaded, " * 3
    core.close(core.open(point, [0, 0], 0), "llm_error", None, Failure("LLMError", reason).encode())
    wide = picture(tree, width=200).split("\n")
    assert wide[0] == f"task {tree.task.id}: 1 nodes, 1 rollouts"
    assert wide[2] == f"\u25c6 #0 llm_error: {reason}"
    narrow = picture(tree, width=80).split("\n")
    assert [cells(line) for line in narrow[::2]] == [80, 80]
    assert narrow[0].endswith("\u2026: 1 nodes, 1 rollouts")
    assert narrow[2].endswith("\u2026")


def test_a_long_chain_is_cut_in_the_middle() -> None:
    drawn = picture(grown([[f"step {n}" for n in range(300)]]), max_lines=20)
    rows = drawn.split("\n")
    assert len(rows) <= 22
    hidden = next(row for row in rows if "more nodes" in row)
    shown = sum(row.startswith(("turn", "prompt")) for row in rows)
    assert hidden == f"\u2506 {301 - shown} more nodes"
    assert "step 0 " in drawn
    assert "step 299 " in drawn


def test_a_wide_tree_is_cut_at_its_end_with_a_count() -> None:
    rows = picture(grown([[f"answer {n}"] for n in range(200)]), max_lines=30).split("\n")
    assert len(rows) == 32
    assert rows[-1] == "\u2506 371 more lines are hidden"  # one prompt, 200 turns and 200 ends, 30 of them shown


def test_a_small_tree_is_never_cut() -> None:
    drawn = picture(grown([[f"{n}-{turn}" for turn in range(9)] for n in range(3)]), max_lines=80)
    assert "more" not in drawn
    assert all(f"{n}-{turn}" in drawn for n in range(3) for turn in range(9))


def test_a_deep_comb_keeps_to_the_width() -> None:
    drawn = picture(grown([[*["on"] * depth, f"stop {depth}"] for depth in range(60)]), width=60, max_lines=10_000)
    assert all(cells(row) <= 60 for row in drawn.split("\n"))
    assert all(f"stop {depth}" in drawn for depth in range(60))


def test_rollouts_that_ended_alike_share_a_line() -> None:
    drawn = picture(grown([["same"]] * 9))
    assert "\u25c6 #0 #1 #2 #3 #4 #5 and 3 more answer" in drawn


def test_an_empty_tree() -> None:
    assert picture(Tree(Task.ask("?", id="e\x1b"))) == "task e\\x1b: 0 nodes, 0 rollouts"


def test_where_several_speak_each_line_says_who():
    def drawn(*agents: str) -> list[str]:
        tree = Tree(Task.ask("Who?", "Ada", id="q"))
        core = tree.core
        rollout = core.open(core.append(0, 1, body("user", "Who?")), [0, 0], 0)
        for number, agent in enumerate(agents):
            core.turn(rollout, body("assistant", f"turn {number}"), core.name(agent), 0, 0, 1, 0, 1, 0, 0)
        core.tell(rollout, body("user", "found"), core.name("search"))
        core.tell(rollout, body("user", "noted"), core.name(""))
        return [line.split("  n=")[0].rstrip() for line in picture(tree).splitlines()[2:6]]

    assert drawn("one", "one") == ["turn    turn 0", "turn    turn 1", "message found", "message noted"]
    assert drawn("one", "\x1b[2J") == [
        "turn    one: turn 0",
        "turn    \\x1b[2J: turn 1",
        "message search: found",
        "message noted",
    ]
