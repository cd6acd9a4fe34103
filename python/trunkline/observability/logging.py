"""Logs as lines of JSON, written by a thread: a slow disk or a closed pipe never holds up the event loop."""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

import msgspec

from trunkline._internal.frames import users_traceback
from trunkline._internal.text import printable, scrub, without_key, without_secrets
from trunkline._internal.tool_output import direct_stderr
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.protocol.messages import Log

_OURS = "trunkline."

LEVELS = ("debug", "info", "warning", "error")
"""Levels of messages, the lowest first."""

FIELDS = ("worker", "task", "rollout", "tool", "endpoint")
"""Subjects of a message, as fields of its line."""

_WAITING = 10_000
"""Messages that may wait to be written; further ones are dropped, and counted."""

_LONGEST = 4096
"""Characters of a message, or of a traceback's end, that are kept."""

_SECRET = 4096
"""Characters beyond a cut that are searched for secrets, so that no part of a key remains."""

_secrets: set[str] = set()

_CLOSE_WITHIN = 5.0
"""Seconds in which a log writes waiting messages when it is closed."""


def safe(text: str, width: int = _LONGEST) -> str:
    """Return a text on one printable line of valid Unicode, without what looks like a secret."""
    return printable(without_secrets(without_key(scrub(text[: 2 * width + _SECRET]), tuple(_secrets))), width)


def conceal(*llms: object) -> None:
    """Keep the keys of endpoints out of everything that this process logs from here on."""
    for llm in llms:
        if not isinstance(llm, LLM):
            continue
        key, headers = llm.private.values
        with contextlib.suppress(ConfigError):
            key = llm.key()
        _secrets.update(filter(None, (key, *headers.values())))


def trace_of(record: logging.LogRecord) -> str | None:
    """Return the end of a record's traceback; None without one."""
    if record.exc_info and record.exc_info[1] is not None:
        return users_traceback(record.exc_info[1])[-_LONGEST:]
    return record.exc_text or None


def level_of(name: str) -> int:
    """Return the number of a level; raises ConfigError for an unknown one."""
    if not isinstance(name, str) or name.lower() not in LEVELS:
        raise ConfigError(f"level must be one of {', '.join(LEVELS)}, not {short_repr(name)}")
    return int(getattr(logging, name.upper()))


def log_to(target: str | Path | TextIO, level: str = "info") -> LogSink:
    """Write what this library logs as lines of JSON, that of worker processes included.

    Every line has ``time`` (UTC), ``level``, ``logger`` and ``message``, and, where they are known, ``worker``,
    ``task``, ``rollout``, ``tool``, ``endpoint`` and ``trace``. Values are one printable line each, without keys. A
    thread writes them. Where it falls behind by 10,000 messages, further ones are dropped, and a line says how many.

    Args:
        target: A path, to whose end lines are added, or a text stream, which stays open.
        level: The least that is written: ``debug``, ``info``, ``warning`` or ``error``.

    Returns:
        The log; ``LogSink.close`` it, or use it as a context manager. It closes when the process ends.

    Raises:
        ConfigError: There is no such level, or the file cannot be written.
    """
    lowest = level_of(level)
    if isinstance(target, str | Path):
        try:
            stream = Path(target).open("a", encoding="utf-8")  # noqa: SIM115 - it is closed with the sink
        except OSError as error:
            raise ConfigError(f"cannot write the log {short_repr(str(target))}: {error.strerror}") from None
        return LogSink(lambda: stream, json_line, lowest, close=stream.close)
    if not callable(getattr(target, "write", None)):
        raise ConfigError(f"a log goes to a path or a text stream, not {short_repr(target)}")
    return LogSink(lambda: target, json_line, lowest)


def say_to_stderr(level: str = "warning") -> LogSink:
    """Write messages for people on standard error, from a thread as well."""
    return LogSink(direct_stderr, plain_line, level_of(level))


def json_line(record: logging.LogRecord) -> str:
    """Return a record as one JSON object."""
    found: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": safe(record.name, 200),
        "message": safe(record.getMessage()),
    }
    for name in FIELDS:
        value = getattr(record, name, None)
        if value is not None:
            found[name] = value if type(value) in (int, float) else safe(str(value), 200)
    if (trace := trace_of(record)) is not None:
        found["trace"] = safe(trace.strip())
    return msgspec.json.encode(found).decode()


def plain_line(record: logging.LogRecord) -> str:
    """Return a record for people."""
    trace = trace_of(record)
    return safe(record.getMessage()) + ("" if trace is None else f" [{safe(trace.strip().splitlines()[-1], 300)}]")


class LogSink(logging.Handler):
    """Writes the library's records from a thread; ``log_to`` makes it. ``dropped`` counts those lost."""

    def __init__(
        self,
        stream: Callable[[], TextIO | None],
        line: Callable[[logging.LogRecord], str],
        level: int,
        *,
        close: Callable[[], object] = lambda: None,
        waiting: int = _WAITING,
    ) -> None:
        super().__init__(level)
        self.dropped = 0
        self._told = 0
        self._stream = stream
        self._line = line
        self._done = close
        self._queue: queue.Queue[str | None] = queue.Queue(waiting)
        self._over = threading.Event()
        self._logger = logging.getLogger("trunkline")
        self._before = self._logger.level
        self._logger.setLevel(min(self._logger.getEffectiveLevel(), level))
        self._logger.addHandler(self)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; never waits."""
        try:
            self._queue.put_nowait(self._line(record))
        except Exception:  # noqa: BLE001 - arguments of a message are objects of any class
            self.dropped += 1

    def close(self) -> None:
        """Write waiting messages, for a few seconds at most, and take no more; may be called again."""
        if not self._over.is_set():
            self._over.set()
            self._logger.removeHandler(self)
            self._logger.setLevel(self._before)
            atexit.unregister(self.close)
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(None)
            self._thread.join(_CLOSE_WITHIN)
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.close()

    def _write(self) -> None:
        """Write lines until the end; where nothing can be written, count them."""
        while True:
            line = self._queue.get()
            if line is None:
                break
            self._put(line)
            if self.dropped > self._told and self._queue.empty():
                self._told_of()
            if self._over.is_set() and self._queue.empty():
                break
        if self.dropped > self._told:
            self._told_of()
        with contextlib.suppress(OSError, ValueError):
            self._done()

    def _told_of(self) -> None:
        dropped, self._told = self.dropped - self._told, self.dropped
        record = logging.makeLogRecord(
            {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "created": time.time()}
        )
        record.msg = f"{dropped} messages were dropped: they came faster than they could be written"
        self._put(self._line(record))

    def _put(self, line: str) -> None:
        try:
            stream = self._stream()
            if stream is not None:
                stream.write(line + "\n")
                stream.flush()
        except (OSError, ValueError):
            self.dropped += 1
            self._told += 1


def relog(worker_id: int, log: Log) -> None:
    """Log a record of a worker as one of this process; it may hold anything."""
    known = log.logger.startswith(_OURS) and log.logger in logging.root.manager.loggerDict
    logger = logging.getLogger(log.logger if known else "trunkline.worker")
    if log.dropped:
        logger.warning(
            "worker %d dropped %d log messages: they came too fast", worker_id, log.dropped, extra={"worker": worker_id}
        )
    if logger.isEnabledFor(log.level):
        fields = {name: value for name, value in log.fields.items() if name in FIELDS}
        record = logging.makeLogRecord(
            {
                "name": safe(log.logger, 200),
                "levelno": log.level,
                "levelname": logging.getLevelName(log.level),
                "created": log.time,
                "msg": f"worker {worker_id}: {safe(log.message)}",
                "exc_text": log.trace,
                "worker": worker_id,
            }
            | fields
        )
        logger.handle(record)
