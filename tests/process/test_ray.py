"""What is Ray's alone: actors that die, rest and come back, and what Ray must not do to those who use it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from atlas import CAPITALS, agent, size_of_the_last_argument, tasks
from foreign import capital_cities, held_until, serving
from trunkline_children import actors

from trunkline.backends import ray_cluster as cluster
from trunkline.backends.ray import RayBackend
from trunkline.controller import supervisor as pulse
from trunkline.errors import ConfigError, CrossingError
from trunkline.llm.config import LLM
from trunkline.observability import EventListener
from trunkline.observability.observers import Progress
from trunkline.protocol.backend import Event, Inbox, WorkerExited
from trunkline.protocol.job import Job
from trunkline.protocol.messages import AssignTasks, Bye, WorkerReady, write_task
from trunkline.runner.pool import Pool
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Task

TIMES = ("time", "started", "seconds", "run")

pytestmark = [pytest.mark.pool, pytest.mark.usefixtures("ray_here")]


def llm(url: str, **changes: Any) -> LLM:
    return LLM(url, max_concurrency=8, **changes)


def job(url: str) -> Job:
    return Job(agent=agent(), strategy=Chain(1), reward=None, llm=llm(url), seed=1)


def awaited(true: Callable[[], bool]) -> None:
    """Wait until Ray has ended an actor's process, which it does after it has told its end."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "an actor is left"
        time.sleep(0.05)


async def until(inbox: Inbox, kind: type[Event]) -> Any:
    """Take events up to the first of a kind."""
    async with asyncio.timeout(120):
        while True:
            _, event = await inbox.get()
            if isinstance(event, kind):
                return event


@pytest.fixture
def many() -> list[Task]:
    return [Task.ask(f"Capital of {c}?", a, id=f"{c} {i}") for i in range(12) for c, a in CAPITALS.items()]


def test_tasks_of_an_actor_that_dies_go_on_elsewhere(many: list[Task], tmp_path: Path, ray_pool: Pool):
    killed: list[int] = []

    def kill_one(shot: Progress) -> None:
        if shot.tasks_done >= 5 and not killed:
            killed.append(actors()[0])
            os.kill(killed[0], signal.SIGKILL)

    options: dict[str, Any] = {"strategy": Chain(2), "reward": exact_match, "seed": 3}
    with serving(capital_cities, delay=0.02) as server:
        alone = run(agent(), many, llm=llm(server.url), workers=0, **options)
        undisturbed = len(server.bodies)
        result = run(agent(), many, llm=llm(server.url), pool=ray_pool, watch=kill_one, out=tmp_path / "r", **options)
        assert len(server.bodies) - undisturbed <= undisturbed + 8 + 64, "only what was in flight is asked again"
        again = run(agent(), many, llm=llm(server.url), pool=ray_pool, **options)
    assert killed
    whole = {tree.task.id: tree.digest() for tree in alone}
    for made in (result, again):
        assert {tree.task.id: tree.digest() for tree in made} == whole
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
    awaited(lambda: killed[0] not in actors())


async def test_what_an_actor_sent_comes_before_its_end_and_nothing_after_it():
    inbox: Inbox = asyncio.Queue()
    pool = RayBackend(1)
    with serving(capital_cities) as server:
        (worker_id,) = await pool.start(job(server.url), inbox)
        ready = await until(inbox, WorkerReady)
        pool.kill(worker_id, "it is a test")
        gone = await until(inbox, WorkerExited)
        assert gone.reason == f"worker {worker_id} (pid {ready.pid}) was killed: it is a test"
        again = await pool.replace(worker_id)
        assert again != worker_id
        assert (await until(inbox, WorkerReady)).pid != ready.pid
        pool.send(worker_id, AssignTasks([(0, write_task(tasks()[0]))]))
        await pool.close()
        assert server.bodies == [], "a worker that is gone takes nothing"
    assert inbox.empty()


async def test_an_actor_that_rests_serves_the_next_run_and_one_that_died_is_replaced():
    inbox: Inbox = asyncio.Queue()
    pool = RayBackend(2)
    with serving(capital_cities) as server:
        first = await pool.start(job(server.url), inbox)
        pids = {(await until(inbox, WorkerReady)).pid for _ in first}
        await pool.rest()
        later: Inbox = asyncio.Queue()
        assert await pool.start(job(server.url), later) == first
        assert {(await until(later, WorkerReady)).pid for _ in first} == pids
        await pool.rest()
        dead = pids.pop()
        os.kill(dead, signal.SIGKILL)
        while len(pool._hosts) == 2:
            await asyncio.sleep(0.02)
        last: Inbox = asyncio.Queue()
        assert set(await pool.start(job(server.url), last)) != set(first)
        found = {(await until(last, WorkerReady)).pid for _ in first}
        assert found > pids
        assert dead not in found
        await pool.close()
    assert isinstance(await until(inbox, Bye), Bye)


async def test_an_actor_that_breaks_the_protocol_is_ended():
    inbox: Inbox = asyncio.Queue()
    pool = RayBackend(1)
    (worker_id,) = await pool.start(job("http://127.0.0.1:9/v1"), inbox)
    await until(inbox, WorkerReady)
    pool._hosts[worker_id].send(b"\xc1 no message")
    assert "worker" in (await until(inbox, WorkerExited)).reason
    await pool.close()


def test_what_an_actor_cannot_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_pool: Pool):
    (tmp_path / "only_here.py").write_text("def liked(trajectory): return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    only_here = __import__("only_here")
    monkeypatch.undo()
    with pytest.raises(CrossingError, match=r"reward 'liked'.*'only_here'"):
        run(agent(), tasks(), llm=llm("http://127.0.0.1:9/v1"), reward=only_here.liked, pool=ray_pool)


def test_actors_have_the_arguments_of_the_run(monkeypatch: pytest.MonkeyPatch, ray_pool: Pool):
    monkeypatch.setattr(sys, "argv", ["mine", "--of-this-run"])
    told: dict[Pool | None, list[dict[str, Any]]] = {ray_pool: [], None: []}
    with serving(capital_cities) as server:
        for pool, events in told.items():
            where: dict[str, Any] = {"pool": pool} if pool else {"workers": 0}
            keep = events.append
            listen = EventListener(lambda event, keep=keep: keep(json.loads(event.as_json())), when_behind="wait")
            given = {"llm": llm(server.url), "reward": size_of_the_last_argument, "seed": 1, "on_event": listen}
            result = run(agent(), tasks()[:1], **given, **where)
            assert result["France"].reward == len("--of-this-run")
    ray, here = ([event | dict.fromkeys(TIMES, 0) for event in events] for events in told.values())
    assert [event["kind"] for event in ray][-2:] == ["task_ended", "run_ended"]
    assert ray == here, "events are those of a run in this process"


def test_another_address_than_the_one_that_is_connected_is_refused_each_time():
    with Pool("ray", workers=1, address="elsewhere:6379") as pool:
        for _ in range(2):
            with pytest.raises(
                ConfigError, match=r"connected to a Ray cluster; leave out the address 'elsewhere:6379'"
            ):
                pool.run(agent(), tasks(), llm=llm("http://127.0.0.1:9/v1"))


async def test_a_pool_whose_joining_was_cancelled_joins_once(monkeypatch: pytest.MonkeyPatch):
    before, pool, inbox = cluster._connection._users, RayBackend(1), asyncio.Queue()
    go, joined = asyncio.Event(), cluster.join

    async def slowly(*given: Any) -> Any:
        await go.wait()
        return await joined(*given)

    monkeypatch.setattr(cluster, "join", slowly)
    starting = asyncio.ensure_future(pool.start(job("http://127.0.0.1:9/v1"), asyncio.Queue()))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    go.set()
    await pool.rest()
    await pool.start(job("http://127.0.0.1:9/v1"), inbox)
    await until(inbox, WorkerReady)
    assert cluster._connection._users == before + 1
    await pool.close()
    assert cluster._connection._users == before


def test_a_ray_that_was_there_before_is_used_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch):
    ray = cluster.load()
    kept = ray.put("kept")
    # As where its user has connected this process.
    monkeypatch.setattr(cluster, "_connection", cluster._Connection())
    there = set(actors())
    with serving(capital_cities) as server, Pool("ray", workers=1) as pool:
        run(agent(), tasks()[:1], llm=llm(server.url), pool=pool)
        assert len(set(actors()) - there) == 1
    assert ray.get(kept) == "kept"
    awaited(lambda: not set(actors()) - there)


def test_an_actor_that_blocks_its_loop_is_ended_and_its_tasks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_pool: Pool
):
    monkeypatch.setattr(pulse, "WARN", 2.0)
    monkeypatch.setattr(pulse, "HUNG", 4.0)
    felt: set[int] = set()
    stopped: list[int] = []
    go = threading.Event()

    def stop(shot: Progress) -> None:
        felt.update(shot.engines)
        # Not before each has a request out: one that has nothing left to do is not missed.
        if not stopped and sum(any(one.out for one in state.endpoints) for state in shot.engines.values()) == 2:
            stopped.append(actors()[0])
            os.kill(stopped[0], signal.SIGSTOP)
            go.set()

    many = [Task.ask(f"Capital of {c}?", a, id=f"{c}{n}") for n in range(3) for c, a in CAPITALS.items()]
    with serving(held_until(go, capital_cities)) as server:
        result = ray_pool.run(agent(), many, llm=llm(server.url), watch=stop, out=tmp_path / "r")
    assert {tree.answer for tree in result} == set(CAPITALS.values())
    with RunReader.open(result.path) as reader:
        events = {event.kind: event for event in reader.events()}
    assert events["hung"].worker == events["died"].worker
    assert "did not answer" in events["died"].data["reason"]
    assert felt, "engines say how they are"
    awaited(lambda: stopped[0] not in actors())


async def test_who_was_killed_before_it_was_ready_is_told_from_who_ended():
    inbox: Inbox = asyncio.Queue()
    pool = RayBackend(1)
    await pool.start(job("http://127.0.0.1:9/v1"), inbox)
    pid = (await until(inbox, WorkerReady)).pid
    os.kill(pid, signal.SIGKILL)
    assert (await until(inbox, WorkerExited)).killed
    await pool.close()


def test_the_key_is_in_no_file_of_ray(monkeypatch: pytest.MonkeyPatch, ray_pool: Pool):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-indeed-0123456789")
    with serving(capital_cities) as server:
        run(agent(), tasks(), llm=llm(server.url), pool=ray_pool)
        assert {h["Authorization"] for h in server.headers} == {"Bearer sk-very-secret-indeed-0123456789"}
    logs = Path(cluster.load()._private.worker._global_node.get_logs_dir_path())
    files = [file for file in logs.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if b"sk-very-secret" in file.read_bytes()]


def listening() -> Iterator[tuple[str, str]]:
    """Yield the addresses that processes of this session's Ray listen at, as the kernel writes them."""
    for table in ("tcp", "tcp6"):
        held = set()
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                held.add((fields[9], fields[1].partition(":")[0]))
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
                links = [str(link.readlink()) for link in (folder / "fd").iterdir()]
            except OSError:
                continue
            for inode, address in held:
                if f"socket:[{inode}]" in links and b"ray" in command:
                    yield command.decode(errors="replace")[:60], address


def test_a_ray_of_our_own_listens_on_the_loopback_interface_alone():
    found = dict(listening())
    assert found
    assert set(found.values()) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_signals_and_the_environment_stay_ours():
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert cluster.load().is_initialized()
