"""One limit for all workers, as a server sees it: in flight, rates, budgets, also when workers die."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from atlas import CAPITALS, agent
from foreign import message, serving
from trunkline_children import children

from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.llm.types import Limits
from trunkline.rollout.budget import Budget
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.store.stats.summary import budget_report
from trunkline.strategies.chain import Chain
from trunkline.types import Task


def many(n: int) -> list[Task]:
    return [Task.ask(f"Capital of France, for the {number}th time?", id=str(number)) for number in range(n)]


class Meter:
    """A server that counts what is in flight, and kills a worker at some of its requests.

    Args:
        delay: Seconds that an answer takes.
        kills: Numbers of the requests at which a worker dies.
    """

    def __init__(self, delay: float, kills: tuple[int, ...] = ()) -> None:
        self.delay, self.kills = delay, kills
        self.now = self.peak = self.cut = 0
        self.times: list[float] = []
        self.killed: set[int] = set()

    async def __call__(self, body: dict) -> dict:
        self.times.append(time.monotonic())
        self.now += 1
        self.peak = max(self.peak, self.now)
        if len(self.times) in self.kills:
            self._kill()
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        finally:
            self.now -= 1
        return message(f"<answer>{CAPITALS['France']}</answer>") | {
            "usage": {"prompt_tokens": 10, "completion_tokens": 10}
        }

    def _kill(self) -> None:
        alive = sorted(set(children()) - self.killed)
        if alive:
            self.killed.add(alive[0])
            os.kill(alive[0], signal.SIGKILL)


@pytest.mark.parametrize("each", [None, 4])
def test_four_workers_use_all_slots_and_never_one_more(each: int | None):
    meter = Meter(0.05)
    with serving(meter) as server:
        llm = LLM(server.url, max_concurrency=6, limits=Limits(endpoint_concurrency=each))
        result = run(agent(), many(60), llm=llm, workers=4)
    assert len(result) == len(meter.times) == 60
    assert meter.peak == (each or 6)


def test_one_worker_with_all_the_work_uses_the_slots_of_the_other():
    meter = Meter(0.4)
    with serving(meter) as server:
        llm = LLM(server.url, max_concurrency=8)
        # Sixteen rollouts of one task are one worker's.
        run(agent(), many(1), llm=llm, strategy=Chain(32), workers=2)
    assert len(meter.times) == 32
    assert 4 < meter.peak <= 8


def test_slots_of_killed_workers_are_used_by_others_and_none_is_used_twice():
    meter = Meter(0.1, kills=(12, 30))
    with serving(meter) as server:
        result = run(agent(), many(60), llm=LLM(server.url, max_concurrency=8, max_retries=0), workers=3)
    assert len(meter.killed) == 2
    assert len(result) == 60
    # A server hears of a closed socket a moment later; what a worker had in flight may stand beside its successor's.
    assert meter.peak <= 8 + 3
    assert 60 <= len(meter.times) <= 60 + 2 * 8


def test_rates_are_those_of_the_run_and_not_of_each_worker():
    meter = Meter(0.01)
    with serving(meter) as server:
        llm = LLM(server.url, max_concurrency=8, limits=Limits(requests_per_minute=600))
        run(agent(), many(30), llm=llm, workers=3)
    times = meter.times
    # Ten at once, and ten a second from then on.
    assert times[-1] - times[0] >= 0.9 * (30 - 10) / 10
    for first in range(len(times) - 16):
        assert times[first + 16] - times[first] >= 0.3


def test_eight_workers_that_are_killed_spend_no_more_than_the_budget(tmp_path: Path):
    meter = Meter(0.05, kills=(5, 15, 25, 35))
    with serving(meter) as server:
        result = run(
            agent(sampling=Sampling(max_tokens=50)),
            many(120),
            llm=LLM(server.url, max_concurrency=16, max_retries=0),
            workers=8,
            budget=Budget(calls=60),
            out=tmp_path / "r",
        )
    assert meter.killed
    assert result.state == "budget"
    assert len(meter.times) <= 60, "each request was set aside before it was sent"
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []
        noted = budget_report(reader.meta)
    assert len(meter.times) <= noted.spent["calls"] <= 60
    assert noted.overshoot == {"calls": 0}
    assert noted.spent["calls"] - noted.estimated["calls"] <= len(meter.times)
