"""Confines a program: what it sees, its user, and limits that the kernel keeps.

Runs in a process that has imported nothing but the standard library; see ``.sandbox_supervisor``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

_NEW_MOUNTS, _NEW_NETWORK = 0x00020000, 0x40000000
_NEW: Final = _NEW_MOUNTS | 0x04000000 | 0x08000000 | 0x20000000 | _NEW_NETWORK
"""Mounts, host name, IPC, processes, network."""
_NEW_USER: Final = 0x10000000

_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC = 1, 2, 4, 8
_SAME_BITS: Final = 2 | 4 | 8 | 1024 | 2048
"""Of ``statvfs`` and of ``mount``: no set-user-id, no devices, no programs, no access times, none of folders."""
_RELATIME: Final = 1 << 21
_REMOUNT, _BIND, _REC, _PRIVATE = 32, 4096, 16384, 1 << 18

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38

_CAPABILITIES_VERSION: Final = 0x20080522
_OF_FILES: Final = 0b11011111
"""Capabilities over files and to become another user, which root has in any program that is not confined."""

_INSIDE: Final = 1000
"""The user id inside a user namespace: not root, so that a new program image has no capabilities."""
_HIGH: Final = 0x60000000
"""User ids from here on are not given to people, nor to containers."""
_SPREAD: Final = 1 << 24

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/etc/ld.so.cache")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

_libc: Final = ctypes.CDLL(None, use_errno=True)


class ConfinementError(Exception):
    """A restriction cannot be set up here; the message says which and why."""


class Way(StrEnum):
    """How a program is confined, from the best on."""

    ROOT = "root"
    """Namespaces made by root, and in them a user id of its own."""
    USER = "user"
    """Namespaces made by a user, and in them no privileges."""
    UID = "uid"
    """No namespaces; a user id of its own."""
    LIMIT = "limit"
    """No namespaces; the user's own id, with a limit on further processes."""

    @property
    def spaces(self) -> bool:
        return self in {Way.ROOT, Way.USER}

    @property
    def uid(self) -> bool:
        return self in {Way.ROOT, Way.UID}


WAYS: Final = (Way.ROOT.value, Way.USER.value, Way.UID.value)
"""Ways that keep a program from this user's files, processes and their environment."""


class ResourceLimits(NamedTuple):
    """Seconds, bytes of address space of each process, processes and threads, bytes on disk and bytes of output."""

    seconds: float
    memory: int
    processes: int
    disk: int
    output: int


def shut() -> None:
    """Keep processes of the same user from reading this one."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def namespaces(way: Way, *, network: bool = True, same: bool = False) -> None:
    """Enter new namespaces; the next child is the first process of the new one. ``same`` keeps the user's number."""
    uid, gid = os.geteuid(), os.getegid()
    new = _NEW if network else _NEW & ~_NEW_NETWORK
    _checked(_libc.unshare(new | (_NEW_USER if way is Way.USER else 0)), "namespaces")
    if way is Way.USER:
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid if same else _INSIDE} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid if same else _INSIDE} {gid} 1")
        except OSError as error:
            raise ConfinementError(f"user namespace: {error.strerror}") from None


def new_root(root: str, disk: int) -> None:
    """Mount a file system in an empty folder: what a Python program reads, and folders to write so many bytes in."""
    mount("none", "/", "", _REC | _PRIVATE)
    shown = _shown()
    mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={disk},nr_inodes=16384,mode=755")
    for source in (*shown, *_DEVICES):
        path = Path(source)
        target = Path(root + source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() and path.parent == Path("/"):
            target.symlink_to(path.readlink())
            continue
        if not path.exists():
            continue
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        mount(source, str(target), "", _BIND | _REC)
        # Locked flags must stay, or the kernel refuses; most flags have the same bit in both numberings.
        flags = os.statvfs(target).f_flag
        keep = flags & _SAME_BITS | (_RELATIME if flags & 4096 else 0)
        devices = 0 if source in _DEVICES else _NO_DEVICES
        mount("none", str(target), "", _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | devices | keep)
    for name in ("tmp", "work", "dev/shm"):
        folder = Path(root, name)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)


def _shown() -> list[str]:
    """Files and folders that are shown: of the system, and of the interpreter with what it has loaded."""
    found = [path for path in _SYSTEM if os.path.lexists(path)]
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    executable = Path(sys.executable)
    wanted = [*prefixes, str(executable.parent), str(executable.resolve().parent)]
    if (executable.parents[1] / "pyvenv.cfg").exists():  # without site, sys.prefix does not know
        wanted.insert(0, str(executable.parents[1]))
    for line in Path("/proc/self/maps").read_text().splitlines():
        loaded = line.split(maxsplit=5)[5:]
        if loaded and loaded[0].startswith("/") and ".so" in loaded[0] and Path(loaded[0]).exists():
            wanted.append(loaded[0])
    for path in wanted:
        whole = str(Path(path).absolute())
        inside = any(whole == there or whole.startswith(f"{there}/") for there in found)
        if whole != "/" and not inside:
            found.append(whole)
    return found


def unused() -> int:
    """Draw a user id that no process has."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, count = max(((inside, size) for inside, _, size in ranges), key=lambda one: one[1])
    low, high = (_HIGH, _HIGH + _SPREAD) if first + count > _HIGH + _SPREAD else (first + count // 2, first + count)
    if high - low < 1000:
        raise ConfinementError("there is no user id to spare in this user namespace")
    used = {uid for uid, _ in _threads()}
    while (drawn := low + int.from_bytes(os.urandom(8), "little") % (high - low)) in used:
        pass
    return drawn


def taken(uid: int) -> int:
    """Return how many threads a user has."""
    return sum(count for owner, count in _threads() if owner == uid)


def _threads() -> list[tuple[int, int]]:
    """The real user and the number of threads of every process."""
    found: list[tuple[int, int]] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, KeyError, ValueError, IndexError):
                lines = dict(
                    line.split(":", 1) for line in (folder / "status").read_text("utf-8", "replace").splitlines()
                )
                found.append((int(lines["Uid"].split()[0]), int(lines["Threads"])))
    return found


def become(way: Way, uid: int) -> None:
    """Give up every privilege, for good."""
    if way.uid:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            raise ConfinementError(f"a user id of its own: {error.strerror}") from None
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")


def private_mounts() -> None:
    """Enter a copy of the mounts, whose changes no other process sees."""
    _checked(_libc.unshare(_NEW_MOUNTS), "namespaces")
    mount("none", "/", "", _REC | _PRIVATE)


def show_folder(folder: str, parent: str, name: str, memory: int) -> None:
    """Mount an empty file system in memory at ``parent``, and show a folder in it by a name."""
    mount("none", "/", "", _REC | _PRIVATE)
    mount("tmpfs", parent, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={memory},mode=1777")
    target = Path(parent, name)
    target.mkdir()
    mount(folder, str(target), "", _BIND | _REC)


def show_processes() -> None:
    """Mount a new ``/proc``, that of this process's namespace."""
    mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXEC)


def keep_file_rights() -> None:
    """Give up the capabilities over namespaces, networks, other processes and the system, for good."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    held = (ctypes.c_uint32 * 6)()
    _checked(_libc.capget(header, held), "capabilities")
    kept = (ctypes.c_uint32 * 6)(*(_OF_FILES & word for word in held[:2]))
    _checked(_libc.capset(header, kept), "capabilities")
    # A new program gets no capability that this process has not.
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")


def limit(way: Way, limits: ResourceLimits, others: int) -> None:
    """Set limits of this process and all it starts, whose user has ``others`` more threads; check that they hold."""
    most = limits.processes + (others if way is Way.LIMIT else 0)
    if not _holds(0):
        raise ConfinementError("the kernel keeps no limit of processes for this user")
    if way is Way.USER and _holds(most):
        # Kernels before 5.14 count what the user has outside the namespace, too.
        most += others
    seconds = int(limits.seconds) + 1
    for name, value in (
        (resource.RLIMIT_NPROC, most),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, limits.disk),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, limits.memory),
    ):
        _, hard = resource.getrlimit(name)
        allowed = value if hard < 0 else min(value, hard)
        resource.setrlimit(name, (allowed, allowed))


def _holds(soft: int) -> bool:
    """Whether no process can be started under a limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (soft if hard < 0 else min(soft, hard), hard))
    try:
        child = os.fork()
    except BlockingIOError:
        return True
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return False


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    what = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None)
    _checked(_libc.mount(*what), f"mounting {source} at {target}")


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise ConfinementError(f"{what}: {os.strerror(number)}" if number != errno.EPERM else f"{what}: not permitted")
