"""Rates: what a bucket lets through, what a lease grants, and what headers say of an endpoint's limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from virtual_time import VirtualTime

from trunkline.llm.limits.adaptive_window import Window
from trunkline.llm.limits.rate_limiter import EndpointQueue, Limiter, estimate
from trunkline.llm.limits.token_bucket import LocalRates, ServerRateLimits, TokenBucket, seconds
from trunkline.llm.request import Sampling, constant, draws, head


def spend(bucket, amount, time):
    """Wait as long as it takes, then take."""
    wait = bucket.wait(amount)
    time.now += wait
    assert bucket.wait(amount) == 0
    bucket.take(amount)
    return wait


def test_a_full_bucket_lets_its_burst_through_and_then_its_rate():
    time = VirtualTime()
    bucket = TokenBucket(2.0, 4.0, time)
    assert [spend(bucket, 1, time) for _ in range(7)] == [0, 0, 0, 0, 0.5, 0.5, 0.5]
    time.now = 100.0
    assert spend(bucket, 4, time) == 0
    assert bucket.wait(1) == 0.5


def test_what_is_given_back_can_be_taken_again_and_stops_the_refill_meanwhile():
    time = VirtualTime()
    bucket = TokenBucket(1.0, 3.0, time)
    bucket.take(3)
    bucket.take(-2)
    assert bucket.wait(2) == 0
    bucket.take(-3)
    time.now = 60.0
    assert [spend(bucket, 3, time), spend(bucket, 2, time), bucket.wait(1)] == [0, 0, 1.0]


def test_more_than_the_burst_goes_when_the_bucket_is_full_and_leaves_a_debt():
    time = VirtualTime()
    bucket = TokenBucket(10.0, 10.0, time)
    assert spend(bucket, 100, time) == 0
    assert bucket.wait(5) == pytest.approx(9.5)


@given(
    rate=st.floats(0.1, 50),
    burst=st.floats(1, 20),
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5)), min_size=1, max_size=60),
)
def test_no_minute_lets_more_through_than_its_rate_the_burst_and_one_take(rate, burst, steps):
    time = VirtualTime()
    bucket = TokenBucket(rate, burst, time)
    sent = []
    for pause, amount in steps:
        time.now += pause
        spend(bucket, amount, time)
        sent.append((time.now, amount))
    for begin, _ in sent:
        through = sum(amount for moment, amount in sent if begin <= moment < begin + 60)
        assert through <= 60 * rate + burst + 5 + 1e-3


def test_a_lease_waits_for_the_scarcer_of_requests_and_tokens_and_takes_both_or_neither():
    time = VirtualTime()
    lease = LocalRates(60, 6000, time)
    assert lease.acquire(1, 100) == 0
    assert lease.acquire(1, 10) == pytest.approx(1.0)
    time.now = 1.0
    assert lease.acquire(1, 10) == 0
    assert lease.acquire(0, 1000) == 0, "what was spent is spent"
    time.now = 2.0
    assert lease.acquire(1, 10) > 4
    assert lease.acquire(1, 10) > 4
    time.now = 100.0
    assert lease.acquire(1, 0) == 0
    assert LocalRates(None, None, time).acquire(1000, 10**9) == 0


def test_an_estimate_is_a_quarter_of_the_bytes_and_what_each_draw_may_generate():
    sampling = Sampling(max_tokens=100)
    message = b'{"role":"user","content":"say \\"max_tokens\\":999999"}' + b" " * 6000
    body = head("m") + message + constant(sampling) + draws(1)
    assert estimate(body, 3) == len(body) // 4 + 300
    body = head("m") + message + constant(Sampling()) + draws(None)
    assert estimate(body, 3) == len(body) // 4
    assert estimate(b'{"max_completion_tokens":7,"messages":[' + message + b"]}", 2) > 14


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6m0s", 360.0),
        ("20ms", 0.02),
        ("1s", 1.0),
        ("1h2m3.5s", 3723.5),
        ("1d", 86400.0),
        ("57", 57.0),
        ("0.25", 0.25),
        ("1970-01-01T00:01:40Z", 90.0),
        ("1970-01-01T00:00:01Z", 0.0),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
        ("6m0s!", None),
        ("9999-99-99T00:00:00Z", None),
    ],
)
def test_a_reset_in_each_form_that_servers_write(text, value):
    found = seconds(text, lambda: 10.0)
    assert found == value if value is None else found == pytest.approx(value)


@given(st.text(max_size=60))
def test_no_text_of_a_server_breaks_the_reading_of_a_reset(text):
    found = seconds(text)
    assert found is None or found >= 0


def openai(limit, left, reset, kind="requests"):
    return CIMultiDict(
        {
            f"X-RateLimit-Limit-{kind}": str(limit),
            f"X-RateLimit-Remaining-{kind}": str(left),
            f"X-RateLimit-Reset-{kind}": reset,
        }
    )


def test_openais_headers_say_how_much_is_left_and_how_fast_it_comes_back():
    time = VirtualTime()
    quota = ServerRateLimits(time)
    quota.learn(openai(60, 2, "58s"), 0, 0)
    assert quota.known
    assert [quota.acquire(1, 999) for _ in range(4)] == [0, 0, pytest.approx(1.0), pytest.approx(1.0)]


def test_what_is_in_flight_is_not_believed_to_be_counted():
    quota = ServerRateLimits(VirtualTime())
    quota.learn(openai(60, 5, "55s"), 4, 0)
    assert quota.acquire(1, 0) == 0
    assert quota.acquire(1, 0) > 0


def test_a_window_that_begins_anew_is_not_taken_for_a_slow_refill():
    time = VirtualTime()
    quota = ServerRateLimits(time)
    quota.learn(openai(50, 0, "9"), 0, 0)
    assert quota.acquire(1, 0) > 0
    quota.learn(openai(50, 49, "10"), 0, 0)
    assert [quota.acquire(1, 0) for _ in range(49)] == [0] * 49


def test_anthropics_headers_count_to_a_moment():
    time = VirtualTime()
    quota = ServerRateLimits(time, lambda: 40.0)
    headers = {
        "anthropic-ratelimit-tokens-limit": "6000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "1970-01-01T00:01:40Z",
        "anthropic-ratelimit-requests-remaining": "x",
    }
    quota.learn(CIMultiDict(headers), 0, 0)
    assert quota.acquire(1, 500) == pytest.approx(5.0)


@given(limit=st.integers(0, 10**12), left=st.integers(0, 10**12), reset=st.floats(0, 1e9), flying=st.integers(0, 10**6))
async def test_absurd_headers_delay_a_request_by_two_minutes_at_most(limit, left, reset, flying):
    time = VirtualTime()
    quota = ServerRateLimits(time)
    headers = openai(limit, left, f"{reset:.3f}s")
    headers.extend(openai(limit, left, f"{reset:.3f}s", "tokens"))
    quota.learn(headers, flying, flying)
    gate = EndpointQueue(Window(1), quota)
    assert await time.run(Limiter(1, sleep=time.sleep, clock=time).wait(gate, 10**6)) == [True]
    assert time.now <= 121


@pytest.mark.parametrize("text", ["", "-1", "1e5", "many", "٣", "9" * 400])
def test_a_count_that_is_none_is_no_limit(text):
    quota = ServerRateLimits(VirtualTime())
    quota.learn(CIMultiDict({"x-ratelimit-remaining-requests": text}), 0, 0)
    assert not quota.known
