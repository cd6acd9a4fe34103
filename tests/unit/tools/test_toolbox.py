"""The runner: whatever a tool does, the model reads one observation and the process lives."""

import asyncio
import contextvars
import json
import logging
import os
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

from trunkline.errors import ConfigError, ToolError
from trunkline.llm.types import ToolCall
from trunkline.tools.calls import as_text
from trunkline.tools.tool import Tool, tool
from trunkline.tools.toolbox import Observation, Toolbox

WHO = contextvars.ContextVar("who", default="nobody")


@tool
async def add(a: int, b: int = 1) -> int:
    return a + b


@tool
def where(word: str) -> str:
    """Say which thread runs it."""
    return f"{word} {threading.current_thread().name} {WHO.get()}"


def box(*tools, **options):
    return Toolbox([item if isinstance(item, Tool) else tool(item) for item in tools], **options)


async def test_sync_and_async_tools_run():
    tools = box(add, where)
    WHO.set("me")
    first = await tools.call("add", '{"a": 2}')
    second = await tools.call("where", '{"word": "in"}')
    assert first[:2] == ("3", True)
    assert second[:2] == ("in trunkline-tool me", True)
    assert isinstance(first, Observation)
    assert first.micros >= 0
    await tools.close()
    await tools.close()


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("sub", "{}", "no tool named 'sub'. Available tools: add, where."),
        ("\x1b[31m" + "x" * 500, "{}", "no tool named '\\x1b[31mxxx"),
        ("add", '{"a": 1, ', "not valid JSON"),
        ("add", '{"a": "many"}', "argument 'a': expected int, got str"),
        ("add", "{}", "missing argument 'a'"),
        ("add", '{"a": 1, "c": 2}', "unknown argument 'c'; the arguments are: a, b"),
        ("add", '{"a": null}', "argument 'a'"),
    ],
)
async def test_calls_that_do_not_fit(name, arguments, words):
    text, ok, _ = await box(add, where).call(name, arguments)
    assert words in text
    assert text.startswith("Error: ")
    assert len(text) < 400
    assert not ok


async def test_an_empty_toolbox():
    assert (await box().call("f", "{}")).text == "Error: there is no tool named 'f'. Available tools: none."
    assert await box().call_all([]) == []


class Rude(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Rudest(Exception):
    def __str__(self):
        raise SystemExit("no words")


class Own(BaseException):
    pass


@pytest.mark.parametrize("run_async", [True, False])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad \x1b[31mvalue"), "Error: boom failed with ValueError: bad \\x1b[31mvalue"),
        (ToolError("try another query"), "try another query"),
        (SystemExit(3), "Error: boom failed with SystemExit: 3"),
        (Rude(), "Error: boom failed: Rude"),
        (Rudest(), "Error: boom failed: Rudest"),
        (Own("x"), "Error: boom failed with Own: x"),
        (GeneratorExit(), "Error: boom failed: GeneratorExit"),
        (TimeoutError("its own"), "Error: boom failed with TimeoutError: its own"),
        (TypeError("its own"), "Error: boom failed with TypeError: its own"),
        (asyncio.CancelledError(), "CancelledError"),
        (StopIteration(1), "StopIteration"),
    ],
)
async def test_whatever_a_tool_raises_becomes_an_observation(error, text, run_async, caplog):
    caplog.set_level(logging.DEBUG, "trunkline.tools")

    async def boom_async() -> str:
        raise error

    def boom_sync() -> str:
        raise error

    tools = box(tool(name="boom")(boom_async if run_async else boom_sync), add)
    seen = await tools.call("boom", "{}")
    assert text in seen.text
    assert not seen.ok
    assert "Traceback" not in seen.text
    if isinstance(error, ValueError):
        assert "Traceback" in caplog.text
        assert "\x1b" not in caplog.text
    assert (await tools.call("add", '{"a": 1}')).ok
    await tools.close()


class Text(str):
    __slots__ = ()

    def __len__(self):
        raise SystemExit(3)

    encode = __getitem__ = __contains__ = __len__


@pytest.mark.parametrize("run_async", [True, False])
async def test_methods_of_a_result_cannot_end_the_process(run_async):
    async def odd_async() -> object:
        return Text("abc")

    tools = box(tool(name="odd")(odd_async if run_async else lambda: Text("abc")))
    assert (await tools.call("odd", "{}"))[:2] == ("abc", True)
    await tools.close()


async def test_an_interrupt_in_a_thread_is_the_tools_own():
    def boom() -> str:
        raise KeyboardInterrupt

    assert (await box(boom).call("boom", "{}")).text == "Error: boom failed: KeyboardInterrupt"


async def test_an_async_tool_that_hangs_is_stopped():
    cleaned = []

    @tool(timeout=0.1)
    async def hang() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)
        return "never"

    start = time.monotonic()
    seen = await box(hang).call("hang", "{}")
    assert seen.text == "Error: hang gave no result within 0.1 s and was stopped."
    assert time.monotonic() - start < 20
    assert 90_000 < seen.micros < 20_000_000
    assert cleaned == [True]


async def test_an_async_tool_that_ignores_its_cancellation(monkeypatch):
    monkeypatch.setattr("trunkline.tools.executor.GRACE", 0.1)
    release = asyncio.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    tools = box(stubborn, timeout=0.1)
    start = time.monotonic()
    assert "no result within 0.1 s" in (await tools.call("stubborn", "{}")).text
    assert time.monotonic() - start < 20
    release.set()
    await tools.close()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


async def test_sync_tools_that_hang_do_not_use_up_the_threads():
    release = threading.Event()

    def hang() -> str:
        release.wait(30)
        return "late"

    def quick() -> str:
        return "quick"

    tools = box(hang, quick, timeout=0.05, threads=2)
    for _ in range(3):
        assert "no result within" in (await tools.call("hang", "{}")).text
        assert (await tools.call("quick", "{}")).text == "quick"
    for _ in range(5):
        await tools.call("hang", "{}")
    assert "8 earlier tool calls never returned" in (await tools.call("quick", "{}")).text
    release.set()
    await asyncio.sleep(0.1)
    assert (await tools.call("quick", "{}")).text == "quick"
    await tools.close()


async def test_threads_are_bounded_reused_and_end():
    running, most, lock = 0, 0, threading.Lock()

    def work(n: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return n

    others = set(threading.enumerate())
    tools = box(work, threads=4, parallel=1000)
    seen = await tools.call_all([ToolCall("same", "work", f'{{"n": {n}}}') for n in range(1000)])
    assert [observation.text for observation in seen] == [str(n) for n in range(1000)]
    assert 2 <= most <= 4
    ours = set(threading.enumerate()) - others
    assert len(ours) <= 8
    await tools.close()
    for thread in ours:
        thread.join(2)
        assert not thread.is_alive()
    assert "closed" in (await _failed(tools.call("work", '{"n": 1}')))


async def _failed(call):
    with pytest.raises(RuntimeError) as caught:
        await call
    return str(caught.value)


async def test_calls_of_a_turn_run_together_and_answer_in_order():
    started = []
    both = asyncio.Event()

    async def meet(n: int) -> int:
        started.append(n)
        if len(started) == 2:
            both.set()
        await both.wait()
        await asyncio.sleep(0.02 if n == 0 else 0)
        return n

    seen = await box(meet).call_all([ToolCall("", "meet", '{"n": 0}'), ToolCall("", "meet", '{"n": 1}')])
    assert [observation.text for observation in seen] == ["0", "1"]


async def test_one_bad_call_does_not_spoil_the_others():
    seen = await box(add).call_all([ToolCall("", "add", "{"), ToolCall("", "nope", ""), ToolCall("", "add", '{"a":1}')])
    assert [observation.ok for observation in seen] == [False, False, True]


async def test_parallel_calls_are_capped():
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    await box(work, parallel=3).call_all([ToolCall("", "work", "")] * 30)
    assert most == 3


@pytest.mark.parametrize("count", [1, 3])
async def test_cancelling_the_turn_cancels_its_tools(count):
    stopped = []

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(True)

    task = asyncio.ensure_future(box(hang).call_all([ToolCall("", "hang", "")] * count))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(stopped) == count
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancelled_sync_call_leaves_its_thread_usable():
    release = threading.Event()

    def hang() -> str:
        release.wait(10)
        return "x"

    tools = box(hang, threads=1)
    task = asyncio.ensure_future(tools.call("hang", ""))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert (await tools.call("hang", "")).text == "x"
    await tools.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("caf\u00e9", "caf\u00e9"),
        (None, ""),
        (5, "5"),
        (2.5, "2.5"),
        (True, "true"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (["\u00e9", "\ud800"], '["\u00e9","\ufffd"]'),
        ("a\0b\ud800", "a\ufffdb\ufffd"),
        ((1, 2), "[1,2]"),
    ],
)
def test_results_become_text(value, text):
    assert as_text(value) == text


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), memoryview(b"x"), object(), {1j: 2}, lambda: 1])
async def test_results_that_are_no_text(value):
    def odd() -> None:
        return value

    seen = await box(odd).call("odd", "")
    assert "the tool returned" in seen.text
    assert not seen.ok


async def test_nesting_without_end_is_refused():
    loop = []
    loop.append(loop)

    def odd() -> None:
        return loop

    assert "neither text nor JSON" in (await box(odd).call("odd", "")).text


async def test_a_sync_function_may_return_an_awaitable():
    def later() -> str:
        async def inner():
            return "awaited"

        return inner()

    assert (await box(later).call("later", "")).text == "awaited"


async def test_long_results_are_cut_with_a_note():
    async def long() -> str:
        return "x" * 10_000_000

    text = (await box(long).call("long", "")).text
    assert text.startswith("x" * 100_000 + "\n[cut: the first 100,000 of 10,000,000 characters]")
    assert len(text) < 100_100
    short = (await box(long, limit=10).call("long", "")).text
    assert short == "xxxxxxxxxx\n[cut: the first 10 of 10,000,000 characters]"

    def loud() -> str:
        raise ToolError("y" * 1_000_000)

    assert len((await box(loud).call("loud", "")).text) < 100_300


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=50))
@settings(max_examples=100)
def test_any_text_can_be_sent(text):
    out = as_text(text)
    assert json.loads(json.dumps(out).encode()) == out
    assert "\0" not in out


def test_a_function_is_no_tool():
    with pytest.raises(ConfigError, match=r"<function box .* in tools is not a tool; decorate the function with @tool"):
        Toolbox([box])


def test_two_tools_of_one_name():
    with pytest.raises(ConfigError, match="two tools are named 'add'"):
        box(add, add)


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"timeout": float("nan")}, {"limit": 0}, {"threads": True}, {"parallel": 0}]
)
def test_options_out_of_range(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        box(**options)


async def test_a_hung_tool_does_not_keep_the_process(tmp_path):
    script = tmp_path / "hung.py"
    script.write_text(
        "import asyncio, time\n"
        "from trunkline.tools.toolbox import Toolbox\n"
        "from trunkline.tools.tool import tool\n"
        "@tool\ndef hang() -> str:\n    time.sleep(600)\n"
        "print(asyncio.run(Toolbox([hang], timeout=0.1).call('hang', '')).text)\n"
    )
    source = ROOT / "python"
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(source)}
    )
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    assert b"no result within 0.1 s" in out
    assert process.returncode == 0
