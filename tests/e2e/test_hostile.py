"""User code that misbehaves, floods, and signals at bad moments: nothing hangs, nothing is lost in silence."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from atlas import agent, lookup, tasks
from foreign import capital_cities, error, message, serving
from places import python_path
from trunkline_children import SHARED

from trunkline.errors import ConfigError, EndpointError, LLMError, WorkerError
from trunkline.llm.config import LLM
from trunkline.llm.types import Reply, ReplyChoice, Request
from trunkline.runner.pool import Pool
from trunkline.runner.run import arun, run, stream
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.base import Fork, View
from trunkline.strategies.chain import Chain
from trunkline.tools.tool import tool
from trunkline.types import Task, Termination

pytestmark = pytest.mark.breaks_rollouts

CHILDREN = "TRUNKLINE_TEST_CHILDREN"


@tool
def flood(x: str) -> str:
    """Say so much that it has to be escaped sixfold.

    Args:
        x: Anything.
    """
    time.sleep(0.2)
    return "\x1b" * 90_000


@tool
def leave_a_child(country: str) -> str:
    """Start a child that outlives this process, in a session of its own and with all that it has open, and die.

    Args:
        country: Dies for Brazil only.
    """
    if country == "Brazil":
        # It says itself who it is: this process may be dead before it could.
        script = f'touch "${CHILDREN}/$$"; exec sleep 120'
        subprocess.Popen(["sh", "-c", script], close_fds=False, start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return "capital: x"


@tool
async def interrupted(country: str) -> str:
    """Raise what no tool should.

    Args:
        country: Anything.
    """
    raise KeyboardInterrupt


def calls_twice(body: dict) -> dict:
    """Calls the first tool four times at once, then answers."""
    if any(m["role"] == "tool" for m in body["messages"]):
        return message("<answer>done</answer>")
    function = body["tools"][0]["function"]
    (argument,) = function["parameters"]["properties"]
    return message(None, [(function["name"], json.dumps({argument: "Brazil"}))] * 4)


def test_a_flood_of_observations_reaches_the_file_whole(tmp_path: Path):
    many = [Task.ask(f"q{i}", id=str(i)) for i in range(48)]
    with serving(calls_twice) as server:
        llm = LLM(server.url, max_concurrency=48)
        result = run(agent(tools=[flood]), many, llm=llm, workers=1, out=tmp_path / "r")
    assert {r.termination for t in result for r in t.rollouts} == {Termination.ANSWER}
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
    assert (tmp_path / "r").stat().st_size > 48 * 4 * 6 * 80_000 / 2, "the observations are there"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_dead_worker_is_noticed_though_its_child_holds_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    children = tmp_path / "children"
    children.mkdir()
    monkeypatch.setenv(CHILDREN, str(children))
    with serving(calls_twice) as server:
        llm = LLM(server.url, max_concurrency=2)
        result = run(agent(tools=[leave_a_child]), tasks()[:1], llm=llm, workers=1, out=tmp_path / "r")
    left = [int(child.name) for child in children.iterdir()]
    assert left
    assert not [pid for pid in left if is_alive(pid)], "it ends with the worker, in whichever session"
    assert {r.termination for t in result for r in t.rollouts} == {Termination.LOST}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_tool_that_raises_keyboardinterrupt_is_an_observation(workers: int):
    with serving(calls_twice) as server:
        result = run(agent(tools=[interrupted]), tasks()[:1], llm=server.url, workers=workers)
    (rollout,) = result["France"].rollouts
    assert rollout.termination == Termination.ANSWER
    assert rollout.usage.tools == rollout.usage.tool_errors == 4


class Raising(msgspec.Struct, frozen=True):
    def rollouts(self) -> int:
        return 1

    def start(self, view: View) -> list[Fork]:
        raise ValueError("I do not know")


class Empty(Raising, frozen=True):
    def start(self, view: View) -> list[Fork]:
        return []


class Garbage(Raising, frozen=True):
    def start(self, view: View) -> list[int]:
        return [3]


class Twice(Raising, frozen=True):
    def rollouts(self) -> int:
        return 3

    def start(self, view: View) -> list[Fork]:
        return [Fork(n=2), Fork(n=1)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (Raising(), "Raising raised in start.*ValueError: I do not know"),
        (Empty(), "with no rollout"),
        (Garbage(), "yields int"),
    ],
)
def test_a_strategy_that_breaks_ends_the_run(tmp_path: Path, workers: int, strategy: object, says: str):
    with serving(capital_cities) as server:
        with pytest.raises(ConfigError, match=says):
            run(agent(), tasks(), llm=server.url, strategy=strategy, workers=workers, out=tmp_path / "r")
        assert not server.bodies
    assert not (tmp_path / "r").exists()


def test_a_strategy_of_ones_own(local_pool: Pool):
    with serving(capital_cities) as server:
        result = run(agent(), tasks(), llm=server.url, strategy=Twice(), pool=local_pool)
    assert {len(tree.rollouts) for tree in result} == {3}


class Cancelling(Twice, frozen=True):
    def ended(self, view: View) -> list[Fork]:
        raise asyncio.CancelledError


async def test_a_strategy_that_cancels_itself_breaks_its_task_and_holds_nobody_up():
    with serving(capital_cities) as server:
        running = arun(agent(), tasks(), llm=server.url, strategy=Cancelling(), workers=0)
        result = await asyncio.wait_for(running, 20)
    assert [len(tree.rollouts) for tree in result] == [3] * len(tasks())
    with RunReader.open(result.path) as reader:
        errors = [row.error or "" for _, row in reader.rows()]
    assert all("Cancelling raised in ended()" in error for error in errors)
    assert len(errors) == len(tasks())


class Flaky:
    """An LLM of the user's own that raises whatever it likes."""

    def __init__(self, problem: type[BaseException]) -> None:
        self.problem = problem
        self.asked = 0

    async def complete(self, request: Request) -> Reply:
        self.asked += 1
        if self.asked == 3:
            raise self.problem("third time unlucky")
        return Reply([ReplyChoice("<answer>Paris</answer>", None, [], "stop")], 5, 0, 2, 1, 10)

    async def close(self) -> None:
        raise AssertionError("it is not ours to close")


@pytest.mark.parametrize("problem", [ValueError, asyncio.CancelledError, LLMError])
async def test_whatever_an_llm_raises_ends_one_rollout(problem: type[BaseException]):
    result = await arun(agent(), tasks()[:1], llm=Flaky(problem), strategy=Chain(4), reward=exact_match)
    ends = [r.termination for r in result["France"].rollouts]
    assert sorted(ends) == [Termination.ANSWER] * 3 + [Termination.LLM_ERROR]


def test_a_refusal_keeps_what_was_paid_for(tmp_path: Path):
    answered = []

    def later(body: dict) -> object:
        if len(answered) >= 60:
            return error(401, "revoked", "invalid_api_key")
        answered.append(1)
        return message("<answer>x</answer>")

    many = [Task.ask(f"q{i}", id=str(i)) for i in range(400)]
    with serving(later) as server, pytest.raises(EndpointError):
        run(agent(), many, llm=LLM(server.url, max_concurrency=8), workers=2, out=tmp_path / "r")
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []
        kept = sum(node.kind.name == "TURN" for t in reader.tasks() for node in reader.tree(t.id).nodes)
    assert 60 - 8 <= kept <= 60


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 2**63}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"reward": "exactmatch"}, "reward"),
        ({"strategy": 4}, "strategy"),
        ({"workers": -1}, "from 0 to"),
        ({"workers": 100_000}, "from 0 to"),
        ({"llm": 7}, "llm|LLM|complete"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_made(tmp_path: Path, changes: dict, says: str):
    options = {"llm": "http://127.0.0.1:9/v1", "out": tmp_path / "r"} | changes
    with pytest.raises(ConfigError, match=says):
        run(agent(), tasks(), **options)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("wrong", [["q"], [{"question": "q"}], Task.ask("q")])
def test_what_is_no_task_is_named(tmp_path: Path, wrong: object):
    with pytest.raises(ConfigError, match=r"is not a task|must be a list of tasks"):
        run(agent(), wrong, llm="http://127.0.0.1:9/v1", out=tmp_path / "r")


def test_a_message_that_cannot_be_sent_is_refused_before_anything_is_paid(tmp_path: Path):
    with serving(capital_cities) as server:
        bad = Task(id="odd", messages=[{"role": "user", "content": []}])
        with pytest.raises(ConfigError, match=r"task 'odd'.*content"):
            run(agent(), [*tasks(), bad], llm=server.url, out=tmp_path / "r")
        assert not server.bodies


def test_a_small_concurrency_is_kept_by_many_workers():
    most, now = [0], [0]

    def note(body: dict) -> dict:
        return capital_cities(body)

    with serving(note, delay=0.05) as server:
        began = time.monotonic()
        result = run(agent(), tasks(), llm=LLM(server.url, max_concurrency=1), workers=4)
        took = time.monotonic() - began
        assert took >= 0.05 * len(server.bodies), "one request at a time"
    assert len(result) == 5
    assert most == now


SLEEPER = """
import signal, sys, time
import trunkline as tl

@tl.tool
async def lookup(country: str) -> str:
    '''Block the loop.

    Args:
        country: Anything.
    '''
    print("blocking", flush=True)
    time.sleep(30)
    return "x"

if __name__ == "__main__":
    tl.run(tl.Agent(model="m", tools=[lookup]), [tl.Task.ask("Capital of France?")], llm=tl.LLM(sys.argv[1]), workers=0)
"""


def test_a_blocked_loop_in_this_process_can_be_interrupted(tmp_path: Path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    with serving(capital_cities) as server:
        process = subprocess.Popen(
            [sys.executable, "sleeper.py", server.url],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "blocking\n"
        began = time.monotonic()
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        _, said = process.communicate(timeout=20)
        assert time.monotonic() - began < 8
    assert "stopped by SIGINT" in said


def test_the_callers_signal_handlers_come_back():
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with serving(capital_cities) as server:
            run(agent(), tasks()[:1], llm=server.url, workers=0)
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def descriptors() -> int:
    """Open descriptors of this process, the test server's connections among them."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_come_back(tmp_path: Path):
    with serving(capital_cities) as server:
        run(agent(tools=[lookup]), tasks()[:1], llm=server.url, workers=1)
        before = descriptors()
        for _ in range(5):
            run(agent(tools=[lookup]), tasks()[:1], llm=server.url, workers=1)
        deadline = time.monotonic() + 5
        while descriptors() > before:
            assert time.monotonic() < deadline, "the server's side of a closed connection goes within moments"
            time.sleep(0.05)


async def test_an_early_cancel_leaks_nothing():
    import gc

    gc.collect()
    before = descriptors()
    for ticks in range(6):
        running = asyncio.ensure_future(arun(agent(), tasks(), llm="http://127.0.0.1:9/v1", workers=2))
        for _ in range(ticks):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    del running
    gc.collect()
    assert descriptors() <= before


@tool
def die_of_a_nameless_signal(country: str) -> str:
    """End the process by a real-time signal.

    Args:
        country: Anything.
    """
    os.kill(os.getpid(), 40)
    return country


def test_a_death_by_a_signal_without_a_name(tmp_path: Path):
    with serving(calls_twice) as server:
        llm = LLM(server.url, max_concurrency=2)
        with pytest.raises(WorkerError, match="signal 40"):
            run(agent(tools=[die_of_a_nameless_signal]), tasks(), llm=llm, workers=2, out=tmp_path / "r")


def test_one_disliked_question_is_not_the_run(local_pool: Pool):
    def dislikes(body: dict) -> object:
        if "Chile" in body["messages"][0]["content"]:
            return error(400, "I do not like it")
        time.sleep(0.02)
        return message("<answer>x</answer>")

    with serving(dislikes) as server:
        result = run(agent(), tasks(), llm=LLM(server.url, max_concurrency=64), strategy=Chain(16), pool=local_pool)
    assert {tree.task.id for tree in result if tree.rollouts[0].termination == Termination.ANSWER} == {
        task.id for task in tasks() if task.id != "Chile"
    }


def test_refusals_that_differ_in_a_request_id_are_alike(tmp_path: Path):
    number = iter(range(10_000))
    many = [Task.ask(f"q{i}") for i in range(300)]
    with serving(lambda _b: error(400, f"bad field (request 9f{next(number):06x}-aa)")) as server:
        with pytest.raises(EndpointError, match="first 10 requests"):
            run(agent(), many, llm=LLM(server.url, max_concurrency=8), workers=1, out=tmp_path / "r")
        assert len(server.bodies) < 200
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("calls", [1001, 50_000])
def test_a_reply_with_too_many_calls_ends_its_rollout(calls: int, local_pool: Pool):
    def greedy(body: dict) -> dict:
        if "Chile" in body["messages"][0]["content"]:
            return message(None, [("lookup", "{}")] * calls)
        return message("<answer>x</answer>")

    with serving(greedy) as server:
        result = run(agent(), tasks(), llm=server.url, pool=local_pool)
    ends = {tree.task.id: tree.rollouts[0] for tree in result}
    assert ends.pop("Chile").termination == Termination.LLM_ERROR
    assert {rollout.termination for rollout in ends.values()} == {Termination.ANSWER}


def test_a_very_long_reply_ends_its_rollout(local_pool: Pool):
    def verbose(body: dict) -> dict:
        return message("x" * (17 << 20) if "Chile" in body["messages"][0]["content"] else "<answer>x</answer>")

    with serving(verbose) as server:
        result = run(agent(), tasks(), llm=server.url, pool=local_pool)
    ends = {tree.task.id: tree.rollouts[0] for tree in result}
    assert "bytes" in ends["Chile"].error.message
    assert ends["Chile"].termination == Termination.LLM_ERROR
    assert ends["France"].termination == Termination.ANSWER


@pytest.mark.parametrize("odd", [{"micros": 10.5}, {"attempts": 0}, {"micros": -1}, {"prompt": 2**70}])
async def test_odd_figures_hold_nobody_up(odd: dict):
    class Odd:
        async def complete(self, request: Request) -> Reply:
            figures = {"prompt": 1, "cached": 0, "generated": 1, "attempts": 1, "micros": 1} | odd
            return Reply([ReplyChoice("<answer>x</answer>", None, [], "stop")], **figures)

    many = [Task.ask(f"q{i}") for i in range(300)]
    async with asyncio.timeout(20):
        result = await arun(agent(), many, llm=Odd())
    assert len(result) == 300


def test_a_changed_folder_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def elsewhere(body: dict) -> dict:
        os.chdir("/")
        return capital_cities(body)

    with serving(elsewhere) as server:
        result = run(agent(), tasks(), llm=server.url, workers=0, out="r.run")
    assert len(result) == 5
    assert (tmp_path / "r.run").is_file()


async def test_two_cancels_at_once_leave_no_worker():
    with serving(capital_cities, delay=0.5) as server:
        running = asyncio.ensure_future(arun(agent(), tasks(), llm=server.url, workers=2))
        while not server.bodies:
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        deadline = time.monotonic() + 4
        while workers_of(os.getpid()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        # The reaping goes on beside us; its task is to end before the loop does.
        await asyncio.sleep(0.1)


def workers_of(pid: int) -> list[int]:
    """Worker processes of a process that live, or wait to be reaped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            worker = b"trunkline.worker.main" in (stat.parent / "cmdline").read_bytes()
            if int(fields[1]) == pid and (worker or fields[0] == "Z") and int(stat.parent.name) not in SHARED:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


async def test_a_stream_of_many_tasks_takes_no_longer_than_they_do():
    def quick(_body: dict) -> dict:
        return message("<answer>x</answer>")

    many = [Task.ask(f"q{i}") for i in range(1500)]
    with serving(quick) as server:
        seen = [tree.task.id async for tree in stream(agent(), many, llm=server.url, workers=1)]
    assert sorted(seen) == sorted(task.id for task in many)


IN_A_LOOP = """
import asyncio, sys
from atlas import agent, tasks
from trunkline.llm.config import LLM
from trunkline.runner.run import Interrupted, run

async def main():
    try:
        run(agent(), tasks(), llm=LLM(sys.argv[1]), workers=2, out=sys.argv[2])
    except Interrupted as stop:
        print("STATE", stop.run.state if stop.run else None, flush=True)

asyncio.run(main())
"""


def test_an_interrupt_beside_a_running_loop_waits_for_the_file(tmp_path: Path):
    with serving(capital_cities, delay=0.3) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", IN_A_LOOP, server.url, str(tmp_path / "r")],
            env=os.environ | {"PYTHONPATH": python_path()},
            stdout=subprocess.PIPE,
            text=True,
        )
        while len(server.bodies) < 6:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
    assert said == "STATE interrupted\n"
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.meta["state"] == "interrupted"
        assert reader.check() == []


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05])
def test_any_number_of_signals_leaves_a_closed_file(tmp_path: Path, pause: float):
    (tmp_path / "sleeper.py").write_text(SLEEPER.replace("workers=0", "workers=2, out='r'"))
    with serving(capital_cities, delay=0.05) as server:
        process = subprocess.Popen(
            [sys.executable, "sleeper.py", server.url], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while not server.bodies:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        for _ in range(4):
            process.send_signal(signal.SIGINT)
            time.sleep(pause)
        process.communicate(timeout=20)
    if (tmp_path / "r").exists():
        with RunReader.open(tmp_path / "r") as reader:
            assert reader.meta["state"] == "interrupted"
