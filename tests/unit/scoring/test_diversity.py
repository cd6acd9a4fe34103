"""Diversity: what counts as the same action, how rewards correlate, and what tries are worth."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Say, grow

from trunkline.scoring.answers import action
from trunkline.scoring.diversity import Distinct, Try, diversity, effective, intraclass, tries
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO

NAN = math.nan


def calls(*made: tuple[str, object]) -> dict:
    listed = [
        {"id": f"{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(made)
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def says(text: object) -> dict:
    return {"role": "assistant", "content": text}


def test_calls_are_equal_whatever_order_case_and_white_space():
    first = calls(("search", '{"query": "The  Capital", "top": 3}'), ("visit", '{"url": "u"}'))
    assert action(first) == action(calls(("visit", '{"url":"u"}'), ("search", '{"top":3,"query":"the capital "}')))
    assert action(calls(("python", '{"code": "1 < 2"}'))) != action(calls(("python", '{"code": "1 > 2"}')))
    assert action(calls(("search", '{"top": 3}'))) != action(calls(("search", '{"top": 4}')))
    assert action(calls(("search", "{}"))) != action(calls(("visit", "{}")))
    assert action(calls(("search", "{}"))) != action(calls(("search", "{}"), ("search", "{}")))


def test_calls_in_the_text_are_calls_and_thinking_is_none():
    hermes = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
    assert action(says(f"<think>a</think>{hermes}")) == action(says(f"Well, {hermes}"))
    assert action(says(hermes)) == action(calls(("search", '{"query": "x"}')))
    assert action(says("<think>a</think><search>who</search>")) == action(says("so: <search>Who </search>"))
    assert action(says("<search>who</search>")) != action(says("<search>where</search>"))


def test_answers_are_compared_as_everywhere():
    assert action(says("<think>1</think><answer>The $1,200.0</answer>")) == action(says("so \\boxed{1200}"))
    assert action(says("yes")) != action(says("no"))


@pytest.mark.parametrize(
    "turn",
    [
        calls(("search", "{broken"), ("search", "[" * 100_000), ("x", "\x1b[2J")),
        {"role": "assistant", "tool_calls": [None, 3, {"function": "f"}, {"function": {}}]},
        {"role": "assistant", "tool_calls": {"a": 1}, "content": 7},
        says([{"type": "text", "text": "<answer>a</answer>"}, None]),
        says("<tool_call>" * 1000),
        says(json.loads('"\\ud800"')),
        {},
    ],
)
def test_whatever_a_model_sends_is_some_action_of_16_digits(turn: dict):
    assert len(action(turn)) == 16
    assert action(turn) == action(json.loads(json.dumps(turn)))
    assert int(action(turn), 16) >= 0


def naive(tasks: list[list[list[float]]]) -> Fraction | None:
    """The estimator in exact arithmetic, as the two mean squares and their expectations are defined."""
    scored = [[[Fraction(x) for x in chain if not math.isnan(x)] for chain in task] for task in tasks]
    scored = [[chain for chain in task if chain] for task in scored]
    ssb = ssw = weight = Fraction(0)
    between = within = 0
    for task in (task for task in scored if task):
        flat = [x for chain in task for x in chain]
        mean = sum(flat) / len(flat)
        means = [sum(chain) / len(chain) for chain in task]
        ssw += sum((x - own) ** 2 for chain, own in zip(task, means, strict=True) for x in chain)
        # All variation is that within chains and that between them.
        ssb += sum((x - mean) ** 2 for x in flat) - sum(
            (x - own) ** 2 for chain, own in zip(task, means, strict=True) for x in chain
        )
        between += len(task) - 1
        within += len(flat) - len(task)
        weight += len(flat) - Fraction(sum(len(chain) ** 2 for chain in task), len(flat))
    if not within:
        return Fraction(0) if any(scored) else None
    if not between or not ssb + ssw:
        return None
    of_chains = (ssb / between - ssw / within) / (weight / between)
    total = of_chains + ssw / within
    return max(of_chains / total, Fraction(-1)) if total > 0 else None


REWARDS = st.one_of(st.sampled_from([0.0, 1.0, NAN]), st.integers(-8, 8).map(lambda n: n / 4))
TASKS = st.lists(st.lists(st.lists(REWARDS, max_size=4), max_size=4), max_size=4)


@settings(max_examples=150)
@given(TASKS)
def test_the_correlation_is_that_of_the_definition(tasks: list[list[list[float]]]):
    found, exact = intraclass(tasks), naive(tasks)
    if exact is None:
        assert found is None
    else:
        assert found == pytest.approx(float(exact), rel=1e-9, abs=1e-9)


@settings(max_examples=100)
@given(TASKS, st.sampled_from([2.0, -0.5, 1e150, 1e-150]), st.randoms(use_true_random=False))
def test_neither_unit_nor_order_change_the_correlation(
    tasks: list[list[list[float]]], unit: float, luck: random.Random
):
    found = intraclass(tasks)
    other = [[[x * unit for x in luck.sample(chain, len(chain))] for chain in task] for task in tasks]
    luck.shuffle(other)
    for task in other:
        luck.shuffle(task)
    moved = intraclass(other)
    assert (moved is None) == (found is None)
    if found is not None:
        assert moved == pytest.approx(found, rel=1e-6, abs=1e-6)


def test_the_correlation_by_hand():
    # Chains (1, 1), (0, 1): means 1, .5, all .75. MSB = 2 (.25^2 + .25^2) / 1 = .25; MSW = .5 / 2 = .25: rho 0.
    assert intraclass([[[1, 1], [0, 1]]]) == pytest.approx(0)
    # (1, 1, 1), (0): means 1, 0, all .75. MSB = 3/16 + 9/16 = .75, MSW 0: rho 1.
    assert intraclass([[[1, 1, 1], [0]]]) == pytest.approx(1)
    # (1, 0), (1, 0): MSB 0, MSW = 1 / 2, m0 = 2: (0 - .5) / (0 + .5) = -1.
    assert intraclass([[[1, 0], [1, 0]]]) == pytest.approx(-1)
    # What differs between tasks is no correlation: chains (1, 0), (0, 1) and, in a task ten higher, the same.
    assert intraclass([[[1, 0], [0, 1]], [[11, 10], [10, 11]]]) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("tasks", "rho"),
    [
        ([], None),
        ([[[NAN, NAN]]], None),
        ([[[1], [0]], [[NAN, 1]]], 0.0),  # no two scored ones of one chain
        ([[[1, 0, 1]]], None),  # one chain: nothing to compare it with
        ([[[0.1, 0.1, 0.1], [0.1]], [[0.7], [0.7, 0.7]]], None),  # nothing varies within a task
        ([[[1, NAN, 0], [NAN]], [[1]]], None),  # one scored chain each
        ([[[1], [1]], [[0, 1]]], None),  # MSB is 0, and chains of one cannot say how much of that is chance
        ([[[0.1], [0.1], [0.1]], [[0.2, 0.7]]], None),  # nor where 0.1 + 0.1 + 0.1 is not 3 x 0.1
    ],
)
def test_where_it_cannot_be_estimated_it_is_not_known(tasks: list[list[list[float]]], rho: float | None):
    assert intraclass(tasks) == rho


@pytest.mark.parametrize("rho", [0.0, 0.2, 0.6])
def test_a_known_correlation_is_found_again(rho: float):
    luck = random.Random(5)
    tasks = []
    for _ in range(800):
        level = luck.gauss(0, 3)  # tasks differ, which must not count
        chains = [luck.gauss(0, math.sqrt(rho)) for _ in range(3)]
        tasks.append(
            [[level + own + luck.gauss(0, math.sqrt(1 - rho)) for _ in range(luck.randint(1, 5))] for own in chains]
        )
    found = intraclass(tasks)
    assert found == pytest.approx(rho, abs=0.04), "some 1,600 free chains: a standard error of about .015"


def test_effective_tries_are_those_whose_mean_varies_as_much():
    luck, rho, sizes = random.Random(3), 0.4, [1, 2, 5]
    means = []
    for _ in range(20_000):
        total = 0.0
        for size in sizes:
            own = luck.gauss(0, math.sqrt(rho))
            total += sum(own + luck.gauss(0, math.sqrt(1 - rho)) for _ in range(size))
        means.append(total / sum(sizes))
    variance = math.fsum(mean * mean for mean in means) / len(means)
    # sum m (1 + (m - 1) rho) = 1 + 2 x 1.4 + 5 x 2.6 = 16.8; 64 / 16.8 = 3.81
    assert effective(sizes, rho) == pytest.approx(64 / 16.8)
    assert 1 / variance == pytest.approx(64 / 16.8, rel=0.05), "the variance of one try is 1"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(-1, 2))
def test_effective_tries_are_no_more_than_tries(sizes: list[int], rho: float):
    assert 0 < effective(sizes, rho) <= sum(sizes) * (1 + 1e-12)
    assert effective(sizes, 0) == pytest.approx(sum(sizes))
    n = sizes[0]
    assert effective([n], 0.3) == pytest.approx(n / (1 + (n - 1) * 0.3)), "one chain: the formula of Kish"
    assert effective([n] * 4, 1) == pytest.approx(4), "what is fully correlated is one try a chain"
    assert effective([], rho) == 0


def test_what_is_distinct_is_counted_by_task():
    one = [Try(0, 1, "Ada", "a"), Try(0, 0, "the Ada", "a"), Try(1, NAN, None, "b"), Try(1, 0, "Bob", None)]
    found = diversity([one, [Try(0, 1, "x", "c")], []])
    assert found is not None
    assert found.actions == Distinct((2 + 1) / 2, (3 + 1) / 2)
    assert found.answers == Distinct((2 + 1) / 2, (3 + 1) / 2)
    assert found.scored == (3 + 1) / 2
    assert found.shared
    assert diversity([[], []]) is None


def test_tries_that_share_nothing_are_worth_themselves():
    found = diversity([[Try(0, 1, "a", "x"), Try(1, 0, "b", "x")], [Try(0, NAN, None, None)]])
    assert found is not None
    assert (found.rho, found.effective, found.scored, found.shared, found.design_effect) == (0.0, 2.0, 2.0, False, 1.0)


def steps(conversation: list[dict], seed: int) -> Say:
    turn = sum(message["role"] == "assistant" for message in conversation)
    return Say(f"{seed % 2}", final=turn == 2)


async def test_the_tries_of_a_tree_are_read_off_its_rollouts():
    tree, _ = await grow(TreeGRPO(trees=2, forks=3), steps, reward=lambda rollout: float(rollout.answer or "nan"))
    found = tries(tree)
    assert [given.subgroup for given in found] == [rollout.subgroup for rollout in tree.rollouts]
    assert [given.answer for given in found] == [rollout.answer for rollout in tree.rollouts]
    firsts = [node.message for node in tree.nodes if node.turns == 1 and node.kind.name == "TURN"]
    assert {given.action for given in found} == {action(message) for message in firsts}
    chains, _ = await grow(Chain(4), steps, reward=lambda rollout: float(rollout.answer or "nan"))
    alone = diversity([tries(chains)])
    assert alone is not None
    assert (alone.rho, alone.effective) == (0.0, 4.0), "chains of single draws: by construction"
