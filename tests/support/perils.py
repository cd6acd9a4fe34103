"""Tools that misbehave, for tests; importable by workers and by the processes of isolated tools."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

from trunkline.tools.calls import current_call
from trunkline.tools.tool import tool


def spawn_daemon() -> str:
    """Leave a daemon that has its own session and no parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()
    return "left a daemon"


def open_many() -> str:
    """Open descriptors until there are none."""
    try:
        for _ in range(10**6):
            os.open("/dev/null", os.O_RDONLY)
    except OSError as error:
        return str(error.strerror)
    return "never"


def fill() -> str:
    """Write temporary files."""
    import tempfile

    for _ in range(200):
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(b"x" * 10_000)
    return file.name


def leak() -> str:
    """Take memory until there is none."""
    kept = []
    while True:
        kept.append(bytearray(1_000_000))


def spin() -> str:
    """Take CPU time, and no heed of anything."""
    while True:
        pass


def babble() -> str:
    """Print without end, in four processes."""
    spawn_daemon()
    for _ in range(2):
        os.fork()
    while True:
        os.write(1, b"and so on ")


def come_back_twice() -> str:
    """Fork, and let the child return too."""
    return "child" if os.fork() == 0 else "parent"


def shout() -> str:
    """Print a lot."""
    sys.stdout.write("x" * 2_000_000)
    sys.stderr.write("\x1b[31m" * 400_000)
    return "shouted"


def start_threads() -> str:
    """Leave threads."""
    threading.stack_size(1 << 16)
    for _ in range(80):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return "left threads"


DEEDS = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(4),
    "raise": lambda: {}["\ud800"],
    "sleep": lambda: time.sleep(600),
    "hold the GIL": lambda: ctypes.PyDLL(None).sleep(600),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "spin": spin,
    "babble": babble,
    "leak": leak,
    "one gigabyte": lambda: "x" * 1_000_000_000,
    "long": lambda: "x" * 10_000_000,
    "bytes": lambda: b"x",
    "daemon": spawn_daemon,
    "descriptors": open_many,
    "close all": lambda: os.closerange(3, 1000),
    "files": fill,
    "fork": come_back_twice,
    "shout": shout,
    "threads": start_threads,
    "limits": lambda: [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CPU, resource.RLIMIT_CORE)],
    "pid": os.getpid,
}


@tool(isolated=True, timeout=20.0, memory="256MB", concurrency=2)
def peril(deed: str) -> object:
    """Do something that a tool should not do.

    Args:
        deed: What.
    """
    return DEEDS[deed]()


@tool(isolated=True, timeout=0.4, concurrency=2)
def stuck(deed: str) -> str:
    """Do it for a while.

    Args:
        deed: What.
    """
    return DEEDS[deed]()


@tool(isolated=True, timeout=0.4, concurrency=2)
async def peril_async(deed: str) -> str:
    """Do it on an event loop.

    Args:
        deed: What, or "await".
    """
    await asyncio.sleep(600 if deed == "await" else 0)
    return DEEDS[deed]()


def worker() -> int:
    """The worker that an isolated tool runs for: its guard's parent."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


BAD = {"France": "segfault", "Brazil": "sleep", "Japan": "one gigabyte", "Benin": "daemon"}


@tool(isolated=True, timeout=2.0, memory="256MB", concurrency=2)
def perilous_lookup(country: str) -> str:
    """Look a country up; most lookups go wrong.

    Args:
        country: Its name.
    """
    if country in BAD:
        DEEDS[BAD[country]]()
    return f"worker {worker()}"


@tool
async def calm_lookup(country: str) -> str:
    """Look a country up in the worker itself.

    Args:
        country: Its name.
    """
    return f"worker {os.getpid()}"


@tool(isolated=True, concurrency=1)
def isolated_call() -> str:
    """Say which call it is."""
    return current_call().id


@tool
def threaded_call() -> str:
    """Say which call it is."""
    return current_call().id


@tool
async def awaited_call() -> str:
    """Say which call it is."""
    return current_call().id


def note(line: str) -> None:
    """Append a line to the file that the test named."""
    with Path(os.environ["PERILS_NOTES"]).open("a") as file:
        file.write(line + "\n")


@tool(side_effects=True)
def pay(country: str) -> str:
    """Pay, and crash the worker in Brazil.

    Args:
        country: Where.
    """
    note(f"{country} {current_call().id}")
    if country == "Brazil":
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


@tool
def retry(country: str) -> str:
    """Crash the worker in Brazil, the first time.

    Args:
        country: Where.
    """
    first = country not in Path(os.environ["PERILS_NOTES"]).read_text()
    note(f"{country} {current_call().id}")
    if first and country == "Brazil":
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@tool(side_effects=True)
async def pay_slowly(country: str) -> str:
    """Pay, and take long over it.

    Args:
        country: Where.
    """
    note(country)
    await asyncio.sleep(600)
    return "paid"


def live(marker: str) -> list[int]:
    """Live processes whose environment carries a marker, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and marker.encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(folder.name)] if state != "Z" else []
        except OSError:
            continue
    return found


def gone_within(marker: str, seconds: float) -> bool:
    """Whether no such process is left after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while live(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@tool(name="lookup")
def leave_daemon(country: str) -> str:
    """Look a country up, and leave a daemon; a crash follows in Brazil.

    Args:
        country: Its name.
    """
    sys.stdout.write(f"\x1b]0;{country}\x07\n")
    spawn_daemon()
    if country == "Brazil":
        os.kill(os.getpid(), signal.SIGKILL)
    return country


@tool(name="lookup", isolated=True)
def leave_daemon_and_wait(country: str) -> str:
    """Leave a daemon, kill the guard in Brazil, and take long.

    Args:
        country: Its name.
    """
    spawn_daemon()
    if country == "Brazil":
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
    return country
