"""A container as an environment, by the command line of Docker or Podman."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline._internal.aio import in_thread
from trunkline._internal.processes import kill_group
from trunkline._internal.text import printable
from trunkline._internal.validation import check_bool, check_float, check_int, check_optional, check_size, short_repr
from trunkline.errors import ConfigError
from trunkline.tools.environments.container_guard import Guard
from trunkline.tools.environments.workspace import TOOLS, Workspace, argument, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.tools.tool import Tool
    from trunkline.types import Task

ENGINES: Final = ("docker", "podman")

_WORD: Final = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:@+-]{0,254}")
"""What an image, a network, a user or a folder may be called: nothing that is read as an option."""

_PATIENCE: Final = 300.0
"""Seconds for the engine to make, start, save or remove a container; it may have to pull an image."""

_SAID: Final = 4096
"""Bytes of the engine's own messages that are kept."""

_SNAPSHOTS: Final = 16

_WRITE: Final = b'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
_READ: Final = b'cat -- "$1"'


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a container for each rollout: ``Agent(environment=box, tools=box.tools)`` with ``box = Container(...)``.

    Commands run in it by ``exec``, and their files stay until the rollout ends. Each container is removed with its
    rollout, and by a process of its own where the worker dies. Forks run the recorded commands again in a fresh one
    unless ``snapshot`` is set. Text of a model is only ever an argument inside the container.

    Attributes:
        image: The image; it needs ``/bin/sh``, ``cat``, ``mkdir`` and ``dirname``.
        command: The container's own process, which must last; it takes the place of the image's entry point.
        shell: Command that runs the text of a command, which is added as its last argument.
        workdir: Folder in which commands run; that of the image when empty.
        user: User who runs commands; that of the image when empty.
        network: Name of the network; ``none`` for none.
        memory: The most memory of all its processes, without swap: bytes, or a text such as ``"512MB"``.
        cpus: Processors that it may use at once; unlimited when None.
        processes: The most processes at once.
        seconds: The most seconds of a command; after that all processes of the container are killed, its files stay.
        output: Bytes of a command's output, or of a file that is read, that are kept.
        snapshot: Keep states by ``commit``, so that forks start from them: the 16 used last of each task.
        engine: ``docker`` or ``podman``, or the path of one; the first of the two that is found when empty.

    Raises:
        ConfigError: An option has a value it cannot have, or neither Docker nor Podman is found.
    """

    image: str
    command: tuple[str, ...] = ("sleep", "2147483647")
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    workdir: str = ""
    user: str = ""
    network: str = "none"
    memory: int | str = "1GB"
    cpus: float | None = None
    processes: int = 256
    seconds: float = 60.0
    output: int = 1 << 20
    snapshot: bool = False
    engine: str = ""

    def __post_init__(self) -> None:
        for name in ("image", "workdir", "user", "network"):
            value: Any = getattr(self, name)
            empty = value == "" and name in {"workdir", "user"}
            if not empty and not (isinstance(value, str) and _WORD.fullmatch(value)):
                raise ConfigError(f"Container: {name} must be a name or path, not {short_repr(value)}")
        for name in ("command", "shell"):
            words: Any = getattr(self, name)
            listed = isinstance(words, list | tuple) and all(isinstance(word, str) and word for word in words)
            if not listed or not words or any("\0" in word for word in words):
                raise ConfigError(f"Container: {name} must be a list of words, not {short_repr(words)}")
            msgspec.structs.force_setattr(self, name, tuple(words))
        check_size("Container: memory", self.memory, 6 << 20)  # less is refused by the engine
        check_optional(check_float, "Container: cpus", self.cpus, 0, above=True)
        check_int("Container: processes", self.processes, 1)
        check_float("Container: seconds", self.seconds, 0, 86_000, above=True, unit="seconds")
        check_int("Container: output", self.output, 1, 64 << 20)
        check_bool("Container: snapshot", self.snapshot)
        _ = self.program

    def __call__(self) -> ContainerWorkspace:
        """Return the environment of one rollout, which holds nothing yet."""
        return SavedContainer(self) if self.snapshot else ContainerWorkspace(self)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """Tools for its commands and files: ``run``, ``read_file`` and ``write_file``."""
        return TOOLS

    @property
    def program(self) -> str:
        """Path of the engine's program; ConfigError where there is none."""
        wanted = (self.engine,) if self.engine else ENGINES
        for name in wanted:
            if isinstance(name, str) and (found := shutil.which(name)):
                return found
        raise ConfigError(
            f"Container: {' and '.join(map(short_repr, wanted))} {'is' if self.engine else 'are'} no program here: "
            "install Docker or Podman, name its program with engine=, or use trunkline.environments.Sandbox"
        )

    @property
    def limits(self) -> list[str]:
        """Options of ``create``."""
        memory = check_size("Container: memory", self.memory, 0)
        given = [
            "--init",
            "--label=trunkline",
            f"--network={self.network}",
            f"--memory={memory}b",
            f"--memory-swap={memory}b",
            f"--pids-limit={self.processes}",
            "--security-opt=no-new-privileges",
        ]
        return given if self.cpus is None else [*given, f"--cpus={self.cpus:g}"]


class EngineReply(NamedTuple):
    """Exit code and output of the engine's program; both streams in one."""

    code: int
    output: bytes


class ContainerImage:
    """A saved state; it is removed with the last reference to it."""

    def __init__(self, name: str, guard: Guard) -> None:
        self.name = name
        self._guard = guard
        guard.hold("image", name)

    def __del__(self) -> None:
        with suppress(OSError, ValueError):
            self._guard.release("image", self.name)


class ContainerWorkspace(Workspace):
    """One container."""

    timeout = _PATIENCE + 60
    snapshots = 0

    def __init__(self, settings: Container) -> None:
        self._settings = settings
        self._program = settings.program
        self._name = ""

    async def start(self) -> None:
        """Make the container, before its task is known."""
        await self._make(self._settings.image)

    async def fresh(self, task: Task) -> None:
        if not self._name:
            await self.start()

    async def close(self) -> None:
        if not self._name:
            return
        name, self._name = self._name, ""
        await self._engine("rm", "--force", "--volumes", name)
        self._guard.release("container", name)

    async def run(self, command: str) -> str:
        settings = self._settings
        text = argument("a command", command)
        try:
            ended = await self._exec([*settings.shell, text])
        except TimeoutError:
            await self._kill()
            return report(b"", settings.output, f"stopped after {settings.seconds:g} s; its files are kept")
        ending = f"exit code {ended.code}" if ended.code else ""
        if ended.code and not await self._runs():
            await self._engine("start", self._name)
            ending += "; the container had ended, and was started again"
        return report(ended.output, settings.output, ending)

    async def read_file(self, path: str) -> str:
        return report(await self._on_file("read", path, _READ), self._settings.output)

    async def write_file(self, path: str, content: str) -> None:
        await self._on_file("write", path, _WRITE, content.encode("utf-8", "replace"))

    @property
    def _guard(self) -> Guard:
        return Guard.of(self._program)

    async def _make(self, image: str) -> None:
        """Make and start a container; its name is known to the guard before."""
        self._name = name = f"trunkline-{secrets.token_hex(12)}"
        self._guard.hold("container", name)
        first, *rest = self._settings.command
        options = [f"--name={name}", f"--entrypoint={first}", *self._settings.limits]
        await self._engine("create", *options, image, *rest)
        await self._engine("start", name)

    async def _kill(self) -> None:
        """End all processes at once, and start the container's own again."""
        await self._engine("restart", "-t", "0", self._name)

    async def _runs(self) -> bool:
        said = await self._ask("inspect", "--format={{.State.Running}}", self._name)
        return said.output.strip() == b"true"

    async def _on_file(self, what: str, path: str, script: bytes, given: bytes = b"") -> bytes:
        name = argument("a path", path)
        try:
            ended = await self._exec([b"/bin/sh", b"-c", script, b"sh", name], given)
        except TimeoutError:
            await self._kill()
            raise RuntimeError(f"{printable(path, 200)} could not be {what} in time") from None
        if ended.code:
            raise RuntimeError(f"cannot {what} {printable(path, 200)}: {_words(ended.output)}")
        return ended.output

    async def _exec(self, words: Sequence[str | bytes], given: bytes = b"") -> EngineReply:
        """Run a command in the container; TimeoutError after its seconds, with the command still running there."""
        settings = self._settings
        if not self._name:
            raise RuntimeError("there is no container")
        options = ["--interactive"] * bool(given)
        options += [f"--workdir={settings.workdir}"] * bool(settings.workdir)
        options += [f"--user={settings.user}"] * bool(settings.user)
        words = ["exec", *options, self._name, *words]
        return await ask_engine(self._program, words, given, settings.seconds, settings.output + 1)

    async def _ask(self, *words: str) -> EngineReply:
        try:
            return await ask_engine(self._program, words, b"", _PATIENCE, _SAID)
        except TimeoutError:
            raise RuntimeError(f"{Path(self._program).name} {words[0]} took longer than {_PATIENCE:g} s") from None

    async def _engine(self, *words: str) -> bytes:
        """Ask the engine; RuntimeError with its words where it refuses."""
        said = await self._ask(*words)
        if said.code:
            raise RuntimeError(f"{Path(self._program).name} {words[0]} failed: {_words(said.output)}")
        return said.output


class SavedContainer(ContainerWorkspace):
    """A container whose states are kept as images."""

    snapshots = _SNAPSHOTS

    async def snapshot(self) -> ContainerImage:
        image = ContainerImage(f"localhost/trunkline:{secrets.token_hex(12)}", self._guard)
        await self._engine("commit", self._name, image.name)
        return image

    async def restore(self, snapshot: ContainerImage) -> None:
        await self.close()  # one that was started ahead
        await self._make(snapshot.name)


def _words(output: bytes) -> str:
    return printable(output.decode("utf-8", "replace").strip(), 500) or "it says nothing"


class EngineOutput(asyncio.Protocol):
    """Keeps so many bytes that the engine's program prints; ``ended`` is set once its output is closed."""

    def __init__(self, most: int) -> None:
        self.kept = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._most = most

    def data_received(self, data: bytes) -> None:
        self.kept += data[: self._most - len(self.kept)]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _start(words: Sequence[str | bytes], stdin: int) -> Popen[bytes]:
    # A process of uvloop inherits more than its three streams: what Podman leaves beside a container would hold its
    # output open for as long as that runs.
    return Popen(words, stdin=stdin, stdout=PIPE, stderr=STDOUT, start_new_session=True)


async def ask_engine(
    program: str, words: Sequence[str | bytes], given: bytes, seconds: float, most: int
) -> EngineReply:
    """Run the engine's program, feed it some input, and keep so many bytes of its output; TimeoutError."""
    loop = asyncio.get_running_loop()
    process = _start([program, *words], PIPE if given else DEVNULL)
    pipes: list[asyncio.BaseTransport] = []
    try:
        transport, output = await loop.connect_read_pipe(lambda: EngineOutput(most), process.stdout)
        pipes.append(transport)
        if given:
            stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
            pipes.append(stdin)
            stdin.write(given)
            stdin.write_eof()
        async with asyncio.timeout(seconds):
            await output.ended
            code = await in_thread(process.wait)
    finally:
        if process.poll() is None:
            kill_group(process.pid)
            threading.Thread(target=process.wait, name="trunkline-engine", daemon=True).start()
        for pipe in pipes:
            pipe.close()  # a process that it left may hold its output open
    return EngineReply(code, bytes(output.kept))
