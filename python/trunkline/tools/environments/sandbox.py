"""A folder and commands in it, each confined by the kernel: an environment on the project's own sandbox.

The folder lies in memory, as an archive. Each command gets a copy of it in a confinement of its own, and what it leaves
there is archived in the confinement. No archive is opened outside of one, and no file of a command lies in a folder
of this user.
"""

from __future__ import annotations

import base64
import inspect
import io
import os
import re
import stat
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from trunkline._internal.aio import in_thread
from trunkline._internal.processes import signal_name
from trunkline._internal.text import printable, scrub
from trunkline._internal.validation import check_float, check_int, check_size, check_that, short_repr
from trunkline.errors import ConfigError, InfrastructureError
from trunkline.tools.environments import interpreter_program, sandbox_program
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
_INTERPRETER: Final = f"""import sys, types
module = sys.modules[{sandbox_program.__name__!r}] = types.ModuleType("sandbox_program")
exec({_SOURCE!r}, module.__dict__)
exec({inspect.getsource(interpreter_program)!r})
"""

_LIFE: Final = 1_000_000.0
"""Seconds that an interpreter may live, and use of a processor."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]{6,16}>")
"""The place of an object in memory, which is another one in each process."""

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
        folder: A folder; its files are in the working folder from the beginning. Each rollout has a copy of its own,
            and the folder itself is never written to. It may hold regular files and folders only.

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
    folder: str = ""

    def __post_init__(self) -> None:
        check_float("Sandbox: seconds", self.seconds, 0, 86_000, above=True, unit="seconds")
        check_size("Sandbox: memory", self.memory, _LEAST)
        check_int("Sandbox: processes", self.processes, 16)
        disk = check_size("Sandbox: disk", self.disk, 1 << 16)
        if disk > 32 * _MIB:
            raise ConfigError(f"Sandbox: disk must be at most {32 * _MIB} bytes, not {disk}: it is copied in memory")
        check_int("Sandbox: output", self.output, 1, 8 * _MIB)
        check_that(self.network in _WAYS, "Sandbox: network must be none or all", self.network)
        if isinstance(self.folder, os.PathLike):
            msgspec.structs.force_setattr(self, "folder", os.fspath(self.folder))
        check_that(isinstance(self.folder, str), "Sandbox: folder must be the path of a folder", self.folder)
        if self.folder:
            msgspec.structs.force_setattr(self, "folder", str(Path(self.folder).absolute()))
            archive_of(self.folder, disk)
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
        self._interpreter: Sandbox | None = None
        self._interpreted = False  # whether there is, or was, an interpreter, whose variables no snapshot has
        self._there: bytes | None = None  # the files that it has now

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
        settings = self._settings
        self._files = b""
        if settings.folder:
            self._files = await in_thread(lambda: archive_of(settings.folder, settings.disk_bytes))
        await self._end_interpreter()
        self._interpreted = False

    async def snapshot(self) -> bytes | None:
        return None if self._interpreted else self._files

    async def restore(self, snapshot: bytes) -> None:
        if self._sandbox is None:
            await self.start()
        self._files = snapshot
        await self._end_interpreter()
        self._interpreted = False

    async def close(self) -> None:
        await self._end_interpreter()
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

    async def list_files(self, path: str = ".") -> str:
        """Return what is in a folder and below it, a line each, up to 500: folders with a slash, files with their size.

        Args:
            path: The folder, seen from the working folder.

        Raises:
            ValueError: The path is empty, too long, or contains a NUL character.
            RuntimeError: It cannot be listed, or the sandbox does not work.
        """
        argument("a path", path)
        said = await self._ask({"do": "list", "path": path})
        if said.code:
            raise RuntimeError(f"cannot list {printable(path, 200)}: {_words(said.output)}")
        return report(said.output, self._settings.output)

    async def edit_file(self, path: str, old: str, new: str) -> None:
        """Replace the one place where a text stands in a file.

        Args:
            path: Where it is, seen from the working folder.
            old: The text that is replaced, which must occur once.
            new: The text in its place.

        Raises:
            ValueError: The path or ``old`` is empty, or the path is too long or contains a NUL character.
            RuntimeError: It cannot be changed, or the sandbox does not work.
        """
        argument("a path", path)
        if not old:
            raise ValueError("the text to replace must not be empty")
        said = await self._ask({"do": "edit", "path": path, "old": old, "new": new})
        if said.code or said.files is None:
            why = _words(said.output) if said.code else f"more than {self._settings.disk_bytes:,} bytes of files"
            raise RuntimeError(f"cannot edit {printable(path, 200)}: {why}")

    async def run_python(self, code: str) -> str:
        """Run Python code in an interpreter that keeps its variables from call to call.

        It works in the folder, and ends with the rollout. The state of its variables is in no snapshot: a fork runs the
        calls on record again. ``random`` draws what follows from the task, and what objects show as their address is
        replaced by ``0x...``, so that a run of the same code says the same.

        Args:
            code: The code; the value of an expression at its end is shown.

        Returns:
            What it printed, both streams in order, with a traceback where it raised; then how the interpreter ended,
            where it did: its variables are gone then.

        Raises:
            ValueError: The code is too long, or contains a NUL character.
            RuntimeError: The sandbox does not work, or the code broke it. The next call has a new interpreter.
        """
        argument("code", code)
        settings = self._settings
        files = None if self._there is not None and self._there is self._files else self._files
        request = {
            "code": scrub(code),
            "files": None if files is None else base64.b64encode(files).decode(),
            "seed": self.task_seed,
            "seconds": settings.seconds,
            "output": settings.output + 1,
            "disk": settings.disk_bytes,
        }
        self._interpreted = True
        most = _CARRIED * (settings.disk_bytes + settings.output) + _MIB
        try:
            if self._interpreter is None:
                limits = settings.limits._replace(seconds=_LIFE)
                self._interpreter = await Sandbox(limits, settings.ways, talking=True).__aenter__()
                await self._interpreter.begin(_INTERPRETER)
            answer = await self._interpreter.ask(msgspec.json.encode(request), settings.seconds + 2 * _SLACK, most)
            # Code may have written this itself, so it is no more than bytes that some confinement unpacks.
            said = msgspec.json.decode(answer, type=InterpreterReply)
        except (NoSandbox, msgspec.MsgspecError) as problem:
            await self._end_interpreter()
            why = str(problem) if isinstance(problem, NoSandbox) else "the program answered with no answer"
            raise RuntimeError(f"the interpreter is gone, with its variables: {why}; files are as before") from None
        except BaseException:
            await self._end_interpreter()  # what it answers would be taken for the next answer
            raise
        ending = ""
        if said.ending:
            how = f"stopped after {settings.seconds:g} s" if said.ending == "time" else _how_it_ended(said.status)
            ending = f"{how}; the variables are gone"
        self._there = self._files
        if said.files is None or len(said.files) > settings.disk_bytes:
            self._there = None  # it gets the earlier ones again
            what = f"its files would be more than {settings.disk_bytes:,} bytes: they are as before it"
            ending = f"{ending}; {what}" if ending else what
        elif said.changed:
            self._files = self._there = said.files
        text = report(said.output, settings.output, ending)
        return _ADDRESS.sub(" at 0x...>", text)

    async def _end_interpreter(self) -> None:
        sandbox, self._interpreter, self._there = self._interpreter, None, None
        if sandbox is not None:
            await sandbox.__aexit__()

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


class InterpreterReply(msgspec.Struct):
    """The result of code: its output, why the interpreter ended if it did, and its folder if it changed and fits."""

    output: bytes
    ending: str
    status: int
    files: bytes | None
    changed: bool


def archive_of(folder: str, most: int) -> bytes:
    """Return an archive of a folder of regular files; ConfigError where it has others, or too much."""
    top, data, total = Path(folder), io.BytesIO(), 0
    if not top.is_dir():
        raise ConfigError(f"Sandbox: folder {short_repr(folder)} is no folder: give the path of one that exists")
    try:
        with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as archive:
            for path in sorted(top.rglob("*")):
                facts, name = path.lstat(), printable(str(path), 300)
                if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
                    raise ConfigError(f"Sandbox: folder: {name} is a link or a device; copy the file, or leave it out")
                total += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
                if total > most:
                    raise ConfigError(
                        f"Sandbox: folder {short_repr(folder)} has more than {most:,} bytes: leave files out, or "
                        f"set disk= higher, up to {32 * _MIB:,}"
                    )
                entry = archive.gettarinfo(str(path), str(path.relative_to(top)))
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                entry.mode = 0o755 if facts.st_mode & 0o111 else 0o644
                if entry.isreg():
                    with path.open("rb") as file:
                        archive.addfile(entry, file)
                else:
                    archive.addfile(entry)
    except OSError as problem:
        raise ConfigError(f"Sandbox: folder {short_repr(folder)} cannot be read: {problem.strerror}") from None
    return data.getvalue()


def _how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"the interpreter was killed by {signal_name(os.WTERMSIG(status))}"
    return f"the interpreter ended with exit code {os.WEXITSTATUS(status)}"


def _words(output: bytes) -> str:
    return printable(output.decode("utf-8", "replace").strip(), 300)
