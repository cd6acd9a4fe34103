"""What a model call costs a client: Trunkline beside AsyncOpenAI and loops written by hand, in one run.

All clients play the same conversations against one stub in another process, each in a process of its own, in turns,
three rounds; figures are medians. A conversation calls a tool in every turn but its last, where it answers; the answer
is checked. What is counted:

* *CPU a call*: user and system time of the client's process, and of its workers, while it plays; the imports and a
  warm-up are not in it. Of a whole run (`trunkline, inline`, or with workers: tree, tool, scoring and run file
  included) what a run of as many conversations as are in flight takes is subtracted: a difference of two lengths.
* *Added latency*: from the stub's handing out an answer to its having the next request of the same conversation whole,
  as the stub measures it for all. With so many conversations and no latency of the server's it is mostly the queue in
  the client: about concurrency times CPU a call. `prebuilt` posts the same bytes in all conversations, which
  the stub cannot tell apart.
* *Peak memory* of the process, and of its worker.
* *Histories*: conversations that grow by 5 KB a turn to 1, 20 and 100 turns (500 KB). A mean call of 100 turns carries
  half of that history, so that what its length costs is taken from the mean calls of 100 and of 20 turns, in which
  everything else is equal: 99 / 40 of their difference is what the 100th call costs more than the first. Eight are
  played at once.

64 requests are in flight at once, or as many as `--lanes` says, as far as there are so many conversations: slow clients
play few, so that all of it takes about three minutes on two idle cores. The clients are described where they are
written, in `peers/`. The cyclic garbage collector is as Python sets it in all of them; only a worker of Trunkline's
sets its own, as it always does.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from json import loads

import pytest

from conftest import Stub
from peers.client import CLIENTS, RUN

pytestmark = pytest.mark.timeout(900)

ROUNDS = 3
LOOP, SDK, OURS = "aiohttp + msgspec", "openai", "trunkline, inline"
BYTES = ("prebuilt, lean", "prebuilt, aiohttp")

FEW = {"openai": 64, "openai, a client a call": 16, "openai on aiohttp": 64}
SMALL = {client: FEW.get(client, 1500) for client in CLIENTS}
LOGPROBS = {client: 8 if client in FEW else 96 for client in CLIENTS if client != "openai on aiohttp"}
HISTORIES = {"1 turn": 1000, "20 turns": 240, "100 turns": 48}
HISTORIES_AT_ONCE = 8
WITH_HISTORY = [client for client in CLIENTS if client not in FEW and not RUN.get(client)]

Figures = dict[str, float]


def play(stub: Stub, client: str, load: str, conversations: int, lanes: int) -> Figures:
    """Let a client play, and return what a call cost it."""
    command = [sys.executable, "-m", "peers.client", client, load, stub.url, str(conversations), str(lanes)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": os.environ | stub.environment}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        stub.report()
        served = stub.cpu()
        print(file=process.stdin, flush=True)
        cost = loads(process.stdout.readline())
        gaps = stub.report()
    return {
        "us_per_call": 1e6 * cost["cpu"] / cost["calls"],
        "calls_per_s": cost["calls"] / cost["wall"],
        "peak_mb": cost["rss"] / 2**20,
        "gap_p50_ms": gaps["p50"] / 1000 if gaps["gaps"] else float("nan"),
        "gap_p99_ms": gaps["p99"] / 1000 if gaps["gaps"] else float("nan"),
        "server_us": 1e6 * (stub.cpu() - served) / cost["served"],
    }


class Table:
    """Figures of all clients under some loads, round after round."""

    def __init__(self, stub: Stub, lanes: int) -> None:
        self._stub = stub
        self._lanes = lanes
        self._rounds: dict[tuple[str, str], list[Figures]] = {}

    def play(self, load: str, sizes: dict[str, int]) -> None:
        """Play one round; it begins with another client each time."""
        clients = list(sizes)
        turn = len(next(iter(self._rounds.values()), ())) % len(clients)
        for client in clients[turn:] + clients[:turn]:
            figures = play(self._stub, client, load, sizes[client], self._lanes)
            self._rounds.setdefault((load, client), []).append(figures)

    def median(self, load: str, client: str, figure: str = "us_per_call") -> float:
        """The median of a figure's rounds."""
        return statistics.median(figures[figure] for figures in self._rounds[load, client])

    def medians(self) -> Iterator[tuple[str, float]]:
        """Every figure by name."""
        for (load, client), rounds in self._rounds.items():
            for figure in rounds[0]:
                yield f"{load}: {client}: {figure}", round(self.median(load, client, figure), 2)

    def lines(self) -> Iterator[str]:
        """The table as text, with the loop written by hand as 1."""
        for load in dict.fromkeys(load for load, _ in self._rounds):
            head = f"{'us/call':>10}{'/ loop':>8}{'calls/s':>9}{'MB':>6}{'gap p50':>10}{'p99 ms':>8}{'server us':>11}"
            yield f"{load}, {self._lanes} at once".ljust(26) + head
            for client in (client for known, client in self._rounds if known == load):
                cpu, rate, peak, p50, p99, served = (
                    self.median(load, client, figure) for figure in self._rounds[load, client][0]
                )
                ratio = cpu / self.median(load, LOOP)
                yield (
                    f"  {client:24}{cpu:10,.1f}{ratio:8.2f}{rate:9,.0f}{peak:6.0f}{p50:10.1f}{p99:8.1f}{served:11.1f}"
                )


def target(text: str, ratio: float, limit: float, *, at_most: bool) -> str:
    """A line that says whether a ratio is what was aimed at."""
    met = ratio <= limit if at_most else ratio >= limit
    aim = f"{'at most' if at_most else 'at least'} {limit:g}"
    return f"  {text}: {ratio:.2f} (target {aim}): {'met' if met else 'NOT MET'}"


@pytest.fixture
def table(stub: Stub, request: pytest.FixtureRequest) -> Table:
    """An empty table."""
    return Table(stub, request.config.getoption("--lanes"))


@pytest.fixture
def show(capsys, benchmark):
    """Print a table and its targets, and keep every median."""

    def shown(table: Table, targets: list[str]) -> None:
        benchmark.extra_info.update(table.medians())
        with capsys.disabled():
            print("\n" + "\n".join([*table.lines(), *targets]))

    return shown


def test_small_replies(benchmark, table: Table, show) -> None:
    benchmark.pedantic(lambda: table.play("small", SMALL), rounds=ROUNDS)
    ours, loop, sdk = (table.median("small", client) for client in (OURS, LOOP, SDK))
    show(
        table,
        [
            target("a call of a whole run / the loop", ours / loop, 0.6, at_most=True),
            target("AsyncOpenAI / a call of a whole run", sdk / ours, 15, at_most=False),
        ],
    )


def test_replies_with_logprobs(benchmark, table: Table, show) -> None:
    benchmark.pedantic(lambda: table.play("logprobs", LOGPROBS), rounds=ROUNDS)
    ours, loop, sdk = (table.median("logprobs", client) for client in (OURS, LOOP, SDK))
    show(
        table,
        [
            target("the loop / a call of a whole run", loop / ours, 5, at_most=False),
            target("AsyncOpenAI / a call of a whole run", sdk / ours, 30, at_most=False),
        ],
    )


def test_histories(benchmark, stub: Stub, show) -> None:
    table = Table(stub, HISTORIES_AT_ONCE)

    def once() -> None:
        for load, size in HISTORIES.items():
            table.play(load, dict.fromkeys(WITH_HISTORY, size))

    benchmark.pedantic(once, rounds=ROUNDS)
    more = {
        client: (table.median("100 turns", client) - table.median("20 turns", client)) * 99 / 40
        for client in WITH_HISTORY
    }
    lines = [f"  the 100th call costs {us:,.0f} us more than the first: {client}" for client, us in more.items()]
    for ours in (OURS, "trunkline, LLM path"):
        lines += [target(f"{ours} / {bytes_}", more[ours] / more[bytes_], 1.3, at_most=True) for bytes_ in BYTES]
        lines.append(target(f"the loop / {ours}", more[LOOP] / more[ours], 5, at_most=False))
    lines.append(f"  the loop / {BYTES[0]}, which nobody can be below: {more[LOOP] / more[BYTES[0]]:.2f}")
    show(table, lines)
