"""A run's local socket: drain, stop and progress for the user whose run it is."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from trunkline._internal.text import printable
from trunkline.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.observability.observers import Progress

logger = logging.getLogger(__name__)

ACTIONS: Final = ("drain", "stop", "progress")

_WAIT: Final = 5.0  # seconds that either side waits for the other
_MOST: Final = 65_536  # bytes of an answer
_SHOWN: Final = (
    "tasks", "tasks_done", "rollouts", "rollouts_done", "failed", "lost", "calls", "prompt", "generated", "retries",
    "retry_causes", "workers", "died", "seconds", "quiet",
)  # fmt: skip


class ControlSocket:
    """Listens in a thread while a run is driven, for processes of the same user alone.

    Its name is in no file system, so that nothing is left of it however the process ends; where the name is taken, the
    run goes on without. ``interrupt`` does what a signal does, with True what two of them do.
    """

    def __init__(self, path: Path, interrupt: Callable[[bool], None], progress: Progress) -> None:
        self._path, self._interrupt, self._progress = path, interrupt, progress
        self._asked = ""
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.bind(_address(self._path))
            made.listen(8)
        except OSError:
            made.close()
            return self
        self._socket = made
        self._thread = threading.Thread(target=self._serve, args=(made,), name="trunkline-control", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        if self._socket is None or self._thread is None:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(2 * _WAIT)
        self._socket.close()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError, msgspec.MsgspecError, RuntimeError), connection:
                connection.settimeout(_WAIT)
                if _peer(connection) == os.getuid():
                    connection.sendall(msgspec.json.encode(self._answer(_line(connection))) + b"\n")

    def _answer(self, asked: str) -> dict[str, Any]:
        if asked not in ACTIONS:
            return {"error": f"ask for {', '.join(ACTIONS)}"}
        if asked != "progress":
            self._interrupt(asked == "stop")
            self._asked = asked
        shown: dict[str, Any] = {name: getattr(self._progress, name) for name in _SHOWN}
        return shown | {"latency": self._progress.percentile(0.5), "asked": self._asked}


def ask(path: str | Path, action: str) -> dict[str, Any]:
    """Ask the process that drives a run to drain or stop it, or for its progress.

    Args:
        path: The run file.
        action: ``drain``: nothing new is begun, requests and tool calls in flight have the run's grace to return, as
            after Ctrl-C. ``stop``: they are not waited for, as after a second Ctrl-C. ``progress``: neither.

    Returns:
        Counts of ``Progress``, the median ``latency`` of the latest calls in seconds, and ``asked``:
        the last action that was asked for, or an empty text.

    Raises:
        UsageError: There is no such action, or no process of this user drives the run now.
    """
    path = Path(path)
    if action not in ACTIONS:
        raise UsageError(f"there is no action {action!r}: ask for {', '.join(ACTIONS)}")
    with contextlib.suppress(OSError, msgspec.MsgspecError), _connected(path) as connection:
        connection.sendall(action.encode() + b"\n")
        answer = msgspec.json.decode(_line(connection), type=dict[str, Any])
        if "error" in answer:
            raise UsageError(printable(str(answer["error"]), 200))
        return answer
    raise UsageError(
        f"{printable(str(path))}: no process of this user drives this run now, so there is nothing to {action}; "
        f"`trunkline show {printable(str(path))}` tells how it ended"
    )


def is_own(path: Path) -> bool:
    """Whether a process of this user drives a run."""
    with contextlib.suppress(OSError), _connected(path):
        return True
    return False


def _address(path: Path) -> str:
    """The socket's name, by the file and not by its path, which may be long or have several forms."""
    facts = path.stat()
    return f"\0trunkline-{os.getuid()}-{facts.st_dev:x}-{facts.st_ino:x}"


def _connected(path: Path) -> socket.socket:
    """Connect to the process of this user that drives a run; OSError if no such process listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_WAIT)
        connection.connect(_address(path))
        if _peer(connection) != os.getuid():
            raise ConnectionRefusedError
    except OSError:
        connection.close()
        raise
    return connection


def _peer(connection: socket.socket) -> int:
    """The user at the other end."""
    facts = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", facts)[1])


def _line(connection: socket.socket) -> str:
    found = b""
    while b"\n" not in found and len(found) < _MOST:
        if not (more := connection.recv(4096)):
            break
        found += more
    return found.partition(b"\n")[0].decode("utf-8", "replace")
