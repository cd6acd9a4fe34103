"""The processes of a pool: how long they live, and that none is left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, stall, tasks
from foreign import capital_cities, serving
from places import SUPPORT
from trunkline_children import children

import trunkline as tl
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.config import LLM
from trunkline.types import Task


def llm(url: str) -> LLM:
    return LLM(url, max_concurrency=8, max_retries=0)


def answers(run: tl.Run) -> dict[str, str | None]:
    return {tree.task.id: tree.answer for tree in run}


def many(count: int) -> list[Task]:
    return [Task.ask("Capital of France?", id=str(number)) for number in range(count)]


def until(true: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.01)


def test_a_worker_that_dies_at_rest_is_replaced_by_the_next_run():
    with serving(capital_cities) as server, tl.Pool(workers=2) as pool:
        pool.run(agent(), tasks(), llm=llm(server.url))
        first, second = children()
        os.kill(first, signal.SIGKILL)
        assert answers(pool.run(agent(), tasks(), llm=llm(server.url))) == CAPITALS
        assert len(children()) == 2
        assert second in children()
        assert first not in children()


def test_processes_outlive_the_thread_that_made_the_pool_or_ran_on_it():
    made: list[tl.Pool] = []
    with serving(capital_cities) as server:

        def work() -> None:
            made.append(tl.Pool(workers=1))
            made[0].run(agent(), tasks(), llm=llm(server.url))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        (before,) = children()
        with made[0] as pool:
            assert answers(pool.run(agent(), tasks(), llm=llm(server.url))) == CAPITALS
            assert children() == [before]


async def test_a_run_goes_on_while_its_callers_loop_is_blocked():
    with serving(capital_cities, delay=0.01) as server, tl.Pool(workers=1) as pool:
        running = asyncio.ensure_future(pool.arun(agent(), tasks(), llm=llm(server.url)))
        await asyncio.sleep(0)
        until(lambda: len(server.bodies) >= 10)
        assert answers(await running) == CAPITALS


def test_a_tool_that_hangs_costs_its_process_and_not_the_pool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.backends.base.REST_WITHIN", 0.2)
    with serving(capital_cities) as server, tl.Pool(workers=1) as pool:

        async def cancelled() -> None:
            running = asyncio.ensure_future(pool.arun(agent(tools=[stall]), tasks(), llm=llm(server.url)))
            while len(server.bodies) < 5:
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        asyncio.run(cancelled())
        assert answers(pool.run(agent(), tasks(), llm=llm(server.url))) == CAPITALS


async def test_a_pool_that_is_closed_ends_its_run():
    with serving(capital_cities, delay=5) as server:
        async with tl.Pool(workers=1) as pool:
            running = asyncio.ensure_future(pool.arun(agent(), tasks(), llm=llm(server.url)))
            while not server.bodies:
                await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not children()


def test_a_closed_pool_says_so_and_closes_again():
    pool = tl.Pool(workers=1)
    pool.close()
    pool.close()
    with pytest.raises(UsageError, match="closed"):
        pool.run(agent(), tasks(), llm="http://127.0.0.1:9/v1")
    assert "closed" in repr(pool)


def test_a_pool_that_nobody_holds_any_more_is_closed():
    with serving(capital_cities) as server:
        pool = tl.Pool(workers=1)
        pool.run(agent(), tasks(), llm=llm(server.url))
        assert children()
        del pool
        gc.collect()
    until(lambda: not children())


def test_a_forked_process_has_no_part_in_a_pool():
    with serving(capital_cities) as server, tl.Pool(workers=1) as pool:
        pool.run(agent(), tasks(), llm=llm(server.url))
        here = children()
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                pool.run(agent(), tasks(), llm=llm(server.url))
            except UsageError as error:
                os.write(write, str(error).encode())
            pool.close()
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read) as said:
            assert f"belongs to process {os.getpid()}" in said.read()
        assert answers(pool.run(agent(), tasks(), llm=llm(server.url))) == CAPITALS
        assert children() == here


def test_processes_end_though_a_forked_child_holds_their_sockets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.backends.local._GRACE", 30.0)
    with serving(capital_cities) as server:
        pool = tl.Pool(workers=1)
        pool.run(agent(), tasks(), llm=llm(server.url))
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        began = time.monotonic()
        pool.close()
        took = time.monotonic() - began
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)
    assert took < 15
    assert not children()


SCRIPT = """
import sys, trunkline as tl
sys.path.insert(0, {support!r})
from atlas import agent, tasks
from trunkline_children import children
pool = tl.Pool(workers=1)
run = pool.run(agent(), tasks(), llm=tl.LLM({url!r}))
print(*children(), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)"])
def test_an_interpreter_that_ends_leaves_no_process(tmp_path: Path, end: str):
    support = str(SUPPORT)
    script = tmp_path / "script.py"
    with serving(capital_cities) as server:
        script.write_text(SCRIPT.format(support=support, url=server.url, end=end))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 1
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 5)


def test_ctrl_c_stops_the_run_and_keeps_the_pool():
    with serving(capital_cities, delay=0.02) as server, tl.Pool(workers=1) as pool:

        def interrupt() -> None:
            until(lambda: len(server.bodies) > 4)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(tl.runs.Interrupted) as caught:
            pool.run(agent(), many(300), llm=llm(server.url))
        thread.join()
        assert caught.value.run is not None
        assert answers(pool.run(agent(), tasks(), llm=llm(server.url))) == CAPITALS


def test_settings_that_make_no_sense_are_named():
    with pytest.raises(ConfigError, match="pool must be"):
        tl.Pool("remote")
    with pytest.raises(ConfigError, match="address"):
        tl.Pool(address="auto")
    with pytest.raises(ConfigError, match="workers"):
        tl.Pool(workers=0)
    with pytest.raises(ConfigError, match="no processes"):
        tl.Pool("inline", workers=2)
    with pytest.raises(ConfigError, match=r"pool must be a trunkline\.Pool"):
        tl.run(agent(), tasks(), pool=4)
    with tl.Pool(workers=1) as pool:
        with pytest.raises(ConfigError, match="a pool has its own"):
            pool.run(agent(), tasks(), workers=2, llm="http://127.0.0.1:9/v1")
        with pytest.raises(TypeError, match="takes no pool"):
            pool.run(agent(), tasks(), pool=pool)
