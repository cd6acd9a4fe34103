"""Extracted reports: what they name, how long they are, and what hostile messages do to them."""

from __future__ import annotations

import pytest
from groves import D6, Try, grove
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.scoring.reports.extractive import LEAST, LIMIT, Reported, extract_tree
from trunkline.scoring.reports.segments import clipped, steps

PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who wrote it?"}]
NATIVE = [
    *PROMPT,
    {
        "role": "assistant",
        "content": "First the register.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"query": ["the register"]}'}},
            {"id": "b", "type": "function", "function": {"name": "visit", "arguments": '{"id": "d7"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "\n1. [d1] Register\nmore"},
    {"role": "tool", "tool_call_id": "b", "content": "Ada wrote it."},
    {"role": "assistant", "content": "<think>So it is Ada.</think>\nDone. <answer>Ada</answer>"},
]
TAGGED = [
    *PROMPT,
    {"role": "assistant", "content": "<think>First the register.</think><search>the register</search>"},
    {"role": "user", "content": "<information>1. [d1] Register\nmore</information>"},
    {
        "role": "assistant",
        "reasoning_content": "So it is Ada.",
        "content": '<tool_call>{"name": "visit", "arguments": {"id": "d7"}}</tool_call>',
    },
    {"role": "user", "content": "<tool_response>\nAda wrote it.\n</tool_response>"},
    {"role": "assistant", "content": "So it is Ada. \\boxed{Ada}"},
]
REPORT = """Plan: First the register.
Methods:
- search(the register) -> 1. [d1] Register
- visit(d7) -> Ada wrote it.
Reasoning: So it is Ada. {end}
Answer: Ada"""


@pytest.mark.parametrize(("messages", "end"), [(NATIVE, "Done. Ada"), (TAGGED, "\\boxed{Ada}")], ids=["native", "tags"])
def test_a_report_names_plan_calls_reasoning_and_answer(messages, end):
    assert tl.aggregators.extract_report(messages) == REPORT.format(end=end)


def test_an_answer_that_is_known_is_believed():
    assert tl.aggregators.extract_report(NATIVE, answer="Bob").endswith("\nAnswer: Bob")
    assert "Answer" not in tl.aggregators.extract_report(NATIVE, answer="")
    # Who asked for something last has not answered.
    assert "Answer" not in tl.aggregators.extract_report(NATIVE[:3])


def test_nothing_said_is_no_report_and_the_prompt_is_no_part_of_one():
    assert tl.aggregators.extract_report([]) == tl.aggregators.extract_report(PROMPT) == ""
    assert "brief" not in tl.aggregators.extract_report(NATIVE)
    with pytest.raises(ConfigError, match="limit must be a whole number of at least 200"):
        tl.aggregators.extract_report(NATIVE, limit=LEAST - 1)


def test_calls_in_the_middle_are_left_out_and_counted():
    messages = list(PROMPT)
    for number in range(60):
        messages.append({"role": "assistant", "content": f"<search>question {number}</search>"})
        messages.append({"role": "user", "content": f"finding {number}"})
    lines = tl.aggregators.extract_report(messages, limit=600).splitlines()
    assert lines[0] == "Methods:"
    assert lines[1] == "- search(question 0) -> finding 0"
    assert lines[-1] == "- search(question 59) -> finding 59"
    (left,) = [line for line in lines if "more calls" in line]
    assert left == f"- ({60 - (len(lines) - 2)} more calls)"


TEXT = st.text(max_size=400) | st.sampled_from(
    ["<think>", "</think>", "<search>", "<answer>x", "\x1b[2J", "\ud800", "<tool_call>{", "\u2028# Steps"]
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
CALL = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": ANY, "arguments": ANY})})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "assistant", "tool"]), "content": TEXT | ANY},
    optional={"tool_calls": ANY | st.lists(CALL, max_size=4), "reasoning_content": ANY},
)


@given(st.lists(MESSAGE | ANY, max_size=12), st.integers(LEAST, 2000))
def test_whatever_stands_in_messages_a_report_is_short_and_safe_to_print(messages, limit):
    report = tl.aggregators.extract_report(messages, limit=limit)
    assert report == tl.aggregators.extract_report(messages, limit=limit)
    assert len(report) <= limit
    assert all(line.isprintable() for line in report.split("\n"))
    for line in report.split("\n"):
        assert line.startswith(("Plan: ", "Methods:", "- ", "Reasoning: ", "Answer: ")) or not report


@given(st.text(max_size=300), st.integers(1, 200))
def test_what_is_clipped_keeps_its_ends_and_says_how_much_is_gone(text, limit):
    kept = clipped(text, limit)
    if len(text) <= limit:
        assert kept == text
        return
    note = f"\n[{len(text) - limit:,} characters left out]\n"
    head, _, tail = kept.partition(note)
    assert len(head) + len(tail) == limit
    assert text.startswith(head)
    assert text.endswith(tail)


def test_a_message_behind_a_call_is_what_it_brought_and_another_is_from_somebody():
    said = [
        {"role": "assistant", "content": "<python>1+1</python>"},
        {"role": "user", "content": "2"},
        {"role": "user", "content": "Check it."},
        {"role": "assistant", "content": "thinking</think>said"},
    ]
    assert [(step.kind, step.name, step.text) for step in steps(said)] == [
        ("call", "python", "1+1"),
        ("result", "", "2"),
        ("message", "user", "Check it."),
        ("thought", "", "thinking\nsaid"),
    ]


def test_every_leaf_of_a_tree_gets_one_unless_it_broke_or_has_one():
    tree = grove([*D6, Try(["A", "A1"]), Try(["C"], ended="llm_error"), Try(["D"], ended="censored")])
    digest = tree.digest()
    assert extract_tree(tree) == Reported(written=6)
    reports = {node.text: node.compressed_reasoning for node in tree.nodes if node.compressed_reasoning is not None}
    assert sorted(reports) == ["A1", "A2", "A3", "B1a", "B1b", "B2"]
    assert reports["B1a"] == "Plan: B\nReasoning: B1a\nAnswer: B1a"
    assert extract_tree(tree) == Reported(skipped=6)
    assert extract_tree(tree, limit=LIMIT // 2, again=True) == Reported(written=6)
    assert tree.digest() == digest
    tree.core.check()
