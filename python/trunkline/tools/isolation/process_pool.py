"""The processes of one isolated tool: kept warm, one call at a time in each, replaced when they are lost."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.crossing import pack
from trunkline.errors import ConfigError, CrossingError
from trunkline.llm.text import scrub
from trunkline.printable import printable
from trunkline.tools.frames import Run, Setup
from trunkline.tools.helper import FailedStart, Gone, Helper
from trunkline.tools.policy import MEMORY

if TYPE_CHECKING:
    from trunkline.tools.call import Call
    from trunkline.tools.frames import Ran
    from trunkline.tools.tool import Tool

__all__ = ["Processes"]

IDLE: Final = 60.0
"""Seconds after which a process without work ends."""

_log = logging.getLogger("trunkline.tools")


class Processes:
    """Runs calls of one tool; nothing is started before the first.

    Args:
        tool: The tool.
        preload: Modules that a process imports before its first call, whose time that would else cost.

    Raises:
        ConfigError: The tool can be neither imported nor pickled in another process.
    """

    def __init__(self, tool: Tool[..., Any], preload: tuple[str, ...] = ()) -> None:
        self._tool = tool
        self._preload = preload
        self._memory = MEMORY if tool.policy.memory is None else tool.policy.memory
        try:
            self._crossing = pack(tool, f"tool {tool.name!r}")
        except CrossingError as error:
            raise ConfigError(
                f"tool {tool.name!r}: isolated=True runs it in a process of its own, where it must be found: define it "
                f"at the top level of a module, or install the notebook extra ({error})"
            ) from error
        self._cpus = len(os.sched_getaffinity(0))
        self._slots = asyncio.Semaphore(tool.policy.concurrency or self._cpus)
        self._idle: list[Helper] = []
        self._all: set[Helper] = set()
        self._starting: set[asyncio.Task[Helper]] = set()
        self._ending: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run(self, arguments: str, call: Call | None, limit: int, timeout: float) -> tuple[str, bool]:  # noqa: ASYNC109
        """Run a call as soon as a process is free for it.

        Args:
            arguments: As the model wrote them.
            call: Which call it is.
            limit: Characters of the result that are kept.
            timeout: Seconds it may take, waiting for a process not counted.

        Returns:
            What the model is told, and whether the tool returned.

        Raises:
            CrossingError: The tool cannot be imported in its process.
        """
        name = self._tool.name
        # No lone surrogate can be sent.
        known = None if call is None else msgspec.structs.replace(call, task=scrub(call.task))
        run = Run(scrub(arguments), limit, math.ceil(timeout + 1) * self._cpus, known)
        async with self._slots:
            if self._closed:
                raise RuntimeError("the toolbox is closed")
            try:
                helper = await self._taken()
            except FailedStart as error:
                return (
                    f"Error: {name} gave no result: no process could be started for it: {printable(str(error))}.",
                    False,
                )
            kept = False
            try:
                async with asyncio.timeout(timeout):
                    ran = await helper.run(run)
                kept = not ran.worn
            except TimeoutError:
                return f"Error: {name} took longer than {timeout:g} s and was killed.", False
            except Gone as gone:
                self._debug(gone.how, gone.output.decode(errors="replace"))
                return f"Error: {name} {gone.how}.", False
            finally:
                if kept:
                    self._keep(helper)
                else:
                    # Whoever is cancelled meanwhile need not wait until it is gone.
                    await asyncio.shield(self._drop(helper))
        return self._told(ran)

    async def close(self) -> None:
        """End all processes, those with a call in them too, and wait until they are gone."""
        self._closed = True
        self._idle.clear()
        while self._starting or self._all or self._ending:
            for helper in list(self._all):
                self._drop(helper)
            await asyncio.wait(self._ending | self._starting)

    async def _taken(self) -> Helper:
        """Return a process: the one that was used last, or a new one."""
        while self._idle:
            helper = self._idle.pop()
            if helper.timer is not None:
                helper.timer.cancel()
            if helper.alive:
                return helper
            self._drop(helper)
        task = asyncio.get_running_loop().create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._spare)
            raise

    async def _start(self) -> Helper:
        """Start a process that is ready for a call."""
        helper = await Helper.start()
        self._all.add(helper)
        try:
            await helper.load(Setup(self._crossing, _path(), self._memory, self._preload))
        except BaseException:
            self._drop(helper)
            raise
        return helper

    def _spare(self, task: asyncio.Task[Helper]) -> None:
        """Keep a process that was started for a call that is given up."""
        if not task.cancelled() and task.exception() is None:
            self._keep(task.result())

    def _keep(self, helper: Helper) -> None:
        """Keep a process for a while."""
        if self._closed:
            self._drop(helper)
            return
        self._idle.append(helper)
        helper.timer = asyncio.get_running_loop().call_later(IDLE, self._expire, helper)

    def _expire(self, helper: Helper) -> None:
        if helper in self._idle:
            self._idle.remove(helper)
            self._drop(helper)

    def _drop(self, helper: Helper) -> asyncio.Task[Any]:
        """Let a process end."""
        self._all.discard(helper)
        task = helper.hang_up()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    def _told(self, ran: Ran) -> tuple[str, bool]:
        if ran.traceback:
            self._debug("failed", ran.traceback)
        return ran.text, ran.ok

    def _debug(self, how: str, text: str) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            lines = "\n".join(map(printable, text.splitlines()))
            _log.debug("tool %s %s:\n%s", self._tool.name, how, lines)


def _path() -> list[str]:
    """Return where this process finds modules; entries may be empty, or no folders."""
    return [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100
