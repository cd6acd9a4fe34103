"""Runs that go on from an earlier one: what they take over, what they refuse, and that nobody pays twice."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trunkline.agent import Agent
from trunkline.cli.demo import simulator
from trunkline.errors import ConfigError, RunFileError
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.scoring.rewards import contains, exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.strategies.partial import Partial
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.types import Task

SURE = Sampling(logprobs=True, top_logprobs=8)

BROKEN_OFF = """
import sys
from trunkline.llm.request import Sampling
from trunkline.llm.config import LLM
from trunkline.agent import Agent
from trunkline.strategies.chain import Chain
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import search, visit
from trunkline.store.datasets.loader import load_tasks
url, questions, out = sys.argv[1:]
run(Agent(model="sim-agent", tools=[search, visit], max_turns=12, sampling=Sampling(logprobs=True, top_logprobs=8)),
    load_tasks(questions, limit=12), llm=LLM(url, max_concurrency=6), strategy=Chain(2), reward=exact_match,
    workers=2, seed=5, out=out)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 400, 60), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CORPUS_VARIABLE, str(folder / "corpus.jsonl"))
        yield folder


@pytest.fixture(scope="module")
def tasks(world: Path) -> list[Task]:
    return load_tasks(str(world / "questions.jsonl"), limit=12)


def agent(**changes: Any) -> Agent:
    return Agent(**({"model": "sim-agent", "tools": [search, visit], "max_turns": 12, "sampling": SURE} | changes))


@pytest.fixture(scope="module")
def chains(url: str, tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An earlier run: two chains of each question."""
    out = tmp_path_factory.mktemp("runs") / "chains"
    return run(agent(), tasks, llm=LLM(url), strategy=Chain(2), reward=exact_match, workers=2, seed=5, out=out)


def go_on(url: str, earlier: Any, tasks: list[Task] | None = None, player: Agent | None = None, **options: Any) -> Run:
    given = {"strategy": Partial(initial=2, budget=16), "reward": exact_match, "workers": 0, "continue_from": earlier}
    return run(player or agent(), tasks, llm=LLM(url), **(given | options))


@pytest.fixture(scope="module")
def continued(url: str, chains: Run) -> Run:
    """The run that goes on from the chains, all in this process."""
    return go_on(url, chains)


def digests(found: Run) -> dict[str, str]:
    return {tree.task.id: tree.digest() for tree in found}


def checked(found: Run) -> RunReader:
    reader = RunReader.open(found.path)
    assert reader.check() == []
    return reader


def test_the_trees_go_on_the_same_for_any_number_of_workers(url: str, chains: Run, continued: Run, tasks: list[Task]):
    alone, many = continued, go_on(url, str(chains.path), workers=2)
    assert digests(alone) == digests(many)
    before = {tree.task.id: tree for tree in chains}
    for tree in alone:
        old = before[tree.task.id]
        assert [rollout.path for rollout in tree.rollouts[:2]] == [rollout.path for rollout in old.rollouts]
        assert [rollout.answer for rollout in tree.rollouts[:2]] == [rollout.answer for rollout in old.rollouts]
        assert 2 < len(tree.rollouts) <= 16
        tree.core.check()
    assert {tree.task.id for tree in alone} == {task.id for task in tasks}
    branched = [rollout for tree in alone for rollout in tree.rollouts if len(rollout.path) > 2]
    assert len(branched) > 12, "turns in the middle were drawn again"


def test_what_the_earlier_run_paid_is_not_paid_again(url: str, chains: Run, continued: Run):
    earlier, found = chains.summary(), continued
    with checked(found) as reader:
        summary, taken = reader.summary(), dict(reader.taken())
        calls = sum(1 for _ in reader.calls())
        drawn = sum(call.draws for _, call in reader.calls())
        carried = sum(row.usage.calls for row in taken.values())
        assert calls > 0
    everything = sum(tree.usage.calls for tree in found)
    assert carried == earlier.usage.calls
    assert summary.usage.calls == everything - earlier.usage.calls == drawn
    assert summary.taken is not None
    assert (summary.taken.trees, summary.taken.rollouts, summary.taken.growing) == (12, 24, 0)
    assert summary.taken.run == str(chains.path)
    assert {row.digest for row in taken.values()} == {tree.digest() for tree in chains}
    assert summary.rollouts == sum(len(tree.rollouts) for tree in found)


def test_a_run_that_goes_on_can_be_gone_on_from(url: str, continued: Run, tasks: list[Task]):
    with checked(go_on(url, continued, tasks[:2])) as reader:
        taken = reader.summary().taken
    assert taken is not None
    assert taken.rollouts == sum(len(continued[task.id].rollouts) for task in tasks[:2])


def test_some_tasks_may_be_named(url: str, chains: Run, continued: Run, tasks: list[Task]):
    found = go_on(url, chains, [tasks[3], tasks[1]])
    assert [tree.task.id for tree in found] == [tasks[3].id, tasks[1].id]
    assert digests(found).items() <= digests(continued).items()


@pytest.fixture(scope="module")
def broken_off(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run file of :func:`chains`, had its processes been killed in the middle."""
    out = tmp_path_factory.mktemp("broken") / "off"
    with simulator("default", True) as slow:
        command = [sys.executable, "-c", BROKEN_OFF, slow, str(world / "questions.jsonl"), str(out)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 60
            while turns(out) < 25:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    return out


def turns(out: Path) -> int:
    try:
        with RunReader.open(out) as reader:
            return sum(1 for _ in reader.calls())
    except (RunFileError, sqlite3.Error):
        return 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_was_killed_goes_on_to_the_trees_it_would_have_grown(
    url: str, continued: Run, broken_off: Path, workers: int
):
    with RunReader.open(broken_off) as reader:
        growing = sum(len(reader.tree(name).core.growing) for name in reader.task_ids())
        finished = sum(1 for _ in reader.rows())
        state = reader.meta["state"]
    assert (state, growing > 0, finished < 12) == ("running", True, True)
    found = go_on(url, broken_off, workers=workers)
    assert digests(found) == digests(continued), "the seed is the earlier run's"
    with checked(found) as reader:
        summary = reader.summary()
        assert summary.taken.growing == growing
        assert summary.finished == 12
    assert "growing" not in summary.terminations


def test_other_sampling_is_recorded_with_its_turns(url: str, chains: Run, tasks: list[Task]):
    found = go_on(url, chains, tasks[:2], agent(sampling=Sampling(logprobs=True, top_logprobs=8, temperature=0.5)))
    with checked(found) as reader:
        told = reader.settings
    assert told["continues"]["settings"]["agent"]["sampling"] != told["agent"]["sampling"]
    names = {node.namespace for tree in found for node in tree.nodes if node.namespace}
    assert len(names) == 2, "turns of both are told apart"


def refused(url: str, earlier: Any, tmp_path: Path, *rest: Any, **options: Any) -> str:
    with pytest.raises((ConfigError, RunFileError)) as problem:
        go_on(url, earlier, *rest, out=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists(), "no file is left"
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_what_cannot_go_on_is_refused_before_the_run(url: str, chains: Run, tasks: list[Task], tmp_path: Path):
    for strategy in (Anew(), TreeGRPO()):
        said = refused(url, chains, tmp_path, strategy=strategy)
        assert f"strategy {type(strategy).__name__} begins every task anew" in said
    said = refused(url, chains, tmp_path, None, agent(system="Be\x1b[31m brief."))
    assert f'the prompt of task "{tasks[0].id}"' in said
    assert "\x1b" not in said
    said = refused(url, chains, tmp_path, None, agent(tools=[search]))
    assert "tools must be as in" in said
    assert "search, visit there, search here" in said
    assert "dialect" in refused(url, chains, tmp_path, None, agent(dialect="hermes"))
    assert "exact_match there, contains here" in refused(url, chains, tmp_path, reward=contains)
    assert "not in" in refused(url, chains, tmp_path, [Task.ask("Who?", id="nobody")])
    lenient = msgspec.structs.replace(tasks[0], reference=("anything",))
    assert "other reference" in refused(url, chains, tmp_path, [lenient])
    other = Task.ask("Who?", id=tasks[0].id)
    assert "other messages" in refused(url, chains, tmp_path, [other])
    assert "no such run file" in refused(url, tmp_path / "none", tmp_path)
    assert "continue_from must be a run or the path" in refused(url, 7, tmp_path)


class Anew(Chain):
    """Begins every task anew."""

    continues = False


def test_another_system_prompt_is_shown_where_it_differs(url: str, tasks: list[Task], tmp_path: Path):
    first = run(agent(system="Answer in one word."), tasks[:1], llm=LLM(url), workers=0, out=tmp_path / "one")
    said = refused(url, first, tmp_path, None, agent(system="Answer in two\x1b[31m words."), reward=None)
    assert "one word" in said
    assert "two" in said


def test_a_run_without_log_probabilities_is_refused_where_they_choose(url: str, tasks: list[Task], tmp_path: Path):
    plain = run(agent(sampling=Sampling()), tasks[:2], llm=LLM(url), workers=0, out=tmp_path / "plain")
    said = refused(url, plain, tmp_path, reward=None)
    assert "log-probabilities of the region 'tool'" in said
    assert "top_logprobs" in said


def test_a_run_that_still_goes_on_is_refused(url: str, chains: Run, tmp_path: Path):
    file = os.open(chains.path, os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        assert "is still running" in refused(url, chains, tmp_path)
    finally:
        os.close(file)


def test_a_file_that_says_other_than_its_deltas_about_what_it_took_over_is_found_out(
    url: str, chains: Run, tasks: list[Task]
):
    found = go_on(url, chains, tasks[:1])
    with sqlite3.connect(found.path) as file:
        file.execute("UPDATE taken SET generated = generated + 1, digest = 'x' WHERE task = 0")
    with RunReader.open(found.path) as reader:
        told = reader.check()
    assert any("taken: digest is" in line for line in told), told
    assert any("taken: generated is" in line for line in told), told


def test_a_damaged_file_is_refused_by_name_of_the_task(url: str, chains: Run, tasks: list[Task], tmp_path: Path):
    broken = tmp_path / "broken"
    broken.write_bytes(chains.path.read_bytes())
    with sqlite3.connect(broken) as file:
        file.execute("UPDATE deltas SET data = substr(data, 1, length(data) - 1) WHERE delta = (3 << 32) + 1")
    file.close()
    said = refused(url, broken, tmp_path)
    assert "is damaged" in said
    assert tasks[3].id in said
