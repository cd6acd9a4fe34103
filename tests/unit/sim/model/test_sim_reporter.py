"""``sim-reporter``: what it carries from steps and an earlier record into the record it writes, and its length."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.engine import SimLLM
from trunkline.scoring.model_client import ModelClient
from trunkline.scoring.reports.reporter import Reporter, asked, written
from trunkline.scoring.reports.segments import ReportStep
from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.choices import with_dials
from trunkline.sim.model.generation import Sampling
from trunkline.sim.model.registry import Model, reply
from trunkline.sim.server.options import Settings
from trunkline.tree.views import Tree
from trunkline.types import Task

PERFECT = with_dials("default", {"empty": 0.0})
STEPS = (
    ReportStep("thought", "First the register. Then the rest. Nothing else."),
    ReportStep("call", '{"query": ["home of Ada"]}', "search"),
    ReportStep("result", "1. [d7] Ada\n   Ada lives in Rome."),
    ReportStep("thought", "The register says Rome.\n<answer>Rome</answer>"),
)


def say(messages, seed=1, dials=PERFECT):
    conversation = chat.Conversation(chat.render(messages))
    text = reply(Model("sim-reporter", dials), conversation, Sampling(seed), chat.digest(conversation)).text()
    return text.partition("</think>\n")[2]


def fields(record):
    names = re.findall(r"^(\w+):", record, re.MULTILINE)
    assert names == ["Plan", "Methods", "Reasoning", "Answer"], record
    parts = re.split(r"^(?:Plan|Methods|Reasoning|Answer):", record, flags=re.MULTILINE)[1:]
    return dict(zip(names, (part.strip() for part in parts), strict=True))


def test_a_record_has_the_plan_the_calls_the_reasoning_and_the_answer():
    record = fields(say(asked("Where does Ada live?", None, written(STEPS), None, 150)))
    assert record["Plan"] == "First the register. Then the rest."
    assert record["Methods"] == '- search {"query": ["home of Ada"]}: 1. [d7] Ada'
    assert record["Reasoning"] == "The register says Rome. Rome"
    assert record["Answer"] == "Rome"


def test_a_record_is_gone_on_with():
    first = say(asked("Where does Ada live?", None, written(STEPS[:3]), None, 150))
    assert fields(first)["Answer"] == "none yet"
    last = (ReportStep("call", "d7", "visit"), ReportStep("result", "Ada lives in Rome."), *STEPS[3:])
    second = fields(say(asked("Where does Ada live?", first, written(last), None, 150)))
    assert second["Plan"] == fields(first)["Plan"]
    assert second["Methods"].splitlines() == [fields(first)["Methods"], "- visit d7: Ada lives in Rome."]
    assert second["Answer"] == "Rome"


def test_the_answer_that_was_given_counts():
    steps = written(STEPS[:3])
    assert fields(say(asked("Where does Ada live?", None, steps, "Oslo", 150)))["Answer"] == "Oslo"


def test_where_nothing_was_done_there_is_nothing_to_report():
    assert "nothing" in say([{"role": "user", "content": "Write a report."}])


@given(st.integers(40, 400), st.integers(1, 30), st.integers(0, 5))
def test_a_record_keeps_to_its_words(words, rounds, seed):
    steps = written(STEPS * rounds)
    before = say(asked("Where?", None, steps, None, words), seed)
    for record in (before, say(asked("Where?", before, steps, None, words), seed)):
        assert len(record.split()) <= words
        assert fields(record)["Answer"] == "Rome"


def test_the_same_request_gives_the_same_record_and_failures_come_at_their_rate():
    messages = asked("Where?", None, written(STEPS), None, 150)
    assert say(messages, 3) == say(messages, 3)
    always = with_dials("default", {"empty": 1.0})
    assert say(messages, 3, always) == ""


@pytest.mark.parametrize("share", ["always", "never"])
def test_the_answer_of_every_leaf_is_in_its_report(share):
    tree = Tree(Task.ask("Where does Ada live?"))
    core = tree.core
    prompt = core.append(0, 1, b'{"role":"user","content":"Where does Ada live?"}')
    for draw, place in enumerate(["Rome", "Oslo", "Bern"]):
        rollout = core.open(prompt, [0, draw])
        for text in ("I look it up.", f"It is {place}. <answer>{place}</answer>"):
            message = f'{{"role":"assistant","content":"{text}"}}'.encode()
            core.turn(rollout, message, 0, 0, 0, 1, 0, 1, 0, 1)
        core.close(rollout, "answer", place)
    reporter = Reporter(ModelClient(SimLLM(Settings(dials={"empty": 0.0})), "sim-reporter"), share=share)
    reported = asyncio.run(reporter.write(tree))
    assert reported.problems == ()
    assert reported.written == (4 if share == "always" else 3)
    for rollout in tree.rollouts:
        report = rollout.leaf.compressed_reasoning
        assert report is not None
        assert fields(report)["Answer"] == rollout.answer
        assert fields(report)["Plan"] == "I look it up."
