"""Budgets as data, and the most that a turn can cost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import _core
from trunkline._core import Ledger
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import ConfigError
from trunkline.llm import messages
from trunkline.llm.pricing import Price, micros
from trunkline.rollout.budget import Budget, format_refusal, prompt_bound, read_budget, turn_cost


def test_limits_are_those_of_a_ledger_and_time_is_none_of_them():
    budget = Budget(rollouts=3, tokens=1000, seconds=2.5, money=0.25)
    assert budget.given == {"rollouts": 3, "tokens": 1000, "seconds": 2.5, "money": 0.25}
    assert budget.limits == {"rollouts": 3, "tokens": 1000, "micro_dollars": 250_000}
    assert Ledger(budget.limits).limits == budget.limits


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Budget sets no limit; it may limit rollouts, calls"),
        ({"calls": 0}, "Budget: calls must be a whole number from 1"),
        ({"tokens": 1.5}, "Budget: tokens must be a whole number"),
        ({"tools": True}, "Budget: tools must be a whole number"),
        ({"money": 0}, "Budget: money must be a number above 0"),
        ({"seconds": float("nan")}, "Budget: seconds must be a number above 0"),
    ],
)
def test_what_is_no_budget_is_refused_by_name(fields: dict, text: str):
    with pytest.raises(ConfigError, match=text):
        Budget(**fields)


def test_a_command_line_says_what_is_limited():
    assert read_budget("tokens=1e6,money=5") == Budget(tokens=1_000_000, money=5)
    assert read_budget(" calls = 40 ") == Budget(calls=40)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dollars=5", "'dollars' is nothing that a budget limits; write tokens=1e6,money=5"),
        ("calls=1,calls=2", "'calls' is there twice"),
        ("calls=many", "budget: calls must be a number, not 'many'"),
        ("calls=1.5", "Budget: calls must be a whole number"),
        ("tokens=inf", "Budget: tokens must be a whole number"),
        ("", "'' is nothing that a budget limits"),
    ],
)
def test_a_command_line_that_is_none_is_told_what_is_wrong(text: str, says: str):
    with pytest.raises(ConfigError, match=says):
        read_budget(text)


def test_a_turn_can_cost_the_dearest_price_rounded_up():
    prices = {"a": Price(prompt=1.0, generated=2.0), "b": Price(prompt=0.5, generated=3.0, cached=4.0)}
    most = turn_cost(100, 10, prices)
    # a: 100 x 1 + 10 x 2 = 120; b: 100 x 0.5 + 10 x 3 = 80, and all of it cached: 100 x 4 + 10 x 3 = 430 millionths.
    assert most == {"calls": 1, "prompt": 100, "generated": 10, "tokens": 110, "micro_dollars": 430}
    assert micros(Price(prompt=0.3, generated=0), 1, 0, 0) == 1, "a third of a millionth counts as one"


def test_without_a_limit_on_a_turn_nothing_bounds_its_tokens():
    assert turn_cost(5, None, {})["tokens"] is None
    refusal = Ledger({"tokens": 10}).reserve({"tokens": None})
    assert format_refusal(refusal) == "unbounded tokens wanted, 10 left of 10"


def test_a_ledger_speaks_of_money_as_people_count_it():
    refusal = Ledger({"micro_dollars": 250_000}).reserve({"micro_dollars": 1_250_000})
    assert format_refusal(refusal) == "1.25 money wanted, 0.25 left of 0.25"


@given(st.text(max_size=60), st.integers(0, 400), st.integers(0, 400), st.text(max_size=60))
def test_the_prompt_is_bounded_by_what_was_reported_and_a_token_for_each_byte_since(
    question: str, prompt: int, generated: int, seen: str
):
    core, compiled = _core.CoreTree(), CompiledAgent(Agent(model="m"))
    asked, told = (json.dumps({"role": "user", "content": text}).encode() for text in (question, seen))
    first = core.append(_core.ROOT, _core.PROMPT, asked)
    assert prompt_bound(core, first, compiled) >= len(asked) + len(compiled.head) + len(compiled.constant)
    rollout = core.open(first, (0, 0), 0)
    name = core.name(compiled.agent.name)
    turn = core.turn(rollout, b'{"role":"assistant"}', name, name, name, prompt, 0, generated, 0, 5)
    assert prompt_bound(core, turn, compiled) == prompt + generated + 32
    after = core.observe(rollout, told, name, 0, False)
    assert prompt_bound(core, after, compiled) == prompt + generated + 32 + len(told) + 32


def _turn(core: _core.CoreTree, agent: str, prompt: int, context: int | None = None) -> int:
    """A turn behind a prompt of 1,000 bytes and more."""
    first = core.append(_core.ROOT, _core.PROMPT, messages.user("x" * 1000))
    name, rollout = core.name(agent), core.open(first, (0, core.rollouts), 0)
    return core.turn(rollout, b'{"role":"assistant"}', name, name, name, prompt, 0, 5, 0, 5, None, context)


def test_what_was_reported_of_another_agent_or_of_messages_of_its_own_does_not_measure_the_path():
    core, compiled = _core.CoreTree(), CompiledAgent(Agent(model="m"))
    short = core.context([core.fragment(messages.user("short"))])
    assert prompt_bound(core, _turn(core, "agent", 7), compiled) == 7 + 5 + 32
    assert prompt_bound(core, _turn(core, "other", 7), compiled) > 1000, "it has tools and tokens of its own"
    assert prompt_bound(core, _turn(core, "agent", 7, short), compiled) > 1000, "the path was not what was sent"


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_messages_of_its_own_are_bounded_by_their_bytes_and_what_a_template_adds_to_each(texts: list[str]):
    core, compiled = _core.CoreTree(), CompiledAgent(Agent(model="m"))
    whole = [core.fragment(messages.user(text)) for text in texts]
    cut = [core.fragment(part) for text in texts for part in (messages.OPENS, messages.piece(text), messages.CLOSES)]
    sent = core.request_context(core.context(whole), compiled.head, compiled.constant)
    for fragments in (whole, cut):
        assert prompt_bound(core, _core.ROOT, compiled, core.context(fragments)) == len(sent) + 32 * len(texts) + 512
