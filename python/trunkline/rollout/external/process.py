"""Runs the process of an agent of another framework: in a folder of its own, with an environment made from nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from trunkline._internal.aio import off_the_loop, wait_uninterrupted
from trunkline._internal.child import Child
from trunkline._internal.leftovers import MARK, end_marked, remove_folder
from trunkline._internal.processes import HEAD, frame, signal_name
from trunkline._internal.text import is_secret, printable, scrub
from trunkline._internal.validation import check_float, check_int, check_that, short_repr
from trunkline.errors import ConfigError, EnvironmentFailed, InfrastructureError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["AgentCommand", "AgentPlace", "AgentResult", "AgentRunner"]

_QUESTION: Final = "{question}"
_KEY: Final = "trunkline"
"""The key that an agent is given; the endpoint takes any."""
_NOWHERE: Final = "http://127.0.0.1:1"
"""The endpoint of a module that is imported before there is a rollout: no server has that port."""

_QUIET: Final = {
    "NO_COLOR": "1",
    "DO_NOT_TRACK": "1",
    "DISABLE_TELEMETRY": "1",
    "ANONYMIZED_TELEMETRY": "false",
    "OTEL_SDK_DISABLED": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGSMITH_TRACING_V2": "false",
    "LANGCHAIN_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGFUSE_TRACING_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LOGFIRE_SEND_TO_LOGFIRE": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
"""Switches tracing, telemetry, prices from the network and first-run questions of known frameworks off."""

_OURS: Final = frozenset(
    (
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "OPENAI_API_KEY",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_API_KEY",
        "HOME",
        "TMPDIR",
    )
)

_LONGEST: Final = 1 << 30
_START: Final = 120.0
"""Seconds for the supervisor to start, the module of a function included."""
_LEAVE: Final = 30.0
"""Seconds for a process to end what it has started."""
_OPENING: Final = 16
"""Folders that are made at the same time; the socket that asks for them holds no more than hundreds."""

_ROOT: Final = str(Path(__file__).parents[3])
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from trunkline.rollout.external.supervisor import main; main()"
)

_log = logging.getLogger("trunkline.agents")


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent's process is started, and its limits.

    Attributes:
        command: The program and its arguments; ``{question}`` in one is replaced by the question, which else comes on
            standard input.
        function: Instead of a command, ``"module:name"`` or ``"file.py:name"``: a function, sync or async, that is
            called with the question and returns the answer, a text, or None for the text of the last reply. Its process
            is forked from one that has imported the module once.
        folder: A folder that is copied into the agent's own at every start; none when None.
        answer: Where a command's answer is: ``"stdout"``, ``"last"`` (the text of the last reply) or ``"file:NAME"``, a
            file in its folder.
        network: ``"all"``, or ``"none"``: the endpoint alone.
        seconds: Seconds that it may take.
        memory: Bytes of memory of all its processes together.
        processes: Processes that it may have at a time.
        output: Bytes that are kept of its answer; of more, the last.
        disk: Bytes that its folder may hold.
        env: Names of environment variables of this process that it gets, or ``NAME=VALUE``; a key is given by its name
            alone, so that it is not stored.

    Raises:
        ConfigError: A field has a value it cannot have.
    """

    command: tuple[str, ...] = ()
    function: str = ""
    folder: str | None = None
    answer: str = "stdout"
    network: Literal["all", "none"] = "all"
    seconds: float = 600.0
    memory: int = 4 << 30
    processes: int = 256
    output: int = 1 << 20
    disk: int = 1 << 30
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.function):
            raise ConfigError("agent: give either a command or a function")
        for argument in self.command:
            check_that("\0" not in argument, "agent: not an argument", argument)
        module, _, name = self.function.rpartition(":")
        if self.function and not (module and all(part.isidentifier() for part in name.split("."))):
            raise ConfigError(f"agent: function must be module:name or file.py:name, not {short_repr(self.function)}")
        check_float("agent: seconds", self.seconds, 0, above=True, unit="seconds")
        check_int("agent: memory", self.memory, 1 << 20)
        check_int("agent: processes", self.processes, 1)
        check_int("agent: output", self.output, 1, 1 << 27)
        check_int("agent: disk", self.disk, 1 << 12)
        check_that(self.network in {"all", "none"}, "agent: network must be all or none", self.network)
        path = self.answer.removeprefix("file:")
        inside = "\0" not in path and not set(path.split("/")) & {"", ".", ".."}
        if self.answer not in {"stdout", "last"} and (path == self.answer or not inside):
            raise ConfigError(
                "agent: answer must be stdout, last or file:NAME, a file in the agent's folder, not "
                f"{short_repr(self.answer)}"
            )
        if self.function and self.answer != "stdout":
            raise ConfigError(f"agent: a function returns its answer; leave answer={short_repr(self.answer)} out")
        for one in self.env:
            name, equals, _ = one.partition("=")
            check_that(bool(name) and "\0" not in one, "agent: env must hold NAME or NAME=VALUE", one)
            if name in _OURS:
                raise ConfigError(
                    f"agent: env must not hold {name}: it is the run's to set, and no key of the run reaches an agent"
                )
            if equals and is_secret(name):
                raise ConfigError(f"agent: env holds the value of {short_repr(name)}, which would be stored: name it")


class AgentPlace:
    """What one start of an agent has of its own.

    Attributes:
        folder: The path of its working folder.
        path: That path as the agent sees it.
        listener: A socket that listens on loopback of the agent's own network; None where it has this machine's.
        masks: Texts that the agent may see and that differ from start to start.
        line: A socket to the process that watches it.
    """

    __slots__ = ("folder", "line", "listener", "masks", "path")

    def __init__(
        self, folder: str, path: str, listener: socket.socket | None, masks: tuple[str, ...], line: socket.socket
    ) -> None:
        self.folder = folder
        self.path = path
        self.listener = listener
        self.masks = masks
        self.line = line


class AgentResult(msgspec.Struct, frozen=True):
    """How an agent ended.

    Attributes:
        answer: Its answer; None for the text of the last reply.
        ok: Whether it ended by itself, with exit code 0, and its answer is there.
        how: How it ended, on one printable line, as the end of a sentence about it.
        cpu: Seconds of user and system time of it and its children.
        err: The end of its standard error, on one printable line.
    """

    answer: str | None
    ok: bool
    how: str
    cpu: float
    err: str


class AgentRunner:
    """Starts agents of one command, for one worker process.

    Args:
        settings: The command and its limits.
        keys: The run's keys, which must not be among the values of ``env``.
    """

    def __init__(self, settings: AgentCommand, keys: Collection[str] = ()) -> None:
        self._settings = settings
        self._keys = [key for key in keys if key]
        self._process: Child | None = None
        self._starting = asyncio.Lock()
        self._opening = asyncio.Semaphore(_OPENING)
        self._folder = ""
        self._confined = False
        self._places: set[AgentPlace] = set()

    def check(self) -> None:
        """Refuse what cannot be started here; blocks while the module of a function is imported.

        Raises:
            ConfigError: There is no such command, function or folder, or a restriction cannot be enforced.
        """
        settings = self._settings
        if not sys.platform.startswith("linux"):
            raise ConfigError(f"agent: agents are run as processes on Linux only, not on {sys.platform}")
        self._environment("")
        if settings.command and shutil.which(self._argv()[0]) is None and not self._in_folder(settings.command[0]):
            raise ConfigError(f"agent: there is no command {short_repr(settings.command[0])}; give the path of one")
        if settings.folder is not None and not Path(settings.folder).is_dir():
            raise ConfigError(f"agent: folder {short_repr(settings.folder)} is no folder")

        async def start() -> None:
            runner = AgentRunner(settings)
            try:
                await runner._started()
            finally:
                await runner.aclose()

        with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop already
            pool.submit(lambda: asyncio.run(start())).result()

    async def open(self) -> AgentPlace:
        """Make a folder for one start, and a network where it has its own.

        Raises:
            EnvironmentFailed: The folder cannot be made.
            InfrastructureError: The process that starts agents does not start.
        """
        control = await self._started()
        async with self._opening:
            line, theirs = socket.socketpair()
            line.setblocking(False)
            try:
                with theirs:
                    socket.send_fds(control, [b"\0"], [theirs.fileno()])
                said, listener = await _first_of(line)
            except (OSError, EOFError, msgspec.MsgspecError) as problem:
                line.close()
                raise InfrastructureError(f"the process that starts agents gives no answer: {problem}") from None
            except BaseException:
                line.close()
                raise
        if "refused" in said:
            line.close()
            raise EnvironmentFailed(f"the agent's folder cannot be made: {printable(said['refused'], 300)}")
        masks: list[str] = []
        if not self._confined and self._process is not None:
            masks += [str(Path(said["folder"]).parent), self._process.mark]
        if self._settings.function:
            masks.append(f"{self._folder}/home")
        place = AgentPlace(said["folder"], said["path"], listener, tuple(masks), line)
        self._places.add(place)
        return place

    async def run(self, place: AgentPlace, question: str, url: str) -> AgentResult:
        """Run the agent to its end; one whose call is cancelled ends when its place is closed.

        Args:
            place: Its folder.
            question: The question.
            url: The endpoint, without ``/v1``.
        """
        question = scrub(question).replace("\0", "")
        argv = self._argv()
        filled = [argument.replace(_QUESTION, question) for argument in argv]
        request = {
            "argv": filled,
            "question": question,
            "stdin": question if filled == argv and not self._settings.function else "",
            "env": self._environment(url),
        }
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(place.line, frame(msgspec.json.encode(request)))
            said = msgspec.json.decode(await _frame(place.line))
        except (OSError, EOFError, msgspec.MsgspecError):
            return AgentResult(None, ok=False, how="was lost: the process that watches it ended", cpu=0.0, err="")
        return self._result(said)

    async def close(self, place: AgentPlace) -> None:
        """End the agent, if it runs, and remove its folder."""
        if place in self._places:
            self._places.discard(place)
            closing = asyncio.get_running_loop().create_task(_hang_up(place))
            await wait_uninterrupted(closing)
            closing.result()

    async def aclose(self) -> None:
        """End all agents and the process that starts them."""
        closing = asyncio.get_running_loop().create_task(self._stop())
        await wait_uninterrupted(closing)
        closing.result()

    async def _stop(self) -> None:
        await asyncio.gather(*(self.close(place) for place in [*self._places]))
        process, self._process = self._process, None
        if process is None:
            return
        process.close_sockets()
        if await process.wait(_LEAVE) and self._folder:
            folder = self._folder

            def tidy() -> None:
                end_marked(process.mark)
                remove_folder(folder)

            await off_the_loop(tidy)  # it was killed

    async def _started(self) -> socket.socket:
        """Return the socket of the process that starts agents."""
        async with self._starting:
            if self._process is not None and not self._process.alive:
                await self._stop()
            if self._process is None:
                await self._start()
            assert self._process is not None
            return self._process.sockets[0]

    async def _start(self) -> None:
        settings, silent = self._settings, subprocess.DEVNULL
        env = {name: os.environ[name] for name in ("TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        flags = ["-I", "-S"]
        if settings.function:
            flags, env = [], self._environment(_NOWHERE) | env
        try:
            self._process = Child(
                (*flags, "-c", _BOOT, _ROOT), env, sockets=1, marked=True, stdout=silent, stderr=silent
            )
        except OSError as error:
            raise InfrastructureError(f"no process can be started: {error.strerror}") from None
        control = self._process.sockets[0]
        control.setblocking(False)
        own_network, setup = settings.network == "none", self._setup()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START):
                await loop.sock_sendall(control, frame(msgspec.json.encode(setup)))
                said = msgspec.json.decode(await _frame(control))
        except (OSError, EOFError, msgspec.MsgspecError, TimeoutError):
            await self._stop()
            raise InfrastructureError("the process that starts agents does not start") from None
        except BaseException:
            await self._stop()
            raise
        self._folder, self._confined = said["folder"], said["way"] != "limit"
        problem = said["problem"] and f"function {short_repr(settings.function)}: {printable(said['problem'], 300)}"
        if own_network and not self._confined:
            problem = (
                "network=none cannot be enforced here, as namespaces cannot be made "
                f"({printable(said['why'], 300)}); run as root or allow user namespaces, or say network=all"
            )
        if problem:
            await self._stop()
            raise ConfigError(f"agent: {problem}")
        if not self._confined:
            _log.warning(
                "agents are run without namespaces (%s): they are limited and killed, but they see this user's other "
                "processes, and each start has another path",
                printable(said["why"], 300),
            )

    def _setup(self) -> dict[str, Any]:
        """What the supervisor is told, paths as they are in another directory."""
        settings = self._settings
        module, _, name = settings.function.rpartition(":")
        function = f"{Path(module).absolute()}:{name}" if module.endswith(".py") else settings.function
        folder = "" if settings.folder is None else str(Path(settings.folder).absolute())
        file = settings.answer.removeprefix("file:") if settings.answer.startswith("file:") else ""
        limits = (settings.seconds, settings.memory, settings.processes, settings.output, settings.disk)
        return {"settings": (function, folder, file, settings.network == "none", *limits), "path": [*sys.path]}

    def _argv(self) -> list[str]:
        """The command; files of the current directory by their whole path, as the agent's folder is another one."""
        found: list[str] = []
        for place, argument in enumerate(self._settings.command):
            named = ("/" in argument or place > 0) and not argument.startswith("-") and _QUESTION not in argument
            here = named and not self._in_folder(argument) and _is_file(Path(argument))
            found.append(str(Path(argument).absolute()) if here else argument)
        return found

    def _in_folder(self, path: str) -> bool:
        return self._settings.folder is not None and _is_file(Path(self._settings.folder, path))

    def _environment(self, url: str) -> dict[str, str]:
        """What an agent finds in its environment, but for its folders."""
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "TZ": "UTC",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            **_QUIET,
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": _KEY,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": _KEY,
        }
        for one in self._settings.env:
            name, equals, value = one.partition("=")
            if not equals and name not in os.environ:
                raise ConfigError(f"agent: {name} of env is not set here; set it, say {name}=VALUE, or leave it out")
            env[name] = value if equals else os.environ[name]
            if any(key in env[name] for key in self._keys):
                raise ConfigError(f"agent: {name} of env holds a key of the run, which must not reach an agent")
        if not self._confined and self._process is not None:
            env[MARK] = self._process.mark  # by which its processes are found once those above have died
        return env

    def _result(self, said: dict[str, Any]) -> AgentResult:
        """Say how an agent ended."""
        settings, ended, status = self._settings, said["ended"], said["status"]
        answer: str | None = None
        ok = ended == "exit" and status == 0 and not said["refused"]
        if said["refused"]:
            how = f"could not be started: {printable(said['refused'], 300)}"
        elif ended == "time":
            how = f"took longer than {settings.seconds:g} s"
        elif ended == "memory":
            how = f"used more than {settings.memory / 1e6:,.0f} MB of memory"
        elif ended == "processes":
            how = f"had more than {settings.processes:,} processes"
        elif ended == "disk":
            how = f"filled its folder with more than {settings.disk / 1e6:,.0f} MB, or a million files"
        elif os.WIFSIGNALED(status):
            how = f"was killed by {signal_name(os.WTERMSIG(status))}"
        else:
            how = f"ended with exit code {os.WEXITSTATUS(status)}"
        if ok and settings.function:
            answer = said["answer"]
        elif ok and settings.answer == "stdout":
            answer = said["out"].strip()
        elif ok and settings.answer != "last":
            ok = said["file"] is not None
            answer = said["file"].strip() if ok else None
            how += "" if ok else f", and wrote no file {printable(settings.answer.removeprefix('file:'), 100)}"
        return AgentResult(answer, ok, how, said["cpu"], printable(said["err"].strip()[-300:]))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no path at all, or one that this user may not look at
        return False


async def _readable(line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(line, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(line)


async def _first_of(line: socket.socket) -> tuple[dict[str, Any], socket.socket | None]:
    """Read the first frame, and the socket that comes with it, if one does."""
    await _readable(line)
    data, passed, _, _ = socket.recv_fds(line, HEAD.size, 1)
    listener = socket.socket(fileno=passed[0]) if passed else None
    try:
        if listener is not None:
            listener.setblocking(False)
        return msgspec.json.decode(await _frame(line, data)), listener
    except BaseException:
        if listener is not None:
            listener.close()
        raise


async def _frame(line: socket.socket, head: bytes = b"") -> bytes:
    (size,) = HEAD.unpack(head + await _exactly(line, HEAD.size - len(head)))
    if size > _LONGEST:
        raise EOFError(f"a frame of {size} bytes was announced; the limit is {_LONGEST}")
    return await _exactly(line, size)


async def _exactly(line: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < size:
        piece = await loop.sock_recv(line, min(size - len(data), 1 << 20))
        if not piece:
            raise EOFError("it has ended")
        data += piece
    return bytes(data)


async def _hang_up(place: AgentPlace) -> None:
    """Hang up, and wait until the other end has ended the agent and removed its folder."""
    if place.listener is not None:
        place.listener.close()
    line, loop = place.line, asyncio.get_running_loop()
    with suppress(OSError, TimeoutError):
        line.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_LEAVE):
            while await loop.sock_recv(line, 1 << 16):
                pass
    line.close()
