"""10,000 requests in flight in one worker, with replies that take ten seconds: memory, its growth, and fairness.

A rollout is three turns with a tool call after each but the last. A worker takes a quarter more tasks than it has
requests (`slots`), so that 12,500 rollouts are live and 2,500 of them wait for their turn to ask. What is counted:

* *Memory a rollout*: resident memory of the worker, less what it had when it was ready and had no task yet, by live
  rollouts: sampled twice a second while the crowd is complete; the median, and the slope of a straight line through
  all samples. It holds the sockets' buffers in user space, aiohttp's and Python's objects, and the tree.
* *Waits*: from the stub's handing out an answer to its having the next request of the same rollout whole. It holds the
  tool, the wait for a free request, and what the worker does meanwhile. All replies take equally long here, so that
  they come in waves, and who finds all requests taken waits for the next wave. So they are measured a second time with
  10,000 rollouts only, where everybody has a request: what is left is the queue in the worker.

`pytest benches/test_crowd.py --benchmark-only --crowd-minutes 5` watches for five minutes; 45 seconds are the default.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

import work
from conftest import Stub, client_cpu
from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.observability.observers import Progress
from trunkline.runner.run import run

LATENCY, TURNS = 10.0, 3
IN_FLIGHT, LIVE = 10_000, 12_500
CROWD = Agent(model=f"stub-{TURNS}", tools=[work.lookup], system=work.AGENT.system, max_turns=TURNS)

pytestmark = pytest.mark.timeout(1200)


class Watch:
    """Samples the memory of a run's worker in a thread, as long as the crowd is complete.

    Args:
        tasks: How many rollouts the run has.
        live: How many live at once.
    """

    def __init__(self, tasks: int, live: int) -> None:
        self.empty = 0
        self.samples: list[tuple[float, int]] = []
        self._tasks = tasks
        self._live = live
        self._pid = 0
        self._shot: Progress | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def __call__(self, shot: Progress) -> None:
        """Look at a run; its worker has no task yet when this is called first."""
        if not self._pid:
            self._pid = worker()
            self.empty = resident(self._pid)
        self._shot = shot

    def _sample(self) -> None:
        began = time.monotonic()
        while not self._over.wait(0.5):
            shot = self._shot
            # Not before the second turn: by then everybody has a connection and a first turn.
            if shot is not None and shot.calls > self._live and self._tasks - shot.rollouts_done >= self._live:
                self.samples.append((time.monotonic() - began, resident(self._pid)))

    def memory(self) -> float:
        """Bytes a live rollout."""
        return statistics.median(size - self.empty for _, size in self.samples) / self._live

    def growth(self) -> float:
        """Bytes a minute, all live rollouts together."""
        return 60 * statistics.linear_regression(*zip(*self.samples, strict=True)).slope


def worker() -> int:
    """The process id of the one worker of this process."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if b"trunkline.worker.main" in Path(f"/proc/{pid}/cmdline").read_bytes())


def resident(pid: int) -> int:
    """Bytes of memory that a process has; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (FileNotFoundError, ProcessLookupError):
        return 0


@contextlib.contextmanager
def descriptors_for(connections: int) -> Iterator[None]:
    """As many descriptors as the system allows, for the stub and the worker, which inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < connections + 500:
        pytest.skip(f"{connections} connections need a higher limit of open files than {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Descriptors for all requests."""
    with descriptors_for(IN_FLIGHT):
        yield


def print_figures(benchmark, capsys, figures: dict[str, float]) -> None:
    """Keep the figures, and print them."""
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        print("\n" + "  ".join(f"{name} {value:,.2f}" for name, value in figures.items()))


def waited(waits: dict[str, float]) -> dict[str, float]:
    """How long rollouts waited between a reply and their next request."""
    return {
        "in_flight": waits["peak"],
        "wait_p50_s": waits["p50"] / 1e6,
        "wait_p99_s": waits["p99"] / 1e6,
        "wait_max_s": waits["max"] / 1e6,
        "longest_to_median": waits["max"] / waits["p50"],
    }


@pytest.mark.usefixtures("descriptors")
def test_ten_thousand_at_once_with_a_request_each(benchmark, capsys):
    with Stub(latency=1000 * LATENCY) as stub:
        llm = LLM(stub.url, max_concurrency=IN_FLIGHT)
        result = benchmark.pedantic(lambda: run(CROWD, work.tasks(IN_FLIGHT), llm=llm, workers=1, seed=1), rounds=1)
        waits = stub.report()
    assert result.summary().usage.calls == waits["requests"] == TURNS * IN_FLIGHT
    print_figures(benchmark, capsys, waited(waits))


def crowd(live: int, minutes: float) -> dict[str, float]:
    """Watch a run with so many live rollouts, four of five with a request in flight, for some minutes."""
    in_flight = live * IN_FLIGHT // LIVE
    wave = TURNS * LATENCY * live / in_flight
    tasks = int(max(live, live * 60 * minutes / wave))
    with Stub(latency=1000 * LATENCY) as stub, Watch(tasks, live) as watch:
        llm = LLM(stub.url, max_concurrency=in_flight)
        used = -client_cpu()
        result = run(CROWD, work.tasks(tasks), llm=llm, workers=1, seed=1, watch=watch)
        used += client_cpu()
        waits = stub.report()
        server = stub.cpu()
    assert result.summary().usage.calls == waits["requests"] == TURNS * tasks
    return waited(waits) | {
        "kb_per_rollout": watch.memory() / 1000,
        "growth_mb_per_minute": watch.growth() / 1e6,
        "samples": len(watch.samples),
        "client_us_per_call": 1e6 * used / waits["requests"],
        "server_us_per_call": 1e6 * server / waits["requests"],
    }


@pytest.mark.usefixtures("descriptors")
def test_ten_thousand_at_once(benchmark, request, capsys):
    minutes = request.config.getoption("--crowd-minutes")
    print_figures(benchmark, capsys, benchmark.pedantic(lambda: crowd(LIVE, minutes), rounds=1))
