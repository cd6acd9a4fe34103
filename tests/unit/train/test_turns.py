"""Single-turn samples: by hand on small trees, and against a loop over rollouts."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest
from groves import D6, E6, Try, grove, said
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline._core import estimate, presets
from trunkline.errors import ConfigError, UsageError
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict
from trunkline.tree.views import Tree


def told(samples: object) -> list[tuple]:
    return [(s.messages[-1]["content"], s.rollout, s.turn, s.reward, round(s.advantage, 6), s.weight) for s in samples]


def test_shared_turns_stand_once_with_the_mean_and_the_number_of_their_rollouts():
    # Dr.GRPO: R - mean, mean = .5. A: (.5 - .5 - .5) / 3 = -.166667; B: (.5 + .5 - .5) / 3; B1: .5
    assert told(tl.train.turns([grove(D6)], estimator="dr_grpo", shared="once")) == [
        ("A", 0, 0, 1 / 3, -0.166667, 3),
        ("A1", 0, 1, 1.0, 0.5, 1),
        ("A2", 1, 1, 0.0, -0.5, 1),
        ("A3", 2, 1, 0.0, -0.5, 1),
        ("B", 3, 0, 2 / 3, 0.166667, 3),
        ("B1", 3, 1, 1.0, 0.5, 2),
        ("B1a", 3, 2, 1.0, 0.5, 1),
        ("B1b", 4, 2, 1.0, 0.5, 1),
        ("B2", 5, 1, 0.0, -0.5, 1),
    ]


def test_or_repeat_for_every_rollout():
    repeated = told(tl.train.turns([grove(D6)], estimator="dr_grpo", shared="repeat"))
    assert len(repeated) == 2 + 2 + 2 + 3 + 3 + 2
    assert [entry for entry in repeated if entry[0] == "B1"] == [("B1", 3, 1, 1.0, 0.5, 1), ("B1", 4, 1, 1.0, 0.5, 1)]
    assert repeated[:2] == [("A", 0, 0, 1.0, 0.5, 1), ("A1", 0, 1, 1.0, 0.5, 1)]


def test_a_node_estimator_gives_each_turn_its_own():
    # SPO, child means: V(q) = .416667, V(A) = 1/3, V(B) = .5, V(B1) = 1; V(child) - V(parent)
    found = {s.messages[-1]["content"]: s for s in tl.train.turns([grove(D6)], estimator="spo_rloo", shared="once")}
    assert {name: round(s.advantage, 6) for name, s in found.items() if s.trained} == {
        "A": -0.083333,
        "A1": 0.666667,
        "A2": -0.333333,
        "A3": -0.333333,
        "B": 0.083333,
        "B1": 0.5,
        "B2": -0.5,
    }
    assert not found["B1a"].trained, "SPO keeps nothing that is worth exactly 0"


def test_two_scopes_on_the_flat_group():
    # Tree-GRPO without scale: R - mean of the group + R - mean of the initial chain; means .5; 1/3 and 2/3
    samples = tl.train.turns([grove(E6)], estimator="tree_grpo", shared="once", scale="none")
    assert [round(s.advantage, 6) for s in samples] == [1.166667, -0.833333, -0.833333, 0.833333, 0.833333, -1.166667]


def test_the_conversation_is_what_stood_before_the_turn():
    *_, sample = (s for s in tl.train.turns([grove(D6)], estimator="verl_grpo", shared="once") if s.rollout == 3)
    assert sample.messages == [
        {"role": "user", "content": "what?"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "seen B"},
        {"role": "assistant", "content": "B1"},
        {"role": "user", "content": "seen B1"},
        {"role": "assistant", "content": "B1a"},
    ]
    assert (sample.task, sample.group, sample.subgroup, sample.draw) == ("q", 0, 0, 0)


def test_the_draw_of_a_first_turn_is_that_of_the_fork():
    draws = [s.draw for s in tl.train.turns([grove(E6)], estimator="verl_grpo", shared="once")]
    assert draws == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("estimator", sorted(presets()))
def test_once_and_repeated_weigh_the_same_for_every_estimator(estimator: str):
    trees = [grove(D6), grove(E6, "e")]
    sums = []
    for shared in ("once", "repeat"):
        total: dict[tuple, float] = {}
        for s in tl.train.turns(trees, estimator=estimator, shared=shared):
            key = (s.group, s.node)
            total[key] = total.get(key, 0.0) + s.advantage * s.weight
        sums.append(total)
    assert sums[0].keys() == sums[1].keys()
    assert all(math.isclose(sums[0][key], sums[1][key], abs_tol=1e-9) for key in sums[0])


@pytest.mark.parametrize("estimator", ["spo_rloo", "treepo_segments", "gigpo_mean"])
def test_a_tree_is_worth_the_same_beside_another(estimator: str):
    trees = [grove(E6, "e"), grove(D6), grove(E6, "f")]
    alone = [told(tl.train.turns([tree], estimator=estimator, shared="once")) for tree in trees]
    assert told(tl.train.turns(trees, estimator=estimator, shared="once")) == [entry for one in alone for entry in one]


def tool_said(text: str, turn: int, index: int) -> bytes:
    return json.dumps({"role": "tool", "tool_call_id": f"call{turn:04}{index}", "content": text}).encode()


def seeing(listed: list[tuple[list[list[str]], float]]) -> Tree:
    """A tree of rollouts that see some texts before each turn after the first."""
    tree = grove([])
    core = tree.core
    agent, finish = core.name("agent"), core.name("stop")
    for draw, (seen, reward) in enumerate(listed):
        rollout = core.open(1, [0, draw], draw)
        for turn, texts in enumerate([[], *seen]):
            for index, text in enumerate(texts):
                core.observe(rollout, tool_said(text, turn, index), agent, 1)
            core.turn(rollout, said("assistant", f"{draw}.{turn}"), agent, core.name("m"), finish, 10, 0, 5, 0, 1)
        core.close(rollout, "answer", "yes")
        core.score(rollout, reward)
    return tree


def test_gigpo_compares_steps_that_saw_the_same_in_whatever_turn():
    # The worked case: states s0, s1, s2 with reward 1; s0, s1 with 0; s0 with 1. Here s1 is seen a turn later, too:
    # t2 sees s9 between. gamma .95: returns .9025, .95, 1; 0, 0, 0; 1. A_E = R - 2/3.
    # A_S: s0: .9025, 0, 1 less their mean .634167; s1: .95, 0 less .475; s2 and s9 are alone: 0.
    tree = seeing([([["s1"], ["s2"]], 1.0), ([["s9"], ["s1"]], 0.0), ([], 1.0)])
    samples = tl.train.turns([tree], estimator="gigpo_mean", shared="repeat")
    assert [round(sample.advantage, 6) for sample in samples] == [
        *(0.601667, 0.808333, 0.333333),
        *(-1.300833, -0.666667, -1.141667),
        0.699167,
    ]


def test_an_anchor_is_all_that_was_seen_since_the_last_turn():
    # Both saw "same" last, and something else before it: no two steps after the first can be compared.
    tree = seeing([([["one", "same"]], 1.0), ([["two", "same"]], 0.0)])
    found = {
        s.messages[-1]["content"]: s.advantage for s in tl.train.turns([tree], estimator="gigpo_mean", shared="once")
    }
    # A_E = +-.5; first steps: .95 and 0 less .475
    assert {name: round(value, 6) for name, value in found.items()} == {
        "0.0": 0.975, "0.1": 0.5, "1.0": -0.975, "1.1": -0.5,
    }  # fmt: skip


def noted(tree: Tree, number: int, *said: Verdict) -> Tree:
    notes.note(tree.core, number, *said)
    return tree


FLAT = [Try(["a"], 1.0), Try(["b"], 0.0), Try(["c"], 0.5)]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        # R - mean: the masked one trains nothing, and counts in the mean (.5) or not (.25)
        (Verdict("f", "mask"), [None, -0.5, 0.0]),
        (Verdict("f", "mask", count_in_baseline=False), [None, -0.25, 0.25]),
        # (1 - 1.5 + 0 + .5) / 3 = 0: -.5, 0, .5
        (Verdict("f", "penalty", amount=-1.5), [-0.5, 0.0, 0.5]),
    ],
)
def test_verdicts_are_kept_to(verdict: Verdict, expected: list[float | None]):
    samples = list(tl.train.turns([noted(grove(FLAT), 0, verdict)], estimator="dr_grpo", shared="once"))
    assert [s.advantage if s.trained else None for s in samples] == expected
    live = tl.train.turns([noted(grove(FLAT), 0, verdict)], estimator="dr_grpo", shared="once", keep_masked=False)
    assert [s.advantage for s in live] == [value for value in expected if value is not None]


def test_who_is_dropped_is_not_there():
    samples = list(tl.train.turns([noted(grove(FLAT), 0, Verdict("f", "drop"))], estimator="dr_grpo", shared="once"))
    assert told(samples) == [("b", 1, 0, 0.0, -0.25, 1), ("c", 2, 0, 0.5, 0.25, 1)]


def test_a_shared_turn_is_trained_for_those_that_are_not_masked():
    tree = noted(grove(D6), 0, Verdict("f", "mask"))
    first = next(iter(tl.train.turns([tree], estimator="dr_grpo", shared="once")))
    assert (first.rollout, first.weight, first.advantage, first.reward) == (1, 2, -0.5, 1 / 3)


BROKEN = [*FLAT, Try(["d"], ended="llm_error")]


def test_unscored_is_never_0():
    samples = list(tl.train.turns([grove(BROKEN)], estimator="dr_grpo", shared="once"))
    assert [s.trained for s in samples] == [True, True, True, False]
    assert math.isnan(samples[3].reward)
    assert [s.advantage for s in samples] == [0.5, -0.5, 0.0, 0.0], "the mean is that of three"


def test_a_group_in_which_one_broke_can_be_left_out():
    trees = [grove(BROKEN), grove(FLAT, "p")]
    samples = list(tl.train.turns(trees, estimator="dr_grpo", shared="once", on_failed="drop_group"))
    assert [(s.task, s.group) for s in samples] == [("p", 1)] * 3


@pytest.mark.parametrize("word", ["settled", "enough", "budget", "deadline"])
def test_groups_that_ended_early_are_refused_until_somebody_says_that_this_is_known(word: str):
    """All of its rollouts ended by themselves; but which ones started, their outcomes or their lengths decided."""
    tree = grove(FLAT)
    early = tl.Tree(tree.task, tree.core, word)
    with pytest.raises(UsageError, match=rf'task "q" ended early \({word}\).*censored='):
        list(tl.train.turns([early], estimator="dr_grpo", shared="once"))
    said = list(tl.train.turns([early], estimator="dr_grpo", shared="once", censored="mask"))
    assert said == list(tl.train.turns([tree], estimator="dr_grpo", shared="once"))


CUT = [*FLAT, Try(["d"], 0.9, ended="censored"), Try(["e"], ended="censored")]


def test_a_group_with_rollouts_that_were_cut_off_needs_a_word_on_them():
    with pytest.raises(UsageError, match=r'task "q" .* stopping early favours short ones.*censored='):
        tl.train.turns([grove(CUT)], estimator="dr_grpo", shared="once")
    masked = list(tl.train.turns([grove(CUT)], estimator="dr_grpo", shared="once", censored="mask"))
    assert [s.trained for s in masked] == [True, True, True, False, False]
    assert [s.advantage for s in masked] == [0.5, -0.5, 0.0, 0.0, 0.0]
    kept = list(tl.train.turns([grove(CUT)], estimator="dr_grpo", shared="once", censored="keep"))
    assert [s.trained for s in kept] == [True, True, True, True, False], "what has no value is not trained"
    assert [round(s.advantage, 6) for s in kept] == [0.4, -0.6, -0.1, 0.3, 0.0], "mean 2.4 / 4 = .6"


def test_a_group_that_nobody_has_judged_is_left_out_and_named(caplog: pytest.LogCaptureFixture):
    trees = [noted(grove(FLAT), 0, Verdict("f", "failed", "it broke")), grove(FLAT, "p")]
    with caplog.at_level(logging.WARNING):
        samples = list(tl.train.turns(trees, estimator="dr_grpo", shared="once"))
    assert {s.task for s in samples} == {"p"}
    assert caplog.text.count("task q is left out: filter f has not judged it: it broke") == 1


def test_trees_that_can_be_read_once_will_do():
    assert len(list(tl.train.turns(iter([grove(D6)]), estimator="dr_grpo", shared="once"))) == 9
    assert list(tl.train.turns([], estimator="dr_grpo", shared="once")) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"estimator": "magic"}, "estimator must be one of arpo_hard"),
        ({"estimator": ["trl"]}, "estimator must be one of arpo_hard"),
        ({"shared": "twice"}, "shared must be one of once, repeat"),
        ({"shared": []}, "shared must be one of once, repeat"),
        ({"censored": "zero"}, "censored must be one of mask, keep"),
        ({"censored": {}}, "censored must be one of mask, keep"),
        ({"on_failed": "retry"}, "on_failed='retry' is for the run"),
        ({"on_failed": "zero"}, "on_failed must be one of mask, drop_group"),
    ],
)
def test_settings_that_cannot_be_are_named(options: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        tl.train.turns([grove(D6)], **{"estimator": "dr_grpo", "shared": "once"} | options)


def test_samples_become_json_lines(tmp_path: Path):
    place = tmp_path / "out.jsonl"
    assert tl.train.write_jsonl(tl.train.turns([grove(BROKEN)], estimator="dr_grpo", shared="once"), place) == 4
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    assert lines[0]["conversation"] == [{"role": "user", "content": "what?"}]
    assert lines[0]["reply"] == {"role": "assistant", "content": "a"}
    assert (lines[0]["advantage"], lines[0]["weight"]) == (0.5, 1)
    assert lines[3]["reward"] is None
    with pytest.raises(ConfigError, match=r"cannot write .*File exists"):
        tl.train.write_jsonl([], place)
    with pytest.raises(UsageError, match="cut off"):
        tl.train.write_jsonl(tl.train.pairs([grove(CUT)]), tmp_path / "half.jsonl")
    assert not (tmp_path / "half.jsonl").exists()


TRIES = st.lists(
    st.builds(
        lambda turns, reward, chain: Try(turns, reward, subgroup=chain),
        st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
        st.sampled_from([0.0, 0.25, 1.0, math.nan]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(TRIES, min_size=1, max_size=3), st.sampled_from(["dr_grpo", "trl", "rloo_vectorized", "tree_grpo"]))
def test_samples_are_those_of_a_loop_over_rollouts(listed: list[list[Try]], estimator: str):
    trees = [grove(tries, f"q{number}") for number, tries in enumerate(listed)]
    expected = []
    for number, tries in enumerate(listed):
        rewards, subgroups = [one.reward for one in tries], [one.subgroup for one in tries]
        values, kept = estimate(estimator, rewards, group=[0] * len(tries), subgroup=subgroups)
        for rollout, one in enumerate(tries):
            trained = not math.isnan(values[rollout]) and bool(kept[rollout])
            advantage = values[rollout] if trained else 0.0
            expected += [(number, rollout, turn, text, trained, advantage) for turn, text in enumerate(one.turns)]
    found = [
        (s.group, s.rollout, s.turn, s.messages[-1]["content"], s.trained, s.advantage)
        for s in tl.train.turns(trees, estimator=estimator, shared="repeat")
    ]
    assert [entry[:5] for entry in found] == [entry[:5] for entry in expected]
    assert all(math.isclose(a[5], b[5], abs_tol=1e-12) for a, b in zip(found, expected, strict=True))
