"""Runs the calls of one tool where its policy wants them, and turns whatever comes of one into text."""

from __future__ import annotations

import asyncio
import logging
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from trunkline.printable import printable
from trunkline.tools.foreign import Raised
from trunkline.tools.processes import Processes
from trunkline.tools.result import as_text, describe
from trunkline.tools.threads import ExhaustedError

if TYPE_CHECKING:
    from trunkline.tools.call import Call
    from trunkline.tools.foreign import Foreign
    from trunkline.tools.tool import Tool

__all__ = ["Executor"]

_log = logging.getLogger("trunkline.tools")


class Executor:
    """Runs calls of one tool.

    Args:
        tool: The tool.
        foreign: Runs it in this process, unless it is isolated.
        timeout: Seconds a call may take when the tool sets no limit.
        limit: Characters of a result that are kept.

    Raises:
        ConfigError: The tool is isolated and cannot be found in another process.
    """

    def __init__(self, tool: Tool[..., Any], foreign: Foreign, timeout: float, limit: int) -> None:
        policy = tool.policy
        self._tool = tool
        self._foreign = foreign
        self._timeout = timeout if policy.timeout is None else policy.timeout
        self._limit = limit
        self._processes = Processes(tool) if policy.isolated else None
        self._gate = None if policy.concurrency is None else asyncio.Semaphore(policy.concurrency)
        self._warned = False

    async def run(
        self, positional: list[Any], named: dict[str, Any], arguments: str, call: Call | None
    ) -> tuple[str, bool]:
        """Run a call.

        Args:
            positional: Positional arguments of the function.
            named: Its keyword arguments.
            arguments: The text they were read from.
            call: Which call it is, if that is known.

        Returns:
            What the model is told, and whether the tool returned.
        """
        if self._processes is not None:
            return await self._processes.run(arguments, call, self._limit, self._timeout)
        function = partial(self._tool.__wrapped__, *positional, **named)
        if self._gate is None:
            return await self._run_here(function)
        async with self._gate:
            return await self._run_here(function)

    async def close(self) -> None:
        """End the tool's processes."""
        if self._processes is not None:
            await self._processes.close()

    async def _run_here(self, function: partial[Any]) -> tuple[str, bool]:
        name = self._tool.name
        try:
            value = await self._foreign.run(function, self._tool.is_async, self._timeout)
            if isinstance(value, Raised):
                return self._failed(value.error), False
            return as_text(value, self._limit), True
        except TimeoutError:
            self._warn()
            return f"Error: {name} gave no result within {self._timeout:g} s and was stopped.", False
        except (ExhaustedError, TypeError) as error:
            return f"Error: {name} gave no result: {error}.", False

    def _failed(self, error: BaseException) -> str:
        if _log.isEnabledFor(logging.DEBUG):
            lines = "\n".join(map(printable, traceback.format_exception(error)))
            _log.debug("tool %s failed:\n%s", self._tool.name, lines)
        return describe(self._tool.name, error)

    def _warn(self) -> None:
        """Say once that a thread goes on, which takes the interpreter from everybody where it is stuck in C code."""
        if not self._tool.is_async and not self._warned:
            self._warned = True
            _log.warning(
                "tool %s did not return within %g s, and its thread goes on: Python cannot stop one. "
                "@tool(isolated=True) runs it in a process that is killed (said once)",
                self._tool.name,
                self._timeout,
            )
