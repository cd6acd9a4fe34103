"""What the runtime costs: deaths and restarts, the controller's share, and the bytes of a run file.

* A death: one worker process with a job, killed by SIGKILL; milliseconds until its end is known to the controller, and
  from then on until another one in its place is ready for tasks. Beside it, as the floor, a bare interpreter's start
  and the same with the modules that a worker imports.
* The controller: CPU of the controlling process alone (workers and the server are others) over 2,000 rollouts of two
  calls, start-up subtracted; a finished rollout's share.
* The file: bytes of a closed run file of the embedded world a model turn, beside what its messages come to as text:
  once for each request that sends them (as logs of requests keep them), once for each node (shared prefixes once).
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uvloop

import work
from conftest import Stub
from trunkline.agent import Agent
from trunkline.backends.local import LocalBackend
from trunkline.cli.demo import simulator
from trunkline.llm.config import LLM
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.job import Job
from trunkline.protocol.messages import WorkerReady
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO

DEATHS = 9


def start(*arguments: str) -> float:
    """Seconds that an interpreter takes to start, do this and end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True)
    return time.perf_counter() - began


async def deaths() -> list[tuple[float, float]]:
    """Kill a worker, again and again; seconds until it was noticed, and until another one was ready."""
    llm = LLM("http://127.0.0.1:9/v1", max_concurrency=8)
    job = Job(agent=work.AGENT, strategy=Chain(1), reward=exact_match, llm=llm, seed=1)
    backend, inbox = LocalBackend(1), asyncio.Queue()
    found = []
    (worker_id,) = await backend.start(job, inbox)
    try:
        for _ in range(DEATHS):
            pid = (await told(inbox, worker_id, WorkerReady)).pid
            began = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            await told(inbox, worker_id, WorkerExited)
            noticed = time.perf_counter()
            worker_id = await backend.replace(worker_id)
            ready = await told(inbox, worker_id, WorkerReady)
            found.append((noticed - began, time.perf_counter() - noticed))
            inbox.put_nowait((worker_id, ready))
    finally:
        await backend.close()
    return found


async def told(inbox: asyncio.Queue, worker_id: int, kind: type) -> object:
    """The next message of a kind from a worker."""
    while True:
        number, message = await inbox.get()
        if number == worker_id and isinstance(message, kind):
            return message


def test_a_death_is_noticed_and_another_worker_is_ready(benchmark, capsys):
    found: list[tuple[float, float]] = []
    benchmark.pedantic(lambda: found.extend(uvloop.run(deaths())), rounds=1)
    noticed, ready = (1e3 * statistics.median(column) for column in zip(*found, strict=True))
    bare = 1e3 * statistics.median(start("-c", "pass") for _ in range(5))
    modules = 1e3 * statistics.median(start("-c", "import trunkline.worker.main") for _ in range(5))
    figures = {"noticed_ms": noticed, "ready_ms": ready, "interpreter_ms": bare, "imports_ms": modules}
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        print("\n" + "  ".join(f"{name} {value:,.2f}" for name, value in figures.items()))


def own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("workers", [1, 2])
def test_the_controllers_share_of_a_rollout(benchmark, stub: Stub, capsys, workers: int):
    def cost(tasks: int, each: int) -> float:
        before = own_cpu()
        llm = LLM(stub.url, max_concurrency=64)
        run(work.AGENT, work.tasks(tasks), llm=llm, strategy=Chain(each), reward=exact_match, workers=workers, seed=1)
        return own_cpu() - before

    found: list[float] = []
    benchmark.pedantic(lambda: found.append(cost(500, 4)), rounds=5)
    idle = statistics.median(cost(1, 1) for _ in range(5))
    each = 1e6 * (statistics.median(found) - idle) / 2000
    benchmark.extra_info.update(controller_us_per_rollout=each, start_up_ms=1e3 * idle)
    with capsys.disabled():
        print(f"\n{workers} workers: controller {each:,.1f} us a finished rollout; start-up {1e3 * idle:,.1f} ms")


@pytest.mark.parametrize("strategy", [Chain(4), TreeGRPO(trees=2, forks=2, rounds=1)], ids=["chains", "trees"])
def test_bytes_of_a_run_file(benchmark, capsys, monkeypatch, tmp_path: Path, strategy: object):
    write_world(make_world(0), tmp_path)
    monkeypatch.setenv(CORPUS_VARIABLE, str(tmp_path / "corpus.jsonl"))
    tasks, file = load_tasks(str(tmp_path / "questions.jsonl"), limit=100), tmp_path / "r.run"
    agent = Agent(model="sim-agent", tools=[search, visit], max_turns=20)
    with simulator("default", False) as url:
        options = {"llm": LLM(url), "strategy": strategy, "reward": exact_match, "workers": 0, "seed": 1}
        benchmark.pedantic(lambda: run(agent, tasks, out=file, **options), rounds=1)
    requests = nodes = turns = 0
    with RunReader.open(file) as reader:
        for tree in reader.trees():
            core = tree.core
            sizes = [len(core.message(node)) if node else 0 for node in range(len(core))]
            nodes += sum(sizes)
            for number in range(core.rollouts):
                path = core.path(core.rollout(number).leaf)
                for place, node in enumerate(path):
                    if core.node(node).kind == 2:
                        turns += 1
                        requests += sum(sizes[before] for before in path[: place + 1])
    with sqlite3.connect(file) as connection:
        (deltas,) = connection.execute("SELECT sum(length(data)) FROM deltas").fetchone()
    connection.close()
    size = file.stat().st_size
    figures = {
        "file_bytes_per_turn": size / turns,
        "delta_bytes_per_turn": deltas / turns,
        "text_of_requests_per_turn": requests / turns,
        "text_of_nodes_per_turn": nodes / turns,
        "file_to_requests": size / requests,
        "file_to_nodes": size / nodes,
    }
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        print("\n" + "  ".join(f"{name} {value:,.2f}" for name, value in figures.items()))
