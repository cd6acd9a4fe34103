"""Events of runs that are under way: who listens, how slow, and what ends."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from atlas import agent, tasks
from commands import trunkline
from foreign import capital_cities, message, serving
from places import python_path
from resuming import kill, start, wait_for

import trunkline as tl
from trunkline.errors import ConfigError, RunFileError
from trunkline.observability import EventListener, RunEvent
from trunkline.store.lock import is_written


def by_task(events: list[RunEvent]) -> dict[str, list[RunEvent]]:
    found: dict[str, list[RunEvent]] = {}
    for event in events:
        if getattr(event, "task", None) is not None:
            found.setdefault(event.task, []).append(event)
    return found


def play(url: str, out: Path, on_event: object = None, **options: object) -> tl.Run:
    given = {"workers": 0, "strategy": tl.Chain(2), "seed": 7} | options
    return tl.run(agent(), tasks(), llm=tl.LLM(url), out=out, on_event=on_event, **given)


def command(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "trunkline.cli", "events", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": python_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_all_who_watch_a_run_of_worker_processes_see_the_same(tmp_path: Path):
    out, told, watcher = tmp_path / "r", [], []

    def listen(event: RunEvent) -> None:
        if event.kind == "run_started":
            watcher.append(command(out, "--follow", "--text", "all"))
        told.append(event)

    with serving(capital_cities) as server:
        run = play(server.url, out, EventListener(listen, text=None), workers=2, reward="exact_match")
    whole = list(tl.events(run, text=None))
    lines = trunkline(
        tmp_path, "events", "r", "--kind", "turn", "--kind", "score,fork", "--text", "all"
    ).stdout.splitlines()
    assert lines == [event.as_json() for event in whole if event.kind in {"turn", "score", "fork"}]
    assert by_task(told) == by_task(whole)
    assert (told[0], told[-1]) == (whole[0], whole[-1])
    assert {"turn", "tool_call", "observation", "score", "task_ended"} <= {event.kind for event in whole}
    printed, problems = watcher[0].communicate(timeout=60)
    assert (watcher[0].returncode, problems) == (0, b"")
    assert sorted(printed.decode("ascii").splitlines()) == sorted(event.as_json() for event in whole)


def test_a_killed_run_has_events_up_to_the_kill_and_a_resumed_one_those_behind(tmp_path: Path):
    out, followed = tmp_path / "r", []
    with serving(capital_cities, delay=0.1) as server:
        process = start(server.url, out)
        wait_for(lambda: len(server.bodies) >= 8)
        follower = threading.Thread(target=lambda: followed.extend(tl.events(out, follow=True)))
        follower.start()
        kill(process)
        wait_for(lambda: not is_written(out))
        follower.join(60)
        before = list(tl.events(out))
        assert by_task(followed) == by_task(before)
        assert (followed[-1].kind, followed[-1].state) == ("run_ended", "killed")
        told: list[RunEvent] = []
        run = play(server.url, out, told.append, resume=True)
    whole = by_task(list(tl.events(run)))
    joined = by_task(before)
    for task, events in by_task(told).items():
        joined.setdefault(task, []).extend(events)
    assert joined == whole
    assert told[-1].state == "done"


@pytest.mark.parametrize("drops", [False, True])
def test_a_slow_listener_holds_up_the_run_or_loses_events_that_are_counted(tmp_path: Path, drops: bool):
    out, told, go = tmp_path / "r", [], threading.Event()
    answered: list[int] = []

    def slow(event: RunEvent) -> None:
        if event.kind == "turn" and not go.is_set():
            assert go.wait(60)
        told.append(event)

    def answer(body: dict) -> dict:
        answered.append(1)
        return message("<answer>x</answer>")

    many = [tl.Task.ask("what?", id=f"q{number}") for number in range(300)]
    behind: list[bool] = []

    def watch(progress: tl.observability.Progress) -> None:
        behind.append(progress.behind)
        stuck = progress.behind and progress.calls >= 64
        if stuck or progress.tasks_done == len(many):
            go.set()

    listener = EventListener(slow, most_behind=1, when_behind="drop" if drops else "wait")
    with serving(answer) as server:
        llm = tl.LLM(server.url, max_concurrency=8)
        run = tl.run(tl.Agent(model="m"), many, llm=llm, workers=0, out=out, on_event=listener, watch=watch)
    whole = list(tl.events(run))
    dropped = sum(event.count for event in told if event.kind == "dropped")
    kept = [event for event in told if event.kind != "dropped"]
    assert len(kept) + dropped == len(whole)
    assert (any(behind), dropped > 0) == (not drops, drops)
    assert kept[-1] == whole[-1]
    assert run.summary().finished == len(many)


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError])
def test_one_that_raises_is_told_no_more_and_its_run_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
):
    told: list[RunEvent] = []

    def breaks(event: RunEvent) -> None:
        told.append(event)
        if event.kind == "turn":
            raise kind("no\x1b[31m sk-a-key-of-this-test-0123456789")

    with serving(capital_cities) as server:
        run = play(server.url, tmp_path / "r", EventListener(breaks, most_behind=1))
        assert run.summary().finished == 5
        assert [event.kind for event in told].count("turn") == 1
        assert caplog.text.count(f"on_event is told no more, and the run continues without it: {kind.__name__}") == 1
        assert "sk-a-key" not in caplog.text
        assert "\x1b" not in caplog.text
        # A run that has nothing of its own in it has left no file.
        with pytest.raises(tl.errors.EndpointError):
            play("http://127.0.0.1:9/v1", tmp_path / "none", told.append)


def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path: Path):
    with serving(capital_cities) as server:
        run = play(server.url, tmp_path / "r")
    with command(run.path, "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["kind"] == "run_started"
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")


def test_foolish_arguments_are_refused_in_words(tmp_path: Path):
    async def waits(event: RunEvent) -> None:
        del event

    class Waiting:
        async def __call__(self, event: RunEvent) -> None:
            del event

    for wrong in (7, "print", waits, Waiting()):
        with pytest.raises(ConfigError, match="on_event must"):
            play("http://127.0.0.1:9/v1", tmp_path / "r", wrong)
    for options in ({"most_behind": 0}, {"when_behind": "slow"}, {"kinds": []}, {"kinds": "turns"}, {"text": -1}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            EventListener(print, **options)
    for given in (None, "", 5, b"r"):
        with pytest.raises(ConfigError, match="events needs a run or the path"):
            tl.events(given)
    for kinds in ((), ("turn", "turns,score")):
        shown = trunkline(tmp_path, "events", "r", *(word for kind in kinds for word in ("--kind", kind)))
        assert (shown.returncode, shown.stderr.count("error: ")) == (2, 1)
    (tmp_path / "text").write_text("no run")
    for path in (tmp_path, tmp_path / "text", tmp_path / "none"):
        with pytest.raises(RunFileError):
            tl.events(path)
    assert not (tmp_path / "r").exists()
