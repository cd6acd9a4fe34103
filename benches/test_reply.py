"""Perplexity of a reply with log-probabilities, from its raw bytes: the native reader beside readers in Python."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import pytest

from rivals import reply as rivals
from trunkline._core import read_reply

TOKENS, WIDTH = 200, 16
WORDS = (" the", " search", "\n", " of", "ing", ' "', "\u00e9", " of", " woman")


def body() -> bytes:
    """A reply of 200 tokens that lists the 16 likeliest at each place, as Python servers write it: about 272 KB."""
    draw = random.Random(7)

    def entry(logprob: float) -> dict:
        word = draw.choice(WORDS)
        return {"token": word, "logprob": logprob, "bytes": list(word.encode())}

    content = []
    for _ in range(TOKENS):
        listed = sorted((-draw.expovariate(0.4) for _ in range(WIDTH)), reverse=True)
        content.append(entry(listed[0]) | {"top_logprobs": [entry(logprob) for logprob in listed]})
    message = {"role": "assistant", "content": "".join(one["token"] for one in content)}
    choice = {"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": TOKENS}}).encode()


def native(data: bytes) -> float:
    """Read with the core."""
    return read_reply(data).choices[0].tokens.perplexity[2]


def seconds(read: Callable[[bytes], float], data: bytes, calls: int = 5) -> float:
    """Seconds of one call, the least of some."""
    best = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        read(data)
        best = min(best, time.perf_counter() - start)
    return best


def test_reply(benchmark, capsys) -> None:
    """The three give one perplexity; how many times longer the others take is printed and kept."""
    data = body()
    others = {"json": rivals.with_json, "msgspec": rivals.with_msgspec}
    expected = benchmark(native, data)
    rounds = [{name: seconds(read, data) for name, read in ({"core": native} | others).items()} for _ in range(5)]
    for name, read in others.items():
        assert read(data) == pytest.approx(expected, rel=1e-5)
        ratio = sorted(timed[name] / timed["core"] for timed in rounds)[2]
        benchmark.extra_info[f"{name} / core"] = round(ratio, 2)
        with capsys.disabled():
            print(f"\n{name} takes {ratio:.1f} times as long as the core for a reply of {len(data) / 1000:.0f} KB")
