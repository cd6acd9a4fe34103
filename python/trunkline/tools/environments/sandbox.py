"""A folder and commands in it, each confined by the kernel: an environment on the project's own sandbox.

The folder lies in memory, as an archive. Each command gets a copy of it in a confinement of its own, and what it leaves
there is archived in the confinement. No archive is opened outside of one, and no file of a command lies in a folder
of this user.
"""

from __future__ import annotations

import base64
import inspect
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from trunkline._internal.text import printable, scrub
from trunkline._internal.validation import check_float, check_int, check_size, check_that
from trunkline.errors import ConfigError, InfrastructureError
from trunkline.tools.environments import sandbox_program
from trunkline.tools.environments.workspace import TOOLS, Workspace, argument, report
from trunkline.tools.isolation.confinement import ResourceLimits, Way
from trunkline.tools.isolation.sandbox import NoSandbox, NoWay, Sandbox, find_way

if TYPE_CHECKING:
    from trunkline.tools.tool import Tool
    from trunkline.types import Task

_MIB: Final = 1 << 20
_LEAST: Final = 128 * _MIB
"""Bytes of address space without which no interpreter starts."""

_CARRIED: Final = 4
"""How many times the bytes of the folder and of the output a confinement may print and hold, archived and encoded."""

_SLACK: Final = 15.0
"""Seconds beside those of a command, to unpack and pack its folder."""

_SOURCE: Final = inspect.getsource(sandbox_program)

_WAYS: Final[dict[str, tuple[str, ...]]] = {"none": (Way.ROOT, Way.USER), "all": (Way.UID,)}
"""Ways to confine a command without a network, and with that of the machine."""


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a sandbox for each rollout: ``Agent(environment=box, tools=box.tools)`` with ``box = Sandbox()``.

    A command runs in a working folder that it may write to; beside it, it sees the programs of the system and nothing
    of this user. All its processes end with it, so only files last from command to command. States are copies of the
    folder, so forks start from them.

    Attributes:
        seconds: The most seconds of a command; after that it is killed, and its files stay.
        memory: The most address space of each of its processes: bytes, or a text such as ``"512MB"``.
        processes: The most processes and threads at once.
        disk: The most bytes that the folder may hold, as an archive. What a command does beyond that is dropped.
        output: Bytes of a command's output, or of a file that is read, that are kept.
        network: ``none``, which is refused where the kernel cannot do it, or ``all``: the network of the machine. The
            latter needs root, sees the files of the machine that all users may read, and is for trusted tasks.

    Raises:
        ConfigError: An option has a value it cannot have, or commands cannot be confined so here; it says why.
        InfrastructureError: No process could be started to try it.
    """

    seconds: float = 30.0
    memory: int | str = "1GB"
    processes: int = 64
    disk: int | str = "16MB"
    output: int = _MIB
    network: Literal["none", "all"] = "none"

    def __post_init__(self) -> None:
        check_float("Sandbox: seconds", self.seconds, 0, 86_000, above=True, unit="seconds")
        check_size("Sandbox: memory", self.memory, _LEAST)
        check_int("Sandbox: processes", self.processes, 16)
        disk = check_size("Sandbox: disk", self.disk, 1 << 16)
        if disk > 32 * _MIB:
            raise ConfigError(f"Sandbox: disk must be at most {32 * _MIB} bytes, not {disk}: it is copied in memory")
        check_int("Sandbox: output", self.output, 1, 8 * _MIB)
        check_that(self.network in _WAYS, "Sandbox: network must be none or all", self.network)
        try:
            find_way(self.limits, self.ways)
        except NoWay as problem:
            raise ConfigError(
                f"Sandbox: commands cannot be confined here with network={self.network!r}: {problem}; use "
                "trunkline.environments.Container"
            ) from None
        except NoSandbox as problem:
            raise InfrastructureError(f"Sandbox: {problem}") from None

    def __call__(self) -> SandboxWorkspace:
        """Return the environment of one rollout, which holds nothing yet."""
        return SandboxWorkspace(self)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """Tools for its commands and files: ``run``, ``read_file`` and ``write_file``."""
        return TOOLS

    @property
    def ways(self) -> tuple[str, ...]:
        """Ways in which commands may be confined."""
        return _WAYS[self.network]

    @property
    def disk_bytes(self) -> int:
        """The most bytes of the folder."""
        return check_size("Sandbox: disk", self.disk)

    @property
    def limits(self) -> ResourceLimits:
        """Limits of the confinement, which has to hold the command's and those of the program around it."""
        disk, memory = self.disk_bytes, check_size("Sandbox: memory", self.memory)
        carried = _CARRIED * (disk + self.output)
        return ResourceLimits(self.seconds + _SLACK, memory + carried, self.processes + 4, _CARRIED * disk, carried)


class SandboxWorkspace(Workspace):
    """One sandbox."""

    timeout = 300.0
    snapshots = 64

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._sandbox: Sandbox | None = None
        self._files = b""

    async def start(self) -> None:
        """Start the process that confines commands, before the task is known."""
        settings = self._settings
        self._sandbox = await Sandbox(settings.limits, settings.ways).__aenter__()

    async def fresh(self, task: Task) -> None:
        await self.reset(task)

    async def reset(self, task: Task) -> None:
        """Empty the folder: for ``EnvironmentPool(..., reset=True)``.

        Args:
            task: The next task.
        """
        if self._sandbox is None:
            await self.start()
        self._files = b""

    async def snapshot(self) -> bytes:
        return self._files

    async def restore(self, snapshot: bytes) -> None:
        if self._sandbox is None:
            await self.start()
        self._files = snapshot

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.__aexit__()

    async def run(self, command: str) -> str:
        argument("a command", command)
        said = await self._ask({"do": "run", "command": command})
        settings = self._settings
        ending = f"stopped after {settings.seconds:g} s" if said.code is None else f"exit code {said.code}"
        if said.files is None:
            ending += f"; its files would be more than {settings.disk_bytes:,} bytes: they are as before it"
        return report(said.output, settings.output, "" if said.code == 0 and said.files is not None else ending)

    async def read_file(self, path: str) -> str:
        argument("a path", path)
        said = await self._ask({"do": "read", "path": path})
        if said.code:
            raise RuntimeError(f"cannot read {printable(path, 200)}: {_words(said.output)}")
        return report(said.output, self._settings.output)

    async def write_file(self, path: str, content: str) -> None:
        argument("a path", path)
        said = await self._ask({"do": "write", "path": path, "content": content})
        if said.code or said.files is None:
            why = _words(said.output) if said.code else f"more than {self._settings.disk_bytes:,} bytes of files"
            raise RuntimeError(f"cannot write {printable(path, 200)}: {why}")

    async def _ask(self, request: dict[str, str]) -> SandboxReply:
        """Do something in a confinement with the folder, and keep what it leaves; RuntimeError where that fails."""
        settings = self._settings
        if self._sandbox is None:
            await self.start()
        assert self._sandbox is not None
        limits = {"seconds": settings.seconds, "output": settings.output + 1, "disk": settings.disk_bytes}
        files = base64.b64encode(self._files).decode()
        texts = {name: scrub(text) for name, text in request.items()}
        try:
            ended = await self._sandbox.run(_SOURCE, msgspec.json.encode(texts | limits | {"files": files}).decode())
        except NoSandbox as problem:
            await self.close()  # the next command gets another one
            raise RuntimeError(f"the command was not run: {problem}") from None
        except BaseException:
            await self.close()  # what it answers would be taken for the next answer
            raise
        try:
            # A command may have written this itself, so it is no more than bytes that some confinement unpacks.
            said = msgspec.json.decode(ended.out, type=SandboxReply)
        except msgspec.MsgspecError:
            raise RuntimeError(f"the sandbox {ended.how(settings.limits)}; the folder is as it was before") from None
        if said.files is not None and len(said.files) <= settings.disk_bytes:
            self._files = said.files
        return said


class SandboxReply(msgspec.Struct):
    """The result of a command: its output, its exit code or None where it was stopped, and its folder if it fits."""

    output: bytes
    code: int | None
    files: bytes | None


def _words(output: bytes) -> str:
    return printable(output.decode("utf-8", "replace").strip(), 300)
