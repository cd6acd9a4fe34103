from __future__ import annotations

import json

import pytest

from trunkline.tree.failure import Broken, broken, usage_of
from trunkline.types import Usage


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (None, None),
        ("", None),
        ("no reply", Broken("no reply")),
        ('{"kind":"LLMError","message":"busy","attempts":6,"retryable":true}', Broken("busy", 6)),
        ('{"message":"busy"}', Broken("busy")),
        ('{"message":"busy","attempts":-3}', Broken("busy")),
        ('{"message":5}', Broken('{"message":5}')),
        ('["busy"]', Broken('["busy"]')),
        ("null", Broken("null")),
        ("[" * 5_000, Broken("[" * 5_000)),
        ("\ud800", Broken("\ud800")),
    ],
)
def test_recorded_failures(error: str | None, found: Broken | None) -> None:
    assert broken(error) == found


def test_failed_attempts_are_retries() -> None:
    counts = (2, 10, 4, 5, 0, 3, 1, 1)
    assert usage_of(counts, None) == usage_of(counts, "text") == Usage(*counts)
    assert usage_of(counts, json.dumps({"message": "m", "attempts": 6})).retries == 3 + 5
    believed = usage_of(counts, json.dumps({"message": "m", "attempts": 10**15})).retries
    assert 3 < believed < 2**31
