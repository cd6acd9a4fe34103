"""What rewards said, in notes: beside verdicts and remarks, old ones and damaged ones."""

from __future__ import annotations

import json
import math

import pytest
from groves import Try, grove
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.scoring import notes
from trunkline.scoring.notes import Graded, Verdict, graded

FINITE = st.none() | st.floats(-1e9, 1e9)
ENTRIES = (
    st.builds(Graded, st.text(max_size=20), FINITE, FINITE, st.text(max_size=50))
    | st.builds(Verdict, st.text(max_size=20), st.just("mask"))
    | st.text(max_size=20)
)


@given(st.lists(ENTRIES, max_size=6))
def test_a_note_gives_back_verdicts_and_what_rewards_said(said: list[Verdict | Graded | str]) -> None:
    note = notes.encode(said)
    assert graded(note) == [entry for entry in said if isinstance(entry, Graded)]
    assert notes.read(note) == [entry for entry in said if isinstance(entry, Verdict)]
    assert notes.entries(note) == said


def test_what_rewards_said_stays_when_verdicts_are_taken_off() -> None:
    tree = grove([Try(["a"], 1.0)])
    notes.note(tree.core, 0, Graded("f1", 0.5, 0.25), Verdict("one", "mask"), "a remark")
    notes.note(tree.core, 0, Graded("judge", math.nan, 0.75, "no reply"))
    notes.clear(tree.core, 0)
    assert json.loads(tree.rollouts[0].note or "") == [
        ["graded", "f1", 0.5, 0.25, ""],
        "a remark",
        ["graded", "judge", None, 0.75, "no reply"],
    ]
    assert graded(tree.rollouts[0].note) == [Graded("f1", 0.5, 0.25), Graded("judge", None, 0.75, "no reply")]


@pytest.mark.parametrize(
    "note",
    [
        None,
        "",
        "for later",
        '["for later"]',
        '[{"filter":"one","action":"mask"}]',
        '[["graded"]]',
        '[["graded",1]]',
        '[["graded","f1","x"]]',
        '[["graded","f1",0.5',
        "[" * 5_000,
    ],
    ids=range(10),
)
def test_other_notes_hold_nothing_of_rewards(note: str | None) -> None:
    assert graded(note) == []


@pytest.mark.parametrize(
    "verdict",
    ['{"filter":"one","action":"explode"}', '{"filter":"one"}', '{"filter":"one","action":"mask","amount":1}', "{}"],
)
def test_grades_are_read_beside_a_verdict_that_cannot_be(verdict: str) -> None:
    note = f'["a remark",["graded","f1",0.5,0.25],{verdict},["graded","judge",null,0.75,"no reply"]]'
    assert graded(note) == [Graded("f1", 0.5, 0.25), Graded("judge", None, 0.75, "no reply")]
    assert notes.why_unscored(note) == "no reply"
    assert notes.read(note) == []
    assert notes.entries(note) == [note]


def test_what_a_reward_said_is_made_safe_to_print_and_must_be_numbers() -> None:
    assert "\x1b" not in Graded("a\x1b", why="b\x1b[2J").reward + Graded("a", why="b\x1b[2J").why
    for fields in ({"reward": 1}, {"reward": "a", "value": "1"}, {"reward": "a", "weight": math.inf}):
        with pytest.raises(ConfigError, match="Graded: "):
            Graded(**fields)
