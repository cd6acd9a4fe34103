"""The process around one MCP server: starts it, and ends it with all that it has started. Standard library only.

Standard input and output are those of the server. The guard reads none of it: it waits until the worker hangs up or
the server ends, and then says how.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from trunkline._internal import processes
from trunkline._internal.leftovers import MARK, make_folder, remove_folder

KEPT: Final = 4096
"""Bytes of the end of standard error that are kept."""

_READ: Final = 65536
_NOT_STARTED: Final = 127


def main() -> None:
    """Read what to start, start it, and wait for its end or the worker's."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    processes.adopt_orphans()
    payload = processes.receive(line.recv)
    if not payload:
        return
    setup, folder, lock = json.loads(payload), "", -1
    ended: dict[str, Any] = {"status": 0, "err": "", "refused": ""}
    try:
        if setup["folder"] is not None:
            folder, lock = make_folder("trunkline-tool-")
            inside = f"{folder}/work"
            _copied(setup["folder"], inside)
            setup["folder"] = inside
        line.sendall(processes.frame(json.dumps({"folder": setup["folder"] or ""}).encode()))
        ended |= _run(line, setup)
    except OSError as problem:
        ended["refused"] = f"{problem.filename or 'its folder'}: {problem.strerror or problem}"
    except shutil.Error:
        ended["refused"] = "its folder cannot be copied"
    finally:
        if folder:
            remove_folder(folder)
            os.close(lock)
    with suppress(OSError):  # the worker is gone
        line.sendall(processes.frame(json.dumps(ended).encode()))
    os._exit(0)


def _copied(source: str, target: str) -> None:
    """Copy a folder; a link stays one, and one that leads out of it is refused."""
    if not source:
        Path(target).mkdir()
        return
    root = Path(source).resolve()
    for path in root.rglob("*"):
        if path.is_symlink() and (path.readlink().is_absolute() or not path.resolve().is_relative_to(root)):
            raise OSError(0, "it is a link that leads out of the folder", str(path.relative_to(root)))
    shutil.copytree(root, target, symlinks=True)


def _run(line: socket.socket, setup: dict[str, Any]) -> dict[str, Any]:
    """Start the server, and end it once the worker hangs up or it ends by itself."""
    guard, (read, write) = os.getpid(), os.pipe()
    pid = os.fork()
    if not pid:
        _become(setup, guard, write)
    os.close(write)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)  # the server alone holds the pipes, so that their end is its end
    pidfd, tail = os.pidfd_open(pid), b""
    waiting = select.poll()
    for descriptor in (line.fileno(), pidfd, read):
        waiting.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in waiting.poll()]
        if read in ready:
            data = os.read(read, _READ)
            tail = (tail + data)[-KEPT:]
            if not data:
                waiting.unregister(read)
        if ready != [read]:
            break
    hung_up = line.fileno() in ready
    statuses = processes.end_below(processes.children)
    tail = (tail + processes.drain(read, 1 << 20))[-KEPT:]
    status = 0 if hung_up else os.waitstatus_to_exitcode(statuses.get(pid, 0))
    return {"status": status, "err": tail.decode("utf-8", "replace")}


def _become(setup: dict[str, Any], guard: int, errors: int) -> NoReturn:
    """Become the server."""
    try:
        os.setpgid(0, 0)
        processes.die_with_parent(guard)
        os.dup2(errors, 2)
        if setup["folder"]:
            os.chdir(setup["folder"])
        env = setup["env"] | {MARK: os.environ[MARK]}
        if setup["folder"]:
            env["TMPDIR"] = str(Path(setup["folder"]).parent)
        os.execvpe(setup["command"][0], setup["command"], env)  # noqa: S606
    except OSError as problem:
        os.write(2, f"{problem.strerror}\n".encode())
    finally:
        os._exit(_NOT_STARTED)
