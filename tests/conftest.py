"""Where engines may live: the same tests run over every pool; and options for faults at their full scale."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from atlas import agent
from foreign import capital_cities, serving
from hypothesis import HealthCheck, settings
from trunkline_children import SHARED, children

from trunkline.backends import ray_cluster as cluster
from trunkline.cli.demo import simulator
from trunkline.runner.pool import Pool
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.types import Task


def pytest_itemcollected(item: pytest.Item) -> None:
    """Rollouts that break in a test that is not marked for that are an error."""
    if item.get_closest_marker("breaks_rollouts") is not None:
        item.add_marker(pytest.mark.filterwarnings("ignore::trunkline.errors.BrokenRolloutsWarning"))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the questions and the corpus of a small world."""
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 400, 60), folder)
    return folder


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The base URL of a simulator of the default preset that answers at once, in a process of its own."""
    with simulator("default", latency=False) as url:
        yield url


@pytest.fixture
def tasks(world: Path, monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Three questions of that world, whose corpus the tools find."""
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    return load_tasks(str(world / "questions.jsonl"), limit=3)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of tests that have a size."""
    parser.addoption("--full-faults", action="store_true", help="faults at their full scale, not at that of a commit")
    parser.addoption("--chaos-tasks", type=int, default=50, help="tasks of a run that is disturbed (50; try 500)")
    parser.addoption("--chaos-kills", type=int, default=5, help="kills a run (5; try 100)")
    parser.addoption("--chaos-seed", type=int, default=0, help="seed of who is killed and when (0)")


def pytest_configure(config: pytest.Config) -> None:
    """Let a module know the scale when it is imported, in which its cases are made; signals are as in a terminal."""
    # Nothing depends on the time that a machine takes.
    settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")
    if config.getoption("--full-faults"):
        os.environ["TRUNKLINE_FULL_FAULTS"] = "1"
    # Commands buffer what they print, as for most users, whatever the shell of the tests has set.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # A program that is started inherits a signal that is ignored (nohup, a background job), and gets the default of
    # one that is handled. The session itself goes on ignoring it.
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(signum) == signal.SIG_IGN:
            signal.signal(signum, lambda *_: None)


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """A Ray of this process, which all of the session share: its start takes seconds."""
    pytest.importorskip("ray")
    assert asyncio.run(cluster.join(None, 2)).made, "nobody else has connected this process"
    yield
    asyncio.run(cluster.leave())


@pytest.fixture(scope="session")
def ray_pool(ray_here: None, world: Path) -> Iterator[Pool]:
    """A pool of two actors for all tests that leave it whole. Ray was there before the variable, and provides it."""
    provided = {"env_vars": {CORPUS_VARIABLE: str(world / "corpus.jsonl")}}
    with Pool("ray", workers=2, runtime_env=provided) as pool:
        yield pool


@pytest.fixture(scope="session")
def local_pool() -> Iterator[Pool]:
    """A pool of one worker process for all tests that leave it whole and need no environment of their own."""
    before = children()
    with serving(capital_cities) as server, Pool(workers=1) as pool:
        pool.run(agent(), [Task.ask("Capital of France?")], llm=server.url)
        SHARED.update(set(children()) - set(before))
        yield pool


@pytest.fixture(params=["inline", "one worker", "two workers", pytest.param("ray", marks=pytest.mark.pool)])
def where(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of a run that say where its engines live."""
    if request.param == "ray":
        return {"pool": request.getfixturevalue("ray_pool")}
    return {"workers": {"inline": 0, "one worker": 1, "two workers": 2}[request.param]}
