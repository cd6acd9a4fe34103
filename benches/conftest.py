"""The stub server in a process of its own, and the CPU time of processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))


class Stub:
    """A running stub server."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def cpu(self) -> float:
        """CPU seconds it has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="session")
def stub() -> Iterator[Stub]:
    """The stub, ended after the session."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "stub.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Stub(process, process.stdout.readline().strip())
        process.stdin.close()


def client_cpu() -> float:
    """CPU seconds of this process and of its children that were waited for: every worker of every finished run."""
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used += usage.ru_utime + usage.ru_stime
    return used
