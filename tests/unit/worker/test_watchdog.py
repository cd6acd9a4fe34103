"""The watchdog: a worker short of Python time says so once for each run, with what to change."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback

import pytest

import trunkline
from trunkline._internal.frames import is_users, users_function, users_traceback
from trunkline.errors import UsageError
from trunkline.tools.executor import UserCodeRunner
from trunkline.worker import health
from trunkline.worker.health import Watchdog, remedy


async def test_tools_that_take_all_of_the_interpreter_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(health, "_WINDOW", 0.5)
    monkeypatch.setattr(health, "_LATE", 0.05)
    # As on a machine that is theirs alone.
    monkeypatch.setattr(health, "remedy", lambda _busy, _others, running: remedy(0.0, 1.0, running))
    over = threading.Event()

    def greedy() -> None:
        while not over.is_set():
            pass

    runner = UserCodeRunner(2)
    before = sys.getswitchinterval()
    with caplog.at_level(logging.WARNING, "trunkline"):
        watchdog = Watchdog()
        sys.setswitchinterval(0.2)
        calls = [asyncio.create_task(runner.run(greedy, False, 60)) for _ in range(2)]
        try:
            for run in range(1, 3):
                for _ in range(2000):
                    if sum("short of Python time" in line for line in caplog.messages) == run:
                        break
                    await asyncio.sleep(0.01)
                for _ in range(3):  # three windows more, in which nothing is said
                    began = watchdog._began
                    while watchdog._began == began:
                        await asyncio.sleep(0.01)
                watchdog.resume()
        finally:
            over.set()
            sys.setswitchinterval(before)
            await asyncio.gather(*calls)
            watchdog.close()
            await runner.close()
    said = [line for line in caplog.messages if "short of Python time" in line]
    assert len(said) == 2, "once for each run"
    assert "greedy (" in said[0]
    assert "@tool(isolated=True)" in said[0]
    assert [line for line in caplog.messages if "trunkline/" in line] == [], "frames of ours are not named"


@pytest.mark.parametrize(
    ("busy", "others", "says"),
    [
        (0.95, 0.05, "more workers"),
        (0.1, 0.9, "isolated=True"),
        (0.2, 0.1, "fewer workers"),
    ],
)
def test_the_remedy_depends_on_where_the_time_went(busy: float, others: float, says: str):
    assert says in remedy(busy, others, None)


def test_frames_are_the_users_or_not():
    assert is_users(__file__)
    assert is_users("<stdin>")
    assert not is_users(trunkline.__file__)
    assert not is_users(os.__file__)
    assert not is_users("<frozen runpy>")
    assert users_function(sys._getframe()).startswith("test_frames_are_the_users_or_not (")  # type: ignore[union-attr]


def raised(function, *arguments) -> BaseException:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError


def test_a_traceback_has_frames_of_user_code_alone_unless_the_fault_is_ours():
    def mine() -> None:
        try:
            asyncio.run(3)  # type: ignore[arg-type]
        except ValueError as error:
            raise UsageError("mine") from error

    shown = users_traceback(raised(mine))
    assert "in mine" in shown
    assert "asyncio/runners.py" not in shown
    assert shown.endswith("UsageError: mine\n")
    fault = raised(trunkline.load_tasks, object())
    if not isinstance(fault, trunkline.TrunklineError):
        assert users_traceback(fault) == "".join(traceback.format_exception(fault))
