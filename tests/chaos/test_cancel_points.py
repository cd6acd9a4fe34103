"""A run in this process that is cancelled at its N-th step, wherever that is: nothing is left, and it goes on.

In CI at a few steps of a run; ``--full-faults`` cancels it at every one.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest
from atlas import agent, tasks
from foreign import capital_cities, serving
from resuming import digests

from trunkline.llm.config import LLM
from trunkline.runner.run import arun
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO

FULL = bool(os.environ.get("TRUNKLINE_FULL_FAULTS"))
FEW = 12
STRATEGIES = {"chain": Chain(2), "tree": TreeGRPO(trees=2, forks=1, rounds=1)}


class Steps:
    """Counts each step of each task of a loop, and cancels one task when so many were made."""

    def __init__(self, at: int | None = None) -> None:
        self.made = 0
        self.at = at
        self.victim: asyncio.Task[Any] | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task:
        return asyncio.Task(Counted(work, self), loop=loop, name=work.__qualname__)

    def count(self) -> None:
        self.made += 1
        if self.made == self.at and self.victim is not None:
            self.victim.cancel()


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are counted; one that is cancelled before its first step begins with that."""

    def __init__(self, work: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self.work = work
        self.steps = steps

    def send(self, value: Any) -> Any:
        self.steps.count()
        return self.work.send(value)

    def throw(self, *error: Any) -> Any:
        self.steps.count()
        return self.work.throw(*error)

    def close(self) -> None:
        self.work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.work.__await__()


def sockets() -> int:
    """Descriptors of this process that are no standard stream's."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def cancelled(url: str, out: Path, strategy: object, at: int | None) -> tuple[bool, int]:
    """Run until the step comes; whether the run ended by that, and the steps that were made."""
    steps = Steps(at)

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(steps)
        llm = LLM(url, max_concurrency=4)
        steps.victim = asyncio.ensure_future(
            arun(agent(), tasks()[:3], llm=llm, strategy=strategy, seed=7, out=out, resume=True, workers=0)
        )
        try:
            await steps.victim
        except asyncio.CancelledError:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, "a cancelled run leaves no task"
            return True
        return False

    return asyncio.run(main()), steps.made


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_is_cancelled_at_any_step_leaves_nothing_and_goes_on(strategy: str, tmp_path: Path):
    plan = STRATEGIES[strategy]
    with serving(capital_cities) as server:
        stopped, steps = cancelled(server.url, tmp_path / "whole", plan, None)
        assert (stopped, steps > 50) == (False, True)
        whole = digests(tmp_path / "whole")
        gc.collect()
        before, ends = sockets(), 0
        for at in range(1, steps) if FULL else range(1, steps, max(1, steps // FEW)):
            path = tmp_path / f"r{at}"
            stopped, _ = cancelled(server.url, path, plan, at)
            ends += stopped
            if path.exists():
                with RunReader.open(path) as reader:
                    assert reader.check() == [], f"step {at}"
            assert cancelled(server.url, path, plan, None)[0] is False, f"step {at}"
            assert digests(path) == whole, f"step {at}"
            path.unlink()
        gc.collect()
        assert ends > FEW // 2
        # The server is a thread of this process: its ends of closed connections may need a moment.
        assert sockets() <= before + 8
