"""Runs the process of an agent of another framework: in a folder of its own, with an environment made from nothing."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from trunkline._internal.aio import off_the_loop
from trunkline._internal.leftovers import remove_folder
from trunkline._internal.processes import kill_group, signal_name
from trunkline._internal.text import is_secret, printable
from trunkline._internal.validation import check_float, check_int, check_that, short_repr
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    import socket

__all__ = ["AgentCommand", "AgentPlace", "AgentResult", "AgentRunner"]

_QUESTION: Final = "{question}"
_KEY: Final = "trunkline"
"""The key that an agent is given; the endpoint takes any."""

_QUIET: Final = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ANONYMIZED_TELEMETRY": "false",
    "NO_COLOR": "1",
}
"""Switches tracing and telemetry of known frameworks off."""

_OURS: Final = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent's process is started, and its limits.

    Attributes:
        command: The program and its arguments; ``{question}`` in one is replaced by the question, which else comes on
            standard input.
        folder: A folder that is copied into the agent's own at every start; none when None.
        answer: Where its answer is: ``"stdout"``, ``"last"`` (the text of the last reply) or ``"file:NAME"``, a file in
            its folder.
        network: ``"all"``, or ``"none"``: the endpoint alone.
        seconds: Seconds that it may take.
        memory: Bytes that its processes may hold.
        output: Bytes of standard output and of standard error that are kept.
        env: Names of environment variables that it gets, or ``NAME=VALUE``; a key is given by its name alone, so that
            it is not stored.

    Raises:
        ConfigError: A field has a value it cannot have.
    """

    command: tuple[str, ...]
    folder: str | None = None
    answer: str = "stdout"
    network: Literal["all", "none"] = "all"
    seconds: float = 600.0
    memory: int = 4 << 30
    output: int = 1 << 20
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_that(bool(self.command), "agent: the command is empty", self.command)
        check_float("agent: seconds", self.seconds, 0, above=True, unit="seconds")
        check_int("agent: output", self.output, 1)
        check_that(self.network in {"all", "none"}, "agent: network must be all or none", self.network)
        name = self.answer.removeprefix("file:")
        inside = name == Path(name).name and name not in {"", ".", ".."}
        if self.answer not in {"stdout", "last"} and not (name != self.answer and inside):
            raise ConfigError(
                f"agent: answer must be stdout, last or file:NAME with a name without a folder, not "
                f"{short_repr(self.answer)}"
            )
        for one in self.env:
            name, equals, _ = one.partition("=")
            if name in _OURS:
                raise ConfigError(f"agent: env must not hold {name}: no key of the run reaches an agent")
            if equals and is_secret(name):
                raise ConfigError(f"agent: env holds the value of {short_repr(name)}, which would be stored: name it")


class AgentPlace(NamedTuple):
    """A folder of one start of an agent.

    Attributes:
        folder: Its path.
        path: Its path as the agent sees it.
        listener: A socket that listens where the agent can reach it; None where it reaches this machine's loopback.
        masks: Texts that differ from start to start.
    """

    folder: str
    path: str
    listener: socket.socket | None
    masks: tuple[str, ...]


class AgentResult(NamedTuple):
    """How an agent ended: its answer, whether it ended well, how in words, its CPU seconds, and the end of stderr."""

    answer: str | None
    ok: bool
    how: str
    cpu: float
    err: str


class AgentRunner:
    """Starts agents of one command.

    Args:
        settings: The command and its limits.
    """

    def __init__(self, settings: AgentCommand) -> None:
        self._settings = settings

    def check(self) -> None:
        """Refuse what cannot be started here.

        Raises:
            ConfigError: There is no such command or folder, or a restriction cannot be enforced.
        """
        settings = self._settings
        if shutil.which(settings.command[0]) is None:
            raise ConfigError(f"agent: there is no command {short_repr(settings.command[0])}; give the path of one")
        if settings.folder is not None and not Path(settings.folder).is_dir():
            raise ConfigError(f"agent: folder {short_repr(settings.folder)} is no folder")
        if settings.network == "none":
            raise ConfigError("agent: network=none cannot be enforced here; leave it out, or say all")

    async def open(self) -> AgentPlace:
        """Make a folder for one start."""
        folder = tempfile.mkdtemp(prefix="trunkline-agent-")
        source = self._settings.folder
        if source is not None:
            await off_the_loop(lambda: shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True))
        return AgentPlace(folder, folder, None, (folder,))

    async def close(self, place: AgentPlace) -> None:
        """Remove a folder."""
        await off_the_loop(lambda: remove_folder(place.folder))

    async def run(self, place: AgentPlace, question: str, url: str) -> AgentResult:
        """Run the agent to its end; one that is cancelled is killed with its children.

        Args:
            place: Its folder.
            question: The question.
            url: The endpoint, without ``/v1``.
        """
        settings = self._settings
        command = [argument.replace(_QUESTION, question) for argument in settings.command]
        given = b"" if command != [*settings.command] else question.encode("utf-8", "replace")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=place.folder,
            env=self._environment(place, url),
            start_new_session=True,
        )
        late = False
        try:
            async with asyncio.timeout(settings.seconds):
                out, err = await self._exchange(process, given)
        except TimeoutError:
            late, out, err = True, b"", b""
        finally:
            kill_group(process.pid)
            await process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        code = process.returncode or 0
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
        if late:
            how = f"took longer than {settings.seconds:g} s"
        ok = not late and code == 0
        return AgentResult(self._answer(place, out) if ok else None, ok, how, cpu, _end(err))

    async def aclose(self) -> None:
        """Let go of what starts share."""

    async def _exchange(self, process: asyncio.subprocess.Process, given: bytes) -> tuple[bytes, bytes]:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with suppress(ConnectionError):
            process.stdin.write(given)
            await process.stdin.drain()
        process.stdin.close()
        out, err = await asyncio.gather(*(self._drain(stream) for stream in (process.stdout, process.stderr)))
        await process.wait()
        return out, err

    async def _drain(self, stream: asyncio.StreamReader) -> bytes:
        kept = bytearray()
        while piece := await stream.read(1 << 16):
            kept += piece
            del kept[: -self._settings.output]
        return bytes(kept)

    def _environment(self, place: AgentPlace, url: str) -> dict[str, str]:
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": place.path,
            "TMPDIR": place.path,
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
            if equals or name in os.environ:
                env[name] = value if equals else os.environ[name]
        return env

    def _answer(self, place: AgentPlace, out: bytes) -> str | None:
        kind = self._settings.answer
        if kind == "last":
            return None
        if kind == "stdout":
            return out.decode("utf-8", "replace").strip()
        try:
            descriptor = os.open(Path(place.folder, kind.removeprefix("file:")), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(self._settings.output).decode("utf-8", "replace").strip()


def _end(data: bytes) -> str:
    """The end of what was printed, on one printable line."""
    return printable(data.decode("utf-8", "replace").strip()[-300:])
