"""The process of an isolated tool: a runner, which runs calls and may end in any way, and a guard.

Both are forked from one process that has done nothing yet. The guard runs no user code, so it still answers when the
worker hangs up or dies: it adopts and ends all that the runner leaves, removes the folder for temporary files, and
reports how the runner ended.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import inspect
import os
import resource
import select
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal import processes
from trunkline._internal.frames import users_traceback
from trunkline._internal.leftovers import make_folder, remove_folder, sweep
from trunkline._internal.serialization import load, set_argv
from trunkline._internal.text import describe_error, scrub
from trunkline.errors import CrossingError, TrunklineError
from trunkline.tools.calls import as_text, bounded, calling, describe
from trunkline.tools.isolation import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.tools.tool import Tool

_SLACK: Final = 64
"""Descriptors, threads and temporary files that a tool may keep from call to call: connections, pools, caches."""

_WORN: Final = 4
"""A call that leaves more than this part of its memory taken is the last one of its process."""

_ROOM: Final = 64_000_000
"""Bytes beside what a call may use, so that the process can still report that it was too much."""

_TRACEBACK: Final = 8_000

_KEPT: Final = 4096
"""Bytes of the output that are kept for the debug log."""

_READ: Final = 65536

_PIPE: Final = 1 << 20
"""The most that a pipe holds."""

_decoder: Final = msgspec.msgpack.Decoder(messages.ToHelper)


class CallRunner:
    """Runs the calls of one worker until it hangs up; ``others`` tells whether a call has left processes behind."""

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
        if not isinstance(setup, messages.ToolSetup):
            return
        set_argv(setup.argv)
        sys.path[:0] = [entry for entry in setup.path if entry not in sys.path]
        try:
            tool: Tool[..., Any] = load(setup.tool)
            for module in setup.preload:
                _import(module)
            self._runner.get_loop()
        except TrunklineError as error:
            self._send(messages.ToolBroken(scrub(str(error))))
            return
        self._memory, self._base, self._kept = setup.memory, _taken(), self._left()
        self._send(messages.ToolReady())
        while isinstance(call := self._next(), messages.CallRequest):
            self._send(self._perform(tool, call))

    def _next(self) -> messages.ToHelper | None:
        payload = processes.receive(self._calls.recv)
        return _decoder.decode(payload) if payload else None

    def _send(self, message: messages.FromHelper) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a fork that came back from the tool, as its parent does
        self._calls.sendall(messages.encode(message))

    def _perform(self, tool: Tool[..., Any], call: messages.CallRequest) -> messages.CallResult:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + call.seconds)
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
        return messages.CallResult(text, ok, full or self._is_worn(), trace)

    def _value(self, tool: Tool[..., Any], arguments: str) -> object:
        positional, named = tool.schema.decode(arguments)
        value = tool.__wrapped__(*positional, **named)
        return self._runner.run(_awaited(value)) if inspect.isawaitable(value) else value

    def _allow(self, more: int) -> None:
        """Limit the address space to what was taken before the first call, and so much more."""
        with suppress(ValueError, OSError):  # a tool has set a lower limit for good
            _limit(resource.RLIMIT_AS, self._base + more)

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


def _limit(name: int, value: int) -> None:
    _, most = resource.getrlimit(name)
    resource.setrlimit(name, (value if most < 0 else min(value, most), most))


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise CrossingError(f"cannot import {module!r}: {describe_error(error)}") from error


async def _awaited(value: Any) -> object:
    return await value


def _taken() -> int:
    """Return the bytes of address space in use."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()


def _trace(error: BaseException) -> str:
    try:
        return scrub(users_traceback(error)[-_TRACEBACK:])
    except BaseException:  # noqa: BLE001 - a foreign exception's own methods may raise anything
        return ""


def main() -> None:
    """Fork, run calls in the child and guard it in the parent."""
    calls, line = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for sock in (calls, line):
        sock.set_inheritable(False)
    processes.adopt_orphans()
    folder, lock = make_folder("trunkline-tool-")
    printed, output = os.pipe()
    guard = os.getpid()
    runner = os.fork()
    if runner:
        calls.close()
        os.close(output)
        _guard(runner, line, printed, folder)
    else:
        line.close()
        os.close(printed)
        os.close(lock)
        _settle_in(guard, output, folder)
        CallRunner(calls, lambda: _others(guard), folder).serve()
    # Without what a tool has registered for the end.
    os._exit(0)


def _settle_in(guard: int, output: int, folder: str) -> None:
    """Make this process the leader of a group, which ends with its guard."""
    os.setpgid(0, 0)
    processes.die_with_parent(guard)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    faulthandler.enable()


def _others(guard: int) -> bool:
    """Whether processes are left that a call started, ours or adopted by the guard; or the guard itself is gone."""
    return bool(processes.children(os.getpid())) or os.getppid() != guard or len(processes.children(guard)) > 1


def _guard(runner: int, line: socket.socket, printed: int, folder: str) -> None:
    """Wait until the worker hangs up or the runner ends; leave nothing of it."""
    with suppress(OSError):
        os.setpgid(runner, runner)  # the first of the two processes does it
    pidfd, tail, total = os.pidfd_open(runner), b"", 0
    threading.Thread(target=sweep, daemon=True).start()
    waiting = select.poll()
    for descriptor in (line.fileno(), pidfd, printed):
        waiting.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in waiting.poll()]
        if printed in ready:
            data = os.read(printed, _READ)
            tail, total = (tail + data)[-_KEPT:], total + len(data)
            if not data:
                waiting.unregister(printed)
        # Output without end is not read to its end.
        if ready != [printed]:
            break
    # Once the runner is waited for, its number may be another group's.
    statuses = processes.end_below(
        processes.children, lambda ended: None if runner in ended else processes.kill_group(runner)
    )
    rest = processes.drain(printed, _PIPE)
    remove_folder(folder)
    ended = messages.ToolEnded(statuses.get(runner, 0), (tail + rest)[-_KEPT:], total + len(rest))
    with suppress(OSError):  # the worker is gone
        line.sendall(msgspec.msgpack.encode(ended))


if __name__ == "__main__":
    main()
