"""What the run file says of a job."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from atlas import agent
from notebook import Notebook, look

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.protocol.job import Job, settings
from trunkline.runner.stored_job import STORED, store_job, stored_job, stored_judges
from trunkline.scoring.filters.builtin import ZeroVariance
from trunkline.scoring.rewards import exact_match
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
    llm = LLM("http://127.0.0.1:9/v1")
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


def test_a_stored_job_and_the_judges_of_its_file_have_tools_and_their_environment(tmp_path: Path):
    noting = Agent(model="m", tools=[look], environment=Notebook)
    llm = LLM("http://127.0.0.1:9/v1")
    given = Job(agent=noting, strategy=MCTS(3), reward=exact_match, llm=llm, seed=1, filters=[ZeroVariance()])
    meta = {STORED: msgspec.json.encode(store_job(given, 2, durable=True)).decode()}
    found, stored = stored_job(tmp_path / "run", meta)
    assert settings(found) == settings(given)
    assert (stored.workers, stored.durable) == (2, True)
    judges, asker = stored_judges(tmp_path / "run", meta)
    assert judges == (ZeroVariance(),)
    assert (asker.environment, [tool.name for tool in asker.tools]) == (Notebook, ["look"])
