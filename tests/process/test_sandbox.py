from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from walled import refuse_all

from trunkline._internal.processes import descendants
from trunkline.tools.isolation import confinement, sandbox
from trunkline.tools.isolation.confinement import WAYS, ResourceLimits
from trunkline.tools.isolation.sandbox import NoSandbox, NoWay, ProgramResult, Sandbox, find_way

SYSTEM = "/usr/bin/python3"
LIMITS = ResourceLimits(seconds=20.0, memory=512 << 20, processes=24, disk=16 << 20, output=100_000)
SOMEBODY = 54_321
INHERITED = str(resource.getrlimit(resource.RLIMIT_NPROC)[1]).replace("-1", "unlimited")

# How each way is had: as root, or as somebody else, for whom another interpreter may be needed.
AS_ROOT = ("root", "uid")
AS_SOMEBODY = ("user", "limit")
KNOWN: dict[str, dict[tuple[str, ...], dict[str, str]] | str] = {}


@pytest.fixture(params=[*AS_ROOT, *AS_SOMEBODY])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One way of shutting programs in, or a skip where it cannot be had here."""
    name: str = request.param
    if name in AS_ROOT and os.geteuid():
        pytest.skip("only root has a user id to give")
    if name in AS_SOMEBODY and not os.geteuid():
        if not Path(SYSTEM).exists() or not readable(Path(confinement.__file__)):
            pytest.skip("somebody else could not run the supervisor")
        be_somebody(monkeypatch)
    if name not in KNOWN:
        monkeypatch.setattr(sandbox, "_found", {})
        try:
            assert asyncio.run(run_in("print(1)", name)) == ProgramResult("exit", 0, b"1\n", b"", False)
            KNOWN[name] = dict(sandbox._found)
        except NoSandbox as problem:
            if name != "user":
                raise
            KNOWN[name] = str(problem)
    known = KNOWN[name]
    if isinstance(known, str):
        pytest.skip(f"this system has no user namespaces: {known}")
    monkeypatch.setattr(sandbox, "_found", known)
    return name


def readable(path: Path) -> bool:
    return all(one.stat().st_mode & 0o005 for one in (path, *path.parents))


def be_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let supervisors be somebody else's."""
    started = functools.partial(subprocess.Popen, user=SOMEBODY, group=SOMEBODY, extra_groups=[])
    monkeypatch.setattr(sys, "executable", SYSTEM)
    monkeypatch.setattr(sandbox.subprocess, "Popen", started)


async def run_in(source: str, *ways: str, text: str = "", **limits: float) -> ProgramResult:
    async with Sandbox(LIMITS._replace(**limits), ways or WAYS) as box:
        assert box.way in (ways or WAYS)
        return await box.run(source, text)


def marked(mark: str) -> list[int]:
    """Processes that somebody gave a mark on their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs have a folder that anybody may use, and leave nothing in it."""
    folder = Path(tempfile.mkdtemp(prefix="sandbox-test-"))
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert list(folder.iterdir()) == []
    folder.rmdir()


# A copy of the interpreter under a name of its own, so that whoever is left can be found.
NAMED = "import os, sys\ndef copy(mark):\n    os.execv(sys.executable, [mark, '-c', 'import time; time.sleep(600)'])\n"


async def test_programs_run_one_after_the_other_with_their_own_input(way: str) -> None:
    async with Sandbox(LIMITS, (way,)) as box:
        for number in range(3):
            ran = await box.run("print(input()[::-1]); open('kept', 'x').write('x')", f"straße {number}\n")
            assert ran == ProgramResult("exit", 0, f"{number} eßarts\n".encode(), b"", False)
        ran = await box.run("raise SystemExit(3)")
        assert (ran.ok, ran.how(LIMITS)) == (False, "ended with exit code 3")
        ran = await box.run("import os\nos.kill(os.getpid(), 11)")
        assert (ran.ok, ran.how(LIMITS)) == (False, "was killed by SIGSEGV")
        ran = await box.run("1 / 0\n")
        assert ran.how(LIMITS) == "ended with exit code 1: ZeroDivisionError: division by zero"
        ran = await box.run("import sys; sys.stdout.buffer.write(bytes(range(256)))")
        assert (ran.ok, ran.out) == (True, bytes(range(256)))
        ran = await box.run("this is no program\x00")
        assert not ran.ok
        ran = await box.run("print('read nothing')", "x" * 1_000_000)
        assert (ran.ok, ran.out) == (True, b"read nothing\n")
        ran = await box.run("import sys; print(len(sys.stdin.read()))", "x" * 1_000_000)
        assert ran.out == b"1000000\n"


async def test_limits(way: str) -> None:
    limits = LIMITS._replace(seconds=0.3)
    async with Sandbox(limits, (way,)) as box:
        ran = await box.run("import time; time.sleep(99)")
        assert (ran.ok, ran.ended, ran.how(limits)) == (False, "time", "took longer than 0.3 s")
    limits = LIMITS._replace(memory=200 << 20)
    async with Sandbox(limits, (way,)) as box:
        ran = await box.run("x = bytearray(10**9)")
        assert (ran.ok, ran.how(limits)) == (False, "used more than 210 MB")
        for stream in ("stdout", "stderr"):
            ran = await box.run(f"import sys\nwhile True: sys.{stream}.write('x' * 1000)")
            assert (ran.ok, ran.ended, ran.how(LIMITS)) == (False, "output", "printed more than 100,000 bytes")
            assert len(ran.out) <= LIMITS.output
        ran = await box.run("with open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))")
        assert not ran.ok
        ran = await box.run("import os\nkept = [os.open('/dev/null', 0) for _ in range(1000)]")
        assert not ran.ok
        assert b"Too many open files" in ran.err
        assert (await box.run("print('fine')")).out == b"fine\n"


# Each is bounded in time by the deadline only; what keeps them is the kernel's limit, seen to hold before each run.
ENDLESS = {
    "own session": "import os\nif os.fork(): os._exit(0)\nos.setsid()\nwhile True:\n    os.fork()\n",
    "stubborn": (
        "import os, time\nwhile True:\n    try: os.fork() or os.setsid()\n    except OSError: time.sleep(0.02)\n"
    ),
    "plain": "import os\nwhile True:\n    os.fork()\n",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
}


@pytest.fixture
def alone() -> Iterator[None]:
    """No other test of this machine runs a bomb: a limit alone counts all processes of a user."""
    with (Path(tempfile.gettempdir()) / "trunkline-bombs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def held(way: str, bomb: str) -> ProgramResult:
    """Run a bomb; there are never more processes than the kernel was told to allow, and afterwards none.

    A limit alone counts all processes of a user, so what it was set to depends on the other tests that run.
    """
    most, allowed = 0, LIMITS.processes

    async def watch() -> None:
        nonlocal most, allowed
        while True:
            # Processes come and go while they are listed; those on two lists in a row were there together.
            first, second = [set(await asyncio.to_thread(descendants, os.getpid())) for _ in range(2)]
            limits = [limit for pid in (first & second) - before if (limit := process_limit(pid))]
            most = max(most, len(limits))
            if way not in AS_ROOT:
                allowed = max([allowed, *limits])
            await asyncio.sleep(0.05)

    before = set(descendants(os.getpid()))
    watching = asyncio.ensure_future(watch())
    async with Sandbox(LIMITS._replace(seconds=1.0), (way,)) as box:
        ran = await box.run(ENDLESS[bomb])
        # The supervisor, and in namespaces two who wait.
        assert len(set(descendants(os.getpid())) - before) <= 1
    watching.cancel()
    await asyncio.wait([watching])
    assert watching.cancelled()
    assert most <= allowed + 3
    return ran


def process_limit(pid: int) -> int:
    """How many processes the supervisor allows a program's user; 0 for a process that is not such a program."""
    try:
        text = Path(f"/proc/{pid}/limits").read_text()
    except OSError:
        return 0
    soft, hard = next(line.split()[2:4] for line in text.splitlines() if line.startswith("Max processes"))
    return int(soft) if soft == hard != INHERITED else 0


@pytest.mark.usefixtures("alone")
async def test_a_program_that_forks_without_end_is_held_by_the_kernel(way: str) -> None:
    ran = await held(way, "stubborn")
    assert (ran.ended, ran.how(LIMITS)) == ("time", "started too many processes")


@pytest.mark.usefixtures("alone")
async def test_so_is_one_that_leaves_its_session_first(way: str) -> None:
    assert (await held(way, "own session")).ended == "exit"


@pytest.mark.parametrize("way", ["root", "limit"], indirect=True)
@pytest.mark.parametrize("bomb", ["plain", "threads"])
@pytest.mark.usefixtures("alone")
async def test_one_that_gives_up_at_the_limit_is_told_what_it_was(way: str, bomb: str) -> None:
    ran = await held(way, bomb)
    assert not ran.ok
    assert ran.how(LIMITS) == "started too many processes"


@pytest.mark.parametrize("ends", [True, False])
async def test_whoever_left_the_session_is_gone_too(way: str, ends: bool) -> None:
    mark = f"left-{way}-{ends}-{os.getpid()}"
    source = (
        f"{NAMED}\nimport time\n"
        f"if not os.fork():\n    os.setsid()\n    if not os.fork(): copy({mark!r})\n    os._exit(0)\n"
        f"os.wait()\ntime.sleep({0.1 if ends else 99})\nprint('done')\n"
    )
    async with Sandbox(LIMITS._replace(seconds=20.0 if ends else 1.0), (way,)) as box:
        ran = await box.run(source)
        assert (ran.ended, ran.out) == (("exit", b"done\n") if ends else ("time", b""))
        assert marked(mark) == []


async def test_a_comet_is_caught(way: str) -> None:
    """One that forks and leaves, again and again, is never where it was."""
    source = (
        "import os\nif os.fork():\n    import time\n    time.sleep(99)\n"
        "while True:\n    try:\n        if os.fork(): os._exit(0)\n        os.setsid()\n    except OSError: pass\n"
    )
    async with Sandbox(LIMITS._replace(seconds=0.4), (way,)) as box:
        ran = await box.run(source)
        assert ran.ended == "time"
        while (ran := await box.run("print('next')")).ended == "time":
            pass  # a busy machine
        assert ran.out == b"next\n"


async def test_cancelling_ends_a_program(way: str) -> None:
    mark = f"cancelled-{way}-{os.getpid()}"
    source = f"{NAMED}\nif not os.fork():\n    os.setsid()\n    copy({mark!r})\ncopy({mark!r})\n"
    task = asyncio.ensure_future(run_in(source, way))
    while len(marked(mark)) < 2:
        assert not task.done()
        await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert marked(mark) == []


WORKER = """
import asyncio, os, sys
from trunkline._internal.processes import descendants
from trunkline.tools.isolation.sandbox import Sandbox
from trunkline.tools.isolation.confinement import ResourceLimits

async def main():
    async with Sandbox(ResourceLimits(600.0, 512 << 20, 24, 16 << 20, 100_000), (sys.argv[1],)) as box:
        await box.run(sys.argv[2])

asyncio.run(main())
"""


@pytest.mark.parametrize("way", AS_ROOT)
def test_nothing_is_left_of_a_program_whose_worker_was_killed(way: str) -> None:
    if os.geteuid():
        pytest.skip("only root has a user id to give")
    mark = f"orphan-{way}-{os.getpid()}"
    source = f"{NAMED}\nif not os.fork():\n    os.setsid()\n    copy({mark!r})\ncopy({mark!r})\n"
    # The mark is in the worker's own line as well.
    worker = subprocess.Popen([sys.executable, "-c", WORKER, way, source])
    try:
        while len(marked(mark)) < 3:
            assert worker.poll() is None
            time.sleep(0.05)
        below = descendants(worker.pid)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert len(below) >= 3
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        time.sleep(0.01)
    assert marked(mark) == []


async def test_a_program_sees_no_environment_and_none_who_has_one(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-programs")
    source = (
        "import os, pathlib\nfound = [repr(dict(os.environ))]\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/environ'):\n"
        "    try: found.append(path.read_bytes().decode(errors='replace'))\n    except OSError: pass\n"
        "print('sk-not-for-programs' in repr(found), sorted(os.environ))\n"
    )
    ran = await run_in(source, way)
    names = sorted([*supervisor_environment(), "HOME", "TMPDIR"])
    if way == "limit":
        assert ran.out.decode().endswith(f" {names}\n"), "the same user may look into other processes: it is said so"
    else:
        assert ran.out.decode() == f"False {names}\n"


def supervisor_environment() -> list[str]:
    from trunkline.tools.isolation import sandbox_supervisor as begin

    return [*begin._ENVIRONMENT]


@pytest.mark.parametrize("way", ["root", "user"], indirect=True)
async def test_in_namespaces_there_is_no_network_and_nothing_else_to_see(way: str) -> None:
    source = (
        "import os, socket\nprint(sorted(os.listdir('/')), os.getpid(), os.getppid(), os.listdir('/tmp'))\n"
        "for path in ('/usr/x', '/x', '/etc/x'):\n"
        "    try: open(path, 'w'); print('wrote', path)\n    except OSError: pass\n"
        "for host in ('127.0.0.1', '192.0.2.1'):\n"
        "    try: socket.create_connection((host, 9), 5)\n    except OSError as error: print(error.strerror)\n"
        "for number in (9, 2, 15):\n    try: os.kill(1, number)\n    except OSError: pass\n"
        "print('alive')\n"
    )
    ran = await run_in(source, way)
    lines = ran.out.decode().splitlines()
    assert "proc" not in lines[0]
    assert "home" not in lines[0]
    assert lines[0].split("]")[1].split()[1] in {"2", "2,"} or "] 2 1 " in lines[0]
    written = [line for line in lines if line.startswith("wrote") and way == "root"]
    assert not written
    assert lines[-3:] == ["Network is unreachable", "Network is unreachable", "alive"]


@pytest.mark.parametrize("way", ["limit"], indirect=True)
async def test_what_the_weakest_way_leaves_open_is_said_once(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sandbox, "_found", {})
    for _ in range(2):
        assert (await run_in("print(1)", way)).ok
    (said,) = [record.getMessage() for record in caplog.records]
    assert "can read that user's files" in said


def test_the_best_way_is_found_once_and_none_is_said_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_found", {WAYS: {"way": "uid", "python": sys.executable}})
    assert find_way(LIMITS, WAYS) == "uid"
    monkeypatch.setattr(sandbox, "_found", {})
    refuse_all(monkeypatch)
    with pytest.raises(NoWay) as raised:
        find_way(LIMITS, WAYS)
    for way in WAYS:
        assert re.search(rf"\b{way}: .", str(raised.value)), raised.value
    assert "limit:" not in str(raised.value)
    assert sandbox._found == {}


async def test_where_the_limit_of_processes_is_not_kept_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("the kernel keeps everybody's limit but root's")
    monkeypatch.setattr(sandbox, "_found", {})
    for way in ("user", "limit"):
        with pytest.raises(NoSandbox, match="the kernel keeps no limit of processes for this user"):
            await run_in("print(1)", way)
    monkeypatch.setattr(sandbox, "_found", {("limit",): {"way": "limit", "python": sys.executable}})
    with pytest.raises(NoSandbox, match="the kernel keeps no limit"):
        await run_in("print(1)", "limit")


@pytest.mark.parametrize("way", ["root", "user", "uid"], indirect=True)
async def test_a_supervisor_that_is_killed_is_our_fault_and_leaves_nobody(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-programs")
    mark = f"abandoned-{way}-{os.getpid()}"
    source = f"{NAMED}\nif not os.fork():\n    os.setsid()\n    copy({mark!r})\ncopy({mark!r})\n"
    async with Sandbox(LIMITS._replace(seconds=600.0), (way,)) as box:
        running = asyncio.ensure_future(box.run(source))
        while len(marked(mark)) < 2:
            assert not running.done()
            await asyncio.sleep(0.05)
        environment = Path(f"/proc/{box._process.pid}/environ").read_bytes()
        assert b"TMPDIR" in environment
        assert b"sk-not-for-programs" not in environment
        box._process.kill()
        with pytest.raises(NoSandbox, match="the process that runs programs ended"):
            await running
    # In namespaces the kernel ends them, soon.
    while marked(mark):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("way", ["root", "user"], indirect=True)
async def test_one_that_is_killed_as_a_program_begins_leaves_nobody_either(way: str) -> None:
    for pause in (0.0, 0.004, 0.01, 0.02):
        async with Sandbox(LIMITS._replace(seconds=600.0), (way,)) as box:
            running = asyncio.ensure_future(box.run("import time; time.sleep(600)"))
            await asyncio.sleep(pause)
            box._process.kill()
            with pytest.raises(NoSandbox, match="ended"):  # its output is closed: nobody else holds it open
                await running


async def test_a_supervisor_that_says_nothing_is_told_from_one_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_BOOT", "import time; time.sleep(600)")
    monkeypatch.setattr(sandbox, "_START", 0.1)
    monkeypatch.setattr(sandbox, "_LEAVE", 0.0)
    with pytest.raises(NoSandbox, match="gives no answer"):
        await run_in("print(1)", "root")


async def test_a_supervisor_that_cannot_be_had_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_BOOT", "raise SystemExit")
    with pytest.raises(NoSandbox, match="ended"):
        await run_in("print(1)")
    monkeypatch.setattr(sandbox.sys, "executable", "/nowhere/python")
    with pytest.raises(NoSandbox, match="no process can be started: No such file"):
        await run_in("print(1)")


def test_what_is_said_of_the_end() -> None:
    def how(ended: str = "exit", status: int = 0, err: bytes = b"", many: bool = False) -> str:
        return ProgramResult(ended, status, b"", err, many).how(LIMITS)

    assert how(status=256, err=b"BlockingIOError: [Errno 11] Resource temporarily unavailable\n") == (
        "started too many processes"
    )
    mixed = b"BlockingIOError: [Errno 11] Resource temporarily unavailable\nTraceback (most recent call last):\n"
    assert how(status=256, err=mixed) == "started too many processes"
    assert how(status=256, err=b"RuntimeError: can't start new thread") == "started too many processes"
    assert how("time", many=True) == "started too many processes"
    assert how(status=256, err=b"ValueError: \x1b[31m\xff") == "ended with exit code 1: ValueError: \\x1b[31m\ufffd"
    assert how(status=50) == "was killed by signal 50"
