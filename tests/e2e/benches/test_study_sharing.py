"""What a token budget buys: the prediction against every tree there can be, and against trees that were grown."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.sharing import LENGTHS, TREE, Length, predicted_cost, run_sharing
from studies.tables import NOTICE, sharing_markdown
from trunkline._core import tree_steps
from trunkline.errors import ConfigError
from trunkline.sim.world.generator import make_world

Chains = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@given(Chains, st.integers(1, 2), st.integers(1, 2))
def test_the_prediction_is_the_mean_over_every_tree_that_can_come_out(chains, trees, forks):
    def continued(depth):
        rest = [sum(chain[depth:]) for chain in chains if len(chain) > depth]
        return sum(rest) / len(rest)

    costs = []
    for chain in chains:
        # Every way to draw the states of one tree, each as likely as another.
        draws = list(itertools.product(range(len(chain)), repeat=forks))
        costs += [(sum(chain) + sum(map(continued, drawn)), 1 / len(draws)) for drawn in draws]
    expected = trees * math.fsum(cost * weight for cost, weight in costs) / len(chains)
    assert predicted_cost(chains, trees, forks) == pytest.approx(expected)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_steps_of_equal_length_give_the_idealised_cost(steps, trees, forks):
    tree, _ = tree_steps(trees, forks, steps)
    assert predicted_cost([[1.0] * steps] * 3, trees, forks) == pytest.approx(tree)


def test_trees_that_are_grown_cost_what_was_predicted():
    found = run_sharing(Length(3, 1, False), 8)
    # At this size the match has a standard error of about 0.03.
    assert 0.88 < found.match.value < 1.12
    assert found.measured / found.predicted == pytest.approx(found.match.value)
    assert 1.1 < found.gain.value < 1.6
    assert found.chains == pytest.approx(32, rel=0.15)
    assert found.roomy.tree < found.roomy.chain
    assert found.tight.chain > found.roomy.chain
    table = sharing_markdown([found])
    assert NOTICE in table
    assert f"| {found.measured:.1f} |" in table


def test_the_lengths_are_those_of_the_question():
    assert [length.steps for length in LENGTHS] == [3, 5, 10]
    assert [length.hops + 1 if length.tagged else 2 * length.hops + 1 for length in LENGTHS] == [3, 5, 10]
    assert TREE.rollouts() == 6


def test_a_world_asks_for_the_hops_it_is_told_to():
    made = make_world(5, 300, 30, (9,))
    assert {question.hops for question in made.questions if question.kind == "lookup"} == {9}
    assert make_world(5, 300, 30, (9, 9)) == made
    with pytest.raises(ConfigError, match="hops: questions have 1 to 12"):
        make_world(5, 300, 30, (13,))
    with pytest.raises(ConfigError, match="hops"):
        make_world(5, 300, 30, ())
