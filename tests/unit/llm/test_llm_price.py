"""Prices: what a user may write, and which endpoint has which."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.llm.pricing import EVERYWHERE, Price, price_at, read_price

A, B = "http://a/v1", "http://b:8000/v1"
CHEAP, DEAR = Price(prompt=0.1, generated=0.4), Price(prompt=3, cached=0.3, generated=15)


def test_one_price_is_that_of_every_endpoint():
    assert LLM(A, B, price=DEAR).price == {A: DEAR, B: DEAR}
    assert LLM(A, price=None).price == LLM(A).price == LLM(A, price={}).price == {}


def test_each_endpoint_can_have_its_own_however_its_url_is_written():
    spec = LLM(A, B, price={f"{A}/chat/completions": CHEAP, f"{B}/": DEAR})
    assert spec.price == {A: CHEAP, B: DEAR}


def test_prices_cross_with_the_endpoint_and_are_in_its_settings():
    spec = LLM(A, B, price={A: CHEAP, B: DEAR})
    crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=LLM)
    assert crossed == spec
    assert spec.settings()["price"][B] == {"prompt": 3.0, "generated": 15.0, "cached": 0.3}
    assert msgspec.convert(spec.settings()["price"], dict[str, Price]) == spec.price


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "or a mapping from base URLs to Prices, not 3"),
        ({A: CHEAP}, r"price lacks http://b:8000/v1; give each endpoint one"),
        ({A: CHEAP, B: 2}, r"the price of http://b:8000/v1 must be a Price, not 2"),
        (
            {A: CHEAP, B: CHEAP, "http://c/v1": CHEAP},
            "price names 'http://c/v1', which is no base URL here; there is http://a",
        ),
        ({"c\x1b": CHEAP}, "must start with http"),
    ],
)
def test_another_price_is_refused_by_name(given: object, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        LLM(A, B, price=given)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("field", ["prompt", "cached", "generated"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1e13, "1", True])
def test_a_price_is_a_number_whose_sums_are_finite(field: str, value: object):
    with pytest.raises(ConfigError, match=f"price: {field} must be a number from 0 to 1e\\+12, not "):
        Price(**({"prompt": 1, "generated": 1} | {field: value}))


def test_what_tokens_cost():
    assert DEAR.of(1_000_000, 400_000, 200_000) == pytest.approx(0.6 * 3 + 0.4 * 0.3 + 0.2 * 15)
    assert CHEAP.of(1_000_000, 400_000, 0) == pytest.approx(0.1), (
        "cached tokens cost what others do, if nothing is said"
    )
    assert (CHEAP.flat, DEAR.flat, Price(prompt=1, cached=1, generated=0).flat) == (True, False, True)


def test_an_endpoint_has_the_price_of_the_longest_base_url_that_its_name_begins_with():
    prices = {A: CHEAP, f"{A}/deep": DEAR}
    assert price_at(prices, A) == price_at(prices, f"{A}/chat/completions") == price_at(prices, f"{A}/deeper") == CHEAP
    assert price_at(prices, f"{A}/deep/chat/completions") == DEAR
    assert price_at(prices, "http://a/v11") is price_at(prices, "") is price_at({}, A) is None


def test_one_price_can_be_everywhere_the_same():
    assert price_at({EVERYWHERE: CHEAP}, A) == price_at({EVERYWHERE: CHEAP}, "") == CHEAP


amounts = st.floats(0, 1e9)


@given(amounts, amounts, amounts)
def test_a_written_price_is_read_back(prompt: float, cached: float, generated: float):
    price = Price(prompt=prompt, cached=cached, generated=generated)
    assert read_price(f" generated={generated!r} , prompt={prompt!r},cached={cached!r}") == price
    assert read_price(f"prompt={prompt!r},generated={generated!r}") == Price(prompt=prompt, generated=generated)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no part of a price; write prompt="),
        ("prompt=1", "the price lacks generated"),
        ("prompt=1,output=2", "'output' is no part of a price"),
        ("prompt=1,prompt=2,generated=3", "'prompt' is there twice"),
        ("prompt=a\x1b,generated=3", r"price: prompt must be a number, not 'a\\x1b'"),
        ("prompt=nan,generated=3", "price: prompt must be a number from 0"),
        ("prompt=1,generated=", "price: generated must be a number, not ''"),
    ],
)
def test_a_price_that_cannot_be_read_is_one_clear_error(text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        read_price(text)
