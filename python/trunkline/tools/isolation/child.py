"""Runs the calls of an isolated tool, one after the other, in a process that may be lost."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import resource
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.crossing import load
from trunkline.errors import CrossingError, TrunklineError
from trunkline.llm.text import scrub
from trunkline.tools.call import calling
from trunkline.tools.frames import Broken, Ran, Ready, Run, Setup, ToHelper, frame, receive
from trunkline.tools.result import as_text, bounded, describe

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from trunkline.tools.tool import Tool

__all__ = ["Performer"]

_SLACK: Final = 64
"""Descriptors, threads and temporary files that a tool may keep from call to call: connections, pools, caches."""

_WORN: Final = 4
"""A call that leaves more than this part of its memory taken is the last one of its process."""

_ROOM: Final = 64_000_000
"""Bytes beside what a call may use, so that the process can still say that it was too much."""

_TRACEBACK: Final = 8_000

_decoder: Final = msgspec.msgpack.Decoder(ToHelper)


class Performer:
    """Serves one worker until it hangs up.

    Args:
        calls: Where calls come from.
        others: Tells whether processes are left that a call started.
        folder: For temporary files.
    """

    def __init__(self, calls: socket.socket, others: Callable[[], bool], folder: str) -> None:
        self._calls = calls
        self._others = others
        self._folder = folder
        self._pid = os.getpid()
        self._memory = 0
        self._base = 0
        self._kept = 0
        self._runner = asyncio.Runner()

    def serve(self) -> None:
        """Load the tool, then run calls as they come."""
        setup = self._next()
        if not isinstance(setup, Setup):
            return
        sys.path[:0] = [entry for entry in setup.path if entry not in sys.path]
        try:
            tool: Tool[..., Any] = load(setup.tool)
            for module in setup.preload:
                _import(module)
            self._runner.get_loop()
        except TrunklineError as error:
            self._send(Broken(scrub(str(error))))
            return
        self._memory, self._base, self._kept = setup.memory, _taken(), self._left()
        self._send(Ready())
        while isinstance(call := self._next(), Run):
            self._send(self._perform(tool, call))

    def _next(self) -> ToHelper | None:
        payload = receive(self._calls)
        return _decoder.decode(payload) if payload else None

    def _send(self, message: Ready | Broken | Ran) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a fork that came back from the tool, as its parent does
        self._calls.sendall(frame(message))

    def _perform(self, tool: Tool[..., Any], call: Run) -> Ran:
        """Run one call within its limits."""
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + call.seconds
        resource.setrlimit(resource.RLIMIT_CPU, (seconds if most < 0 else min(seconds, most), most))
        self._allow(self._memory)
        text, ok, trace, full = "", True, "", False
        try:
            with calling(call.call):
                text = as_text(self._value(tool, call.arguments), call.limit)
        except MemoryError:
            ok, full = False, True
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything, SystemExit included
            text, ok, trace = bounded(describe(tool.name, error), call.limit), False, _trace(error)
        self._allow(self._memory + _ROOM)
        if full:
            text = f"Error: {tool.name} used more than {self._memory / 1e6:,.0f} MB."
        return Ran(text, ok, full or self._is_worn(), trace)

    def _value(self, tool: Tool[..., Any], arguments: str) -> object:
        positional, named = tool.schema.decode(arguments)
        value = tool.__wrapped__(*positional, **named)
        return self._runner.run(_awaited(value)) if inspect.isawaitable(value) else value

    def _allow(self, more: int) -> None:
        """Limit the address space to what was taken before the first call, and so much more."""
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = self._base + more
        with suppress(ValueError, OSError):  # a tool has set a lower one for good
            resource.setrlimit(resource.RLIMIT_AS, (limit if most < 0 else min(limit, most), most))

    def _is_worn(self) -> bool:
        """Whether the last call left more behind than a call may."""
        try:
            full = _taken() - self._base > self._memory // _WORN
            return full or self._left() > self._kept + _SLACK or self._others()
        except OSError:  # no descriptor is left to look with
            return True

    def _left(self) -> int:
        """Count open descriptors, threads and temporary files."""
        return sum(len(list(Path(folder).iterdir())) for folder in ("/proc/self/fd", "/proc/self/task", self._folder))


def _import(module: str) -> None:
    """Import a module; one that is broken breaks the tool."""
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise CrossingError(f"cannot import {module!r}: {type(error).__name__}: {error}") from error


async def _awaited(value: Any) -> object:
    return await value


def _taken() -> int:
    """Return the bytes of address space in use."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()


def _trace(error: BaseException) -> str:
    try:
        return scrub("".join(traceback.format_exception(error))[-_TRACEBACK:])
    except Exception:  # noqa: BLE001 - a foreign exception's own methods may fail
        return ""
