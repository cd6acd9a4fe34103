"""Rows filled up to a multiple: by model, behind all others, and in no sum or mean."""

from __future__ import annotations

import math

import pytest
from casts import Line, Scene, cast
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.train import Rows

SMALL, LARGE = Line("Solver", model="small"), Line("Verifier", model="large")
TREE = (Scene([SMALL, LARGE, SMALL], 1.0), Scene([SMALL], 0.0))


def test_each_model_gets_a_multiple_of_its_own():
    found = tl.train.rows([cast(TREE)], shared="once")
    filled = found.padded({"small": 4, "large": 2})
    assert {model: list(rows["pad"]) for model, rows in filled.items()} == {"small": [0, 0, 0, 1], "large": [0, 1]}
    assert {model: len(rows) for model, rows in found.padded(1).items()} == {"small": 3, "large": 1}
    assert repr(filled["small"]) == "<Rows: 3 agent calls and 1 that fill up>"


def test_models_of_two_llms_are_two_whatever_they_are_called():
    judge = SMALL._replace(llm="judge")
    found = tl.train.rows([cast([Scene([SMALL, judge, judge], 1.0)])], shared="once")
    assert found["llm"] == ["", "judge", "judge"]
    assert {model: len(rows) for model, rows in found.by_model().items()} == {"small": 1, "judge/small": 2}
    assert {row.model for row in found.padded({"small": 1, "judge/small": 4})["judge/small"]} == {"small"}


def test_copies_are_of_the_first_rows_as_often_as_needed_and_train_nothing():
    filled = tl.train.rows([cast(TREE)], shared="once").padded(8)["small"]
    real, copies = list(filled)[:3], list(filled)[3:]
    assert [row.node for row in copies] == [real[place % 3].node for place in range(5)]
    assert [row.messages for row in copies] == [real[place % 3].messages for place in range(5)]
    assert {(row.pad, row.trained, row.weight, row.advantage) for row in copies} == {(True, False, 0, 0.0)}
    for name in ("node", "pad", "trained", "weight", "advantage"):
        assert list(filled[name]) == [getattr(row, name) for row in filled], "columns say the same"


def test_filling_up_again_begins_with_what_is_no_copy():
    once = tl.train.rows([cast(TREE)], shared="once").padded(8)["small"]
    assert len(once.padded(2)["small"]) == 4
    assert list(once.by_model()["small"]["pad"]) == [0, 0, 0]


def test_nothing_is_filled_up_with_nothing():
    assert tl.train.rows([], shared="once").padded(8) == {}


@pytest.mark.parametrize(
    ("divisor", "says"),
    [
        (0, "divisor must be a whole number from 1 to"),
        (True, "divisor must be a whole number from 1 to"),
        (2**21, "divisor must be a whole number from 1 to 1048576, not 2097152"),
        ({"small": 2}, "divisor has none for the model 'large'"),
        ({"small": 2, "large": "2"}, "divisor of 'large' must be a whole number"),
    ],
)
def test_divisors_that_cannot_be_are_named(divisor: object, says: str):
    with pytest.raises(ConfigError, match=says):
        tl.train.rows([cast(TREE)], shared="once").padded(divisor)


def figures(rows: list[Rows]) -> dict[str, float]:
    """What a trainer computes over rows by their weights."""
    weights = [weight for one in rows for weight in one["weight"]]
    total = {"rows": sum(weights)}
    for name in ("reward", "score", "advantage", "penalty"):
        values = [value for one in rows for value in one[name]]
        total[name] = math.fsum(v * w for v, w in zip(values, weights, strict=True) if w)
    return total


LINES = st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans(), st.sampled_from("xyz")).map(
    lambda one: Line(*one[:3], model=one[3])
)
SCENES = st.lists(
    st.tuples(st.lists(LINES, max_size=4), st.sampled_from([0.0, 0.5, 1.0, math.nan])).map(lambda one: Scene(*one)),
    max_size=4,
)


@given(
    st.lists(SCENES, max_size=3),
    st.fixed_dictionaries({model: st.integers(1, 9) for model in "xyz"}),
    st.sampled_from(["dr_mas", "dr_grpo"]),
    st.booleans(),
)
def test_whatever_is_filled_up_no_sum_and_no_mean_changes(
    listed: list[list[Scene]], divisors: dict[str, int], estimator: str, only_active: bool
):
    trees = [cast(scenes, f"q{number}") for number, scenes in enumerate(listed)]
    plain = tl.train.rows(trees, estimator=estimator, only_active=only_active, shared="once")
    filled = plain.padded(divisors)
    assert figures(list(filled.values())) == pytest.approx(figures([plain]))
    assert all(len(rows) % divisors[model] == 0 for model, rows in filled.items())
    assert all(len(rows) - sum(rows["pad"]) + divisors[model] > len(rows) for model, rows in filled.items())
    real = [row for rows in filled.values() for row in rows if not row.pad]
    key = lambda row: (row.group, row.rollout, row.turn)  # noqa: E731
    expected = sorted(plain, key=key)
    assert [repr(key(row)) for row in sorted(real, key=key)] == [repr(key(row)) for row in expected]
    assert [row.advantage for row in sorted(real, key=key)] == [row.advantage for row in expected]
