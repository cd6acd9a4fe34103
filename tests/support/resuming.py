"""Runs that are killed and resumed, for tests; a script that workers and ``trunkline resume`` can import."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from places import python_path

from trunkline.store.reader import RunReader

SUPPORT = Path(__file__).parent

SCRIPT = """
import json, sys
from atlas import agent, tasks
from trunkline.llm.config import LLM
from trunkline.strategies.chain import Chain
from trunkline.runner.run import run
if __name__ == "__main__":
    options = json.loads(sys.argv[3])
    llm = LLM(sys.argv[1], max_concurrency=options.pop("concurrency", 4))
    run(agent(), tasks(), llm=llm, strategy=Chain(2), seed=7, out=sys.argv[2], resume=True, **options)
"""


def environment() -> dict[str, str]:
    """The environment of a script that imports from here."""
    return os.environ | {"PYTHONPATH": python_path()}


def start(url: str, out: Path, options: str = '{"workers": 1}', **more: Any) -> subprocess.Popen[str]:
    """Begin a run, or go on with it, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, url, str(out), options],
        env=environment() | more.pop("env", {}),
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process as nothing can prevent."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


def wait_for(found: Any, seconds: float = 30.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def digests(path: Path) -> dict[str, str]:
    """The digests of a run's finished trees."""
    with RunReader.open(path) as reader:
        assert reader.check() == []
        names = reader.task_ids()
        return {names[number]: row.digest for number, row in reader.rows()}


def undo(path: Path, *names: str) -> None:
    """Let a finished run be one that was killed before these tasks were done, or begun."""
    with sqlite3.connect(path) as connection:
        for name in names:
            ((number,),) = connection.execute("SELECT task FROM tasks WHERE id = ?", (name,)).fetchall()
            for table in ("trees", "rollouts", "calls", "uses"):
                connection.execute(f"DELETE FROM {table} WHERE task = ?", (number,))
            connection.execute("DELETE FROM deltas WHERE delta >> 32 = ?", (number,))
        renumber(connection)
    connection.close()


def renumber(connection: sqlite3.Connection) -> None:
    """Leave no gap in the calls and the tool calls, and a run that was killed."""
    connection.execute("UPDATE calls SET call = (SELECT count(*) FROM calls AS other WHERE other.call <= calls.call)")
    connection.execute("UPDATE uses SET use = (SELECT count(*) FROM uses AS other WHERE other.use <= uses.use)")
    connection.execute("UPDATE meta SET value = 'running' WHERE key = 'state'")
