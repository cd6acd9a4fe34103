"""Trees that are scored again and again: the last reward counts, and every one before it is on record."""

from __future__ import annotations

import math

import pytest
from groves import Try, grove
from hypothesis import given
from hypothesis import strategies as st

from trunkline.runner import amend as history
from trunkline.scoring import notes
from trunkline.scoring.notes import Graded, Verdict, graded, why_unscored
from trunkline.scoring.rewards.base import RewardPart, Scored
from trunkline.tree.views import Tree

ENDS = ("answer", "max_turns", "llm_error", "censored")
VALUES = st.one_of(st.floats(-2, 2), st.just(math.nan))
PARTS = st.builds(
    lambda name, value, why: RewardPart(name, value, 0.5, why if math.isnan(value) else None),
    st.sampled_from(["f1", "judge"]),
    VALUES,
    st.none() | st.just("late"),
)
SUMS = st.builds(
    lambda value, why, parts: Scored(value, why if math.isnan(value) else None, tuple(parts)),
    VALUES,
    st.none() | st.just("broke"),
    st.lists(PARTS, max_size=2),
)


def planted(ends: list[str]) -> Tree:
    tree = grove([Try([f"a{place}", f"b{place}"], ended=ended) for place, ended in enumerate(ends)])
    for rollout in tree.rollouts:
        notes.note(tree.core, rollout.id, "a remark", Verdict("Search", "drop"), Verdict("long", "mask"))
    return tree


@given(st.data(), st.lists(st.sampled_from(ENDS), min_size=1, max_size=5), st.integers(1, 4))
def test_the_last_reward_counts_and_those_before_are_on_record(data: st.DataObject, ends: list[str], times: int):
    tree = planted(ends)
    said: list[dict[int, Scored]] = []
    for time in range(times):
        history.set_aside(tree, f"r{time - 1}" if time else None, {"Search"})
        assert all(math.isnan(rollout.reward) for rollout in tree.rollouts)
        said.append({rollout.id: data.draw(SUMS) for rollout in history.seen(tree)})
        history.write(tree, f"r{time}", said[-1])
    tree.core.check()
    fresh = planted(ends)
    history.write(fresh, "", said[-1])
    assert tree.digest() == fresh.digest(), "as if it had been scored so at first"
    assert tree.values() == fresh.values() or repr(tree.values()) == repr(fresh.values())
    for rollout in tree.rollouts:
        kept = [one for one in notes.entries(rollout.note) if not isinstance(one, Graded)]
        assert kept == ["a remark", Verdict("Search", "drop")]
        rest = graded(rollout.note)
        if rollout.id not in said[-1]:
            assert (rest, rollout.termination in {"llm_error", "censored"}) == ([], True)
            continue
        mine = [scored[rollout.id] for scored in said]
        past = {f"r{time}": number(one.value) for time, one in enumerate(mine[:-1])}
        assert {one.reward: one.value for one in rest if one.weight is None and one.reward[0] == "r"} == past
        own = [one for one in rest if one.weight is not None]
        assert [(one.reward, one.value) for one in own if one.reward[0] != "r"] == [
            (part.name, number(part.value)) for part in mine[-1].parts
        ]
        assert sum(one.weight is None for one in rest) == len(rest) - len(own)
        if times > 1:
            assert history.earlier(rollout.note) == number(mine[-2].value)
        if math.isnan(mine[-1].value):
            why = [part.problem for part in mine[-1].parts if part.problem] or [mine[-1].problem or ""]
            assert why_unscored(rollout.note) == why[0]


def number(value: float) -> float | None:
    return None if math.isnan(value) else value


def test_who_had_no_reward_function_has_no_history():
    tree = planted(["answer"])
    history.set_aside(tree, None)
    assert graded(tree.rollouts[0].note) == []
    assert history.earlier(tree.rollouts[0].note) is None
    assert len(notes.read(tree.rollouts[0].note)) == 2, "nobody's verdicts were to be taken off"


@pytest.mark.parametrize("name", ["judge", "judge" * 100], ids=["short", "long"])
def test_a_reason_is_not_told_twice(name: str):
    tree = planted(["answer"])
    history.write(tree, name, {0: Scored(math.nan, "no reply")})
    assert why_unscored(tree.rollouts[0].note) == "no reply"
    history.set_aside(tree, name)
    assert graded(tree.rollouts[0].note) == [Graded(name, None, None, "no reply")]
    assert why_unscored(tree.rollouts[0].note) == ""
