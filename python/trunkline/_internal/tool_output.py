"""Forwards output of user code to this process's standard error: escaped lines, within bounds."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

from trunkline._internal.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BURST: Final = 256 * 1024
_RATE: Final = 64 * 1024
"""Bytes that are shown at once, and those of a second after that."""

_LINE: Final = 4096
"""Bytes of a line that are shown."""

_QUIET: Final = 1.0
"""Seconds without output after which it is said how much was dropped, and output is shown again."""

_READ: Final = 65536

_LAST: Final = 1 << 20
"""Bytes that are read after the end of the process that printed them: as much as a pipe holds."""


class OutputLimit:
    """Makes printable lines of output and drops what is too much; ``taken`` counts the bytes that were printed."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._room, self._counted = float(_BURST), clock()
        self._line = b""
        self._cut = False
        self._dropped = 0
        self._flooded = False
        self.taken = 0

    @property
    def waits(self) -> bool:
        """Whether ``settle`` has something to say."""
        return bool(self._line or self._dropped)

    def take(self, data: bytes) -> str:
        """Take a piece of output; return lines to show."""
        shown: list[str] = []
        start = 0
        self.taken += len(data)
        while start < len(data):
            if self._flooded:
                self._dropped += len(data) - start
                break
            end = data.find(b"\n", start)
            piece = data[start : len(data) if end < 0 else end]
            start += len(piece) + (end >= 0)
            kept = piece[: max(0, _LINE - len(self._line))]
            self._dropped += len(piece) - len(kept)
            self._cut = self._cut or len(piece) > len(kept)
            self._line += kept
            if end >= 0:
                shown.append(self._shown())
        return "".join(shown)

    def settle(self) -> str:
        """Return the line that has not ended yet, and one that says how much was dropped, if anything was."""
        shown = self._shown() if self._line else ""
        if self._dropped:
            shown += f"{self._name} printed more than is shown: {self._dropped:,} bytes were dropped\n"
        self._dropped, self._flooded, self._cut = 0, False, False
        return shown

    def _shown(self) -> str:
        """Return the line that has ended, unless it finds no room."""
        line, cut, self._line, self._cut = self._line, self._cut, b"", False
        now = self._clock()
        self._room = min(_BURST, self._room + (now - self._counted) * _RATE)
        self._counted = now
        if self._room < len(line) + 1:
            self._flooded = True
            self._dropped += len(line) + 1
            return ""
        self._room -= len(line) + 1
        return printable(line.removesuffix(b"\r").decode("utf-8", "replace")) + ("…\n" if cut else "\n")


class OutputForwarder:
    """Shows the output of a child in a thread, until the child ends; it closes the pipe's end that it reads."""

    def __init__(self, name: str, pid: int, output: int) -> None:
        self._output = output
        self._limit = OutputLimit(name)
        self._pidfd = os.pidfd_open(pid)
        self._thread = threading.Thread(target=self._forward, name=f"output of {name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._pidfd)
            raise

    def join(self, seconds: float) -> None:
        """Wait some seconds until the output of an ended process is shown: standard error may block."""
        self._thread.join(seconds)

    def _forward(self) -> None:
        try:
            self._follow()
        finally:
            os.close(self._output)
            os.close(self._pidfd)
            _show(self._limit.settle())

    def _follow(self) -> None:
        watched = select.poll()
        watched.register(self._output, select.POLLIN)
        watched.register(self._pidfd, select.POLLIN)
        last = _LAST
        while last > 0:
            ready = [descriptor for descriptor, _ in watched.poll(_QUIET * 1000 if self._limit.waits else None)]
            if self._output in ready:
                data = os.read(self._output, _READ)
                if not data:
                    return
                _show(self._limit.take(data))
                if self._pidfd in ready:  # a process that it has left may print for ever
                    last -= len(data)
            elif self._pidfd in ready:
                return
            else:
                _show(self._limit.settle())


class LimitedStream:
    """Stands for standard output or error while user code runs in this process; all but writing is the stream's."""

    def __init__(self, direct: Any, limit: OutputLimit, lock: threading.Lock) -> None:
        self.direct = direct
        self._limit = limit
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.direct, name)

    def write(self, text: str) -> int:
        """Show a text on standard error, within the limit."""
        with self._lock:
            _show(self._limit.take(text.encode("utf-8", "backslashreplace")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Nothing is held back but a line that has not ended."""


@contextmanager
def limited_output(name: str) -> Iterator[None]:
    """Show on standard error what is printed meanwhile, escaped and bounded, but for what bypasses ``sys.stdout``."""
    limit, lock = OutputLimit(name), threading.Lock()
    streams = {field: LimitedStream(getattr(sys, field), limit, lock) for field in ("stdout", "stderr")}
    for field, stream in streams.items():
        setattr(sys, field, stream)
    over = threading.Event()
    pauses = threading.Thread(target=_settle_in_pauses, args=(limit, lock, over), name="tool output", daemon=True)
    pauses.start()
    try:
        yield
    finally:
        over.set()
        pauses.join()
        _show(limit.settle())
        for field, stream in streams.items():
            if getattr(sys, field) is stream:  # else it was replaced meanwhile
                setattr(sys, field, stream.direct)


def _settle_in_pauses(limit: OutputLimit, lock: threading.Lock, over: threading.Event) -> None:
    taken = 0
    while not over.wait(_QUIET):
        with lock:
            if limit.waits and limit.taken == taken:
                _show(limit.settle())
            taken = limit.taken


def direct_stderr() -> TextIO | None:
    """Return standard error without the limit of user code."""
    return getattr(sys.stderr, "direct", sys.stderr)


def _show(text: str) -> None:
    """Write to standard error, not through Python's stream: no thread may hold its lock when the process ends."""
    stream = direct_stderr()
    if not text or stream is None:
        return
    with suppress(OSError, ValueError):
        if stream is not sys.__stderr__:  # that of a notebook, or of a live line
            stream.write(text)
            stream.flush()
            return
        data = text.encode()
        while data:
            data = data[os.write(2, data) :]
