"""Warm child processes of one tool."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from trunkline._internal.aio import off_the_loop
from trunkline._internal.child import Child, read_frame
from trunkline._internal.leftovers import end_marked, sweep
from trunkline._internal.processes import signal_name
from trunkline._internal.serialization import pack, packed_argv
from trunkline._internal.text import printable, scrub
from trunkline.errors import ConfigError, CrossingError
from trunkline.tools.isolation import messages
from trunkline.tools.tool import MEMORY

if TYPE_CHECKING:
    from trunkline.tools.calls import Call
    from trunkline.tools.tool import Tool

START: Final = 60.0
"""Seconds a process has to import the tool."""

IDLE: Final = 60.0
"""Seconds after which a process without work ends."""

_END: Final = 5.0
"""Seconds in which a process and what it started are to be gone; what the system cannot kill is left behind."""

_LAST_WORDS: Final = 0.5
"""Seconds for the guard of a process that hung up to report how it ended."""

_ASIDE: Final = 64 * 1024
"""Bytes of a frame beside the result: a traceback, an error."""

_answers: Final[msgspec.msgpack.Decoder[messages.FromHelper]] = msgspec.msgpack.Decoder(messages.FromHelper)
_ends: Final = msgspec.msgpack.Decoder(messages.ToolEnded)
_log = logging.getLogger("trunkline.tools")


class FailedStart(Exception):
    """The process did not come to the point where it could run a call."""


class ToolProcessExited(Exception):
    """The process ended in the middle of a call; ``how`` is the end of a sentence about the tool."""

    def __init__(self, how: str, output: bytes = b"", printed: int = 0) -> None:
        super().__init__(how)
        self.how = how
        self.output = output
        self.dropped = printed - len(output)


class ToolProcess:
    """A process with a guard, and a stream to each; make it with ``start``."""

    def __init__(self, child: Child) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._child = child
        self._ways: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._ended: asyncio.Task[messages.ToolEnded | None] | None = None

    @classmethod
    async def start(cls) -> Self:
        try:
            # Address space is limited there, and an arena for each thread would take much of it.
            child = Child(
                ("-P", "-m", "trunkline.tools.isolation.child"),
                os.environ | {"MALLOC_ARENA_MAX": "1"},
                sockets=2,
                marked=True,
                stdout=2,
            )
        except OSError as error:
            raise FailedStart(str(error)) from error
        process = cls(child)
        try:
            for ours in child.sockets:
                process._ways.append(await asyncio.open_connection(sock=ours))
        except OSError as error:
            child.close_sockets()
            raise FailedStart(str(error)) from error
        with suppress(OSError):  # without a descriptor to spare, the timeout of a call has to do
            child.watch(process._guard_ended)
        return process

    async def load(self, setup: messages.ToolSetup) -> None:
        try:
            async with asyncio.timeout(START):
                answer = await self._ask(setup, _ASIDE)
        except TimeoutError:
            raise FailedStart(f"importing its module took longer than {START:g} s") from None
        except ToolProcessExited as gone:
            raise FailedStart(f"while its module was imported, it {gone.how}") from None
        if isinstance(answer, messages.ToolBroken):
            raise CrossingError(answer.why)

    @property
    def alive(self) -> bool:
        """Whether the process can be asked for one more call."""
        return self._ended is None and not self._ways[0][0].at_eof() and self._child.alive

    async def run(self, call: messages.CallRequest) -> messages.CallResult:
        answer = await self._ask(call, 4 * call.limit + _ASIDE)
        if not isinstance(answer, messages.CallResult):
            raise await self._gone()
        return answer

    def hang_up(self, patience: float = 0.0) -> asyncio.Task[messages.ToolEnded | None]:
        """Have the process killed with all it started, after some patience; the task is done when that is over."""
        if self._ended is None:
            if self.timer is not None:
                self.timer.cancel()
            self._ended = asyncio.get_running_loop().create_task(self._end(patience))
        return self._ended

    def _guard_ended(self) -> None:
        """Close the stream soon: a killed guard has ended nothing, and processes of its tool may hold the socket."""
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._ways[0][1].transport.abort)

    async def _ask(self, message: messages.ToolSetup | messages.CallRequest, most: int) -> messages.FromHelper:
        reader, writer = self._ways[0]
        try:
            writer.write(messages.encode(message))
            return _answers.decode(await read_frame(reader, most))
        except (OSError, EOFError, msgspec.MsgspecError):
            raise await self._gone() from None

    async def _gone(self) -> ToolProcessExited:
        # It may have closed its descriptors and still run; else its guard is about to report how it ended.
        ended = await asyncio.shield(self.hang_up(_LAST_WORDS))
        if ended is None:
            return ToolProcessExited("ended without a word")
        if os.WIFSIGNALED(ended.status):
            how = f"was killed by {signal_name(os.WTERMSIG(ended.status))}"
        else:
            how = f"ended its process with exit code {os.WEXITSTATUS(ended.status)}"
        return ToolProcessExited(how, ended.output, ended.printed)

    async def _end(self, patience: float) -> messages.ToolEnded | None:
        """Hang up, read how it ended, reap it."""
        ended = None
        reader, writer = self._ways[1]
        reading = asyncio.get_running_loop().create_task(reader.read(-1))
        await asyncio.wait({reading}, timeout=patience)
        with suppress(OSError, RuntimeError):  # the guard is gone
            writer.write_eof()
        await asyncio.wait({reading}, timeout=_END)
        with suppress(OSError, asyncio.CancelledError, msgspec.MsgspecError):
            if not reading.cancel():
                ended = _ends.decode(reading.result())
        await self._child.wait(_END)
        self._child.unwatch()
        if ended is None:
            # The guard was killed, as by its tool, and has ended nothing.
            await off_the_loop(self._clean)
        for _, writer in self._ways:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        return ended

    def _clean(self) -> None:
        end_marked(self._child.mark)
        sweep()


class ToolProcessPool:
    """Runs calls of one tool; no process is started before the first."""

    def __init__(self, tool: Tool[..., Any], preload: tuple[str, ...] = ()) -> None:
        self._tool = tool
        self._preload = preload
        self._memory = MEMORY if tool.policy.memory is None else tool.policy.memory
        try:
            self._serialized = pack(tool, f"tool {tool.name!r}")
        except CrossingError as error:
            raise ConfigError(
                f"tool {tool.name!r}: isolated=True runs it in a process of its own, where it must be found: define it "
                f"at the top level of a module, or install the notebook extra ({error})"
            ) from error
        self._cpus = len(os.sched_getaffinity(0))
        self._slots = asyncio.Semaphore(tool.policy.concurrency or self._cpus)
        self._idle: list[ToolProcess] = []
        self._all: set[ToolProcess] = set()
        self._starting: set[asyncio.Task[ToolProcess]] = set()
        self._ending: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run(self, arguments: str, call: Call | None, limit: int, timeout: float) -> tuple[str, bool]:  # noqa: ASYNC109
        """Run a call as soon as a process is free for it; the timeout does not count the wait for one."""
        name = self._tool.name
        # No lone surrogate can be sent.
        known = None if call is None else msgspec.structs.replace(call, task=scrub(call.task))
        run = messages.CallRequest(scrub(arguments), limit, math.ceil(timeout + 1) * self._cpus, known)
        async with self._slots:
            if self._closed:
                raise RuntimeError("the toolbox is closed")
            try:
                process = await self._taken()
            except FailedStart as error:
                why = printable(str(error))
                return f"Error: {name} gave no result: no process could be started for it: {why}.", False
            kept = False
            try:
                async with asyncio.timeout(timeout):
                    ran = await process.run(run)
                kept = not ran.worn
            except TimeoutError:
                return f"Error: {name} took longer than {timeout:g} s and was killed.", False
            except ToolProcessExited as gone:
                how = f"{gone.how}; {gone.dropped:,} bytes that it printed before this were dropped"
                self._debug(how if gone.dropped else gone.how, gone.output.decode(errors="replace"))
                return f"Error: {name} {gone.how}.", False
            finally:
                if kept:
                    self._keep(process)
                else:
                    # A caller that is cancelled meanwhile need not wait until it is gone.
                    await asyncio.shield(self._drop(process))
        if ran.traceback:
            self._debug("failed", ran.traceback)
        return ran.text, ran.ok

    async def close(self) -> None:
        """End all processes, those with a call in them too, and wait until they are gone."""
        self._closed = True
        self._idle.clear()
        while self._starting or self._all or self._ending:
            for process in list(self._all):
                self._drop(process)
            await asyncio.wait(self._ending | self._starting)

    async def _taken(self) -> ToolProcess:
        """Return a process: the one that was used last, or a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.timer is not None:
                process.timer.cancel()
            if process.alive:
                return process
            self._drop(process)
        task = asyncio.get_running_loop().create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._spare)
            raise

    async def _start(self) -> ToolProcess:
        process = await ToolProcess.start()
        self._all.add(process)
        try:
            setup = messages.ToolSetup(self._serialized, _path(), self._memory, self._preload, packed_argv())
            await process.load(setup)
        except BaseException:
            self._drop(process)
            raise
        return process

    def _spare(self, task: asyncio.Task[ToolProcess]) -> None:
        """Keep a process that was started for a call that is given up."""
        if not task.cancelled() and task.exception() is None:
            self._keep(task.result())

    def _keep(self, process: ToolProcess) -> None:
        if self._closed:
            self._drop(process)
            return
        self._idle.append(process)
        process.timer = asyncio.get_running_loop().call_later(IDLE, self._expire, process)

    def _expire(self, process: ToolProcess) -> None:
        if process in self._idle:
            self._idle.remove(process)
            self._drop(process)

    def _drop(self, process: ToolProcess) -> asyncio.Task[Any]:
        self._all.discard(process)
        task = process.hang_up()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    def _debug(self, how: str, text: str) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            lines = "\n".join(map(printable, text.splitlines()))
            _log.debug("tool %s %s:\n%s", self._tool.name, how, lines)


def _path() -> list[str]:
    """Return where this process finds modules; entries may be empty, or no folders."""
    return [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100
