"""Starts agents and watches them: ``python ... -c ... DESCRIPTOR PARENT``.

``trunkline.rollout.external.process`` starts it, and sends a socket for each agent. For each, a child is forked that
makes the agent's folder, starts the agent, keeps its limits, and removes all that is left of it once the socket or this
process ends. Standard library only, but for the module of an agent that is a function.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import importlib
import importlib.util
import inspect
import json
import os
import resource
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from trunkline._internal import processes
from trunkline._internal.leftovers import make_folder, remove_folder, sweep
from trunkline.tools.isolation import confinement
from trunkline.tools.isolation.confinement import ConfinementError, Way

if TYPE_CHECKING:
    from collections.abc import Callable

_SHOWN, _NAME = "/dev/shm", "agent"  # noqa: S108 - a file system of the agent's own is mounted there
_PORT: Final = 8000
"""The endpoint's, in a network of the agent's own."""

_READ: Final = 65536
_TAIL: Final = 4096
"""Bytes of standard error that are kept."""
_LEAVE: Final = 10.0
"""Seconds for agents to be ended and their folders to be removed."""
_SOONEST, _LATEST = 0.02, 0.25
"""Seconds between two looks at an agent's processes: near a limit, and far from all."""
_DISK: Final = 1.0
"""Seconds at least between two looks at an agent's folder, which take a twentieth of the time at most."""
_ENTRIES: Final = 1_000_000
"""Files and folders that an agent may make."""

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_TRIAL: Final = "a trial"


class _HungUp(Exception):
    """The worker has hung up."""


class _Refused(Exception):
    """An agent cannot be started; the message says why."""


class AgentSettings(NamedTuple):
    """What the agents of a worker have in common; see ``AgentCommand``."""

    function: str
    folder: str
    file: str
    own_network: bool
    seconds: float
    memory: int
    processes: int
    output: int
    disk: int


class AgentPipes(NamedTuple):
    """One side's ends of an agent's pipes; ``word`` tells how it began and ended."""

    out: int
    err: int
    word: int
    answer: int


class AgentProcess:
    """One agent, which this process makes and watches for the worker at the other end of a socket."""

    def __init__(
        self, line: socket.socket, settings: AgentSettings, way: Way, base: str, function: Callable[[str], Any] | None
    ) -> None:
        self._line = line
        self._settings = settings
        self._way = way
        self._base = base
        self._function = function
        self._path = base

    def serve(self) -> None:
        """Make the agent's folder, and run the agent when asked, until the worker hangs up."""
        processes.adopt_orphans()
        try:
            listener = self.open()
            self._send({"folder": f"{self._base}/work", "path": f"{self._path}/work"}, listener)
            if listener is not None:
                listener.close()
            while payload := processes.receive(self._line.recv):
                self._send(self.run(json.loads(payload)))
        except (_Refused, ConfinementError, OSError, shutil.Error) as problem:
            with contextlib.suppress(OSError):
                self._send({"refused": str(problem)})
        except _HungUp:
            pass
        finally:
            processes.end_below(processes.descendants)
            remove_folder(self._base)

    def _send(self, message: dict[str, Any], passed: socket.socket | None = None) -> None:
        data = processes.frame(json.dumps(message).encode())
        if passed is not None:
            data = data[socket.send_fds(self._line, [data], [passed.fileno()]) :]
        self._line.sendall(data)

    def open(self) -> socket.socket | None:
        """Make the agent's folder; return a socket that listens in its network, where it has one of its own."""
        for name in ("work", "home", "tmp"):
            Path(self._base, name).mkdir()
        settings = self._settings
        if settings.folder:
            _copy_folder(Path(settings.folder), Path(self._base, "work"), settings.disk)
        if not self._way.spaces:
            return None
        confinement.namespaces(self._way, network=settings.own_network, same=True)
        confinement.show_folder(self._base, _SHOWN, _NAME, settings.memory)
        self._path = f"{_SHOWN}/{_NAME}"
        return _listening() if settings.own_network else None

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the agent to its end."""
        settings, parent, started = self._settings, os.getpid(), time.monotonic()
        before = _seconds_of_children()
        pairs = [os.pipe() for _ in range(4)]
        ours, theirs = AgentPipes(*(read for read, _ in pairs)), AgentPipes(*(write for _, write in pairs))
        alive, held = os.pipe()
        question = os.memfd_create("question")
        os.write(question, request["stdin"].encode("utf-8", "replace"))
        os.lseek(question, 0, os.SEEK_SET)
        child = os.fork()
        if not child:
            try:
                for descriptor in (self._line.fileno(), held, *ours):
                    os.close(descriptor)
                if self._way.spaces:
                    self._lead(theirs, alive)
                else:
                    processes.die_with_parent(parent)
                os.close(alive)
                self._become(request, question, theirs)
            except BaseException as problem:  # noqa: BLE001 - reported, and nothing runs
                why = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
                os.write(theirs.word, b"!" + why.encode("utf-8", "replace")[:500] + b"\n")
            finally:
                os._exit(1)
        for descriptor in (*theirs, alive, question):
            os.close(descriptor)
        kept = {descriptor: bytearray() for descriptor in ours}
        most = dict(zip(ours, (settings.output, _TAIL, _TAIL, settings.output + 1), strict=True))
        try:
            ended, status = self._watch(child, started + settings.seconds, kept, most)
        finally:
            for descriptor in (*ours, held):
                os.close(descriptor)
        out, err, word, answer = (bytes(kept[descriptor]) for descriptor in ours)
        refused = word[1:].partition(b"\n")[0] if word.startswith(b"!") else b""
        if self._way.spaces and ended == "exit" and not refused:
            # Killed from outside, as by a system without memory, its first process says nothing.
            status = int(word[1:]) if word.startswith(b"=") else signal.SIGKILL
        file = _text_of(f"{self._base}/work", settings.file, settings.output) if settings.file else None
        return {
            "ended": ended,
            "status": status,
            "refused": _text(refused),
            "out": _text(out),
            "err": _text(err),
            "answer": _text(answer[1:]) if answer else None,
            "file": None if file is None else _text(file),
            "cpu": _seconds_of_children() - before,
        }

    def _lead(self, theirs: AgentPipes, alive: int) -> None:
        """Become the first process of the namespaces; return in a child, and leave when that has ended."""
        processes.die_with_parent(0)
        if select.select([alive], [], [], 0)[0]:
            os._exit(1)  # the parent is of another namespace, so only its pipe tells that it is gone
        confinement.private_mounts()
        confinement.show_processes()
        agent = os.fork()
        if not agent:
            return
        confinement.shut()
        for descriptor in theirs:
            if descriptor != theirs.word:
                os.close(descriptor)
        ended = status = 0
        while ended != agent:
            ended, status = os.wait()
        os.write(theirs.word, b"=%d" % status)
        os._exit(0)

    def _become(self, request: dict[str, Any], question: int, theirs: AgentPipes) -> NoReturn:
        """Become the agent."""
        os.setsid()
        os.umask(0o022)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        for number, descriptor in enumerate((question, theirs.out, theirs.err)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for name, wanted in ((resource.RLIMIT_FSIZE, self._settings.disk), (resource.RLIMIT_CORE, 0)):
            _, hard = resource.getrlimit(name)
            allowed = wanted if hard < 0 else min(wanted, hard)
            resource.setrlimit(name, (allowed, allowed))
        if self._way.spaces:
            confinement.keep_file_rights()
        os.chdir(f"{self._path}/work")
        for usual in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(usual, signal.SIG_DFL)
        env = request["env"] | {"HOME": f"{self._path}/home", "TMPDIR": f"{self._path}/tmp"}  # noqa: S108
        if self._function is None:
            os.execvpe(request["argv"][0], request["argv"], env)  # noqa: S606 - no shell is meant
        os.close(theirs.word)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        _call(self._function, request["question"], theirs.answer)

    def _watch(self, child: int, deadline: float, kept: dict[int, bytearray], most: dict[int, int]) -> tuple[str, int]:
        """Read what the agent writes until it ends or must; end all that it started; return why, and its status."""
        pidfd, line, usage = (
            os.pidfd_open(child),
            self._line.fileno(),
            AgentUsage(self._base, self._settings, self._way),
        )
        watched = select.poll()
        for descriptor in (*kept, pidfd, line):
            watched.register(descriptor, select.POLLIN)
        ended, look = "", time.monotonic() + _SOONEST
        try:
            while not ended:
                wait = min(deadline, look) - time.monotonic()
                ready = {descriptor for descriptor, _ in watched.poll(max(wait, 0.0) * 1000)}
                if line in ready:
                    raise _HungUp
                for descriptor in kept.keys() & ready:
                    data = os.read(descriptor, _READ)
                    if not data:
                        watched.unregister(descriptor)
                    _keep(kept[descriptor], data, most[descriptor])
                now = time.monotonic()
                if pidfd in ready:
                    ended = "exit"
                elif now >= deadline:
                    ended = "time"
                elif now >= look:
                    ended, pause = usage.look()
                    look = now + pause
        finally:
            os.close(pidfd)
        if not self._way.spaces:
            processes.kill_group(child)  # at once, however fast they fork
        statuses = processes.end_below(processes.children if self._way.spaces else processes.descendants)
        for descriptor, so_far in kept.items():
            _keep(so_far, processes.drain(descriptor, 1 << 20), most[descriptor])  # what a pipe can hold
        return ended, statuses.get(child, 0)


class AgentUsage:
    """What an agent uses, by looking at its processes and its folder."""

    def __init__(self, base: str, settings: AgentSettings, way: Way) -> None:
        self._base = base
        self._settings = settings
        self._way = way
        self._disk_at = 0.0

    def look(self) -> tuple[str, float]:
        """Return the limit that the agent is above, or nothing, and the seconds until the next look."""
        settings = self._settings
        found = processes.children(os.getpid())
        for child in found:
            if len(found) > settings.processes + 1:
                break
            found.extend(processes.children(child))
        count = len(found) - self._way.spaces  # their first process is ours
        if count > settings.processes:
            return "processes", 0.0
        memory = sum(map(_resident, found))
        if memory > settings.memory:
            memory = sum(map(_own_share, found))
        if self._way.spaces:
            system = os.statvfs(_SHOWN)
            memory += (system.f_blocks - system.f_bfree) * system.f_frsize
        if memory > settings.memory:
            return "memory", 0.0
        now = time.monotonic()
        if now >= self._disk_at:
            if _size(self._base, settings.disk) > settings.disk:
                return "disk", 0.0
            took = time.monotonic() - now
            self._disk_at = now + max(_DISK, 20 * took)
        share = max(count / settings.processes, memory / settings.memory)
        return "", max(_SOONEST, _LATEST * (1 - share))


def _resident(pid: int) -> int:
    """Bytes in memory of a process, shared ones included."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0  # it has ended


def _own_share(pid: int) -> int:
    """Bytes in memory of a process; of shared ones, its share."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except (OSError, IndexError, ValueError):
        pass
    return _resident(pid)


def _size(folder: str, most: int) -> int:
    """Bytes of the files of a folder; more than ``most`` for too many, and no exact number beyond it."""
    waiting, size, entries = [folder], 0, 0
    while waiting and size <= most:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as found:
            for entry in found:
                entries += 1
                if entries > _ENTRIES:
                    return most + 1
                with contextlib.suppress(OSError):
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return size


def _copy_folder(source: Path, target: Path, most: int) -> None:
    """Copy what is in a folder, in the order of the names; links that lead out of it are refused."""
    root, size = source.resolve(), 0
    folders = [root]
    for folder in folders:
        for there in sorted(folder.iterdir()):
            path, status = there.relative_to(root), there.lstat()
            if stat.S_ISDIR(status.st_mode):
                (target / path).mkdir()
                folders.append(there)
            elif stat.S_ISLNK(status.st_mode):
                leads = there.readlink()
                # By the names, as the copy has another parent, and by the links on the way.
                named, real = os.path.normpath(path.parent / leads), Path(os.path.realpath(there))  # a loop is no error
                if leads.is_absolute() or Path(named).parts[0:1] == ("..",) or not real.is_relative_to(root):
                    raise _Refused(f"{path} is a link that leads out of the folder")
                (target / path).symlink_to(leads)
            elif stat.S_ISREG(status.st_mode):
                size += status.st_size
                if size > most:
                    raise _Refused(f"it would hold more than {most:,} bytes")
                shutil.copy2(there, target / path)
            else:
                raise _Refused(f"{path} is no file, folder or link")
    for folder in reversed(folders):
        shutil.copystat(folder, target / folder.relative_to(root))


def _text_of(folder: str, path: str, most: int) -> bytes | None:
    """The end of a file in a folder; None for a missing file, or a link on the way to it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in path.split("/"):
            inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return os.pread(descriptor, most, max(0, status.st_size - most))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _keep(kept: bytearray, data: bytes, most: int) -> None:
    kept += data
    if len(kept) > most:
        del kept[: len(kept) - most]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _listening() -> socket.socket:
    """Return a socket that listens on loopback of a new network namespace."""
    listener = socket.socket()
    request = fcntl.ioctl(listener, _SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0))
    (flags,) = struct.unpack_from("H", request, 16)
    fcntl.ioctl(listener, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))
    listener.bind(("127.0.0.1", _PORT))
    listener.listen(128)
    return listener


def _call(function: Callable[[str], Any], question: str, line: int) -> NoReturn:
    """Call an agent that is a function, write its answer, and leave with an exit code."""
    code = 1
    try:
        answer = function(question)
        if inspect.isawaitable(answer):
            answer = asyncio.run(_awaited(answer))
        if answer is not None and not isinstance(answer, str):
            raise TypeError(f"the agent returned {type(answer).__name__}; it must return its answer, a text, or None")
        data = b"" if answer is None else b"+" + answer.encode("utf-8", "replace")
        while data:
            data = data[os.write(line, data) :]
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1 if left.code else 0
    except BaseException:  # noqa: BLE001 - the agent's own
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code & 255)


async def _awaited(answer: Any) -> Any:
    return await answer


def load_function(name: str) -> Callable[[str], Any]:
    """Import the module of an agent that is a function, ``module:name`` or ``file.py:name``."""
    module_name, _, qualname = name.rpartition(":")
    if module_name.endswith(".py"):
        path = Path(module_name)
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise _Refused(f"{module_name} is no module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(module_name)
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise _Refused(f"{module_name} has no function {qualname}")
    called: Callable[[str], Any] = found
    return called


class AgentSupervisor:
    """Forks a process for each socket that the worker sends; ``alarm`` has the numbers of signals that came."""

    def __init__(self, line: socket.socket, alarm: int, folder: str) -> None:
        self._line = line
        self._alarm = alarm
        self._folder = folder

    def serve(self) -> None:
        setup = json.loads(processes.receive(self._line.recv) or b"null")
        if setup is None:
            return
        settings, function, problem = AgentSettings(*setup["settings"]), None, ""
        way, why = self._found(settings)
        if settings.function:
            sys.path[:] = setup["path"]
            home = Path(self._folder, "home")
            home.mkdir()
            os.environ["HOME"] = os.environ["TMPDIR"] = str(home)
            try:
                function = load_function(settings.function)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code
                problem = str(error) if isinstance(error, _Refused) else f"{type(error).__name__}: {error}"
        gc.freeze()
        self._line.sendall(
            processes.frame(json.dumps({"way": way, "why": why, "problem": problem, "folder": self._folder}).encode())
        )
        while not problem:
            ready, _, _ = select.select([self._line.fileno(), self._alarm], [], [])
            if self._alarm in ready and signal.SIGTERM in os.read(self._alarm, _READ):
                return
            _reap()
            if self._line.fileno() in ready:
                data, passed, _, _ = socket.recv_fds(self._line, 1, 1)
                if not data:
                    return
                for descriptor in passed:
                    with socket.socket(fileno=descriptor) as line:
                        self._forked(line, settings, way, function)

    def _forked(
        self,
        line: socket.socket,
        settings: AgentSettings,
        way: Way,
        function: Callable[[str], Any] | None,
        *others: socket.socket,
    ) -> int:
        """Serve a worker's socket in a child, which has no other sockets; return its number."""
        parent = os.getpid()
        base = tempfile.mkdtemp(dir=self._folder)
        child = os.fork()
        if child:
            return child
        try:
            signal.set_wakeup_fd(-1)
            for usual in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(usual, signal.SIG_DFL)
            processes.die_with_parent(parent)
            for other in (self._line, *others):
                other.close()
            os.close(self._alarm)
            AgentProcess(line, settings, way, base, function).serve()
        finally:
            os._exit(0)

    def _found(self, settings: AgentSettings) -> tuple[Way, str]:
        """Return how agents can be confined here, and why not better."""
        problems: list[str] = []
        for way in (Way.ROOT, Way.USER):
            if way is Way.ROOT and os.geteuid():
                continue
            why = self._tried(settings._replace(function=_TRIAL, folder="", file=""), way)
            if not why:
                return way, ""
            problems.append(why)
        return Way.LIMIT, "; ".join(problems)

    def _tried(self, settings: AgentSettings, way: Way) -> str:
        """Run a trial in namespaces; return the problem."""
        line, theirs = socket.socketpair()
        with line:
            with theirs:
                child = self._forked(theirs, settings, way, str, line)
            opened = json.loads(processes.receive(line.recv) or b"{}")
            if "path" not in opened:
                why = opened.get("refused", "a trial failed")
            else:
                request: dict[str, Any] = {"argv": [], "env": {}, "question": _TRIAL, "stdin": ""}
                line.sendall(processes.frame(json.dumps(request).encode()))
                said = json.loads(processes.receive(line.recv) or b'{"answer": "", "refused": "", "err": ""}')
                why = "" if said["answer"] == _TRIAL else said["refused"] or said["err"] or "a trial failed"
        os.waitpid(child, 0)
        return str(why)


def _reap() -> None:
    """Wait for the children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _noted(_number: int, _frame: object) -> None:
    """Let a signal do nothing but wake this process."""


def main() -> None:
    """Serve until the socket ends or the parent dies, and leave no agent and no folder."""
    line, parent = map(int, sys.argv[1:3])
    os.set_inheritable(line, False)
    alarm, raised = os.pipe()
    os.set_blocking(raised, False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, _noted)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(raised)
    processes.adopt_orphans()
    processes.die_with_parent(parent, signal.SIGTERM)
    folder, _ = make_folder("trunkline-agent-")
    try:
        sweep()
        control = socket.socket(fileno=line)
        with contextlib.suppress(ConnectionError):
            AgentSupervisor(control, alarm, folder).serve()
        control.close()
        # Their sockets end with the worker, and they remove their folders.
        deadline = time.monotonic() + _LEAVE
        while processes.children(os.getpid()) and time.monotonic() < deadline:
            _reap()
            time.sleep(_SOONEST)
        processes.end_below(processes.descendants)
    finally:
        remove_folder(folder)
