"""The ledger through its bindings, against sums of entries."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import CURRENCIES, Ledger, Refusal
from trunkline.errors import ArgumentError

ZERO = dict.fromkeys(CURRENCIES, 0)
AMOUNTS = st.dictionaries(st.sampled_from(CURRENCIES), st.integers(0, 50))


def total(amounts: list[dict[str, int]]) -> dict[str, int]:
    return {currency: sum(amount.get(currency, 0) for amount in amounts) for currency in CURRENCIES}


@given(
    st.dictionaries(st.sampled_from(CURRENCIES), st.integers(0, 200)),
    st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=30),
)
@settings(max_examples=80)
def test_a_ledger_says_what_its_entries_say(limits: dict[str, int], script: list) -> None:
    ledger = Ledger(limits)
    held: dict[int, dict[str, int]] = {}
    spent: list[dict[str, int]] = []
    for turn, (most, actual) in enumerate(script):
        left = {
            currency: max(0, limit - total([*spent, *held.values()])[currency]) for currency, limit in limits.items()
        }
        assert (ledger.left, ledger.limits) == (left, limits)
        outcome = ledger.reserve(most)
        short = [currency for currency in left if most.get(currency, 0) > left[currency]]
        if isinstance(outcome, Refusal):
            assert outcome.currency in short
            assert (outcome.wanted, outcome.left) == (most[outcome.currency], left[outcome.currency])
            assert outcome.limit == limits[outcome.currency]
        else:
            assert not short
            held[outcome] = most
        if held and turn % 2:
            oldest = min(held)
            ledger.settle(oldest, actual)
            del held[oldest]
            spent.append(actual)
        assert (ledger.spent, ledger.reserved, ledger.open) == (total(spent), total([*held.values()]), len(held))
        assert all(
            total([*spent, *held.values()])[currency] <= limit + ledger.overshoot[currency]
            for currency, limit in limits.items()
        )


def test_what_has_no_bound_is_refused_under_a_limit_alone() -> None:
    refusal = Ledger({"generated": 9, "micros": None}).reserve({"generated": None})
    assert isinstance(refusal, Refusal)
    assert (refusal.wanted, str(refusal)) == (None, "unbounded generated wanted, 9 left of 9")
    assert repr(refusal) == "<Refusal: unbounded generated wanted, 9 left of 9>"
    ledger = Ledger({"calls": 2})
    reservation = ledger.reserve({"calls": 1, "generated": None})
    assert isinstance(reservation, int)
    ledger.release(reservation)
    assert (ledger.left, ledger.spent) == ({"calls": 2}, ZERO)


def test_leases_shrink_and_come_back_once() -> None:
    run = Ledger({"generated": 1000})
    granted = []
    while not isinstance(lease := run.lease(4, {"generated": 100}), Refusal):
        granted.append(lease)
    assert [child.limits["generated"] for _, child in granted] == [250, 188, 141, 106, 100, 100, 100]
    assert (str(lease), run.open) == ("100 generated wanted, 15 left of 1000", 7)
    (first, child), (second, _) = granted[:2]
    child.settle(child.reserve({"generated": 200}), {"generated": 120, "calls": 3})
    run.take_back(first, child.spent)
    run.settle_lost(second, {"generated": 8}, {"generated": 30})
    assert run.spent == ZERO | {"generated": 158, "calls": 3}
    assert (run.estimated["generated"], run.leased["generated"], run.left) == (30, 547, {"generated": 295})
    for again in (lambda: run.take_back(first, {}), lambda: run.settle_lost(second, {}, {})):
        with pytest.raises(ArgumentError, match="is not open; it must be one that was given and not yet taken back"):
            again()


@given(st.integers(0, 2**32), st.dictionaries(st.sampled_from(CURRENCIES), st.integers(0, 400)))
@settings(max_examples=60)
def test_kills_of_workers_and_controller_lose_nothing_and_count_nothing_twice(seed: int, limits: dict) -> None:
    """Three workers spend from leases. Rows are what the controller has on disk; whatever is sent is paid for."""
    random = Random(seed)
    run, leases, rows, guessed, paid, doubt = Ledger(limits), [], [], [], [], []
    for _ in range(120):
        what = random.random()
        if what < 0.15 or not leases:
            left, least = run.left, {currency: random.randint(0, 20) for currency in CURRENCIES}
            if isinstance(lease := run.lease(6, least), Refusal):
                assert least[lease.currency] > left[lease.currency]
                continue
            assert all(least[currency] <= most <= left[currency] for currency, most in lease[1].limits.items())
            # Number, ledger, calls in flight, calls that were settled and not acknowledged, and acknowledged ones.
            leases.append((*lease, {}, [], []))
        number, ledger, flying, settled, durable = lease = random.choice(leases)
        if what < 0.5:
            most = {currency: random.randint(0, 9) for currency in CURRENCIES}
            if isinstance(call := ledger.reserve(most), int):
                flying[call] = most, {currency: random.randint(0, most[currency]) for currency in CURRENCIES}
                paid.append(flying[call][1])
        elif what < 0.7 and flying:
            call = random.choice(list(flying))
            settled.append(flying.pop(call))
            ledger.settle(call, settled[-1][1])
        elif what < 0.85 and settled:
            durable.append(settled.pop(0)[1])
        elif what < 0.92 and not ledger.open:
            rows += durable + [cost for _, cost in settled]
            run.take_back(number, ledger.spent)
            leases.remove(lease)
        elif what < 0.97:
            lost = total([most for most, _ in [*flying.values(), *settled]])
            run.settle_lost(number, total(durable), lost)
            rows += durable
            guessed.append(lost)
            leases.remove(lease)
        elif what > 0.985:
            doubt += [most for *_, calls, late, _ in leases for most, _ in [*calls.values(), *late]]
            rows += [cost for *_, acknowledged in leases for cost in acknowledged]
            run, leases = Ledger(limits, total(rows + guessed), total(guessed)), []
        assert (run.spent, run.estimated) == (total(rows + guessed), total(guessed))
        assert run.leased == ZERO | total([ledger.limits for _, ledger, *_ in leases])
        for currency, limit in limits.items():
            held = run.spent[currency] + run.leased[currency]
            assert held <= limit + run.overshoot[currency]
            assert total(paid)[currency] <= limit + total(doubt)[currency]


def test_a_resumed_run_has_spent_what_its_rows_say() -> None:
    ledger = Ledger({"calls": 10}, spent={"calls": 12, "tools": 4}, estimated={"calls": 1})
    assert (ledger.left, ledger.overshoot["calls"], ledger.spent["tools"]) == ({"calls": 0}, 2, 4)
    with pytest.raises(ArgumentError, match="2 calls are estimated of 1 spent"):
        Ledger(spent={"calls": 1}, estimated={"calls": 2})


@pytest.mark.parametrize(
    ("most", "error", "text"),
    [
        ({"token": 1}, ArgumentError, '"token" is no currency'),
        ({"calls": -1}, ArgumentError, "calls is -1; it must be 0 to"),
        ({"calls": 2**64}, ArgumentError, "calls is 18446744073709551616"),
        ({"calls": 1.5}, TypeError, "float"),
        ({1: 1}, TypeError, "int"),
        ([("calls", 1)], TypeError, "dict"),
    ],
)
def test_amounts_that_are_none_are_refused(most, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Ledger().reserve(most)


def test_what_was_spent_is_a_number() -> None:
    ledger = Ledger()
    with pytest.raises(ArgumentError, match="calls is None where a number is needed"):
        ledger.settle(ledger.reserve({}), {"calls": None})
    with pytest.raises(ArgumentError, match="parts is 0"):
        ledger.lease(0, {})
    with pytest.raises(ArgumentError, match="out of range: it must be 0 to 18446744073709551615"):
        ledger.release(2**64)
    with pytest.raises(ArgumentError, match="reservation 7 is not open"):
        ledger.settle(7, {})
