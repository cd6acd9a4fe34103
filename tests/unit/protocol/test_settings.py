"""What the run file says of a job."""

from __future__ import annotations

import msgspec
import pytest
from atlas import agent

from trunkline.llm.config import EndpointSpec
from trunkline.protocol.job import Job, settings
from trunkline.strategies.base import Fork, Strategy, View
from trunkline.strategies.mcts import MCTS
from trunkline.tree.views import Trajectory


def promising(rollout: Trajectory) -> float:
    return 0.5


class Plain:
    def rollouts(self) -> int:
        return 1

    def start(self, view: View) -> list[Fork]:
        return [Fork()]

    def __repr__(self) -> str:
        return "Plain()"


class Odd(msgspec.Struct):
    thing: object = None

    def rollouts(self) -> int:
        return 1

    def start(self, view: View) -> list[Fork]:
        return [Fork()]


def job(strategy: Strategy) -> Job:
    llm = EndpointSpec("http://127.0.0.1:9/v1")
    return Job(agent=agent(), strategy=strategy, reward=None, llm=llm, seed=1)


@pytest.mark.parametrize(
    ("strategy", "kind", "option"),
    [
        (MCTS(3, value=promising), "MCTS", ("value", "promising")),
        (Plain(), "Plain", "Plain()"),
        (Odd(promising), "Odd", ("thing", "promising")),
    ],
)
def test_options_are_data_and_functions_go_by_name(strategy: Strategy, kind: str, option: object):
    described = settings(job(strategy))["strategy"]
    assert described["kind"] == kind
    assert described["options"] == option if isinstance(option, str) else option in described["options"].items()


def test_options_that_are_no_data_are_told_as_text():
    assert settings(job(Odd(object())))["strategy"]["options"].startswith("Odd(thing=<object object")
