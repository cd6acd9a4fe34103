"""The stub server in a process of its own, the CPU time of processes, and options."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

import programs

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of benchmarks that have a size."""
    parser.addoption("--lanes", type=int, default=64, help="requests in flight at once in test_peers.py (64)")
    parser.addoption("--crowd-minutes", type=float, default=0.75, help="how long test_crowd.py watches (0.75)")
    parser.addoption("--quick", action="store_true", help="one round of small runs in test_turn_engine.py")
    parser.addoption(
        "--pairs", type=int, default=3, help="runs of each setting, on and off, in test_team_effects.py (3)"
    )
    parser.addoption("--batches", default="8,64,256", help="rows of a batch in test_teams.py (8,64,256; or 4096)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Batches of the benchmarks of teams."""
    if "batch" in metafunc.fixturenames:
        metafunc.parametrize("batch", [int(size) for size in metafunc.config.getoption("--batches").split(",")])


class Stub:
    """A stub of a model's server, `trunkline-stub`, in a process of its own.

    Args:
        settings: Its settings: see `rust_core/bench/src/stub/main.rs`.

    Attributes:
        url: Its base URL.
        environment: Variables that its clients need.
    """

    def __init__(self, **settings: float | str) -> None:
        self.environment: dict[str, str] = {}
        arguments = [f"{name}={value}" for name, value in settings.items()]
        self._process = subprocess.Popen(
            [programs.build("trunkline-stub"), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.stdin.close()

    def cpu(self) -> float:
        """CPU seconds it has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def report(self) -> dict[str, int]:
        """What came since the last report: requests, connections, and the gaps of conversations in microseconds."""
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="session")
def stub() -> Iterator[Stub]:
    """A stub that answers at once, ended after the session."""
    with Stub() as running:
        yield running


def client_cpu() -> float:
    """CPU seconds of this process and of its children that were waited for: every worker of every finished run."""
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used += usage.ru_utime + usage.ru_stime
    return used
