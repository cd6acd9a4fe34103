"""What the path of a turn costs, beside a loop written by hand, and what it may cost: one table.

`pytest benches --benchmark-only -k turn_engine` prints it; `--quick` is for developing: one round of small runs, and no
instructions.

The loop is aiohttp, msgspec and uvloop (`peers/lean.py`). Both sides play the same conversations in turns in the same
session, each in a process of its own, and figures are medians of the rounds; see `test_peers.py` for what is counted as
CPU a call. Ratios are to the loop unless a row says otherwise. A small call is one of four of a rollout, whose three
tools give 250 bytes each; there is one rollout a task. Of one-turn tasks, which have no tools, the summary is counted.

Instructions are those of `instructions.py`, interpreter calls those of `count_calls.py`: no other load of the machine
moves them. Microseconds of rows and
row-steps are absolute: divide them by the loop's, which is printed, to compare machines.
"""

from __future__ import annotations

import math
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import uvloop

import count_calls
import instructions
import teams
import test_crowd
import test_row_step
from conftest import Stub
from peers.client import RUN
from test_peers import LOOP, Table

pytestmark = pytest.mark.timeout(1800)

INLINE, WORKER, WORKERS = RUN


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        name: What is measured.
        found: The figures, by what they are of.
        needed: What each may be at most.
    """

    name: str
    found: dict[str, float]
    needed: float

    def __str__(self) -> str:
        shown = ", ".join(f"{value:,.2f} ({of})" if of else f"{value:,.2f}" for of, value in self.found.items())
        known = [value for value in self.found.values() if not math.isnan(value)]
        met = "not measured" if not known else "met" if max(known) <= self.needed else "NOT MET"
        return f"{self.name:<72} {shown:<46} <= {self.needed:<6g} {met}"


class Plan(NamedTuple):
    """How much is played: rounds, conversations of each load, and rollouts that live at once."""

    rounds: int = 3
    small: int = 1500
    many: int = 3000
    one_turn: int = 4000
    long: int = 48
    logprobs: int = 192
    crowd: int = 12_500
    minutes: float = 0.75


QUICK = Plan(1, 500, 1500, 1000, 16, 96, 1000, 0.1)


@pytest.fixture
def plan(request: pytest.FixtureRequest) -> Plan:
    """The size that was asked for."""
    return QUICK if request.config.getoption("--quick") else Plan()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of this machine, and its key."""
    paths = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths


def test_turn_engine(benchmark, capsys, stub: Stub, plan: Plan, certificate: tuple[Path, Path], request):
    with Stub(tls=f"{certificate[0]},{certificate[1]}") as secure, Stub(tokens=200, top=16) as tokens:
        secure.environment["SSL_CERT_FILE"] = str(certificate[0])
        few, many, eight = (Table(stub, lanes) for lanes in (64, 512, 8))
        over_tls, listed = Table(secure, 64), Table(tokens, 64)
        rows: dict[str, list[float]] = {"math": [], "search": []}

        def once() -> None:
            few.play("small", dict.fromkeys((LOOP, INLINE, WORKER, WORKERS), plan.small))
            many.play("small", dict.fromkeys((LOOP, INLINE, WORKER), plan.many))
            few.play("one turn", dict.fromkeys((LOOP, INLINE), plan.one_turn))
            eight.play("100 turns", dict.fromkeys((LOOP, INLINE), plan.long))
            over_tls.play("small", dict.fromkeys((LOOP, INLINE), plan.small))
            listed.play("logprobs", dict.fromkeys((LOOP, INLINE), plan.logprobs))
            for kind, found in rows.items():
                found.append(team_row(kind))

        benchmark.pedantic(once, rounds=plan.rounds)

    def ratio(table: Table, load: str, client: str = INLINE, figure: str = "us_per_call", to: str = LOOP) -> float:
        return table.median(load, client, figure) / table.median(load, to, figure)

    table = [
        Row("whole run, CPU of a small call, 64 in flight", of_both(ratio, few, "small"), 0.6),
        Row("whole run, CPU of a small call, 512 in flight", of_both(ratio, many, "small"), 0.6),
        Row("whole run of one-turn tasks, summary included", {"": ratio(few, "one turn")}, 1.0),
        Row("whole run of 100 turns with 5 KB results, 8 in flight", {"": ratio(eight, "100 turns")}, 0.4),
        Row("small call over TLS, to the loop over TLS", {"": ratio(over_tls, "small")}, 0.7),
        Row("200 tokens with top-16 log-probs", {"": ratio(listed, "logprobs")}, 0.2),
        *interpreter_calls(),
        Row("instructions of a small call, kernel apart", {"": instruction_ratio(stub, plan)}, 0.6),
        Row("added latency, one worker, p50", {"": ratio(few, "small", WORKER, "gap_p50_ms")}, 1.0),
        Row("added latency, one worker, p99", {"": ratio(few, "small", WORKER, "gap_p99_ms")}, 1.2),
        Row("two workers, CPU of a small call, to one worker", {"": ratio(few, "small", WORKERS, to=WORKER)}, 1.1),
        Row("a team's row of a whole run, us", {kind: statistics.median(found) for kind, found in rows.items()}, 100),
        Row("bookkeeping of an active row-step, 256 live, us", {"": row_step()}, 4),
        Row(f"memory of one of {plan.crowd:,} live rollouts in one worker, KB", {"": crowd(plan)}, 16),
    ]
    for row in table:
        benchmark.extra_info.update({f"{row.name}: {of}": value for of, value in row.found.items()})
    with capsys.disabled():
        print("\n" + "\n".join(line for each in (few, many, eight, over_tls, listed) for line in each.lines()))
        print("\n" + "\n".join(map(str, table)))


def of_both(ratio: Callable[..., float], table: Table, load: str) -> dict[str, float]:
    """The ratio of an inline pool and of a worker."""
    return {"inline": ratio(table, load), "1 worker": ratio(table, load, WORKER)}


def team_row(kind: str) -> float:
    """CPU microseconds of a row of 256 questions, without the engine's."""
    return teams.play(teams.team(kind), teams.tasks(256), teams.Engine(teams.Script(0.5))).us_a_row


def row_step() -> float:
    """CPU microseconds of the bookkeeping of a row-step."""
    return min(test_row_step.in_a_run(teams.team("math"), 256)["bookkeeping"].median for _ in range(3)) / 1000


def interpreter_calls() -> Iterator[Row]:
    """How many calls the interpreter makes."""
    names = {"agent": ("interpreter calls of a model call", 150), "one_turn": ("... of a one-turn task in all", 300)}
    for way, (name, needed) in names.items():
        yield Row(name, {"": sum(uvloop.run(count_calls.count(way)).values())}, needed)


def crowd(plan: Plan) -> float:
    """KB of a rollout while that many live in one worker."""
    with test_crowd.descriptors_for(plan.crowd):
        return test_crowd.crowd(plan.crowd, plan.minutes)["kb_per_rollout"]


def instruction_ratio(stub: Stub, plan: Plan) -> float:
    """Instructions of a small call of a whole run, to those of the loop."""
    return math.nan if plan == QUICK else instructions.a_call(stub, INLINE) / instructions.a_call(stub, LOOP)
