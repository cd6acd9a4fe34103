"""Make a run file of many rollouts through the product's own writer, and measure what reads it.

``python benches/large_run.py make big.run --tasks 100000 --rollouts 10`` writes it; every row follows from its deltas.
``python benches/large_run.py measure big.run`` prints the seconds and the peak memory of the commands that read it.
With ``--unfinished N`` the last N tasks have not begun, so that there is something to resume.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trunkline._core import CoreTree
from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.llm.messages import encode
from trunkline.llm.pricing import Price
from trunkline.runner.plan import PreparedRun
from trunkline.scoring.rewards.matching import exact_match
from trunkline.store.derive import rows
from trunkline.store.schema import RolloutRow, TreeRow
from trunkline.strategies.chain import Chain
from trunkline.types import Task

TOGETHER = 1_000
"""Tasks in one transaction."""

READERS = (["show"], ["show", "--metrics"], ["show", "--tasks"], ["show", "--time"])

Grown = tuple[int, bytes, TreeRow, list[RolloutRow]]


def grown(number: int, task: Task, rollouts: int) -> Grown:
    """One task's delta, with its calls, and rows; every third try is right."""
    core = CoreTree()
    prompt = core.append(0, 1, msgspec.json.encode(task.messages[0]))
    calls = []
    for draw in range(rollouts):
        rollout = core.open(prompt, (0, draw), draw)
        right = (number + draw) % 3 == 0
        answer = task.reference[0] if right else str((number + draw) % 7)
        core.turn(
            rollout, encode({"role": "assistant", "content": answer}), 0, 0, core.name("stop"), 20, 0, 5, 0, 200_000
        )
        core.close(rollout, "answer", answer)
        core.score(rollout, float(right))
        began = time.monotonic_ns() // 1000
        calls.append(("http://127.0.0.1:9/v1", 1, 20, 0, 5, 1, 10, 50_000, 200_000, began, ""))
    delta = core.delta(calls)
    assert delta is not None
    return number, delta, *rows(core)


def batches(grown_tasks: Iterator[Grown]) -> Iterator[list[Grown]]:
    """Cut what grew into transactions."""
    batch: list[Grown] = []
    for one in grown_tasks:
        batch.append(one)
        if len(batch) == TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch


def make(out: Path, tasks: int, rollouts: int, unfinished: int) -> None:
    """Write the run file."""
    listed = [
        Task.ask(f"What is {number} plus {number}?", str(2 * number), id=f"task-{number}") for number in range(tasks)
    ]
    run = PreparedRun(
        Agent(model="m"),
        listed,
        llm=LLM("http://127.0.0.1:9/v1", price=Price(prompt=1.0, generated=2.0)),
        strategy=Chain(rollouts),
        reward=exact_match,
        workers=0,
        seed=0,
        out=out,
    )
    writer = run._writer
    done = range(tasks - unfinished)
    for batch in batches(grown(number, listed[number], rollouts) for number in done):
        writer.commit(
            [(number, 0, delta) for number, delta, *_ in batch],
            [(number, tree, made) for number, _, tree, made in batch],
        )
    writer.finish("interrupted" if unfinished else "done")


def measure(command: list[str]) -> tuple[int, float, float]:
    """Exit code, seconds and the peak of memory in MB of a command."""
    begun = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, time.monotonic() - begun, used.ru_maxrss / 1024


def main() -> None:
    """Make a file, or measure one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["make", "measure"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rollouts", type=int, default=10, help="of each task")
    parser.add_argument("--unfinished", type=int, default=0)
    given = parser.parse_args()
    if given.what == "make":
        make(given.run, given.tasks, given.rollouts, given.unfinished)
        return
    for name, *more in READERS:
        code, seconds, peak = measure([sys.executable, "-m", "trunkline.cli", name, str(given.run), *more])
        print(f"{' '.join((name, *more)):<16} exit {code}  {seconds:7.1f} s  {peak:7.0f} MB")


if __name__ == "__main__":
    main()
