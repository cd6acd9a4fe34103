"""Verdicts: what a note holds, and what it comes to."""

from __future__ import annotations

import json

import pytest
from groves import Try, grove
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict
from trunkline.tree.views import Tree

ONES = st.builds(
    Verdict,
    st.text(max_size=20),
    st.sampled_from(["mask", "drop", "failed"]),
    st.text(max_size=50),
    st.booleans(),
) | st.builds(Verdict, st.text(max_size=20), st.just("penalty"), amount=st.floats(-1e6, 1e6))


@given(st.lists(ONES, max_size=5))
def test_a_note_gives_back_what_was_written(listed: list[Verdict]):
    assert notes.read(notes.encode(listed)) == listed


def test_a_note_is_a_json_list_of_objects_and_travels_in_deltas_but_in_no_digest():
    tree = grove([Try(["a"], 1.0)])
    digest = tree.digest()
    notes.note(tree.core, 0, Verdict("one", "mask", "why"))
    notes.note(tree.core, 0, Verdict("two", "penalty", amount=-0.5))
    assert json.loads(tree.rollouts[0].note or "") == [
        {"filter": "one", "action": "mask", "reason": "why"},
        {"filter": "two", "action": "penalty", "amount": -0.5},
    ]
    assert tree.digest() == digest
    other = Tree(tree.task)
    other.core.apply(tree.core.delta())
    assert [one.filter for one in notes.read(other.rollouts[0].note)] == ["one", "two"]


def test_what_somebody_else_noted_stays():
    tree = grove([Try(["a"], 1.0)])
    tree.core.note(0, "for later")
    notes.note(tree.core, 0, Verdict("one", "mask"))
    assert json.loads(tree.rollouts[0].note or "")[0] == "for later"
    assert [one.filter for one in notes.read(tree.rollouts[0].note)] == ["one"]


def test_verdicts_can_be_taken_off_and_what_somebody_else_noted_stays():
    tree = grove([Try(["a"], 1.0)] * 3)
    tree.core.note(0, "for later")
    for number in (0, 1):
        notes.note(tree.core, number, Verdict("one", "mask"))
    for number in range(3):
        notes.clear(tree.core, number)
    assert [rollout.note for rollout in tree.rollouts] == ['["for later"]', None, None]


@pytest.mark.parametrize(
    "note",
    [None, "", "plain", "{}", "[1]", '[{"filter":"a"}]', '[{"filter":"a","action":"kill"}]', "[" * 5000, "\ud800"],
)
def test_what_is_no_verdict_is_none(note: str | None):
    assert notes.read(note) == []


def test_a_reason_that_would_steer_a_terminal_is_escaped_and_cut():
    verdict = Verdict("a\x1b[2J", "mask", "\u202e" + "x" * 1000)
    assert verdict.filter == "a\\x1b[2J"
    assert verdict.reason.startswith("\\u202ex")
    assert len(verdict.reason) == 300


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"filter": 1, "action": "mask"}, "filter must be a string"),
        ({"filter": "a", "action": "kill"}, "action must be one of mask, drop, penalty, failed"),
        ({"filter": "a", "action": "mask", "count_in_baseline": 1}, "count_in_baseline must be true or false"),
        ({"filter": "a", "action": "penalty", "amount": float("nan")}, "amount must be a number"),
        ({"filter": "a", "action": "mask", "amount": 1.0}, "amount belongs to a penalty, not to a mask"),
    ],
)
def test_a_verdict_that_cannot_be_is_refused(arguments: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        Verdict(**arguments)


def test_what_verdicts_come_to():
    mask, free = Verdict("a", "mask"), Verdict("b", "mask", count_in_baseline=False)
    drop, fine = Verdict("c", "drop"), Verdict("d", "penalty", amount=-0.25)
    assert (notes.masked([]), notes.dropped([]), notes.counted([]), notes.penalty([])) == (
        False,
        False,
        True,
        0.0,
    )
    assert notes.masked([mask])
    assert notes.counted([mask])
    assert not notes.counted([mask, free]), "each mask must let it count"
    assert notes.masked([drop])
    assert not notes.counted([drop]), "who is dropped never counts"
    assert notes.counted([Verdict("e", "penalty", count_in_baseline=False)]), "only masks take a reward out"
    assert notes.penalty([fine, fine]) == -0.5
    assert not notes.masked([fine, Verdict("e", "failed")])
