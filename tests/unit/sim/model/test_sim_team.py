"""``sim-team``, and others in its place: what they make of prompts that hold question, history and context."""

from __future__ import annotations

import re

import pytest
from sim_model_drive import answer_in, index, right, search, world

from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.choices import PRESETS, with_dials
from trunkline.sim.model.episode import forms_in
from trunkline.sim.model.generation import Sampling
from trunkline.sim.model.registry import Model, reply

PERFECT = with_dials("default", {"skill": 1.0, "false_accept": 0.0, "false_reject": 0.0, "empty": 0.0})
LOOKUPS = [q for q in world().questions if q.kind == "lookup"]
SUMS = [q for q in world().questions if q.kind == "arithmetic"]
VERDICT = "Decide: <verify>yes</verify> if this is enough, <verify>no</verify> if not."
SEARCH = "Write the next query: <search>your query</search>."
ANSWER = "Write the answer within <answer> and </answer>."
SOLVE = "Put the answer in \\boxed{}."
QUERY = re.compile(r"<search>(.*?)</search>")


def say(text, dials=PERFECT, seed=1, behaviour="sim-team"):
    conversation = chat.Conversation(chat.render([{"role": "user", "content": text}]))
    return reply(Model(behaviour, dials), conversation, Sampling(seed), chat.digest(conversation)).text()


def tagged(query, found):
    return f"{query}\n<information>{found}</information>\n"


def plain(query, found):
    return f"Action: {query}\nObservation: {found}\n"


def bare(_query, found):
    return f"{found}\n"


def hunt(question, *, told, kept, dials=PERFECT, behaviour="sim-team", most=10):
    """Play a search team that shows the last ``kept`` searches; returns the answer."""
    history = []
    for step in range(most):
        shown = f"{question.question}\n{''.join(history[-kept:])}"
        if "yes" in say(f"{shown}\n{VERDICT}", dials, step, "sim-verifier"):
            return answer_in(say(f"{shown}\n{ANSWER}", dials, step, behaviour))
        query = QUERY.search(say(f'{shown}\nThe output of "verifier": <verify>no</verify>\n{SEARCH}', dials, step))
        history.append(told(query[0], search(index(), [query[1]])))
    return None


@pytest.mark.parametrize("told", [tagged, plain, bare])
def test_a_search_goes_on_from_what_one_message_tells_of_it(told):
    solved = [right(q, hunt(q, told=told, kept=9)) for q in LOOKUPS[:40]]
    assert sum(solved) >= 38


def test_what_is_out_of_view_is_taken_on_trust():
    """The first searches of long questions are shown no more; a name found under another one can get lost with them."""
    far = [q for q in LOOKUPS if q.hops >= 3][:25]
    assert sum(right(q, hunt(q, told=tagged, kept=2)) for q in far) >= 16


def test_the_tagged_model_answers_in_a_team():
    assert sum(right(q, hunt(q, told=tagged, kept=9, behaviour="sim-tagged")) for q in LOOKUPS[:20]) >= 17


def test_nothing_found_is_not_enough_and_who_must_answer_guesses():
    for question in LOOKUPS[:20]:
        assert "<verify>no</verify>" in say(f"{question.question}\n{VERDICT}")
        assert not right(question, answer_in(say(f"{question.question}\n{ANSWER}")))


def test_a_search_that_found_nothing_is_made_again_in_other_words_though_no_query_is_in_view():
    question = next(q for q in LOOKUPS if q.hops == 2)
    first, second = (
        QUERY.search(say(f"{question.question}\n{found}{SEARCH}"))[1]
        for found in ("", "1. [d1] Somebody\n   Somebody is listed in the register of persons.\n")
    )
    assert first != second


def test_what_the_last_search_found_is_weighed_before_it_is_believed():
    question = next(q for q in LOOKUPS if q.hops == 2)
    query = QUERY.search(say(f"{question.question}\n{SEARCH}"))
    found = search(index(), [query[1]])
    assert "should be" in say(f"{question.question}\n{found}\n{SEARCH}")


def test_who_may_do_both_searches_first_and_answers_last():
    question = next(q for q in LOOKUPS if q.hops == 1)
    first = say(f"{question.question}\n{SEARCH} {ANSWER}")
    query = QUERY.search(first)
    found = tagged(query[0], search(index(), [query[1]]))
    assert right(question, answer_in(say(f"{question.question}\n{found}\n{SEARCH} {ANSWER}")))
    again = say(f"{question.question}\n{found}\n{SEARCH}")
    assert QUERY.search(again)
    assert answer_in(again) is None, "an answer was not asked for"


def test_a_solution_is_verified_and_one_that_was_rejected_is_solved_anew():
    for question in SUMS[:20]:
        task = f"{question.question}\nSo far:\n"
        solved = say(f"{task}{SOLVE}")
        assert f"\\boxed{{{question.answer}}}" in solved
        shown = f'{task}The output of "solver": {solved}\n'
        assert say(f"{shown}{VERDICT}").endswith("<verify>yes</verify>")
        wrong = f'{task}The output of "solver": It is \\boxed{{1}}.\n'
        rejected = say(f"{wrong}{VERDICT}")
        assert rejected.endswith("<verify>no</verify>")
        twice = f'{wrong}The output of "verifier": {rejected}\nThe output of "solver": It is \\boxed{{2}}.\n'
        assert f"\\boxed{{{question.answer}}}" in say(f'{twice}The output of "verifier": {rejected}\n{SOLVE}')


def test_several_reports_become_the_answer_that_most_of_them_have():
    for question in SUMS[:20]:
        reports = "\n".join(f"Report: <answer>{answer}</answer>" for answer in (question.answer, 1, question.answer))
        assert answer_in(say(f"{question.question}\n{reports}\n{ANSWER}")) == question.answer


def test_reports_on_what_nobody_can_look_up_are_counted():
    for question in LOOKUPS[:10]:
        reports = "\n".join(f"Report: <answer>{answer}</answer>" for answer in ("Ada Venn", "Port Arlen", "Ada Venn"))
        assert answer_in(say(f"{question.question}\n{reports}\n{ANSWER}")) == "Ada Venn"


def test_who_is_told_of_verdicts_before_the_answer_that_is_wanted_answers():
    question = SUMS[0]
    assert answer_in(say(f"{question.question}\nA colleague decided so: {VERDICT}\n{ANSWER}")) == question.answer


def test_a_word_problem_needs_no_search():
    asked = f"{SUMS[0].question}\nSearches have this form: {SEARCH}\n{VERDICT}"
    assert say(asked, behaviour="sim-verifier").endswith("<verify>yes</verify>")


def test_the_form_of_an_answer_is_not_what_is_verified():
    question = SUMS[0]
    asked = (
        f"{question.question}\nIt is <answer>{question.answer}</answer>.\nForm: <answer>your answer</answer>\n{VERDICT}"
    )
    assert say(asked).endswith("<verify>yes</verify>")


def test_a_verified_solver_is_right_more_often_than_a_solver_alone():
    """With the dials as they are, three rounds at most; the seeds are fixed."""

    def alone(question, seed):
        return say(f"{question.question}\n{SOLVE}", PRESETS["default"], seed, "sim-solver")

    def verified(question, seed):
        context, solved = "", ""
        for step in range(3):
            solved = say(f"{question.question}\n{context}{SOLVE}", PRESETS["default"], seed + step)
            context += f'The output of "solver": {solved}\n'
            verdict = say(f"{question.question}\n{context}{VERDICT}", PRESETS["default"], seed + step)
            if "<verify>no</verify>" not in verdict:
                break
            context += f'The output of "verifier": {verdict}\n'
        return solved

    tries = [(question, 100 * seed) for question in SUMS for seed in range(4)]
    shares = [
        sum(answer_in(play(question, seed)) == question.answer for question, seed in tries) / len(tries)
        for play in (alone, verified)
    ]
    assert shares[1] > shares[0] + 0.05


def test_forms_are_told_from_what_colleagues_said():
    said = "<search>Ada Venn birthplace</search> <verify>no</verify> <answer>Oslo</answer> \\boxed{42}"
    assert forms_in(said) == (-1, -1, -1)
    both = forms_in(f"{said} {SEARCH} {ANSWER} <verdict>approve</verdict> or <verdict>reject</verdict>")
    assert -1 < both.search < both.answer < both.verdict
    assert forms_in("<verdict>approve / reject</verdict>").verdict == 0
    assert forms_in("within \\boxed{} or \\boxed{your answer}").answer > 0
