"""A long run whose workers are killed again and again: memory does not grow with what is done.

In CI some thousand rollouts; ``--full-faults`` is a million, of which a worker is killed every 30 s.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from atlas import agent
from foreign import message, serving
from havoc import descriptors
from trunkline_children import children

from trunkline._internal.resources import resident
from trunkline.llm.config import LLM
from trunkline.observability.observers import Progress
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Task

FULL = bool(os.environ.get("TRUNKLINE_FULL_FAULTS"))
TASKS, EACH, EVERY, KILLS = (100_000, 10, 30.0, 1_000_000) if FULL else (600, 4, 1.0, 3)
GROWTH = 24 << 20
"""Bytes that the controller may come to hold between the first third of a run and its end, whatever its size."""


class Watch:
    """Kills the oldest worker every so often, if anything was done since, and notes what this process holds."""

    def __init__(self) -> None:
        self.killed = 0
        self.held: dict[int, int] = {}
        self._due, self._done = time.monotonic() + EVERY, 0
        self._next = 0

    def __call__(self, shot: Progress) -> None:
        if shot.tasks_done >= self._next:
            self._next += TASKS // 30
            self.held[shot.tasks_done] = resident()
        if self.killed == KILLS:
            return  # A slow machine would do little else.
        # On a machine with other work a new worker takes its time; who dies before it did anything counts as hopeless.
        if time.monotonic() >= self._due and shot.tasks_done >= self._done + 20 and (there := children()):
            self._due, self._done = time.monotonic() + EVERY, shot.tasks_done
            os.kill(there[0], signal.SIGKILL)
            self.killed += 1


@pytest.mark.timeout(36_000)
def test_a_long_run_holds_what_a_short_one_does(tmp_path: Path):
    watch, before = Watch(), descriptors(os.getpid())
    answered = 0
    many = (Task.ask(f"How much is {n}?", str(n), id=str(n)) for n in range(TASKS))

    def answer(body: dict) -> dict:
        nonlocal answered
        # The server is in this process, too: what it keeps for other tests would be taken for the run's.
        server.bodies.clear()
        server.headers.clear()
        answered += 1
        if watch.killed < 2 and answered > TASKS * EACH // 2:
            time.sleep(0.01)  # So that a slow machine replaces a worker before a fast one has done all of it.
        return message(f"<answer>{body['seed'] % 7}</answer>")

    with serving(answer) as server:
        llm = LLM(server.url, max_concurrency=32)
        result = run(
            agent(tools=[]), many, llm=llm, strategy=Chain(EACH), seed=3, workers=2, watch=watch, out=tmp_path / "r"
        )
    assert result.state == "done"
    assert watch.killed > 1
    third = next(held for done, held in watch.held.items() if done >= TASKS // 3)
    grown = max(watch.held.values()) - third
    print(f"\n{TASKS * EACH} rollouts, {watch.killed} workers killed: {grown >> 20} MiB more than after a third")  # noqa: T201
    assert grown < GROWTH, watch.held
    deadline = time.monotonic() + 10
    while descriptors(os.getpid()) > before + 2:
        assert time.monotonic() < deadline, "descriptors are left of a run that is over"
        time.sleep(0.05)
    with RunReader.open(result.path) as reader:
        summary = reader.summary()
        kinds = [event.kind for event in reader.events()]
        assert reader.check() == []
    assert (summary.rollouts, summary.failed) == (TASKS * EACH, 0)
    assert "quarantined" not in kinds
    assert not children()
