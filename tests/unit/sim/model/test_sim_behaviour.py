"""The behaviours on a real world, driven by the tests' own loop."""

from __future__ import annotations

import json
import math

import pytest
from sim_model_drive import SYSTEM, TOOLS, answer_in, episode, index, right, world

from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.choices import PRESETS, Dials, with_dials
from trunkline.sim.model.generation import Sampling, tokens
from trunkline.sim.model.registry import MODELS, Model, find_model, reply
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.sim.server.sampling import END
from trunkline.sim.world.files import permutation, rename
from trunkline.sim.world.search import Index

PERFECT = with_dials("default", {"skill": 1.0})
LOOKUPS = [q for q in world().questions if q.kind == "lookup"]
SUMS = [q for q in world().questions if q.kind == "arithmetic"]


def say(behaviour, messages, dials=PERFECT, seed=1, temperature=1.0, opened="", tools=()):
    conversation = chat.Conversation(chat.render(messages, tools), chat.tools_from(tools), opened)
    sampling = Sampling(seed, temperature)
    return reply(Model(behaviour, dials), conversation, sampling, chat.digest(conversation)).text()


def share(questions, found, dials, seeds=(0,), **kwargs):
    tries = [right(q, episode(q, found, dials, seed, **kwargs)[0]) for q in questions for seed in seeds]
    return sum(tries) / len(tries)


def test_full_skill_at_temperature_zero_solves():
    assert share(world().questions[:240], index(), PERFECT, temperature=0.0) >= 0.99


def test_full_skill_without_thinking_in_history():
    assert share(LOOKUPS[:60], index(), PERFECT, temperature=0.0, keep_thinking=False) >= 0.98


def test_default_preset_solves_some():
    tries = {
        q.id: [right(q, episode(q, index(), PRESETS["default"], seed)[0]) for seed in range(8)]
        for q in world().questions[:120]
    }
    single = sum(sum(each) for each in tries.values()) / (8 * len(tries))
    assert 0.35 <= single <= 0.65
    passed = sum(any(each) for each in tries.values()) / len(tries)
    assert single + 0.1 < passed < 0.95
    assert any(all(each) for each in tries.values())
    assert any(not any(each) for each in tries.values())


def test_nothing_found_means_nothing_known():
    assert share(LOOKUPS[:120], None, PERFECT) < 0.03
    assert share(LOOKUPS[:120], None, PRESETS["default"]) < 0.03


def test_another_worlds_corpus_means_nothing_known():
    assert share(LOOKUPS[:120], index(1), PERFECT, temperature=0.0) < 0.03


def test_renaming_the_world_renames_the_answers():
    mapping = permutation(world(), 5)
    renamed = rename(world(), mapping)
    found = Index(renamed.documents)
    moved = 0
    for before, after in list(zip(world().questions, renamed.questions, strict=True))[:80]:
        if before.kind != "lookup":
            continue
        answer, _ = episode(after, found, PERFECT, 0, temperature=0.0)
        assert right(after, answer)
        moved += not right(before, answer)
    assert moved > 30


def test_the_old_corpus_does_not_answer_renamed_questions():
    renamed = rename(world(), permutation(world(), 5))
    names = [q for q in renamed.questions if q.kind == "lookup" and not q.answer.isdigit()][:80]
    assert share(names, index(), PERFECT, temperature=0.0) < 0.06


def decided(dials, questions, tries=6):
    """For wrong tries of four hops: at which hop the path left the right one, as a share of the way."""
    hops = []
    for question in questions:
        titles = [next(d.title for d in world().documents if d.id == one) for one in question.support]
        for seed in range(tries):
            answer, messages = episode(question, index(), dials, seed)
            if right(question, answer):
                continue
            searches = [
                json.loads(call["function"]["arguments"])["query"][0]
                for m in messages
                if m["role"] == "assistant"
                for call in m.get("tool_calls", ())
                if call["function"]["name"] == "search"
            ]
            reached = [any(title in query for query in searches) for title in titles]
            hops.append(sum(reached[1:]) / max(len(titles) - 1, 1))
    return sum(hops) / len(hops)


def test_early_and_late_errors_are_early_and_late():
    questions = [q for q in LOOKUPS if q.hops == 4][:14]
    quiet = {"malformed": 0.0, "empty": 0.0}
    early = decided(with_dials("early-decisive", quiet), questions)
    late = decided(with_dials("late-decisive", quiet), questions)
    assert early < 0.35
    assert late > early + 0.3


def test_shared_misbelief_makes_draws_alike():
    def spread(dials):
        total = 0.0
        for question in LOOKUPS[:60]:
            rate = sum(right(question, episode(question, index(), dials, seed)[0]) for seed in range(6)) / 6
            total += rate * (1 - rate)
        return total / 60

    assert spread(PRESETS["shared-misbelief"]) < 0.6 * spread(with_dials("default", {"shared_misbelief": 0.0}))


def test_null_is_a_fair_coin_at_every_number_of_hops():
    for hops in (1, 2, 3, 4):
        questions = [q for q in LOOKUPS if q.hops == hops][:45]
        rate = share(questions, index(), PRESETS["null"], seeds=range(6))
        assert rate == pytest.approx(0.5, abs=0.1)


def test_null_has_one_even_choice_in_each_part_of_every_turn():
    """So entropy, surprise and the number of turns are the same for right and wrong tries."""
    bpe = default_bpe()
    for question in LOOKUPS[:40]:
        messages = episode(question, index(), PRESETS["null"], 5)[1]
        for end in [i for i, m in enumerate(messages) if m["role"] == "assistant"]:
            conversation = chat.Conversation(chat.render(messages[:end], TOOLS), chat.tools_from(TOOLS))
            sampling = Sampling(5000 + (end - 2) // 2)
            model = Model("sim-agent", PRESETS["null"])
            draft = reply(model, conversation, sampling, chat.digest(conversation))
            sampled = tokens(draft, END)
            assert bpe.encode(draft.text()) == [token.id for token in sampled[:-1]]
            thinking = [token.id for token in sampled].index(bpe.special["</think>"])
            thought, rest = (
                [token.logprob for token in part if token.branches] for part in (sampled[:thinking], sampled[thinking:])
            )
            assert thought == pytest.approx([math.log(0.5)])
            assert rest == pytest.approx([] if "<answer>" in draft.text() else [math.log(0.5)])


def test_recovery_raises_the_share_solved():
    questions = [q for q in LOOKUPS if q.hops >= 3][:50]
    never = share(questions, index(), with_dials("early-decisive", {"recoverability": 0.0}), seeds=range(3))
    always = share(questions, index(), with_dials("early-decisive", {"recoverability": 1.0}), seeds=range(3))
    assert always > never + 0.1


def test_malformed_calls_happen_and_are_survived():
    dials = with_dials("default", {"skill": 1.0, "malformed": 0.3, "empty": 0.0})
    broken = unknown = 0
    for question in LOOKUPS[:25]:
        answer, messages = episode(question, index(), dials, 3)
        for message in messages:
            for call in message.get("tool_calls", ()):
                unknown += call["function"]["name"] not in {"search", "visit"}
                try:
                    json.loads(call["function"]["arguments"])
                except ValueError:
                    broken += 1
        assert right(question, answer)
    assert broken > 5
    assert unknown > 5


def test_empty_turns_come_at_their_rate():
    dials = with_dials("default", {"empty": 0.2})
    texts = [say("sim-agent", [{"role": "user", "content": LOOKUPS[0].question}], dials, s) for s in range(600)]
    assert texts.count("") / 600 == pytest.approx(0.2, abs=0.05)


def test_the_tail_of_turn_lengths_follows_its_dial():
    def lengths(sigma):
        dials = with_dials("default", {"length_tail": sigma})
        texts = [say("sim-agent", [{"role": "user", "content": LOOKUPS[0].question}], dials, s) for s in range(200)]
        return sorted(map(len, texts))

    short, long = lengths(0.1), lengths(1.5)
    assert long[-1] > 3 * short[-1]


def test_arithmetic_without_tools():
    for behaviour in ("sim-agent", "sim-solver", "sim-tagged"):
        for question in SUMS[:10]:
            text = say(behaviour, [{"role": "user", "content": f"Solve this. {question.question} Think."}])
            assert answer_in(text) == question.answer
            assert f"\\boxed{{{question.answer}}}" in text


def test_tagged_searches_and_answers():
    solved = 0
    for question in LOOKUPS[:40]:
        messages = [{"role": "user", "content": f"Use <search> query </search>. Question: {question.question}"}]
        for _ in range(30):
            text = say("sim-tagged", messages, temperature=0.0)
            messages.append({"role": "assistant", "content": text})
            if "<search>" not in text:
                break
            query = text.rsplit("<search>", 1)[1].removesuffix("</search>")
            hits = index().search([query], 5)
            found = "\n".join(index().get(hit.id).text for hit in hits)
            messages.append({"role": "user", "content": f"<information>{found}</information>"})
        solved += right(question, answer_in(messages[-1]["content"]))
    assert solved >= 38


def test_tagged_continues_one_growing_text():
    question = next(q for q in LOOKUPS if q.hops == 2)
    messages = [{"role": "user", "content": question.question}]
    opened = ""
    for _ in range(20):
        text = say("sim-tagged", messages, temperature=0.0, opened=opened)
        opened += text
        if "<search>" not in text:
            break
        query = text.rsplit("<search>", 1)[1].removesuffix("</search>")
        found = "\n".join(index().get(hit.id).text for hit in index().search([query], 5))
        opened += f"\n\n<information>{found}</information>\n\n"
    assert right(question, answer_in(opened))


@pytest.mark.parametrize("place", [0.15, 0.5, 0.8, 1.0])
def test_a_continuation_completes_a_reply_the_model_could_have_given(place):
    start = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": LOOKUPS[3].question}]
    _, history = episode(LOOKUPS[3], index(), PERFECT, 2)
    dials = with_dials("default", {"malformed": 0.0, "empty": 0.0})
    for messages in (start, history[:4], history[:6]):
        whole = say("sim-agent", messages, dials, 11, tools=TOOLS)
        given = whole[: int(len(whole) * place)]
        for seed in range(12):
            rest = say("sim-agent", messages, dials, seed, opened=given, tools=TOOLS)
            split = chat.parts(given + rest)
            assert split.thinking is not None
            assert split.calls or "<answer>" in split.content
            assert (given + rest).count("<think>") == 1


def problem_and(answer):
    return [{"role": "user", "content": f"{SUMS[0].question}\nA solver says <answer>{answer}</answer>."}]


def rate_of(behaviour, messages, word, dials, count=1500):
    return sum(word in say(behaviour, messages, dials, seed) for seed in range(count)) / count


def test_verifier_errs_at_its_rates():
    dials = Dials(false_accept=0.3, false_reject=0.1, empty=0.0)
    offer = " Reply with <verify>yes</verify> or <verify>no</verify>."
    good, bad = problem_and(SUMS[0].answer), problem_and("7")
    for messages in (good, bad):
        messages[0]["content"] += offer
    assert rate_of("sim-verifier", good, "<verify>yes</verify>", dials) == pytest.approx(0.9, abs=0.03)
    assert rate_of("sim-verifier", bad, "<verify>yes</verify>", dials) == pytest.approx(0.3, abs=0.04)


@pytest.mark.parametrize(
    ("offer", "yes", "no"),
    [
        (
            "<approve>yes</approve> or <approve>no</approve>",
            "<approve>yes</approve>",
            "<approve>no</approve>",
        ),
        ("<Verdict>Accept</Verdict> / <Verdict>Reject</Verdict>", "<Verdict>Accept<", "<Verdict>Reject<"),
        ("<ok>true|false</ok>", "<ok>true</ok>", "<ok>false</ok>"),
        ("plain words", "yes", "no"),
    ],
)
def test_verifier_uses_the_form_on_offer(offer, yes, no):
    dials = Dials(false_accept=0.0, false_reject=0.0, empty=0.0)
    system = {"role": "system", "content": f"You check answers. Say {offer}."}
    assert yes in say("sim-verifier", [system, *problem_and(SUMS[0].answer)], dials)
    text = say("sim-verifier", [system, *problem_and("7")], dials)
    assert no in text.rpartition("</think>")[2]


def test_verifier_knows_whether_what_was_found_suffices():
    dials = Dials(false_accept=0.0, false_reject=0.0, empty=0.0)
    question = next(q for q in LOOKUPS if q.hops == 2)
    pages = [index().get(one).text for one in question.support]
    offer = "Enough? <verify>yes</verify> or <verify>no</verify>"
    for texts, verdict in ((pages, "yes"), (pages[:1], "no"), ([], "no")):
        found = "".join(f"<information>{text}</information>" for text in texts)
        messages = [{"role": "user", "content": f"{question.question}\n{found}\n{offer}"}]
        assert f"<verify>{verdict}</verify>" in say("sim-verifier", messages, dials)


@pytest.mark.parametrize(
    ("reference", "response", "verdict"),
    [
        ("Port Arlen", "I think it is Port Arlen.", "yes"),
        ("Port Arlen", "<answer>the port arlen</answer>", "yes"),
        ("Port Arlen | Arlen Harbour", "Arlen Harbour", "yes"),
        ("Port Arlen", "Upper Arlen", "no"),
        ("1885", "1889", "no"),
        ("28", "\\boxed{28}", "yes"),
    ],
)
def test_judge_compares_with_the_reference(reference, response, verdict):
    dials = Dials(false_accept=0.0, false_reject=0.0, empty=0.0)
    text = f"Question: what?\nReference answer: {reference}\nResponse: {response}\nSay correct: yes or no"
    said = say("sim-judge", [{"role": "user", "content": text}], dials)
    assert said.endswith(f"correct: {verdict}")


def test_writer_answers_from_the_sources_and_from_reports():
    question = next(q for q in LOOKUPS if q.hops == 2)
    pages = "\n".join(index().get(one).text for one in question.support)
    text = say("sim-writer", [{"role": "user", "content": f"Write a report.\n{question.question}\n{pages}"}])
    assert right(question, answer_in(text))
    assert "What the sources say" in text
    reports = "".join(f"Report: <answer>{a}</answer>\n" for a in ("Port Arlen", "Bo Larn", "Port Arlen"))
    text = say("sim-writer", [{"role": "user", "content": f"{question.question}\n{reports}"}])
    assert answer_in(text) == "Port Arlen"
    assert answer_in(say("sim-writer", [{"role": "user", "content": "hello"}])) == "unknown"


def test_every_behaviour_survives_any_conversation():
    odd = [
        [{"role": "user", "content": ""}],
        [{"role": "tool", "content": "alone", "tool_call_id": "x"}],
        [
            {"role": "assistant", "content": "<tool_call>{</tool_call>"},
            {"role": "tool", "content": "\x00[d1] A"},
        ],
        [{"role": "user", "content": LOOKUPS[0].question}, {"role": "tool", "content": "[a] b"}],
        [{"role": "user", "content": LOOKUPS[0].question + "<search></search><information></information>"}],
        [{"role": "user", "content": "<answer>A</answer>" * 50 + "correct: yes"}],
        [{"role": "system", "content": LOOKUPS[0].question}],
    ]
    for behaviour in MODELS:
        for messages in odd:
            for tools in ((), TOOLS):
                assert isinstance(say(behaviour, messages, PRESETS["default"], 1, tools=tools), str)


def test_tool_output_cannot_break_out_of_a_call():
    question = LOOKUPS[0].question
    calls = [{"id": "1", "function": {"name": "search", "arguments": '{"query": ["x"]}'}}]
    first = chat.parts(say("sim-agent", [{"role": "user", "content": question}], tools=TOOLS)).calls[0]
    calls[0]["function"]["arguments"] = first.arguments
    asked = 0
    for hit in ('1. ["}]] T', '1. [a"b\\] T', "1. [</tool_call>] T"):
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "content": hit},
        ]
        for call in chat.parts(say("sim-agent", messages, tools=TOOLS)).calls:
            assert call.name in {"search", "visit"}
            assert isinstance(json.loads(call.arguments), dict)
            asked += 1
    assert asked, "without a call nothing was tried"


def test_models_by_name():
    assert find_model("sim-agent", PERFECT).dials is PERFECT
    assert find_model("sim-agent:null", PERFECT).dials == PRESETS["null"]
    assert set(MODELS) == {
        "sim-agent",
        "sim-tagged",
        "sim-verifier",
        "sim-solver",
        "sim-writer",
        "sim-judge",
        "sim-reporter",
        "sim-team",
        "sim-picker",
    }
