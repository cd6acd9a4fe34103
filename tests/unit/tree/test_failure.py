from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import EnvironmentFailed, LLMError, ProgramError
from trunkline.tree.records import Failure, usage_of
from trunkline.types import Usage


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no reply", Failure("", "no reply")),
        ('{"kind":"LLMError","message":"busy","attempts":6,"retryable":true}', Failure("LLMError", "busy", 6, True)),
        ('{"kind":"LLMError","message":"busy"}', Failure("LLMError", "busy")),
        ('{"kind":"K","message":"busy","attempts":-3}', Failure("K", "busy")),
        ('{"kind":"K","message":5}', Failure("", '{"kind":"K","message":5}')),
        ('{"message":"busy"}', Failure("", '{"message":"busy"}')),
        ('["busy"]', Failure("", '["busy"]')),
        ("null", Failure("", "null")),
        ("[" * 5_000, Failure("", "[" * 5_000)),
        ("\ud800", Failure("", "\\ud800")),
    ],
)
def test_recorded_failures(text: str, found: Failure) -> None:
    assert Failure.decode(text) == found


def test_exceptions_become_failures() -> None:
    busy = LLMError("busy", attempts=3, retryable=True, endpoint="http://h/v1", tries=["1: busy"], evidence="no\x1b")
    found = Failure("LLMError", "busy", 3, True, "endpoint http://h/v1", ("1: busy",), "no\\x1b")
    assert Failure.of(busy) == found
    assert Failure.of(EnvironmentFailed("gone")) == Failure("EnvironmentFailed", "gone", blame="environment")
    assert len(Failure.of(ProgramError("x" * 10**6)).message) <= 10_000
    large = "x" * 10**6
    foreign = Failure.of(LLMError(large, endpoint=large, tries=[large] * 1_000, evidence=large))
    assert len(foreign.encode()) < 2_000_000
    assert Failure.of(OSError("no\x1b[2J")) == Failure("OSError", "no\\x1b[2J", blame="code")


@given(st.builds(Failure, st.text(), st.text(), st.integers(-5, 2**40), st.booleans(), st.text(), st.lists(st.text())))
def test_what_is_written_is_read_and_safe_to_print(failure: Failure) -> None:
    assert Failure.decode(failure.encode()) == failure
    assert failure.message.isprintable()
    assert failure.kind.isprintable()
    assert failure.blame.isprintable()
    assert all(line.isprintable() for line in failure.tries)
    assert 1 <= failure.attempts <= 1_000_000


@given(st.text(min_size=1))
def test_whatever_was_recorded_is_safe_to_print(text: str) -> None:
    assert Failure.decode(text).message.isprintable()
    assert Failure.decode(json.dumps({"kind": text, "message": text})).message.isprintable()


def test_failed_attempts_are_retries() -> None:
    counts = (2, 10, 4, 5, 0, 3, 1, 1)
    assert usage_of(counts, None) == usage_of(counts, "text") == Usage(*counts)
    assert usage_of(counts, Failure("LLMError", "m", 6).encode()).retries == 3 + 5
    believed = usage_of(counts, json.dumps({"kind": "K", "message": "m", "attempts": 10**15})).retries
    assert 3 < believed < 2**31


class Silent(LLMError):
    """An error of somebody's own that tells its base nothing."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("attempts", ["3", None, 1.5, [], -4])
def test_an_error_that_says_odd_things_of_itself_is_still_recorded(attempts: object) -> None:
    error = LLMError("busy", attempts=attempts, retryable="often")
    assert Failure.decode(Failure.of(error).encode()) == Failure("LLMError", "busy", 1, True, "endpoint")
    assert Failure.of(Silent()) == Failure("Silent", "", blame="endpoint")
