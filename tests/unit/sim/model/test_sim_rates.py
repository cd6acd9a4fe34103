"""The error rates of the models that answer in one reply, measured against their dials with fixed seeds."""

from __future__ import annotations

import math
import re

import pytest
from sim_model_drive import index, right, world

from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.choices import PRESETS, Point, point_success, with_dials
from trunkline.sim.model.generation import Sampling
from trunkline.sim.model.registry import Model, reply

LOOKUPS = [q for q in world().questions if q.kind == "lookup"]
SUMS = [q for q in world().questions if q.kind == "arithmetic"]
OFFER = "Reply with <verify>yes</verify> or <verify>no</verify>."
WRONG = "Zyx Qvar"


def say(behaviour, text, dials, seed, temperature=1.0):
    conversation = chat.Conversation(chat.render([{"role": "user", "content": text}]))
    sampling = Sampling(seed, temperature)
    return reply(Model(behaviour, dials), conversation, sampling, chat.digest(conversation)).text()


def near(rate, count):
    """Within four standard errors: fails by bad luck once in about sixteen thousand, and the seeds are fixed."""
    return pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / count) + 1e-9)


def stated(question, kind):
    """The right answer by the name that is in view: that two names are one, a verifier can only read."""
    if kind != "verifier-lookup":
        return question.answer
    last = index().get(question.support[-1]).text
    return next(name for name in (question.answer, *question.aliases) if name in last)


def lookup(question, answer):
    pages = "\n".join(f"<information>{index().get(one).text}</information>" for one in question.support)
    return f"{question.question}\n{pages}\nProposed: <answer>{answer}</answer>\n{OFFER}"


def problem(question, answer):
    return f"{question.question}\nProposed: <answer>{answer}</answer>\n{OFFER}"


def comparison(question, answer):
    given = f"Question: {question.question}\nReference answer: {question.answer}\nResponse: {answer}"
    return f"{given}\nSay correct: yes or no"


def accepted(text):
    verdict = re.search(r"<verify>(yes|no)</verify>|correct: (yes|no)\Z", text)
    assert verdict is not None, text
    return (verdict[1] or verdict[2]) == "yes"


KINDS = {
    "verifier-lookup": ("sim-verifier", LOOKUPS, lookup),
    "verifier-problem": ("sim-verifier", SUMS, problem),
    "judge": ("sim-judge", LOOKUPS, comparison),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("false_accept", "false_reject"), [(0.15, 0.1), (0.4, 0.02), (0.0, 0.3)])
def test_verdicts_err_at_their_dials(kind, false_accept, false_reject):
    behaviour, questions, ask = KINDS[kind]
    dials = with_dials("default", {"false_accept": false_accept, "false_reject": false_reject, "empty": 0.0})
    asked = [(question, seed) for question in questions[:40] for seed in range(20)]
    wrong = "7777777" if kind == "verifier-problem" else WRONG
    accepts = sum(accepted(say(behaviour, ask(q, wrong), dials, seed)) for q, seed in asked)
    rejects = sum(not accepted(say(behaviour, ask(q, stated(q, kind)), dials, seed)) for q, seed in asked)
    assert accepts / len(asked) == near(false_accept, len(asked))
    assert rejects / len(asked) == near(false_reject, len(asked))


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_of_the_default_preset_and_at_temperature_zero(kind):
    behaviour, questions, ask = KINDS[kind]
    dials = PRESETS["default"]
    for question in questions[:25]:
        assert accepted(say(behaviour, ask(question, stated(question, kind)), dials, 1, temperature=0.0))
        assert not accepted(say(behaviour, ask(question, "7777777"), dials, 1, temperature=0.0))
    # The default empties a turn now and then, which is neither verdict.
    texts = [say(behaviour, ask(q, stated(q, kind)), dials, seed) for q in questions[:40] for seed in range(20)]
    said = [text for text in texts if text]
    assert 1 - len(said) / len(texts) == near(dials.empty, len(texts))
    assert sum(not accepted(text) for text in said) / len(said) == near(dials.false_reject, len(said))


def steps_of(text):
    """The written totals of a solution, for the number of its steps."""
    return len(re.findall(r"\nStep \d+:", text))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_solver_errs_as_its_points_say(preset):
    """A question's rate is the product over its points; the mean over questions follows the dials."""
    dials = with_dials(preset, {"empty": 0.0})
    expected = variance = solved = 0.0
    tries = 20
    for question in SUMS[:60]:
        texts = [say("sim-solver", question.question, dials, seed) for seed in range(tries)]
        key, steps = point_key(question), steps_of(texts[0])
        rate = math.prod(point_success(Point(key, hop, steps, False, False), dials)[0] for hop in range(steps))
        expected += tries * rate
        variance += tries * rate * (1 - rate)
        solved += sum(right(question, text.rpartition("\\boxed{")[2].partition("}")[0]) for text in texts)
    # A later slip can undo an earlier one, by chance, so the measured rate may lie a little above.
    assert solved - expected == pytest.approx(0.0, abs=4 * math.sqrt(variance) + 0.01 * tries * 60)


def point_key(question):
    from trunkline.sim.model.episode import find_subject

    conversation = chat.Conversation(chat.render([{"role": "user", "content": question.question}]))
    steps = find_subject(conversation).steps
    assert steps is not None
    return "\x1f".join(f"{step.op} {step.value}" for step in steps)


def test_the_solver_follows_its_skill():
    """Without spread and shared misbelief a question is solved as often as the dial says."""
    tried = [(question, seed) for question in SUMS[:50] for seed in range(16)]
    for skill in (0.2, 0.5, 0.9, 1.0):
        dials = with_dials("default", {"skill": skill, "spread": 0.0, "shared_misbelief": 0.0, "empty": 0.0})
        texts = [(q, say("sim-solver", q.question, dials, seed)) for q, seed in tried]
        solved = sum(right(q, text.rpartition("\\boxed{")[2].partition("}")[0]) for q, text in texts)
        error = 4 * math.sqrt(skill * (1 - skill) / len(tried))
        assert solved / len(tried) == pytest.approx(skill, abs=error + 0.02 * (1 - skill) + 1e-9)
