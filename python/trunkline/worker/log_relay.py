"""Log records on their way from a worker to the controller."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from trunkline.llm.limits.token_bucket import TokenBucket
from trunkline.observability.logging import FIELDS, safe, trace_of
from trunkline.protocol.messages import Log

if TYPE_CHECKING:
    from collections.abc import Callable

_WAITING = 1000
"""Records that may wait for the event loop."""

_BURST = 500
_RATE = 100.0
"""Records that may come at once, and those of a second after that."""

_AWAY = 5.0
"""Seconds after which records that wait for a blocked event loop are written to standard error."""


class LogForwarder(logging.Handler):
    """Sends log records of this process from its event loop; it never waits, and holds few."""

    def __init__(self, send: Callable[[Log], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._send = send
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._waiting: deque[Log] = deque()
        self._dropped = 0
        self._since = 0.0
        self._bucket = TokenBucket(_RATE, _BURST, clock)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            log = _packed(record)
        except Exception:  # noqa: BLE001 - arguments of a message are objects of any class
            log = None
        with self._mutex:
            if log is None or not self._admits():
                self._dropped += 1
                return
            if not self._waiting:
                self._since = self._clock()
                # A loop that is closed sends nothing.
                if self._loop.is_closed():
                    _spill([log])
                    return
                self._loop.call_soon_threadsafe(self._leave)
            log.dropped, self._dropped = self._dropped, 0
            self._waiting.append(log)

    def spill(self) -> None:
        """Write waiting records to standard error, where the event loop has not sent them for too long."""
        with self._mutex:
            if not self._waiting or self._clock() - self._since < _AWAY:
                return
            logs = list(self._waiting)
            self._waiting.clear()
        _spill(logs)

    def _admits(self) -> bool:
        if self._bucket.wait(1) > 0 or len(self._waiting) >= _WAITING:
            return False
        self._bucket.take(1)
        return True

    def _leave(self) -> None:
        with self._mutex:
            logs = list(self._waiting)
            self._waiting.clear()
        for log in logs:
            self._send(log)


def _packed(record: logging.LogRecord) -> Log:
    fields: dict[str, str | int] = {}
    for name in FIELDS:
        value = getattr(record, name, None)
        if value is not None:
            fields[name] = value if type(value) is int else safe(str(value), 200)
    trace = trace_of(record)
    trace = None if trace is None else safe(trace)
    return Log(record.created, record.levelno, safe(record.name, 200), safe(record.getMessage()), fields, trace)


def _spill(logs: list[Log]) -> None:
    for log in logs:
        try:
            os.write(2, f"{log.message}\n".encode())
        except OSError:
            return
