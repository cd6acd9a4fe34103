"""Word problems: what is made can be parsed, and worked out to the same answer."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.sim.world.arithmetic import Step, evaluate, make, parse
from trunkline.sim.world.names import Draws


@given(st.integers(0, 10**9))
def test_problems_are_parsed_back(seed: int) -> None:
    problem = make(Draws(seed))
    totals = evaluate(problem.steps)
    assert parse(problem.text) == problem.steps
    assert parse(f"Solve this.\n\nProblem: {problem.text} Put the answer in a box.") == problem.steps
    assert problem.answer == totals[-1]
    assert 2 <= len(problem.steps) - 1 <= 5
    assert all(2 <= total <= 5000 for total in totals)
    assert str(problem.answer) not in "".join(c if c.isdigit() else " " for c in problem.text).split()


def test_every_operation_and_length_occurs() -> None:
    problems = [make(random.Random(seed)) for seed in range(200)]
    assert {step.op for p in problems for step in p.steps} == {
        "start",
        "add",
        "subtract",
        "multiply",
        "divide",
    }
    assert {len(p.steps) for p in problems} == {3, 4, 5, 6}


def test_worked_out_by_hand() -> None:
    text = (
        "A mill holds 10 jars. Then 5 more jars arrive. After that each of the jars is replaced by 4 jars. "
        "Then 6 of the jars are sold. Then the jars are split into 9 equal lots and only one lot stays. "
        "How many jars are there in the end?"
    )
    steps = parse(text)
    assert steps is not None
    assert evaluate(steps) == [10, 15, 60, 54, 6]


def test_the_last_problem_counts_and_broken_ones_do_not() -> None:
    one, other = make(Draws(1)), make(Draws(2))
    assert parse(f"{one.text}\n{other.text}") == other.steps
    assert parse("How many jars are there in the end?") is None
    assert parse("A mill holds 10 jars. How many jars are there in the end?") is None
    assert parse("A mill holds 10 jars. Then 5 more coins arrive. How many jars are there in the end?") is None
    assert parse("A mill holds 10 jars. It rains. Then 5 more jars arrive. How many jars are there in the end?") is None
    assert parse("") is None


@given(st.text(max_size=200))
def test_any_text_can_be_parsed(text: str) -> None:
    steps = parse(text)
    assert steps is None or len(evaluate(steps)) == len(steps)


@pytest.mark.parametrize(
    "steps",
    [
        (Step("add", 3),),
        (Step("start", 3), Step("start", 3)),
        (Step("start", 3), Step("divide", 0)),
        (Step("start", 3), Step("divide", 2)),
        (Step("start", 3), Step("root", 2)),
    ],
)
def test_impossible_steps_are_refused(steps: tuple[Step, ...]) -> None:
    with pytest.raises(ConfigError):
        evaluate(steps)
