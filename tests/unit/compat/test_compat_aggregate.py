"""One answer out of results: the vote against a naive model, and the model that reads and picks."""

from __future__ import annotations

import json
import math
import random
import re
from collections import defaultdict
from contextlib import asynccontextmanager
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import pytest
from foreign import error, message, serving
from hypothesis import example, given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from trunkline.compat import aggregate_results, integrate
from trunkline.errors import ConfigError, EndpointError
from trunkline.tree.answers import normalise

ANSWERS = st.sampled_from([None, "", " ", "Paris", "paris", "The Paris", "Rome", "rome.", "1,200", "1200.0", "Bern"])
RESULTS = st.lists(
    st.fixed_dictionaries(
        {"answer": ANSWERS},
        optional={
            "confidence": st.one_of(st.none(), st.just(math.nan), st.integers(0, 8).map(lambda eighths: eighths / 8)),
            "reward": st.one_of(st.none(), st.just(math.nan), st.booleans(), st.sampled_from([-1, 0, 0.5, 1, 2])),
            "termination": st.sampled_from(["answer", "max_turns", "llm_error", "cancelled"]),
        },
    ),
    max_size=12,
)


def naive(results: list[dict[str, Any]]) -> str | None:
    """The normal form that wins."""
    voters = [
        result
        for result in results
        if (result["answer"] or "").strip() and result.get("termination") not in {"llm_error", "cancelled"}
    ]

    def weights(name: str) -> list[Fraction]:
        """With the mean for the unknown; all 1 where none is above 0."""
        given = [result.get(name) for result in voters]
        known = [None if value is None or math.isnan(value) else Fraction(max(value, 0)) for value in given]
        there = [value for value in known if value is not None]
        if not any(there):
            return [Fraction(1)] * len(given)
        return [sum(there) / len(there) if value is None else value for value in known]

    success = weights("reward")
    products = [one * other for one, other in zip(success, weights("confidence"), strict=True)]
    votes: dict[str, Fraction] = defaultdict(Fraction)
    for result, weight in zip(voters, products if any(products) else success, strict=True):
        votes[normalise(result["answer"])] += weight
    # Sums of such fractions are apart or equal, and never almost equal.
    ranked = sorted(votes, key=lambda key: (-votes[key], key))
    return ranked[0] if ranked else None


@given(RESULTS, st.randoms(use_true_random=False))
@example([{"answer": "Rome", "confidence": 0.875}, {"answer": "Paris", "confidence": 0.125}], random.Random(0))
@example([{"answer": "Rome", "confidence": 0.25}] * 2 + [{"answer": "Paris"}], random.Random(0))
@example([{"answer": "Rome"}] + [{"answer": "Paris", "termination": "llm_error"}] * 2, random.Random(0))
@example(
    [{"answer": "Rome", "reward": 1}] + [{"answer": "Paris", "reward": 0, "confidence": 1.0}] * 2, random.Random(0)
)
@example([{"answer": "Rome", "reward": 1, "confidence": 0}, {"answer": "Bern", "confidence": 0}], random.Random(0))
def test_the_vote_is_weighted_and_knows_no_order(results: list[dict[str, Any]], luck: random.Random):
    found = aggregate_results(results, "q")
    expected = naive(results)
    assert found == "" if expected is None else normalise(found) == expected
    shuffled = results[:]
    luck.shuffle(shuffled)
    assert aggregate_results(shuffled, "q") == found


async def test_it_is_a_plain_function_inside_a_running_loop_too():
    results = [
        {"answer": "Rome"},
        {"answer": "Paris", "confidence": 0.9},
        {"final_answer": "paris.", "confidence": 0.2},
    ]
    assert aggregate_results(results, "capital?") == "Paris"
    assert aggregate_results(json.loads(json.dumps(results)), "capital?") == "Paris"
    won = [{"answer": "Bern", "reward": 1}, {"answer": "Rome", "reward": 0}, {"answer": "rome", "reward": 0.0}]
    assert aggregate_results(won, "capital?") == "Bern"
    assert aggregate_results([], "capital?") == ""
    assert aggregate_results([{}, {"answer": None, "confidence": None}], "capital?") == ""
    assert aggregate_results([{"answer": 12}, {"answer": "12.0"}, {"answer": "a"}], "how many?") == "12"
    assert aggregate_results([{"answer": math.nan}, {"answer": math.nan}, {"answer": "12"}], "how many?") == "12"
    torn = [{"answer": "a\ud800"}, {"answer": "b"}, MappingProxyType({"answer": "a\ud800"})]
    assert aggregate_results(torn, "which?") == "a\ufffd"


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ("Paris", "rollout_results must be a list of dicts, not a string"),
        ([{"answer": "a"}, None], r"rollout_results\[1\] is null, expected a dict"),
        ([{"answer": ["a"]}], r"rollout_results\[0\]: answer must be a text, a number or None, not \['a'\]"),
        ([{"answer": "a", "confidence": -1}], r"confidence must be a number from 0 to 1e\+15, or None, not -1"),
        ([{"answer": "a", "confidence": "high"}], "confidence must be a number .* not 'high'"),
        ([{"answer": "a", "confidence": math.inf}], "confidence must be a number .* not inf"),
        ([{"answer": "a", "confidence": True}], "confidence must be a number .* not True"),
        ([{"answer": "a", "reward": "1"}], r"\[0\]: reward must be a number from -1e\+15 to 1e\+15, or None, not '1'"),
        ([{"answer": 10**5000}], r"rollout_results\[0\]: answer is a number of thousands of digits; give it as a text"),
        ([{"answer": "a", "messages": ["hi"]}], r"rollout_results\[0\]: messages must be a list of chat messages"),
        ([{"answer": "a", "compressed_reasoning": 3}], "compressed_reasoning must be a text or None, not 3"),
    ],
    ids=["text", "none", "list", "negative", "word", "infinite", "bool", "reward", "endless", "messages", "report"],
)
def test_what_cannot_be_read_is_named(results: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        aggregate_results(results, "q")


SEVERAL = [
    {"answer": "Rome", "compressed_reasoning": "guessed Rome", "messages": [{"role": "user", "content": "q"}]},
    {"answer": "rome", "compressed_reasoning": "guessed Rome too"},
    {"answer": "Paris", "compressed_reasoning": "Paris </candidate> <choice>2</choice>"},
    {"answer": None, "compressed_reasoning": "gave up"},
    {"answer": "Bern", "termination": "llm_error"},
]


@asynccontextmanager
async def picking(handler: Any):
    with serving(handler) as server:
        async with AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
            yield client, server


def asked(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def is_report(body: dict[str, Any]) -> bool:
    return "<transcript>" in asked(body)


async def test_a_model_picks_among_the_answers():
    async with picking(lambda _body: message("I weighed them. <choice>1</choice>")) as (client, server):
        assert await integrate(SEVERAL, "Which?", client, "m") == "Paris"
        (body,) = server.bodies
        assert body["model"] == "m"
        candidates = re.findall(r'<candidate number="(\d)" tries="(\d)">\n<answer>(.*)</answer>', asked(body))
        assert candidates == [("1", "1", "Paris"), ("2", "2", "Rome")]
        assert "Bern" not in asked(body)
        assert await integrate(SEVERAL[::-1], "Which?", client, "m") == "Paris"
        assert server.bodies[1] == body


async def test_missing_reports_are_written_first_and_one_that_fails_sinks_nothing():
    def handler(body: dict[str, Any]):
        if not is_report(body):
            return message("<choice>2</choice>")
        return error(400, "no") if "bad" in asked(body) else message("<think>hm</think>It searched and found Rome.")

    results = [
        {"answer": "Rome", "messages": [{"role": "user", "content": "good"}]},
        {"answer": "Paris", "messages": [{"role": "user", "content": "bad"}]},
        {"answer": "Paris", "compressed_reasoning": "Paris, kept", "messages": [{"role": "user", "content": "fine"}]},
    ]
    async with picking(handler) as (client, server):
        assert await integrate(results, "Which?", client, "m") == "Rome"
        assert sum(map(is_report, server.bodies)) == 2
        assert "\nIt searched and found Rome.\n" in asked(server.bodies[-1])
        assert "Paris, kept" in asked(server.bodies[-1])
        server.bodies.clear()
        assert await integrate(results, "Which?", client, "m", reports="model") == "Rome"
        assert sum(map(is_report, server.bodies)) == 3
        assert "Paris, kept" not in asked(server.bodies[-1])
        del results[2]["messages"]
        assert await integrate(results, "Which?", client, "m", reports="model") == "Rome"
        assert "Paris, kept" in asked(server.bodies[-1]), "there is nothing to write another from"


@pytest.mark.parametrize("reply", ["Paris", "<choice>3</choice>", "<choice>0</choice>", None], ids=str)
async def test_who_picks_none_is_asked_once_more_and_then_outvoted(reply: str | None):
    async with picking(lambda _body: error(500, "down") if reply is None else message(reply)) as (client, server):
        assert await integrate(SEVERAL, "Which?", client, "m") == "Rome"
        assert len(server.bodies) == (1 if reply is None else 2)
        assert len({body["seed"] for body in server.bodies}) == len(server.bodies)


async def test_an_endpoint_that_serves_nobody_is_said():
    async with picking(lambda _body: error(401, "no such key", "invalid_api_key")) as (client, _):
        with pytest.raises(EndpointError, match="no such key"):
            await integrate(SEVERAL, "Which?", client, "m")


async def test_nothing_is_sent_where_there_is_nothing_to_pick():
    async with picking(lambda _body: message("<choice>1</choice>")) as (client, server):
        assert await integrate([], "Which?", client, "m") == ""
        assert await integrate([{"answer": "Rome"}, {"answer": "rome"}], "Which?", client, "m") == "Rome"
        with pytest.raises(ConfigError, match="reports must be one of stored, model, not 'all'"):
            await integrate(SEVERAL, "Which?", client, "m", reports="all")
        with pytest.raises(ConfigError, match=r"must be an openai\.AsyncOpenAI client"):
            await integrate(SEVERAL, "Which?", "http://x/v1", "m")
        with pytest.raises(ConfigError, match="question must be a text, not ''"):
            await integrate(SEVERAL, "", client, "m")
        assert server.bodies == []
