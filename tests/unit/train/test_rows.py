"""Training rows: the worked examples of Dr.MAS from trees, what a row says, and what is in no statistic."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean, stdev

import pytest
from casts import Line, Scene, cast, play
from groves import D6, Try, grove
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline._core import presets
from trunkline.errors import ArgumentError, ConfigError, UsageError
from trunkline.rollout.programs.replay import Journal
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict
from trunkline.tree.views import Tree

SOLVER, VERIFIER = Line("Solver"), Line("Verifier")
TEAM = (
    Scene([SOLVER, VERIFIER], 1.0),
    Scene([SOLVER, VERIFIER, SOLVER], 0.0),
    Scene([SOLVER, Line("Verifier", valid=False)], 1.0),
    Scene([SOLVER, VERIFIER, Line("Solver", valid=False)], 0.0),
)
"""The worked example: four tries of one question; S is 1, 1; 0, 0, 0; 1, .9; 0, 0, -.1."""


def advantages(trees: list[Tree], **settings: object) -> list[float]:
    found = tl.train.rows(trees, shared="repeat", **settings)
    return [round(value, 4) for value in found["advantage"]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # S of six Solver calls: mean .316667, deviation .530723; of four Verifier calls: .475, .55
        ({}, [1.2875, 0.9545, -0.5967, -0.8636, -0.5967, 1.2875, 0.7727, -0.5967, -0.8636, -0.7851]),
        # means of the tries 1, 0, .95, -.0333: mean .479167, deviation .573064
        ({"estimator": "verl_grpo"}, [0.9089] * 2 + [-0.8361] * 3 + [0.8216] * 2 + [-0.8943] * 3),
        (
            {"estimator": "dr_mas", "scopes": "group", "unit": "trajectory"},
            [0.9089] * 2 + [-0.8361] * 3 + [0.8216] * 2 + [-0.8943] * 3,
        ),
        ({"scale": "none"}, [0.6833, 0.525, -0.3167, -0.475, -0.3167, 0.6833, 0.425, -0.3167, -0.475, -0.4167]),
        (
            {"centre": "leave_one_out", "scale": "none"},
            [0.82, 0.7, -0.38, -0.6333, -0.38, 0.82, 0.5667, -0.38, -0.6333, -0.5],
        ),
    ],
    ids=["agent-wise", "plain", "plain over rows", "without deviation", "leave one out"],
)
def test_the_worked_example_of_agent_wise_advantages(settings: dict, expected: list[float]):
    assert advantages([cast(TEAM)], **settings) == expected


def test_the_example_with_three_agents_and_one_who_is_alone():
    verifier, searcher, answerer = Line("V"), Line("S"), Line("A")
    two = [Scene([verifier, searcher, verifier, answerer], 1.0), Scene([verifier, answerer], 0.0)]
    assert advantages([cast(two)]) == [0.5773, 1.0, 0.5773, 0.7071, -1.1547, -0.7071], "one alone gets its reward"
    assert advantages([cast(two)], scale="none") == [0.3333, 1.0, 0.3333, 0.5, -0.6667, -0.5]
    three = [*two, Scene([verifier, searcher, answerer], 0.5)]
    assert advantages([cast(three)]) == [0.7833, 0.7071, 0.7833, 1.0, -1.3056, -1.0, -0.2611, -0.7071, 0.0]


def test_a_call_that_is_alone_gets_its_score_or_what_the_option_says():
    tree = cast([Scene([Line("Solver", valid=False)], 1.0)])
    assert advantages([tree]) == [0.9]
    assert advantages([tree], singleton="zero") == [0.0]


def test_groups_are_not_compared_with_each_other():
    trees = [cast(TEAM), cast(TEAM[:2], "p")]
    assert advantages(trees) == advantages(trees[:1]) + advantages(trees[1:])


def test_a_row_says_what_is_on_record():
    line = Line("Solver", valid=False, step=2, model="large model", llm="judge", told="Solve what?", seen="a try")
    tree = cast([Scene([VERIFIER, line], 1.0), Scene([line], 0.0)], "t")
    first, second, third = tl.train.rows(iter([tree]), censored="mask", shared="once")
    assert (second.task, second.group, second.rollout, second.node) == ("t", 0, 0, 3)
    assert (second.agent, second.step, second.turn, second.draw) == ("Solver", 2, 1, 0)
    assert (second.model, second.llm, first.model, first.llm) == ("large model", "judge", "m", "")
    assert (second.active, second.valid, second.trained, second.pad) == (True, False, True, False)
    assert (second.reward, second.penalty, second.score) == (1.0, 0.1, 0.9)
    assert (second.weight, second.length, second.weights, second.aside) == (1, 5, None, None)
    assert second.messages == [
        {"role": "user", "content": "Solve what?"},
        {"role": "assistant", "content": "Solver 0.1"},
    ], "what was sent is its context"
    assert first.messages[0] == {"role": "user", "content": "what?"}, "or else the path"
    assert (third.rollout, third.turn, third.draw, third.penalty) == (1, 0, 1, 0.1)


IDLE = Line("Solver", valid=False, active=False, penalty=0.5)


def test_what_nothing_depended_on_is_in_no_statistic():
    idle = [Scene([IDLE, *scene.lines, IDLE], scene.reward) for scene in TEAM]
    for settings in ({}, {"estimator": "verl_grpo"}, {"estimator": "gigpo_mean"}, {"estimator": "treerl_code"}):
        assert advantages([cast(idle)], **settings) == advantages([cast(TEAM)], **settings)
    everything = list(tl.train.rows([cast(idle)], only_active=False, shared="once"))
    assert len(everything) == 18
    for row in (row for row in everything if not row.active):
        assert (row.advantage, row.weight, row.trained, row.penalty, row.valid) == (0.0, 0, False, 0.0, False)


def test_a_rollout_in_which_nothing_was_active_counts_where_rollouts_are_compared():
    tree = cast([Scene([IDLE], 1.0), Scene([SOLVER], 0.0)])
    assert advantages([tree], estimator="dr_grpo") == [-0.5]
    assert advantages([tree]) == [0.0], "and not where calls are"


def test_plain_agents_have_rows_too():
    found = list(tl.train.rows([grove(D6)], estimator="dr_grpo", shared="repeat"))
    turns = list(tl.train.turns([grove(D6)], estimator="dr_grpo", shared="repeat"))
    assert [(r.node, r.turn, r.draw, r.advantage) for r in found] == [
        (t.node, t.turn, t.draw, t.advantage) for t in turns
    ]
    assert [(r.conversation, r.reply) for r in found] == [(t.conversation, t.reply) for t in turns]
    assert {(r.agent, r.active, r.valid, r.penalty) for r in found} == {("agent", True, True, 0.0)}
    assert [r.step for r in found if r.rollout == 3] == [1, 2, 3], "a step ends where something is observed"


def test_calls_that_were_made_together_are_in_one_step():
    lines = [SOLVER, VERIFIER, Line("Solver", seen="a try"), SOLVER]
    found = tl.train.rows([cast([Scene(lines, 1.0)], noted=False)], shared="once")
    assert list(found["step"]) == [1, 1, 1, 2]


def test_a_step_ends_once_however_much_is_observed_and_not_before_anybody_said_anything():
    tree = cast([])
    core, rollout = tree.core, tree.core.open(1, [0, 0], 0)
    for place in range(2):
        for text in ("one", "two"):
            core.observe(rollout, f'{{"role":"user","content":"{text}"}}'.encode(), core.name("world"), 1)
        play(tree, rollout, SOLVER, f"reply {place}", place, noted=False)
    core.close(rollout, "answer", "yes")
    assert list(tl.train.rows([tree], shared="once")["step"]) == [1, 2]


@pytest.mark.parametrize(
    "note", ["ok", [True, True, 1], [True, True, 0, 0.1], [1, 1, 1, 0.1], [True, True, 1, -0.1], None]
)
def test_what_another_program_notes_is_not_taken_for_a_teams(note: object):
    tree = cast([])
    rollout = tree.core.open(1, [0, 0], 0)
    play(tree, rollout, SOLVER, "hm", note=note)
    tree.core.close(rollout, "answer", "yes")
    (row,) = tl.train.rows([tree], shared="once")
    assert (row.active, row.valid, row.step, row.penalty) == (True, True, 1, 0.0)


def forked() -> Tree:
    """Two rollouts, the second of which is forked from the first after its first step; that was no valid action."""
    tree = cast([])
    core = tree.core
    first = core.open(1, [0, 0], 0)
    play(tree, first, Line("Solver", valid=False, seen="a try"), "guess")
    point = core.rollout(first).leaf
    play(tree, first, Line("Solver", step=2), "right", 1)
    second = core.open(point, [0, 0, 1, 1], 0)
    Journal(core).opened(second)
    play(tree, second, Line("Solver", step=2), "wrong", 1)
    for rollout, reward in ((first, 1.0), (second, 0.0)):
        core.close(rollout, "answer", "yes")
        core.score(rollout, reward)
    core.check()
    return tree


def test_a_shared_call_stands_once_with_its_weight_or_for_each_of_its_rollouts():
    # S: .9, 1; -.1, 0; mean .45
    once = list(tl.train.rows([forked()], scale="none", shared="once"))
    assert [(r.node, r.rollout, r.step, r.valid, r.weight) for r in once] == [
        (2, 0, 1, False, 2),
        (4, 0, 2, True, 1),
        (5, 1, 2, True, 1),
    ]
    assert [round(r.advantage, 6) for r in once] == [-0.05, 0.55, -0.45]
    assert [(r.reward, r.penalty, r.score) for r in once] == [(0.5, 0.1, 0.4), (1.0, 0.0, 1.0), (0.0, 0.0, 0.0)]
    repeated = list(tl.train.rows([forked()], scale="none", shared="repeat"))
    assert [(r.node, r.rollout, round(r.advantage, 6), r.weight) for r in repeated] == [
        (2, 0, 0.45, 1),
        (4, 0, 0.55, 1),
        (2, 1, -0.55, 1),
        (5, 1, -0.45, 1),
    ]


def test_a_shared_call_has_the_mean_reward_of_the_rollouts_that_count():
    tree = forked()
    notes.note(tree.core, 1, Verdict("f", "mask", count_in_baseline=False))
    shared, first, second = tl.train.rows([tree], shared="once")
    assert [(r.reward, r.weight) for r in (shared, first, second)] == [(1.0, 1), (1.0, 1), (0.0, 0)]


@pytest.mark.parametrize("estimator", sorted(presets()))
def test_once_and_repeated_weigh_the_same_for_every_estimator_of_rows(estimator: str):
    sums = []
    for shared in ("once", "repeat"):
        total: dict[tuple, float] = {}
        for row in tl.train.rows([forked(), cast(TEAM, "p")], estimator=estimator, shared=shared):
            key = row.group, row.node
            total[key] = total.get(key, 0.0) + row.advantage * row.weight
        sums.append(total)
    assert sums[0].keys() == sums[1].keys()
    assert all(math.isclose(sums[0][key], sums[1][key], abs_tol=1e-9) for key in sums[0])


def test_rules_of_groups_hold_for_rows():
    broken = [*TEAM, Scene([SOLVER], ended="llm_error")]
    assert advantages([cast(broken)]) == [*advantages([cast(TEAM)]), 0.0]
    last = list(tl.train.rows([cast(broken)], shared="once"))[-1]
    assert not last.trained
    assert math.isnan(last.reward)
    assert math.isnan(last.score)
    assert len(tl.train.rows([cast(broken)], keep_masked=False, shared="once")) == 10
    assert len(tl.train.rows([cast(broken)], on_failed="drop_group", shared="once")) == 0
    cut = [*TEAM, Scene([SOLVER], ended="censored")]
    with pytest.raises(UsageError, match=r'task "q" .*censored='):
        tl.train.rows([cast(cut)], shared="once")
    assert advantages([cast(cut)], censored="mask", keep_masked=False) == advantages([cast(TEAM)])
    masked = cast(TEAM)
    notes.note(masked.core, 0, Verdict("f", "mask"))
    found = tl.train.rows([masked], shared="once")
    assert list(found["trained"]) == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert list(found["advantage"])[2:] == list(tl.train.rows([cast(TEAM)], shared="once")["advantage"])[2:], (
        "it counts in the mean"
    )
    notes.note(masked.core, 0, Verdict("f", "drop"))
    assert advantages([masked]) == advantages([cast(TEAM[1:])])


def test_steps_and_their_penalties_reach_estimators_that_have_steps():
    # Everybody is asked with words of one's own, so no step has a like: A = S - the group's mean by trajectory.
    told = [Scene([line._replace(told=f"{n}.{m}") for m, line in enumerate(scene.lines)], scene.reward)
            for n, scene in enumerate(TEAM)]  # fmt: skip
    apart = advantages([cast(told)], estimator="gigpo_mean", step_weight=0.0)
    assert advantages([cast(told)], estimator="gigpo_mean") == apart
    same = [Scene([line._replace(told="alike") for line in scene.lines], scene.reward) for scene in TEAM]
    assert advantages([cast(same)], estimator="gigpo_mean") != apart, "equal messages to one agent are one state"


def test_a_penalty_comes_with_its_own_step_and_is_discounted_before_it():
    first, bad = Line("Solver", told="first"), Line("Solver", valid=False, told="second")
    tree = cast([Scene([first, bad], 1.0), Scene([first, bad._replace(valid=True)], 1.0)])
    # Of the rollout: .95 and 1, less their mean. Of the steps: .95 * .9 and .95 * 1; .9 and 1; less theirs.
    assert advantages([tree], estimator="gigpo_mean", gamma=0.95) == [-0.0725, -0.075, 0.0725, 0.075]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"estimator": "magic"}, "estimator must be one of arpo_hard"),
        ({"shared": "twice"}, "shared must be one of once, repeat"),
        ({"only_active": 1}, "only_active must be true or false, not 1"),
        ({"keep_masked": None}, "keep_masked must be true or false, not None"),
        ({"censored": "zero"}, "censored must be one of mask, keep"),
        ({"on_failed": "retry"}, "on_failed='retry' is for the run"),
    ],
)
def test_settings_of_rows_that_cannot_be_are_named(settings: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        tl.train.rows([cast(TEAM)], **({"shared": "once"} | settings))


def test_columns_are_buffers_or_lists_and_others_are_refused():
    found = tl.train.rows([cast(TEAM)], shared="once")
    assert (found["advantage"].format, found["active"].format, found["length"].format, found["node"].format) == tuple(
        "dBqI"
    )
    assert found["advantage"].readonly
    assert found["agent"][:2] == ["Solver", "Verifier"]
    assert [list(found[name]) for name in ("step", "score")] == [
        [getattr(row, name) for row in found] for name in ("step", "score")
    ]
    with pytest.raises(ConfigError, match="rows have no column 'prompt'; they have task, group,"):
        found["prompt"]
    assert repr(found) == "<Rows: 10 agent calls>"
    assert len(list(tl.train.rows([], shared="once"))) == 0


def test_rows_become_json_lines(tmp_path: Path):
    place = tmp_path / "rows.jsonl"
    assert (
        tl.train.write_jsonl(tl.train.rows([cast([*TEAM, Scene([SOLVER], ended="llm_error")])], shared="once"), place)
        == 11
    )
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    assert lines[0]["conversation"] == [{"role": "user", "content": "what?"}]
    assert lines[0]["reply"] == {"role": "assistant", "content": "Solver 0.0"}
    assert (lines[6]["agent"], lines[6]["valid"], lines[6]["score"]) == ("Verifier", False, 0.9)
    assert lines[10]["score"] is None


def test_rows_are_read_anew_whenever_they_are_gone_through():
    found = tl.train.rows(iter([cast(TEAM), grove([Try(["a"], 1.0)], "p")]), shared="once")
    assert [row.node for row in found] == [row.node for row in found] == list(found["node"])


LINES = st.builds(
    lambda agent, valid, active, penalty: Line(agent, valid, active, penalty=penalty),
    *(st.sampled_from("abc"), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.25])),
)
SCENES = st.lists(
    st.tuples(st.lists(LINES, max_size=4), st.sampled_from([0.0, 0.5, 1.0])).map(lambda pair: Scene(*pair)), max_size=5
)


@given(st.lists(SCENES, max_size=3))
def test_agent_wise_advantages_are_those_of_a_loop_over_calls(listed: list[list[Scene]]):
    trees = [cast(scenes, f"q{number}") for number, scenes in enumerate(listed)]
    expected = []
    for scenes in listed:
        scored = [
            (line.agent, scene.reward - (0.0 if line.valid else line.penalty))
            for scene in scenes
            for line in scene.lines
            if line.active
        ]
        for agent, score in scored:
            group = [other for who, other in scored if who == agent]
            mean, deviation = (fmean(group), stdev(group)) if len(group) > 1 else (0.0, 1.0)
            expected.append((score, (score - mean) / (deviation + 1e-6)))
    found = tl.train.rows(trees, shared="once")
    assert list(found["score"]) == pytest.approx([score for score, _ in expected])
    assert list(found["advantage"]) == pytest.approx([value for _, value in expected], rel=1e-4, abs=1e-5)


def test_a_penalty_may_be_a_whole_number_and_one_that_no_estimator_takes_is_named():
    tree = cast([Scene([Line("Solver", valid=False, penalty=2)], 1.0)])
    assert list(tl.train.rows([tree], shared="once")["score"]) == [-1.0]
    with pytest.raises(ArgumentError, match="1e100"):
        tl.train.rows([cast([Scene([Line("Solver", valid=False, penalty=1e200)], 1.0)])], shared="once")
