"""The prefix cache and the latency model by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.sim.model.chat_template import Message, encoded
from trunkline.sim.server.latency import BLOCK, Engine, Latency, Prefix, PrefixCache, of_messages

IDS = st.lists(st.integers(0, 3), max_size=80)


@given(st.lists(IDS, min_size=1, max_size=8))
@settings(max_examples=120)
def test_hits_are_the_longest_common_prefix_in_whole_blocks(sequences):
    cache = PrefixCache(10**6)
    seen = []
    for ids in sequences:
        best = 0
        for other in seen:
            common = 0
            while common < min(len(ids), len(other)) and ids[common] == other[common]:
                common += 1
            best = max(best, common // BLOCK)
        expected = min(best, max(len(ids) - 1, 0) // BLOCK) * BLOCK
        assert cache.enter(Prefix().then(ids)) == expected
        seen.append(ids)


@given(IDS, IDS, IDS)
@settings(max_examples=60)
def test_a_sequence_is_the_same_however_it_was_put_together(a, b, c):
    assert Prefix().then(a).then(b).then(c) == Prefix().then(a + b + c)


def test_messages_make_the_prefix_of_their_ids():
    messages = [Message("user", "Ada Venn " * 30), Message("assistant", "x"), Message("tool", "y " * 70)]
    ids = [token for message in messages for token in encoded(message).ids]
    assert of_messages(messages) == Prefix().then(ids)
    assert of_messages(()) == Prefix()


def test_capacity_is_kept_and_the_oldest_goes_first():
    cache = PrefixCache(4 * BLOCK)
    first, second = Prefix().then([1] * 3 * BLOCK), Prefix().then([2] * 3 * BLOCK)
    assert cache.enter(first) == 0
    assert len(cache) == 3 * BLOCK
    assert cache.enter(first) == 2 * BLOCK
    assert cache.enter(second) == 0
    assert len(cache) == 4 * BLOCK
    assert cache.enter(second) == 2 * BLOCK
    assert cache.enter(first) == BLOCK


def test_generated_tokens_are_held_too():
    cache = PrefixCache(10**6)
    prompt = Prefix().then([1] * 20)
    cache.enter(prompt)
    cache.extend(prompt, [2] * 30)
    assert cache.enter(Prefix().then([1] * 20 + [2] * 30 + [3])) == 48


def test_no_capacity_holds_nothing():
    cache = PrefixCache(0)
    prompt = Prefix().then([1] * 64)
    cache.enter(prompt)
    cache.extend(prompt, [1] * 64)
    assert cache.enter(prompt) == len(cache) == 0


async def test_latency_formula():
    engine = Engine(Latency(overhead=0.1, prefill=1000.0, token=0.01, slowdown=1.0, max_batch=4, tail=0.0))
    span = engine.span(500, 10, b"x")
    assert (span.first, span.total) == pytest.approx((0.6, 0.7))
    async with engine.place(), engine.place():
        assert engine.span(500, 10, b"x").total == pytest.approx(0.6 + 0.15)
    assert engine.span(500, 10, b"x").total == pytest.approx(0.7)


async def test_the_tail_is_lognormal_around_its_median():
    engine = Engine(Latency(overhead=1.0, tail=0.5))
    spans = sorted(engine.span(0, 0, b"%d" % i).total for i in range(2001))
    assert spans[1000] == pytest.approx(1.0, abs=0.06)
    assert spans[1900] == pytest.approx(2.27, abs=0.25)
    assert engine.span(0, 0, b"7") == engine.span(0, 0, b"7")


async def test_a_typical_turn_takes_tenths_of_a_second():
    engine = Engine(Latency())
    spans = sorted(engine.span(250, 95, b"%d" % i).total for i in range(501))
    assert 0.15 < spans[250] < 0.4


async def test_no_latency_is_none():
    engine = Engine(None)
    async with engine.place():
        assert engine.span(10**6, 10**6, b"").total == 0
