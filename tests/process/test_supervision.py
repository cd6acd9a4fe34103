"""Workers that hang, stop, are killed again and again, or hold too much memory, while a run goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, blocking, hoard, holding, tasks
from foreign import capital_cities, held_until, serving
from trunkline_children import children

import trunkline.controller.controller as controller
import trunkline.controller.supervisor as pulse
from trunkline._internal.frames import users_function
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.observability.observers import Progress
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.types import Task


def many(count: int) -> list[Task]:
    return [Task.ask(f"Capital of {c}?", a, id=f"{c}{n}") for n in range(count) for c, a in CAPITALS.items()]


@pytest.fixture
def server() -> Iterator[object]:
    with serving(capital_cities, delay=0.05) as server:
        yield server


def test_workers_that_are_killed_again_and_again_cost_no_task(server, tmp_path: Path):
    killed: list[float] = []

    def kill(shot: Progress) -> None:
        # One more every 10 tasks, whoever is there.
        if shot.tasks_done >= 10 * (len(killed) + 1) and (workers := children()):
            killed.append(time.monotonic())
            os.kill(workers[len(killed) % len(workers)], signal.SIGKILL)

    result = run(
        agent(),
        many(12),
        llm=LLM(server.url, max_concurrency=8),
        reward=exact_match,
        workers=2,
        watch=kill,
        out=tmp_path / "r",
    )
    assert len(killed) >= 4
    assert result.state == "done"
    assert {tree.answer == tree.task.reference[0] for tree in result} == {True}
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        kinds = [event.kind for event in reader.events()]
    assert kinds.count("died") >= 4
    assert "quarantined" not in kinds
    assert not children()


def test_a_stopped_worker_is_ended_and_its_tasks_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pulse, "WARN", 1.0)
    monkeypatch.setattr(pulse, "HUNG", 2.0)
    stopped: list[int] = []
    go = threading.Event()

    def stop(shot: Progress) -> None:
        # Not before each has a request out: one that has nothing left to do is not missed.
        if not stopped and sum(any(one.out for one in state.endpoints) for state in shot.engines.values()) == 2:
            stopped.append(children()[0])
            os.kill(stopped[0], signal.SIGSTOP)
            go.set()

    with serving(held_until(go, capital_cities)) as server:
        llm = LLM(server.url, max_concurrency=4)
        result = run(agent(), many(3), llm=llm, workers=2, watch=stop, out=tmp_path / "r")
    assert {tree.answer for tree in result} == set(CAPITALS.values())
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        events = {event.kind: event for event in reader.events()}
    assert events["hung"].worker == events["died"].worker
    assert "did not answer" in events["died"].data["reason"]
    assert stopped[0] not in children()


def test_a_tool_that_blocks_the_loop_is_named_and_its_worker_lives(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with serving(capital_cities) as server:
        lags = []
        result = run(
            agent(tools=[blocking]),
            tasks()[:1],
            llm=LLM(server.url, max_concurrency=4),
            workers=1,
            watch=lambda shot: lags.extend(state.lag for state in shot.engines.values()),
            out=tmp_path / "r",
        )
    assert result["France"].answer == "Paris"
    said = [line for line in caplog.messages if "blocks the event loop" in line]
    assert len(said) == 1, "once for each block"
    assert "blocking (" in said[0]
    assert "atlas.py" in said[0]
    with RunReader.open(result.path) as reader:
        assert list(reader.events()) == []
    assert max(lags) > 1.0


@pytest.mark.breaks_rollouts
def test_a_sync_tool_that_holds_the_interpreter_is_not_told_to_be_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with serving(capital_cities) as server:
        llm = LLM(server.url, max_concurrency=4)
        result = run(agent(tools=[holding]), tasks()[:1], llm=llm, workers=1, out=tmp_path / "r")
    assert result["France"].answer == "Paris"
    said = [line for line in caplog.messages if "interpreter" in line or "blocks the event loop of" in line]
    assert said
    for line in said:
        assert line.startswith("worker 0: holding (")
        assert "runs in a thread and kept Python's interpreter to itself" in line
        assert "@tool(isolated=True)" in line


def test_the_code_of_the_loop_itself_is_no_culprit():
    frames: list[str | None] = []

    async def look() -> None:
        def inside() -> None:
            frames.append(users_function(__import__("sys")._getframe()))

        asyncio.get_running_loop().call_soon(inside)
        await asyncio.sleep(0)

    asyncio.run(look())
    assert frames[0] is not None
    assert "inside (" in frames[0]


def test_a_worker_that_holds_too_much_memory_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(controller, "BEAT", 0.1)
    with serving(capital_cities, delay=0.05) as server, caplog.at_level(logging.WARNING):
        result = run(
            agent(tools=[hoard]),
            many(4),
            llm=LLM(server.url, max_concurrency=2),
            workers=1,
            worker_memory=256 << 20,
            out=tmp_path / "r",
        )
    assert {tree.answer for tree in result} == set(CAPITALS.values())
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        recycled = [event for event in reader.events() if event.kind == "recycled"]
    assert recycled
    assert all(event.data["memory"] > event.data["limit"] == 256 << 20 for event in recycled)
    assert "is given no more tasks: it holds" in caplog.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"worker_memory": 1000}, "worker_memory must be a whole number of at least 67108864, not 1000"),
        ({"grace": -1}, "grace must be"),
    ],
)
def test_limits_that_make_no_sense_are_refused(options: dict, says: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=says):
        run(agent(), tasks(), llm=LLM("http://127.0.0.1:9/v1"), out=tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()
