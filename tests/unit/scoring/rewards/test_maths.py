"""Mathematical equality, found out in processes: what is equal, what is not, and what never ends."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest
from endings import ending, grade

from trunkline._internal.serialization import load, pack
from trunkline.errors import ConfigError
from trunkline.scoring.rewards import Math, find
from trunkline.scoring.rewards.grading import score

EQUAL = [
    ("1/2", "0.5"),
    (r"\frac{1}{2}", "0.5"),
    (r"$\frac{2}{4}$", r"\frac12"),
    ("x^2+2x+1", "(x+1)^2"),
    ("3*x**2", "3x^2"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("sqrt(8)", r"2\sqrt{2}"),
    (r"\{2, 1\}", r"\{1,2\}"),
    ("The answer is $3$.", "3"),
    (r"5 \text{ metres}", "5"),
    ("x=3", "3"),
    ("banana", "Banana"),
    ("The Tower of Pisa.", "tower of pisa"),
    (r"\boxed{\text{Evelyn}}", "Evelyn"),
    ("Evelyn", r"\text{Evelyn}"),
    ("1.5e3", "1500"),
    ("2E-2", "0.02"),
    ("sin(x)^2+cos(x)^2", "1"),
    ("2pi/2", r"\pi"),
    ("exp(0)", "1"),
]
OTHER = [
    ("1/3", "0.5"),
    ("x^2+2x", "(x+1)^2"),
    ("banana", "3"),
    ("", "3"),
    (None, "3"),
    (r"\frac{1}{0}", "1"),
    (r"\frac{", "1"),
    ("[0,1]", "[0,1)"),
    ("x+1", "x-1"),
    ("-x", "x"),
    ("3", "a yellow fruit"),
    ("a yellow car", "a yellow fruit"),
    ("x", "no solution"),
    ("e3", "1000"),
]


async def test_what_is_equal_and_what_is_not_and_what_no_accepted_answer_can_say() -> None:
    unreadable = [ending("3", accepted) for accepted in ("see [the page]", "the_fruit")]
    unreadable.append(ending("3", "a yellow fruit", "see [the page]"))
    asked = [ending(answer, accepted) for answer, accepted in EQUAL + OTHER]
    # All by the same processes, whose start is most of what it costs.
    said = await grade(Math(timeout=60), [*asked, *unreadable])
    assert [one.value for one in said[: len(asked)]] == [1.0] * len(EQUAL) + [0.0] * len(OTHER)
    for one in said[len(asked) :]:
        assert math.isnan(one.value)
        assert one.problem == "Math: no reference answer can be read as mathematics"


async def test_what_never_ends_is_killed_and_unscored_and_others_are_not() -> None:
    hostile = ("9^{9^{9^9}}", r"\sum_{n=1}^{10^9} \sin(n^2)")
    said = await grade(Math(timeout=0.4), [*(ending(answer, "1") for answer in hostile), ending("1 ", "1")])
    assert [math.isnan(one.value) for one in said] == [True, True, False]
    for one in said[:2]:
        assert one.problem == "Math: math-verify took longer than 0.4 s and was killed."
    assert said[2].value == 1.0


async def test_without_an_accepted_answer_there_is_no_value() -> None:
    assert await score(Math(), ending("3")) == await score(lambda _: None, ending("3"))


def test_it_crosses_to_workers_by_its_fields() -> None:
    assert load(pack(Math(2.5), "reward", by_value=False)) == Math(2.5)


def test_without_the_extra_it_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec

    def missing(name: str, *more: Any) -> Any:
        return None if name == "math_verify" else there(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(ConfigError, match=r"pip install 'trunkline\[maths\]'"):
        find("maths")()


@pytest.mark.parametrize("timeout", [0, -1, "3", math.inf])
def test_its_time_must_be_seconds(timeout: Any) -> None:
    with pytest.raises(ConfigError, match="Math: timeout must be"):
        Math(timeout)
