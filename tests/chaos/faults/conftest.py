"""Every fault meets both transports, one of them plain and over TLS, on both event loops; none may leave anything."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop
from descriptors import open_descriptors
from fault_client import KEY
from fault_server import FaultServer, trusting
from places import SUPPORT
from secrets_kept import assert_no_secret

from trunkline.llm.http import origin
from trunkline.llm.http.aiohttp_transport import AioTransport
from trunkline.llm.http.direct_transport import DirectTransport


def pytest_asyncio_loop_factories(config, item):
    """Run each test on asyncio's loop and on uvloop."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["plain", "tls", "aio"])
def transport(request, monkeypatch) -> type:
    """The class of transport; servers speak TLS where that is said."""
    if request.param == "tls":
        monkeypatch.setattr(FaultServer, "encrypted", True)
        monkeypatch.setattr(origin, "_context", trusting)
    return AioTransport if request.param == "aio" else DirectTransport


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_of_others() -> None:
    """Close what other tests left to the collector: closed during a test, it would hide what that test leaves."""
    gc.collect()


@pytest.fixture(autouse=True)
async def _nothing_is_left(caplog) -> AsyncIterator[None]:
    """Compare descriptors, tasks and timers with those before, and look for the key in every log record.

    There may be fewer than before, where other threads close something.
    """
    caplog.set_level(logging.DEBUG)
    before = held()
    yield
    until = time.monotonic() + 2
    while (more := held() - before) and time.monotonic() < until:
        await asyncio.sleep(0.002)  # what the kernel and the loop close, they close a moment later
    assert not more
    for record in caplog.records:
        assert_no_secret(record.getMessage(), KEY)
        assert_no_secret(record.exc_info and record.exc_info[1], KEY)


def held() -> Counter[str]:
    """Count what must be given back. uvloop does not show its timers, and opens /dev/null when it first listens."""
    timers = getattr(asyncio.get_running_loop(), "_scheduled", ())
    return Counter(
        descriptors=sum(what != "/dev/null" for _, what in open_descriptors()),
        tasks=len(asyncio.all_tasks()),
        timers=sum(not timer.cancelled() for timer in timers),
    )


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make the shim with")
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SUPPORT / "failing_disk.c"), "-ldl"], check=True
    )
    return made
