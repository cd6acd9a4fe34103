"""``sim-picker`` and stated confidences: what a simulated model makes of several answers, and of its own."""

from __future__ import annotations

import math
import re
from statistics import fmean

import pytest
from sim_model_drive import episode, index, right, world

from trunkline.llm.dialects.base import spoken
from trunkline.scoring.aggregators.llm import (
    INTEGRATE,
    REPORT,
    SYNTHESIS,
    Option,
    Shown,
    options_text,
    read_pick,
    transcript,
)
from trunkline.scoring.confidence import stated
from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.choices import PRESETS, with_dials
from trunkline.sim.model.generation import Sampling
from trunkline.sim.model.registry import Model, reply

EXACT = with_dials("default", {"false_accept": 0.0, "empty": 0.0, "malformed": 0.0, "skill": 1.0})
LOOKUPS = [q for q in world().questions if q.kind == "lookup"]
SUMS = [q for q in world().questions if q.kind == "arithmetic"]
ASK = "Put the final answer between answer tags, and say how sure you are: <confidence>0.5</confidence>."


def say(system, user, dials=EXACT, seed=1, behaviour="sim-picker", opened=""):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    conversation = chat.Conversation(chat.render(messages), (), opened)
    return reply(Model(behaviour, dials), conversation, Sampling(seed), chat.digest(conversation)).text()


def picked(*args, count=3, **options):
    return read_pick(spoken(say(*args, **options)), count, {})


@pytest.mark.parametrize("instructions", [SYNTHESIS, INTEGRATE], ids=["synthesis", "integrate"])
def test_it_picks_what_the_reports_found_and_not_what_most_say(instructions):
    found = 0
    for question in LOOKUPS[:20]:
        answer, messages = episode(question, index(), EXACT, 1)
        if not right(question, answer):
            continue
        report = spoken(say(REPORT, transcript(question.question, messages)))
        assert f"<answer>{answer}</answer>" in report, "without candidates it reports on what it is shown"
        options = [
            Option("Nobody", 5, [Shown("I guess.")]),
            Option(answer, 1, [Shown(report)]),
            Option("No one", 2, []),
        ]
        found += picked(instructions, options_text(question.question, options)) == 1
    assert found >= 17


def test_it_solves_a_word_problem_again():
    for question in SUMS[:10]:
        options = [Option("1", 3, [Shown("It is 1.")]), Option(question.answer, 1, []), Option("2", 3, [])]
        assert picked(SYNTHESIS, options_text(question.question, options)) == 1


def test_without_evidence_it_goes_by_the_tries_and_the_clear_reports():
    options = [Option("a", 2, []), Option("b", 1, [Shown("b it is"), Shown("b!")]), Option("c", 2, [Shown("?", False)])]
    assert picked(SYNTHESIS, options_text("Which letter?", options)) == 1

    even = [Option("c", 2, []), Option("b", 2, []), Option("a", 2, [])]
    assert picked(SYNTHESIS, options_text("Which letter?", even)) == 0, "of equals the first"


def test_it_errs_at_the_rates_of_the_dials():
    question = SUMS[0]
    options = [Option("1", 1, []), Option(question.answer, 1, []), Option("2", 1, [])]
    dials = with_dials("default", {"false_accept": 0.3, "malformed": 0.2, "empty": 0.0})
    replies = [
        picked(SYNTHESIS, options_text(question.question, options), dials=dials, seed=seed) for seed in range(1500)
    ]
    none, correct = replies.count(None) / 1500, replies.count(1) / 1500
    assert none == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / 1500))
    assert correct == pytest.approx(0.8 * 0.7, abs=4 * math.sqrt(0.25 / 1500))
    assert {0, 2} <= set(replies)


def test_a_pick_that_was_begun_is_gone_on_with():
    question = SUMS[0]
    prompt = options_text(question.question, [Option("1", 1, []), Option(question.answer, 1, [])])
    whole = say(SYNTHESIS, prompt)
    for cut in (9, len(whole) // 2, whole.index("<choice>") + 8, len(whole)):
        assert read_pick(spoken(whole[:cut] + say(SYNTHESIS, prompt, opened=whole[:cut])), 2, {}) == 1


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_confidence_is_stated_where_a_prompt_asks_for_one_and_nowhere_else(preset):
    for question in SUMS[:3]:
        asked = say(ASK, question.question, PRESETS[preset], behaviour="sim-solver")
        plain = say("Put the answer between answer tags.", question.question, PRESETS[preset], behaviour="sim-solver")
        assert "confidence" not in plain
        if asked:
            assert re.search(r"</answer>\n<confidence>[01]\.\d\d</confidence>\Z", asked)
            assert 0 <= stated(asked) <= 1


def test_a_stated_confidence_is_higher_where_the_answer_is_right():
    dials = with_dials("default", {"shared_misbelief": 0.0, "empty": 0.0})
    right_, wrong = [], []
    for question in SUMS[:60]:
        for seed in range(3):
            text = say(ASK, question.question, dials, seed, "sim-solver")
            answer = spoken(text).rpartition("<answer>")[2].partition("</answer>")[0]
            (right_ if answer == question.answer else wrong).append(stated(text))
    assert len(right_) > 30
    assert len(wrong) > 30
    assert fmean(right_) > fmean(wrong) + 0.3
    everything = right_ + wrong
    assert fmean(everything) == pytest.approx(len(right_) / len(everything), abs=0.12), "and it is calibrated"


def test_an_agent_that_guesses_says_so():
    question = LOOKUPS[0]
    text = say(ASK, question.question, behaviour="sim-agent")
    assert stated(text) == 0.2
