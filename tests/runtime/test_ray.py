"""What is Ray's alone: actors that die, rest and come back, and what Ray must not do to those who use it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, serving

from trunkline.errors import ConfigError, CrossingError
from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.strategies.chain import Chain
from trunkline.runtime import cluster
from trunkline.runtime.backend import Event, Gone, Inbox
from trunkline.runtime.job import Job
from trunkline.runtime.ray import Ray
from trunkline.runtime.run import run
from trunkline.runtime.snapshot import Snapshot
from trunkline.runtime.wire import Bye, Ready, Work, write_task
from trunkline.score.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.types import Task

pytestmark = [pytest.mark.pool, pytest.mark.usefixtures("ray_here")]


def llm(url: str, **changes: Any) -> EndpointSpec:
    return EndpointSpec(url, max_concurrency=8, **changes)


def job(url: str) -> Job:
    return Job(agent=agent(), strategy=Chain(1), reward=None, llm=llm(url), seed=1)


def actors() -> list[int]:
    """Processes of actors, as Ray calls them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::Actor"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def until(inbox: Inbox, kind: type[Event]) -> Any:
    """Take events up to the first of a kind."""
    async with asyncio.timeout(30):
        while True:
            _, event = await inbox.get()
            if isinstance(event, kind):
                return event


@pytest.fixture
def many() -> list[Task]:
    return [Task.ask(f"Capital of {c}?", a, id=f"{c} {i}") for i in range(12) for c, a in CAPITALS.items()]


def test_tasks_of_an_actor_that_dies_go_on_elsewhere(many: list[Task], tmp_path: Path):
    killed: list[int] = []

    def kill_one(shot: Snapshot) -> None:
        if shot.tasks_done >= 5 and not killed:
            killed.append(actors()[0])
            os.kill(killed[0], signal.SIGKILL)

    options: dict[str, Any] = {"strategy": Chain(2), "reward": exact_match, "seed": 3}
    with serving(capital_cities, delay=0.02) as server:
        alone = run(agent(), many, llm=llm(server.url), workers=0, **options)
        undisturbed = len(server.bodies)
        result = run(agent(), many, llm=llm(server.url), pool=Ray(2), watch=kill_one, out=tmp_path / "r", **options)
        assert len(server.bodies) - undisturbed <= undisturbed + 8 + 64, "only what was in flight is asked again"
    assert killed
    assert {tree.task.id: tree.digest() for tree in result} == {tree.task.id: tree.digest() for tree in alone}
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
    assert not actors()


async def test_what_an_actor_sent_comes_before_its_end_and_nothing_after_it():
    inbox: Inbox = asyncio.Queue()
    pool = Ray(1)
    with serving(capital_cities) as server:
        (seat,) = await pool.start(job(server.url), inbox)
        ready = await until(inbox, Ready)
        pool.kill(seat, "it is a test")
        gone = await until(inbox, Gone)
        assert gone.reason == f"worker {seat} (pid {ready.pid}) was killed: it is a test"
        again = await pool.replace(seat)
        assert again != seat
        assert (await until(inbox, Ready)).pid != ready.pid
        pool.send(seat, Work([(0, write_task(tasks()[0]))]))
        await pool.close()
        assert server.bodies == [], "a seat that is gone takes nothing"
    assert inbox.empty()


async def test_an_actor_that_rests_serves_the_next_run_and_one_that_died_is_replaced():
    inbox: Inbox = asyncio.Queue()
    pool = Ray(2)
    with serving(capital_cities) as server:
        first = await pool.start(job(server.url), inbox)
        pids = {(await until(inbox, Ready)).pid for _ in first}
        await pool.rest()
        later: Inbox = asyncio.Queue()
        assert await pool.start(job(server.url), later) == first
        assert {(await until(later, Ready)).pid for _ in first} == pids
        await pool.rest()
        dead = pids.pop()
        os.kill(dead, signal.SIGKILL)
        while len(pool._seats) == 2:
            await asyncio.sleep(0.02)
        last: Inbox = asyncio.Queue()
        assert set(await pool.start(job(server.url), last)) != set(first)
        found = {(await until(last, Ready)).pid for _ in first}
        assert found > pids
        assert dead not in found
        await pool.close()
    assert isinstance(await until(inbox, Bye), Bye)


async def test_an_actor_that_breaks_the_protocol_is_ended():
    inbox: Inbox = asyncio.Queue()
    pool = Ray(1)
    (seat,) = await pool.start(job("http://127.0.0.1:9/v1"), inbox)
    await until(inbox, Ready)
    pool._seats[seat].send(b"\xc1 no message")
    assert "worker" in (await until(inbox, Gone)).reason
    await pool.close()


def test_what_an_actor_cannot_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "only_here.py").write_text("def liked(trajectory): return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    only_here = __import__("only_here")
    monkeypatch.undo()
    with pytest.raises(CrossingError, match=r"reward 'liked'.*'only_here'"):
        run(agent(), tasks(), llm=llm("http://127.0.0.1:9/v1"), reward=only_here.liked, pool=Ray(1))


def test_another_address_than_the_one_that_is_connected_is_refused():
    with pytest.raises(ConfigError, match=r"connected to a Ray cluster; leave out the address 'elsewhere:6379'"):
        run(agent(), tasks(), llm=llm("http://127.0.0.1:9/v1"), pool=Ray(1, "elsewhere:6379"))


def test_the_key_is_in_no_file_of_ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-indeed-0123456789")
    with serving(capital_cities) as server:
        run(agent(), tasks(), llm=llm(server.url), pool=Ray(1))
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
