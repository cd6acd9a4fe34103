"""Processes of agents: their folder, environment and limits, hostile ones among them, and what is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign import message, serving

from trunkline._internal.processes import descendants
from trunkline.agent import Agent
from trunkline.errors import ConfigError, EnvironmentFailed
from trunkline.llm.config import LLM
from trunkline.rollout.external import process
from trunkline.rollout.external.config import External
from trunkline.rollout.external.process import AgentCommand, AgentPlace, AgentResult, AgentRunner
from trunkline.runner.run import run
from trunkline.strategies.chain import Chain
from trunkline.types import Task

URL = "http://127.0.0.1:8000/secret"
REFUSED = """\
from trunkline.tools.isolation import confinement
def no(*_, **__): raise confinement.ConfinementError("no")
confinement.namespaces = no
"""


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Agents leave no folder and no process."""
    folder = Path(tempfile.mkdtemp(prefix="agents-test-"))
    monkeypatch.setenv("TMPDIR", str(folder))
    before = set(descendants(os.getpid()))
    yield folder
    assert set(descendants(os.getpid())) - before == set()
    assert list(folder.iterdir()) == []
    folder.rmdir()


@pytest.fixture(params=["namespaces", "none"])
def confined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With namespaces where they can be made here, and on a system that refuses them."""
    if request.param == "none":
        refuse_namespaces(monkeypatch)
    elif why := no_namespaces():
        pytest.skip(f"this system makes no namespaces: {why}")
    return request.param == "namespaces"


def refuse_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    path, main = process._BOOT.split("; from ", 1)
    monkeypatch.setattr(process, "_BOOT", f"{path}\n{REFUSED}from {main}")


def no_namespaces() -> str:
    """Why none can be made here."""
    if not FOUND:
        try:
            AgentRunner(AgentCommand(command=("true",), network="none")).check()
            FOUND.append("")
        except ConfigError as problem:
            FOUND.append(str(problem))
    return FOUND[0]


FOUND: list[str] = []


def python(source: str, **settings: Any) -> AgentCommand:
    return AgentCommand(command=(sys.executable, "-c", textwrap.dedent(source)), **settings)


async def play(
    settings: AgentCommand, question: str = "why?", seen: Callable[[AgentPlace], object] = id
) -> AgentResult:
    runner = AgentRunner(settings)
    try:
        place = await runner.open()
        seen(place)
        result = await runner.run(place, question, URL)
        await runner.close(place)
        return result
    finally:
        await runner.aclose()


async def test_an_agent_gets_its_question_folder_and_an_environment_made_from_nothing(
    confined: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "sk-of-the-run")
    monkeypatch.setenv("WANTED", "yes")
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "one.txt").write_text("first")
    (tmp_path / "data" / "link").symlink_to("inner/one.txt")
    source = """
        import json, os, sys
        open("new", "w").write("x")
        print(json.dumps({
            "env": dict(os.environ), "in": sys.stdin.read(), "cwd": os.getcwd(), "link": open("link").read(),
            "all": sorted(os.listdir()), "home": os.path.isdir(os.environ["HOME"]),
        }))
    """
    settings = python(source, folder=str(tmp_path / "data"), env=("WANTED", "SAID=so"))
    places: list[AgentPlace] = []
    for _ in range(2):
        result = await play(settings, "why?\x00\ud800é", places.append)
        assert (result.ok, result.how, result.err) == (True, "ended with exit code 0", "")
        assert result.cpu > 0
        assert result.answer is not None
        said = json.loads(result.answer)
        env, place = said["env"], places[-1]
        assert said["in"] == "why?\ufffdé"
        assert said["cwd"] == place.path
        assert (said["link"], said["all"], said["home"]) == ("first", ["inner", "link", "new"], True)
        assert (env["OPENAI_BASE_URL"], env["OPENAI_API_BASE"]) == (f"{URL}/v1", f"{URL}/v1")
        assert (env["ANTHROPIC_BASE_URL"], env["TZ"], env["LANG"]) == (URL, "UTC", "C.UTF-8")
        assert (env["WANTED"], env["SAID"], env["PYTHONHASHSEED"]) == ("yes", "so", "0")
        assert "sk-of-the-run" not in result.answer
        assert "HF_TOKEN" not in env
        if confined:
            assert place.masks == ()
        else:
            assert any(place.path.startswith(mask) for mask in place.masks)
    assert (places[0].path == places[1].path) is confined
    assert places[0].folder != places[1].folder
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["inner", "link"]


async def test_a_question_in_an_argument_reaches_no_shell_and_no_standard_input(confined: bool) -> None:
    code = "import sys; print(sys.argv[1:], repr(sys.stdin.read()))"
    settings = AgentCommand(command=(sys.executable, "-c", code, "ask: {question}!", "x"))
    result = await play(settings, "$(touch /tmp/no); `id` \n'\"")
    assert result.answer == f"{['ask: $(touch /tmp/no); `id` ' + chr(10) + chr(39) + chr(34) + '!', 'x']} ''"


@pytest.mark.parametrize(
    ("source", "settings", "how"),
    [
        ("raise SystemExit(3)", {}, "ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", {}, "was killed by SIGKILL"),
        ("import time; time.sleep(600)", {"seconds": 0.5}, "took longer than 0.5 s"),
        (
            "import signal, time\nfor n in {*range(1, 32)} - {9, 19}: signal.signal(n, 1)\ntime.sleep(600)",
            {"seconds": 0.5},
            "took longer than 0.5 s",
        ),
        ("import os, time; os.close(1); os.close(2); time.sleep(600)", {"seconds": 0.5}, "took longer than 0.5 s"),
        ("while True: print('x' * 10000)", {"seconds": 0.5}, "took longer than 0.5 s"),
        (
            "import time\nkept = []\nwhile True: kept.append(bytearray(b'x') * (1 << 24)); time.sleep(0.01)",
            {"memory": 200 << 20},
            "used more than 210 MB of memory",
        ),
        (
            "import os, time\nfor n in range(40):\n  if not os.fork(): time.sleep(600)\ntime.sleep(600)",
            {"processes": 20},
            "had more than 20 processes",
        ),
        (
            "import os, time\nwhile True:\n  if os.fork(): time.sleep(0.01)",
            {"processes": 20},
            "had more than 20 processes",
        ),
        (
            "import time\nfor n in range(40): open(f'f{n}', 'wb').write(bytes(1 << 20))\ntime.sleep(600)",
            {"disk": 16 << 20},
            "filled its folder with more than 17 MB, or a million files",
        ),
    ],
)
async def test_an_agent_is_ended_at_its_limits(confined: bool, source: str, settings: dict[str, Any], how: str) -> None:
    result = await play(python(source, **settings))
    assert (result.ok, result.answer, result.how) == (False, None, how)


async def test_a_command_that_cannot_be_started_says_why(confined: bool, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    result = await play(AgentCommand(command=(str(tmp_path / "data"),)))
    assert (result.ok, result.how) == (False, "could not be started: Permission denied")
    result = await play(AgentCommand(command=("echo", "{question}")), "x" * 1_000_000)
    assert (result.ok, result.how) == (False, "could not be started: Argument list too long")


async def test_a_file_is_no_larger_than_the_folder_may_be(confined: bool) -> None:
    result = await play(python("open('f', 'wb').truncate(1 << 22)", disk=1 << 20))
    assert (result.ok, result.err[-14:]) == (False, "File too large")


async def test_output_is_bounded_and_safe_to_print(confined: bool) -> None:
    source = r"""
        import os
        os.write(2, b"\x1b[2Jend\xff\n")
        for _ in range(100):
            os.write(1, b"x" * 10000)
        os.write(1, b"\xff the answer")
    """
    result = await play(python(source, output=1000))
    assert result.ok
    assert result.answer is not None
    assert len(result.answer.encode()) <= 1002
    assert result.answer.endswith("x\ufffd the answer")
    assert result.err == "\\x1b[2Jend\ufffd"


async def test_what_an_agent_has_started_ends_with_it(confined: bool, tmp_path: Path) -> None:
    source = f"""
        import os, time
        if not os.fork():
            os.setsid()
            if not os.fork():
                while True:
                    open({str(tmp_path / "alive")!r}, "a").write("x"); time.sleep(0.01)
            os._exit(0)
        while not os.path.exists({str(tmp_path / "alive")!r}): time.sleep(0.01)
        print("done")
    """
    result = await play(python(source))
    assert (result.ok, result.answer) == (True, "done")
    size = (tmp_path / "alive").stat().st_size
    await asyncio.sleep(0.1)
    assert (tmp_path / "alive").stat().st_size == size


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        ("open('a/out', 'w').write(' 42 ')", "42"),
        ("", None),
        ("os.symlink('/etc/passwd', 'a/out')", None),
        ("os.rmdir('a'); os.symlink('/etc', 'a')", None),
        ("os.mkfifo('a/out')", None),
        ("os.mkdir('a/out')", None),
        ("os.link(__file__, 'a/out')", None),
    ],
)
async def test_an_answer_file_is_a_file_of_the_folder(confined: bool, make: str, answer: str | None) -> None:
    source = f"import os; __file__ = '/nowhere'; os.mkdir('a'); {make}"
    result = await play(python(source, answer="file:a/out"))
    assert result.answer == answer
    assert result.ok is (answer is not None)
    if answer is None:
        assert "Error" in result.err or result.how == "ended with exit code 0, and wrote no file a/out"


async def test_a_folder_is_copied_only_where_nothing_leads_out_of_it(confined: bool, tmp_path: Path) -> None:
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "up").symlink_to(".")
    for name, leads in (
        ("a", "/etc/passwd"),
        ("deep/b", "../../other"),
        ("c", "up/../../other"),
        ("d", "../source/deep"),
    ):
        link = tmp_path / "source" / name
        link.symlink_to(leads)
        with pytest.raises(EnvironmentFailed, match=f"{name} is a link that leads out of the folder"):
            await play(python("", folder=str(tmp_path / "source")))
        link.unlink()
    os.mkfifo(tmp_path / "source" / "pipe")
    with pytest.raises(EnvironmentFailed, match="pipe is no file, folder or link"):
        await play(python("", folder=str(tmp_path / "source")))
    (tmp_path / "source" / "pipe").unlink()
    (tmp_path / "source" / "large").write_bytes(bytes(10_000))
    with pytest.raises(EnvironmentFailed, match="more than 4,096 bytes"):
        await play(python("", folder=str(tmp_path / "source"), disk=4096))


async def test_many_agents_at_once_each_in_its_own_folder(confined: bool) -> None:
    runner = AgentRunner(python("import sys, os; open('q', 'x').write(sys.stdin.read()); print(open('q').read())"))

    async def one(question: str) -> str | None:
        place = await runner.open()
        try:
            return (await runner.run(place, question, URL)).answer
        finally:
            await runner.close(place)

    try:
        assert await asyncio.gather(*(one(str(n)) for n in range(64))) == [str(n) for n in range(64)]
    finally:
        await runner.aclose()


async def test_a_cancelled_agent_ends_when_its_place_is_closed(confined: bool, tmp_path: Path) -> None:
    runner = AgentRunner(python(f"open({str(tmp_path / 'on')!r}, 'x'); import time; time.sleep(600)"))
    place = await runner.open()
    running = asyncio.create_task(runner.run(place, "", URL))
    while not (tmp_path / "on").exists():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await runner.close(place)
    assert not Path(place.folder).exists()
    again = await runner.open()  # and one that is open when all ends
    assert Path(again.folder).exists()
    await runner.aclose()


async def test_agents_are_started_again_once_what_watched_them_was_killed(confined: bool) -> None:
    runner = AgentRunner(python("import sys, time; print('here'); time.sleep(int(sys.stdin.read()))"))
    try:
        place = await runner.open()
        running = asyncio.create_task(runner.run(place, "600", URL))
        supervisor = next(pid for pid in descendants(os.getpid()) if b"supervisor" in command_line(pid))
        os.kill(supervisor, signal.SIGKILL)
        result = await running
        assert (result.ok, result.how) == (False, "was lost: the process that watches it ended")
        await runner.close(place)
        place = await runner.open()
        assert (await runner.run(place, "0", URL)).answer == "here"
    finally:
        await runner.aclose()


FUNCTIONS = """
import asyncio, os, sys, tempfile
def plain(question):
    print("printed")
    return f"{question} {os.environ['OPENAI_BASE_URL']} {os.getcwd()} {tempfile.gettempdir()}"
async def slow(question):
    await asyncio.sleep(0)
    return "\\ud800" * 3
def none(question): return None
def number(question): return 5
def leave(question): sys.exit(4)
def broken(question): raise ValueError("no \\x1b")
class Holder:
    @staticmethod
    def inner(question): return "inner"
value = 3
"""


async def test_a_function_is_called_in_a_process_that_has_imported_its_module(confined: bool, tmp_path: Path) -> None:
    file = tmp_path / "my_agent.py"
    file.write_text(FUNCTIONS)

    def settings(name: str) -> AgentCommand:
        return AgentCommand(function=f"{file}:{name}")

    places: list[AgentPlace] = []
    result = await play(settings("plain"), "why?", places.append)
    cwd = places[0].path
    assert (result.ok, result.how) == (True, "ended with exit code 0")
    assert result.answer is not None
    assert result.answer == (f"why? {URL}/v1 {cwd} {Path(cwd).parent!s}/tmp")
    assert (await play(settings("slow"))).answer == "???"
    assert (await play(settings("none"))).answer is None
    assert (await play(settings("none"))).ok
    assert (await play(settings("Holder.inner"))).answer == "inner"
    result = await play(settings("number"))
    assert (result.ok, result.how) == (False, "ended with exit code 1")
    assert result.err.endswith("TypeError: the agent returned int; it must return its answer, a text, or None")
    assert (await play(settings("leave"))).how == "ended with exit code 4"
    result = await play(settings("broken"))
    assert result.err.endswith("ValueError: no \\x1b")
    AgentRunner(settings("plain")).check()
    for name, problem in (("value", "has no function value"), ("other", "has no function other")):
        with pytest.raises(ConfigError, match=problem):
            AgentRunner(settings(name)).check()
    file.write_text("raise SystemExit(1)")
    with pytest.raises(ConfigError, match=r"SystemExit: 1"):
        AgentRunner(settings("plain")).check()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "either a command or a function"),
        ({"command": ("a",), "function": "a:b"}, "either a command or a function"),
        ({"function": "a"}, "module:name"),
        ({"function": "a:b c"}, "module:name"),
        ({"function": "a:b", "answer": "last"}, "a function returns its answer"),
        ({"command": ("a",), "answer": "file:/etc/passwd"}, "answer must be"),
        ({"command": ("a",), "answer": "file:a/../../b"}, "answer must be"),
        ({"command": ("a",), "answer": "file:"}, "answer must be"),
        ({"command": ("a",), "seconds": 0}, "seconds"),
        ({"command": ("a",), "memory": 5}, "memory"),
        ({"command": ("a",), "processes": 0}, "processes"),
        ({"command": ("a",), "env": ("OPENAI_API_KEY",)}, "OPENAI_API_KEY"),
        ({"command": ("a",), "env": ("HOME=/",)}, "HOME"),
        ({"command": ("a",), "env": ("MY_API_KEY=1",)}, "MY_API_KEY"),
        ({"command": ("a",), "env": ("=1",)}, "NAME"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        AgentCommand(**settings)


def test_what_cannot_be_started_here_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    monkeypatch.setenv("PASSED", "Bearer sk-run")
    for settings, problem in (
        (AgentCommand(command=("no-such-command",)), "there is no command 'no-such-command'"),
        (AgentCommand(command=("true",), folder=str(tmp_path / "none")), "is no folder"),
        (AgentCommand(command=("true",), env=("NOWHERE",)), "NOWHERE of env is not set"),
        (AgentCommand(command=("true",), env=("PASSED",)), "PASSED of env holds a key of the run"),
        (AgentCommand(function="no_such_module_at_all:f"), "ModuleNotFoundError"),
    ):
        with pytest.raises(ConfigError, match=problem):
            AgentRunner(settings, keys=("", "sk-run")).check()
    refuse_namespaces(monkeypatch)
    AgentRunner(AgentCommand(command=("true",))).check()
    with pytest.raises(ConfigError, match="network=none cannot be enforced here"):
        AgentRunner(AgentCommand(command=("true",), network="none")).check()


async def test_a_file_of_the_current_directory_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("print('here')")
    monkeypatch.chdir(tmp_path)
    assert (await play(AgentCommand(command=(sys.executable, "agent.py")))).answer == "here"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "agent.py").write_text("print('copied')")
    assert (await play(AgentCommand(command=(sys.executable, "agent.py"), folder="data"))).answer == "copied"


async def test_an_agent_without_network_reaches_the_listener_alone() -> None:
    if why := no_namespaces():
        pytest.skip(f"this system makes no namespaces: {why}")
    with socket.create_server(("127.0.0.1", 0)) as outside:
        source = f"""
            import os, socket
            with socket.create_connection(("127.0.0.1", 8000)) as line:
                print(line.recv(100).decode())
            try:
                socket.create_connection({outside.getsockname()!r})
            except OSError as problem:
                print(type(problem).__name__, socket.if_nameindex())
            for path in ("/proc/1/root", "/proc/1/ns/net", "/proc/1/environ"):
                try:
                    os.open(path, os.O_RDONLY); print("opened", path)
                except PermissionError:
                    pass
        """
        runner = AgentRunner(python(source, network="none"))
        try:
            place = await runner.open()
            assert place.listener is not None

            async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"hello")
                await writer.drain()
                writer.close()

            server = await asyncio.start_server(greet, sock=place.listener)
            result = await runner.run(place, "", URL)
            server.close()
            await server.wait_closed()
            await runner.close(place)
        finally:
            await runner.aclose()
    assert (result.answer, result.err) == ("hello\nConnectionRefusedError [(1, 'lo')]", "")


async def test_an_agent_signals_no_process_of_others() -> None:
    if why := no_namespaces():
        pytest.skip(f"this system makes no namespaces: {why}")
    source = """
        import os, signal
        for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
            os.kill(os.getppid(), number)
        print(os.getpid(), os.getppid(), sorted(name for name in os.listdir("/proc") if name.isdigit()))
    """
    result = await play(python(source))
    assert result.answer == "2 1 ['1', '2']"


WORKER = """
import asyncio, sys
from trunkline.llm.config import LLM
from trunkline.rollout.external import process
from trunkline.rollout.external.config import External
from trunkline.rollout.external.process import *
{refused}
async def main():
    runner = AgentRunner(AgentCommand(command=(sys.executable, "-c", sys.argv[1])))
    places = [await runner.open() for _ in range(3)]
    print(await asyncio.gather(*(runner.run(place, "", "http://x") for place in places)))
    await runner.aclose()
asyncio.run(main())
"""
DAEMON = """
import os, time, pathlib
if not os.fork():
    os.setsid()
    os.execv({python!r}, [{mark!r}, "-c", "import time; time.sleep(600)"])
pathlib.Path({folder!r}, os.urandom(8).hex()).touch()
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_nothing_is_left_of_agents_when_a_process_is_killed(confined: bool, victim: str, tmp_path: Path) -> None:
    mark = f"agent-{os.urandom(8).hex()}"
    refused = "" if confined else f"process._BOOT = process._BOOT.replace('; from ', {chr(10) + REFUSED + 'from '!r})"
    daemon = DAEMON.format(python=sys.executable, mark=mark, folder=str(tmp_path))
    worker = subprocess.Popen([sys.executable, "-c", WORKER.format(refused=refused), daemon])
    try:
        while len(list(tmp_path.iterdir())) < 3 and worker.poll() is None:
            time.sleep(0.01)
        assert worker.poll() is None
        supervisor, *_ = [pid for pid in descendants(worker.pid) if b"supervisor" in command_line(pid)]
        os.kill(worker.pid if victim == "worker" else supervisor, signal.SIGKILL)
        worker.wait(60)
        deadline = time.monotonic() + 60
        while (found := processes_of(mark)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found == []
        folder = Path(os.environ["TMPDIR"])
        while list(folder.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        worker.kill()
        worker.wait()


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def processes_of(mark: str) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and command_line(pid).startswith(mark.encode())]


ASKING = """
import json, os, urllib.request
def solve(question):
    body = {"model": "any", "messages": [{"role": "user", "content": question}]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"] + os.getcwd()
"""


@pytest.mark.parametrize("network", ["all", "none"])
def test_a_run_of_a_function_whose_process_asks_the_model(network: str, tmp_path: Path) -> None:
    if network == "none" and (why := no_namespaces()):
        pytest.skip(f"this system makes no namespaces: {why}")
    (tmp_path / "asking.py").write_text(ASKING)
    program = External(agent=f"python:{tmp_path / 'asking.py'}:solve", effects="none", process={"network": network})
    with serving(lambda _: message("yes ")) as server:
        played = run(
            Agent(model="m"), [Task.ask("what?")], llm=LLM(server.url), program=program, workers=0, strategy=Chain(2)
        )
    assert played.summary().terminations == {"answer": 2}
    assert [rollout.answer.partition(" ")[0] for tree in played for rollout in tree.rollouts] == ["yes", "yes"]
