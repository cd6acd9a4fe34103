"""``--reward``: one reward, several with weights, and what cannot be."""

from __future__ import annotations

import pytest

from trunkline.errors import ConfigError
from trunkline.scoring.rewards import (
    F1,
    REWARDS,
    Choice,
    Math,
    Numeric,
    WeightedRewards,
    contains,
    exact_match,
    numeric_match,
)
from trunkline.scoring.rewards.reading import read_rewards


class Odd:
    """No reward: it cannot be called."""


class Mine:
    """A reward of its own."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def __call__(self, trajectory: object) -> float:
        return self.factor


@pytest.mark.parametrize(
    ("names", "made"),
    [
        (["exact_match"], exact_match),
        (["contains"], contains),
        (["numeric_match"], numeric_match),
        (["numeric_match:absolute=0.5"], Numeric(absolute=0.5)),
        (["f1"], F1()),
        (["choice:options=answers,reference=index"], Choice("answers", "index")),
        (["maths:timeout=3"], Math(3.0)),
        (["none"], None),
        (["trunkline.scoring.rewards:contains"], contains),
        (["f1@0.5"], WeightedRewards({"f1": F1()}, {"f1": 0.5})),
        (
            ["f1@0.5", "exact_match@-1", "contains"],
            WeightedRewards(
                {"f1": F1(), "exact_match": exact_match, "contains": contains},
                {"f1": 0.5, "exact_match": -1.0, "contains": 1.0},
            ),
        ),
        (
            ["choice@0.5", "choice:options=b@2"],
            WeightedRewards({"choice": Choice(), "choice 2": Choice("b")}, {"choice": 0.5, "choice 2": 2.0}),
        ),
        (["choice:options=a@b"], Choice("a@b")),
    ],
    ids=range(13),
)
def test_what_values_stand_for(names: list[str], made: object) -> None:
    assert read_rewards(names, "--reward") == made


def test_a_class_of_ones_own_takes_options() -> None:
    made = read_rewards([f"{__name__}:Mine:factor=2.5"], "--reward")
    assert isinstance(made, Mine)
    assert made.factor == 2.5
    both = read_rewards([f"{__name__}:Mine@2", "f1"])
    assert isinstance(both, WeightedRewards)
    assert both.weights == {"Mine": 2.0, "f1": 1.0}


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (
            ["f2"],
            "'f2' is none of exact_match, contains, numeric_match, f1, choice, math, step_sum, judge, code, none",
        ),
        ([""], "is none of exact_match"),
        (["@2"], "is none of exact_match"),
        (["none", "f1"], "none leaves everything unscored: give it alone"),
        (["none@1"], "give it alone, and without a weight"),
        (["judge"], "--reward judge needs model: --reward judge:model=..."),
        (["exact_match:a=1"], "exact_match is no class, so it takes no options"),
        (["f1:a=1"], "'a=1' is no option=value"),
        (["choice:reference=word"], "reference must be"),
        (["numeric_match:absolute=-1"], "absolute must be"),
        (["f1@nan"], "weight of f1 must be"),
        (["trunkline.absent:one"], "cannot import 'trunkline.absent'"),
        ([f"{__name__}:Odd"], "Odd is not callable"),
    ],
    ids=range(13),
)
def test_what_cannot_be_is_said(names: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_rewards(names, "--reward")
    assert problem in str(caught.value)


def test_every_name_leads_somewhere() -> None:
    for name in ("exact_match", "contains", "numeric_match", "f1", "choice", "math", "maths"):
        assert name in REWARDS
        assert callable(read_rewards([name]))
