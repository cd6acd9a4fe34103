"""Isolated tools: whatever a call does, it costs that call and nothing else."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from descriptors import open_descriptors
from perils import DEEDS, gone_within, live, peril, peril_async, stuck
from places import python_path

from trunkline.errors import ConfigError, CrossingError
from trunkline.llm.types import ToolCall
from trunkline.tools.tool import tool
from trunkline.tools.toolbox import Toolbox


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What the environment of every process of this test carries."""
    monkeypatch.setenv("TRUNKLINE_TEST_MARK", f"{tmp_path.name}-{os.getpid()}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return f"TRUNKLINE_TEST_MARK={tmp_path.name}-{os.getpid()}"


@pytest.fixture
async def box(marker: str):
    toolbox = Toolbox([peril, peril_async, stuck], limit=1000)
    before = open_descriptors()
    yield toolbox
    await toolbox.close()
    assert live(marker) == []
    assert not open_descriptors() - before


async def do(box: Toolbox, deed: str, name: str = "peril"):
    return await box.call(name, f'{{"deed": "{deed}"}}')


async def test_a_tool_that_its_process_cannot_import_is_said_to_be_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module = tmp_path / "vanishing_tool.py"
    module.write_text("import trunkline as tl\n\n\n@tl.tool(isolated=True)\ndef gone() -> str:\n    return 'here'\n")
    monkeypatch.syspath_prepend(tmp_path)
    box = Toolbox([importlib.import_module("vanishing_tool").gone])
    module.unlink()
    for calls in (1, 2):
        with pytest.raises(CrossingError, match="vanishing_tool"):
            await box.call_all([ToolCall("", "gone", "")] * calls)
    await box.close()


async def test_a_process_is_kept_for_the_next_call(box: Toolbox):
    first, second = await do(box, "pid"), await do(box, "pid")
    assert first.text == second.text != str(os.getpid())
    assert first.ok
    assert (await do(box, "pid", "peril_async")).text != first.text


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("segfault", "Error: peril was killed by SIGSEGV."),
        ("abort", "Error: peril was killed by SIGABRT."),
        ("exit", "Error: peril ended its process with exit code 3."),
        ("sys.exit", "Error: peril failed with SystemExit: 4"),
        ("raise", "Error: peril failed with KeyError"),
        ("leak", "Error: peril used more than 256 MB."),
        ("one gigabyte", "Error: peril used more than 256 MB."),
        ("bytes", "the tool returned bytes"),
        ("close all", "Error: peril ended its process with exit code 1."),
    ],
)
async def test_the_observation_says_what_happened_and_the_next_call_is_served(box: Toolbox, deed: str, words: str):
    await do(box, "pid")
    start = time.monotonic()
    seen = await do(box, deed)
    assert words in seen.text
    assert not seen.ok
    assert time.monotonic() - start < 10
    assert (await do(box, "pid")).ok


@pytest.mark.parametrize("deed", ["hold the GIL", "stop", "spin", "babble"])
async def test_what_hangs_is_killed_at_its_timeout(box: Toolbox, tmp_path: Path, deed: str):
    first = await do(box, "pid", "stuck")
    start, ticks = time.monotonic(), 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    seen = await do(box, deed, "stuck")
    took = time.monotonic() - start
    ticking.cancel()
    assert seen.text == "Error: stuck took longer than 0.4 s and was killed."
    assert 0.4 <= took < 5
    assert ticks > 8, "the loop went on"
    assert list(tmp_path.iterdir()) == [], "temporary files are gone"
    assert (await do(box, "pid", "stuck")).text != first.text


async def test_an_async_tool_that_hangs_is_killed(box: Toolbox):
    seen = await do(box, "await", "peril_async")
    assert seen.text == "Error: peril_async took longer than 0.4 s and was killed."
    assert (await do(box, "sys.exit", "peril_async")).text.endswith("failed with SystemExit: 4")


@pytest.mark.parametrize("deed", ["daemon", "descriptors", "files", "fork", "threads"])
async def test_what_a_call_leaves_behind_goes_with_its_process(box: Toolbox, marker: str, tmp_path: Path, deed: str):
    first = await do(box, "pid")
    seen = await do(box, deed)
    assert seen.ok
    assert seen.text in {"left a daemon", "Too many open files", "parent", "left threads"} or deed == "files"
    assert gone_within(marker, 5), "neither the process nor what it had started"
    assert list(tmp_path.iterdir()) == []
    assert (await do(box, "pid")).text != first.text


async def test_what_is_printed_goes_nowhere_but_into_the_record_of_a_crash(box: Toolbox, capfd, caplog):
    caplog.set_level(logging.DEBUG, "trunkline.tools")
    assert (await do(box, "shout")).text == "shouted"
    assert capfd.readouterr() == ("", "")
    await do(box, "segfault")
    assert "Segmentation fault" in caplog.text
    assert "in string_at" in caplog.text
    assert "\x1b" not in caplog.text


async def test_a_long_result_crosses_only_as_far_as_it_is_kept(box: Toolbox):
    seen = await do(box, "long")
    assert seen.text.endswith("[cut: the first 1,000 of 10,000,000 characters]")


async def test_cpu_time_is_limited_behind_the_clock_and_no_core_is_dumped(box: Toolbox):
    cpu, core = json.loads((await do(box, "limits")).text)
    assert 20 < cpu <= 22 * (os.cpu_count() or 1)
    assert core == 0


async def test_calls_run_at_once_up_to_the_concurrency_and_waiting_does_not_count(box: Toolbox):
    start = time.monotonic()
    seen = await asyncio.gather(*(do(box, "sleep", "stuck") for _ in range(4)))
    assert {one.text for one in seen} == {"Error: stuck took longer than 0.4 s and was killed."}
    assert 0.8 <= time.monotonic() - start < 8


async def test_a_cancelled_call_takes_its_process_along(box: Toolbox, marker: str):
    await do(box, "pid")
    for _ in range(2):  # a process that is there, and one that is being started
        call = asyncio.create_task(do(box, "spin"))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert (await do(box, "pid")).ok


async def test_a_process_without_work_ends(box: Toolbox, marker: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.tools.isolation.process_pool.IDLE", 0.05)
    await do(box, "pid")
    assert await asyncio.to_thread(gone_within, marker, 5)
    assert (await do(box, "pid")).ok


async def test_a_process_that_dies_between_calls_costs_none(box: Toolbox):
    first = await do(box, "pid")
    os.kill(int(first.text), 9)
    await asyncio.sleep(0.1)
    assert (await do(box, "pid")).ok


async def test_closing_ends_calls_that_run(marker: str):
    box = Toolbox([peril])
    call = asyncio.create_task(do(box, "sleep"))
    await asyncio.sleep(0.3)
    await box.close()
    assert "was killed by SIGKILL" in (await call).text or "no process could be started" in (await call).text
    assert live(marker) == []
    with pytest.raises(RuntimeError, match="closed"):
        await do(box, "pid")


SPINNING = """
import asyncio
from pathlib import Path
from perils import peril
from trunkline.tools.toolbox import Toolbox

async def main():
    box = Toolbox([peril])
    await box.call("peril", '{"deed": "daemon"}')
    task = asyncio.create_task(box.call("peril", '{"deed": "spin"}'))
    await asyncio.sleep(0.5)
    Path("spinning").touch()
    await task

asyncio.run(main())
"""


def test_a_dead_worker_leaves_no_process(marker: str, tmp_path: Path):
    env = os.environ | {"PYTHONPATH": python_path()}
    host = subprocess.Popen([sys.executable, "-c", SPINNING], cwd=tmp_path, env=env)
    deadline = time.monotonic() + 10
    while not (tmp_path / "spinning").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(live(marker)) > 1
    host.kill()
    host.wait()
    assert gone_within(marker, 5)


def test_a_tool_that_cannot_be_found_in_another_process_is_refused(monkeypatch: pytest.MonkeyPatch):
    lock = threading.Lock()

    @tool(isolated=True)
    def here() -> str:
        return str(lock)

    with pytest.raises(ConfigError, match=r"'here': isolated=True .* define it at the top level of a module"):
        Toolbox([here])


def test_every_deed_is_tested():
    source = Path(__file__).read_text("utf-8")
    assert [deed for deed in DEEDS if f'"{deed}"' not in source] == []
