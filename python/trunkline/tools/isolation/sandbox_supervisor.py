"""Runs confined programs one after the other, and leaves nothing of any: ``python -I -S -c ... DESCRIPTOR PARENT``.

``trunkline.tools.isolation.sandbox`` starts it and talks to it over a socket: JSON in frames. When the socket or the
parent ends, it ends the program that runs. No user code runs in this process. It imports the standard library only, as
another user may have to be able to.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from trunkline._internal import processes
from trunkline._internal.leftovers import make_folder, remove_folder, sweep
from trunkline.tools.isolation import confinement
from trunkline.tools.isolation.confinement import ConfinementError, ResourceLimits, Way

_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    # A thread counts as a process does.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


class ProgramPlace(NamedTuple):
    """Where programs run: how they are confined, their interpreter, and their user where they have their own."""

    way: Way
    python: str
    uid: int


class Pipes(NamedTuple):
    """One side's ends of the pipes of a program; ``word`` carries how it began and ended."""

    stdin: int
    stdout: int
    stderr: int
    word: int


def spawn(
    place: ProgramPlace, limits: ResourceLimits, others: int, source: str, folder: Path, pipes: Pipes, parent: int
) -> None:
    """Confine this process and become the program; in namespaces, leave two processes behind that wait for it."""
    processes.die_with_parent(parent)
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    way, work, word = place.way, folder, pipes.word
    if way.spaces:
        confinement.namespaces(way)
        confinement.new_root(str(folder), limits.disk)
        (folder / "work" / "main.py").write_text(source, "utf-8", "replace")
        above, held = os.pipe()
        init = os.fork()
        if init:
            _leave(pipes)
            os.waitpid(init, 0)
            os._exit(0)
        processes.die_with_parent(0)
        os.close(held)
        if select.select([above], [], [], 0)[0]:
            os._exit(1)  # it is of another namespace, so only its pipe tells that the parent was gone before
        confinement.shut()
        os.chroot(folder)
        work = Path("/work")
        program = os.fork()
        if program:
            _leave(pipes, but=word)
            ended = status = 0
            while ended != program:
                ended, status = os.wait()
            os.write(word, b"=%d" % status)
            os._exit(0)
    else:
        (work / "main.py").write_text(source, "utf-8", "replace")
        if way.uid:
            os.chown(work, place.uid, place.uid)
            (work / "main.py").chmod(0o644)
        processes.die_with_parent(parent)
    os.chdir(work)
    os.setsid()
    confinement.become(way, place.uid)
    confinement.limit(way, limits, others)
    if not way.spaces:
        processes.die_with_parent(parent)  # once more: another user's process has forgotten
    for usual in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(usual, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    for number, descriptor in enumerate(pipes[:3]):
        os.dup2(descriptor, number)
    home = {"HOME": str(work), "TMPDIR": str(work)}
    os.execve(place.python, [place.python, "-s", "-B", "-X", "utf8", "main.py"], _ENVIRONMENT | home)  # noqa: S606 - no shell is meant


def _leave(pipes: Pipes, but: int = -1) -> None:
    """Close a program's ends in a process that is not the program."""
    for descriptor in pipes:
        if descriptor != but:
            os.close(descriptor)


def pipes_of_a_program() -> tuple[Pipes, Pipes]:
    (input_read, input_write), *others = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    os.set_blocking(input_write, False)
    return (
        Pipes(input_write, *(read for read, _ in others)),
        Pipes(input_read, *(write for _, write in others)),
    )


def kill_all_of(uid: int) -> None:
    """Kill every process of a user at once, by a process of that user."""
    killer = os.fork()
    if not killer:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)  # not this process itself
        finally:
            os._exit(0)
    os.waitpid(killer, 0)


_READ: Final = 65536
_TAIL: Final = 4096
"""Bytes of the error stream that are kept."""
_CLOSE: Final = 4
"""So many processes below the limit count as having reached it: some may have ended meanwhile."""
_PYTHONS: Final = ("/usr/bin/python3", "/usr/local/bin/python3")
_TRIAL: Final = "print(6 * 7)"
_TRIAL_SECONDS: Final = 20.0


class _Over(Exception):
    """The parent is gone."""


class SandboxSupervisor:
    """Serves one parent over a socket; ``alarm`` becomes readable when the parent has died.

    With a channel, another socket, it runs one program, which has that as its input and output.
    """

    def __init__(self, line: int, alarm: int, folder: str, channel: int | None = None) -> None:
        self._line = line
        self._alarm = alarm
        self._folder = folder
        self._channel = channel

    def serve(self) -> None:
        setup = self._next()
        limits = ResourceLimits(*setup["limits"])
        try:
            known = setup["way"]
            place = _place(Way(known), setup["python"]) if known else self._found(limits, setup["ways"])
        except ConfinementError as refused:
            self._send({"refused": str(refused), "folder": self._folder})
            return
        uid = place.uid if place.way is Way.UID else 0
        self._send({"way": place.way, "python": place.python, "folder": self._folder, "uid": uid})
        while True:
            request = self._next()
            text = request["stdin"].encode("utf-8", "replace")
            self._send(self.run(place, limits, request["source"], text, self._channel))

    def _next(self) -> dict[str, Any]:
        payload = processes.receive(self._read)
        if not payload:
            raise _Over
        message: dict[str, Any] = json.loads(payload)
        return message

    def _read(self, size: int) -> bytes:
        """Read what there is of so many bytes; none once the parent is gone."""
        ready, _, _ = select.select([self._line, self._alarm], [], [])
        return b"" if self._alarm in ready else os.read(self._line, size)

    def _send(self, message: dict[str, Any]) -> None:
        data = processes.frame(json.dumps(message).encode())
        while data:
            data = data[os.write(self._line, data) :]

    def _found(self, limits: ResourceLimits, ways: list[str]) -> ProgramPlace:
        """Try ways until a program runs in one."""
        problems: list[str] = []
        root = os.geteuid() == 0
        limits = limits._replace(seconds=_TRIAL_SECONDS)
        for way in Way:
            if way not in ways:
                continue
            if way.uid and not root:
                problems.append(f"{way.value}: this is not root")
                continue
            own = [] if way is not Way.UID else [path for path in _PYTHONS if Path(path).exists()]
            for python in (sys.executable, *own):
                try:
                    place = _place(way, python)
                    result = self.run(place, limits, _TRIAL, b"")
                except ConfinementError as refused:
                    problems.append(f"{way.value}: {refused}")
                    continue
                if base64.b64decode(result["out"]) == b"42\n":
                    return place
                why = result["refused"] or f"{python} does not run there"
                problems.append(f"{way.value}: {why}")
        raise ConfinementError("; ".join(dict.fromkeys(problems)))

    def run(
        self, place: ProgramPlace, limits: ResourceLimits, source: str, text: bytes, channel: int | None = None
    ) -> dict[str, Any]:
        """Run a program with some input to its end; one with a channel reads and writes there."""
        others = 0 if place.way.uid else confinement.taken(os.getuid())
        folder = tempfile.mkdtemp(dir=self._folder)
        ours, theirs = pipes_of_a_program()
        parent = os.getpid()
        if channel is not None:
            for end in (theirs.stdin, theirs.stdout):
                os.dup2(channel, end, inheritable=False)
            os.close(channel)  # so that it ends with the program
        try:
            child = os.fork()
            if not child:
                try:
                    for descriptor in ours:
                        os.close(descriptor)
                    spawn(place, limits, others, source, Path(folder), theirs, parent)
                except BaseException as error:  # noqa: BLE001 - reported, and nothing runs
                    why = str(error) if isinstance(error, ConfinementError) else f"{type(error).__name__}: {error}"
                    os.write(theirs.word, b"!" + why.encode("utf-8", "replace")[:500] + b"\n")
                finally:
                    os._exit(1)
            for descriptor in theirs:
                os.close(descriptor)
            theirs = Pipes(-1, -1, -1, -1)
            return self._watch(place, limits, child, ours, text)
        finally:
            for descriptor in (*ours, *theirs):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            self._end(place)
            remove_folder(folder)

    def _watch(
        self, place: ProgramPlace, limits: ResourceLimits, child: int, ours: Pipes, text: bytes
    ) -> dict[str, Any]:
        """Feed a program and read its output, until it ends or must."""
        deadline = time.monotonic() + limits.seconds
        pidfd = os.pidfd_open(child)
        output: dict[int, bytearray] = {ours.stdout: bytearray(), ours.stderr: bytearray(), ours.word: bytearray()}
        watched = select.poll()
        for descriptor in (*output, pidfd, self._line, self._alarm):
            watched.register(descriptor, select.POLLIN)
        watched.register(ours.stdin, select.POLLOUT)
        ended, rest = "", memoryview(text)
        try:
            while not ended:
                left = deadline - time.monotonic()
                ready = [descriptor for descriptor, _ in watched.poll(max(left, 0) * 1000)]
                if self._line in ready or self._alarm in ready:
                    raise _Over
                if ours.stdin in ready:
                    rest = _fed(ours.stdin, rest)
                    if not rest:
                        watched.unregister(ours.stdin)
                        _hang_up(ours.stdin)
                for descriptor in output.keys() & ready:
                    data = os.read(descriptor, _READ)
                    output[descriptor] += data
                    if not data:
                        watched.unregister(descriptor)
                if sum(map(len, output.values())) > limits.output:
                    ended = "output"
                else:
                    ended = "exit" if pidfd in ready else "time" if left <= 0 else ""
            many = len(processes.descendants(os.getpid())) - (2 if place.way.spaces else 0) >= limits.processes - _CLOSE
        finally:
            os.close(pidfd)
        status = self._end(place).get(child, 0)
        for descriptor, kept in output.items():
            kept.extend(processes.drain(descriptor, limits.output + _TAIL - len(kept)))
        word = bytes(output[ours.word])
        refused = word[1:].partition(b"\n")[0].decode("utf-8", "replace") if word.startswith(b"!") else ""
        if place.way.spaces and ended == "exit" and not refused:
            # Killed from outside, as by a system without memory, it says nothing.
            status = int(word[1:]) if word.startswith(b"=") else signal.SIGKILL
        return {
            "ended": ended,
            "status": status,
            "refused": refused,
            "many": many,
            "out": base64.b64encode(output[ours.stdout][: limits.output]).decode(),
            "err": base64.b64encode(output[ours.stderr][-_TAIL:]).decode(),
        }

    def _end(self, place: ProgramPlace) -> dict[int, int]:
        """Kill all that is below this process, and all of the program's user; return how the children ended."""
        if place.way.spaces:
            return processes.end_below(processes.children)
        return processes.end_below(
            processes.descendants, lambda _: kill_all_of(place.uid) if place.way is Way.UID else None
        )


def _place(way: Way, python: str) -> ProgramPlace:
    return ProgramPlace(way, python, confinement.unused() if way.uid else os.geteuid())


def _hang_up(descriptor: int) -> None:
    """Close a pipe for its reader, and keep its number."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _fed(stdin: int, rest: memoryview) -> memoryview:
    """Write what fits, and return the rest; nothing is left for a program that reads no further."""
    try:
        return rest[os.write(stdin, rest[:_READ]) :] if rest else rest
    except BlockingIOError:
        return rest
    except OSError:
        return rest[:0]


def main() -> None:
    """Serve until the socket ends; leave at once when the parent dies."""
    *sockets, parent = map(int, sys.argv[1:])
    for number in sockets:
        os.set_inheritable(number, False)
    line, *channel = sockets
    alarm, raised = os.pipe()
    os.set_blocking(raised, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(raised)
    processes.adopt_orphans()
    processes.die_with_parent(parent, signal.SIGTERM)
    folder, _ = make_folder("trunkline-code-")
    try:
        sweep()
        Path(folder).chmod(0o711)  # for a user who owns a folder in it
        with contextlib.suppress(_Over, ConnectionError):
            SandboxSupervisor(line, alarm, folder, *channel).serve()
    finally:
        remove_folder(folder)
