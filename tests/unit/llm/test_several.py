"""Lanes at several LLMs, against a model of what each must be told; and what their endpoints are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from batching import request
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import ConfigError
from trunkline.llm.batch.activity import Activity
from trunkline.llm.cache import Cache
from trunkline.llm.pricing import EVERYWHERE, Price, check_name, named, price_at, prices_named

MOVES = st.one_of(
    st.just(("run",)),
    st.just(("leave",)),
    st.just(("end",)),
    st.sets(st.sampled_from(["a", "b", "http"]), min_size=1).map(lambda llms: ("ask", *sorted(llms))),
)


def _at(name: str, move: tuple[str, ...]) -> str:
    """What a rollout does as seen by one LLM."""
    if move[0] != "ask":
        return move[0]
    return "ask" if name in move else "leave"


@given(st.lists(st.tuples(st.integers(0, 3), MOVES), max_size=40))
def test_each_llm_is_told_who_asks_it_and_that_all_others_are_away(moves: list[tuple[int, tuple[str, ...]]]):
    lanes = {name: Activity() for name in "ab"}
    several = Activity(llms=lanes)
    rollouts = [several.open() for _ in range(4)]
    now: list[tuple[str, ...]] = [("run",)] * 4
    for number, move in moves:
        getattr(rollouts[number], move[0])(*move[1:])
        if now[number] != ("end",):
            now[number] = move
        for name, one in lanes.items():
            seen = [_at(name, what) for what in now]
            assert [one.running, one.asking, one.away] == [seen.count(what) for what in ("run", "ask", "leave")]
        does = [what[0] for what in now]
        assert [several.running, several.asking, several.away] == [does.count(what) for what in ("run", "ask", "leave")]


@pytest.mark.parametrize("name", ["a b", "a/b", "http://x", "a.b", "1a", "a" * 61, 7, None, "ä"])
def test_what_would_be_no_name_on_record_is_refused(name: object):
    with pytest.raises(ConfigError, match="name of letters"):
        check_name("llm", name)
    with pytest.raises(ConfigError, match="Agent: llm must be a name of letters"):
        Agent(model="m", llm=name)  # type: ignore[arg-type]


def test_each_llm_finds_its_own_price_though_they_share_a_url():
    one, two, three = (Price(prompt=n, generated=n) for n in (1, 2, 3))
    prices = (
        prices_named("", {"http://x/v1": one})
        | prices_named("judge", {"http://x/v1": two})
        | prices_named("live", {EVERYWHERE: three})
    )
    assert price_at(prices, "http://x/v1") == one
    assert price_at(prices, named("judge", "http://x/v1")) == two
    assert price_at(prices, named("live", "BatchLLM")) == three
    assert price_at(prices, named("live", "")) == three
    assert price_at(prices, "BatchLLM") is None


def test_two_llms_never_share_an_answer_nor_a_node(tmp_path: Path):
    cache = Cache(tmp_path / "cache")
    try:
        keys = {cache.key(request(1), llm) for llm in ("", "a", "b")}
    finally:
        cache.close()
    assert len(keys) == 3
    assert len({CompiledAgent(Agent(model="m", llm=llm)).namespace for llm in ("", "a", "b")}) == 3
