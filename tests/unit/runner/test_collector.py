"""The garbage collector while rollouts grow here, and afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import trunkline as tl
from trunkline._internal.resources import Collector
from trunkline.errors import EndpointError
from trunkline.types import Task

OWN = (700, 10, 10)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*OWN)
    yield
    gc.set_threshold(*before)


def test_it_looks_less_often_during_a_run_and_as_before_after_it():
    seen = []

    def generate(prompts: list) -> list[str]:
        seen.append(gc.get_threshold())
        return ["4"] * len(prompts)

    tl.run(tl.Agent(model="m"), [Task.ask("2 + 2?")], llm=tl.BatchLLM(generate))
    assert seen[0][0] > OWN[0]
    assert gc.get_threshold() == OWN


def test_the_last_of_several_runs_restores_it():
    collector = Collector()
    collector.relax()
    collector.relax()
    collector.restore()
    assert gc.get_threshold() != OWN
    collector.restore()
    assert gc.get_threshold() == OWN


@pytest.mark.parametrize("own", [(0, 10, 10), (10**6, 10, 10)], ids=["off", "rare"])
def test_one_that_is_off_or_rarer_already_is_left_alone(own: tuple[int, int, int]):
    gc.set_threshold(*own)
    collector = Collector()
    collector.relax()
    assert gc.get_threshold() == own
    collector.restore()
    assert gc.get_threshold() == own


def test_generations_that_are_looked_at_less_often_already_stay_so():
    gc.set_threshold(10_000, 50, 1000)
    collector = Collector()
    collector.relax()
    first, second, third = gc.get_threshold()
    assert (first > 10_000, second, third) == (True, 50, 1000)
    collector.restore()
    assert gc.get_threshold() == (10_000, 50, 1000)


def test_it_is_restored_by_a_python_without_a_third_threshold(monkeypatch: pytest.MonkeyPatch):
    real = gc.get_threshold
    monkeypatch.setattr(gc, "get_threshold", lambda: (*real()[:2], 0))
    collector = Collector()
    collector.relax()
    assert real()[0] > OWN[0]
    collector.restore()
    assert real()[:2] == OWN[:2]


def test_a_run_that_fails_restores_it():
    def generate(prompts: list) -> list[str]:
        raise EndpointError("gone")

    with pytest.raises(EndpointError):
        tl.run(tl.Agent(model="m"), [Task.ask("2 + 2?")], llm=tl.BatchLLM(generate))
    assert gc.get_threshold() == OWN


def test_what_somebody_sets_meanwhile_stays():
    collector = Collector()
    collector.relax()
    gc.set_threshold(123, 4, 5)
    collector.restore()
    assert gc.get_threshold() == (123, 4, 5)
