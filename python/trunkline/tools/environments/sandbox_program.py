"""Does one thing with a folder, in a confinement: unpacks it, runs a command or reads or writes a file, packs it again.

Its source is what the confinement runs, so it needs nothing but the standard library. It reads one JSON object from
stdin and prints one.
"""

from __future__ import annotations

import base64
import io
import json
import os
import select
import signal
import stat
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

LISTED = 500
"""Files and folders that are listed at most."""


def run(command: str, seconds: float, most: int) -> tuple[bytes, int | None]:
    """Run a command in this folder; return its output, and its exit code or None where it took too long."""
    deadline = time.monotonic() + seconds
    words = ["/bin/sh", "-c", command]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    kept, pipe = bytearray(), process.stdout.fileno()
    while (left := deadline - time.monotonic()) > 0:
        # A process in the background may hold the pipe open for ever.
        ready = select.select([pipe], [], [], min(left, 0.05))[0]
        if ready:
            piece = os.read(pipe, 65536)
            kept += piece[: most - len(kept)]
            if not piece:
                break
        elif process.poll() is not None:
            break
    code = None
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(max(0.0, deadline - time.monotonic()))
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # all else of this user here, who has a confinement of its own
    process.wait()
    return bytes(kept), code


class PathRefused(Exception):
    """A path or a change is not allowed; the message says why."""


def opened(path: str, flags: int, *, make: bool = False) -> int:
    """Open a path below this folder without following any link, making its folders on demand."""
    root = os.getcwd()  # noqa: PTH109
    parts = [part for part in path.removeprefix(root).split("/") if part not in {"", "."}]
    if (path.startswith("/") and path != root and not path.startswith(root + "/")) or ".." in parts:
        raise PathRefused("it is outside of the working folder")
    place = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if make and not last:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=place)
        wanted = flags if last else os.O_RDONLY | os.O_DIRECTORY
        try:
            inner = os.open(part, wanted | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=place)
        except OSError:
            if stat.S_ISLNK(os.stat(part, dir_fd=place, follow_symlinks=False).st_mode):
                raise PathRefused("it is a link, or below one, and links are not followed") from None
            raise
        finally:
            os.close(place)
        place = inner
    return place


def regular(path: str, flags: int, *, make: bool = False) -> int:
    """Open a regular file."""
    descriptor = opened(path, flags, make=make)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        raise PathRefused("it is a folder" if stat.S_ISDIR(mode) else "it is no regular file")
    return descriptor


def read(path: str, most: int) -> bytes:
    """Return the beginning of a file."""
    with open(regular(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def write(path: str, content: bytes) -> None:
    """Replace a file, or make it with its folders."""
    with open(regular(path, os.O_WRONLY | os.O_CREAT, make=True), "wb") as file:
        file.truncate()
        file.write(content)


def edit(path: str, old: bytes, new: bytes, most: int) -> None:
    """Replace the one place where a text stands in a file."""
    content = read(path, most + 1)
    if len(content) > most:
        raise PathRefused(f"it has more than {most:,} bytes")
    if (count := content.count(old)) != 1:
        raise PathRefused(f"the text to replace occurs {count} times in it, and must occur once")
    write(path, content.replace(old, new))


def listed(path: str, most: int) -> bytes:
    """Return what is in a folder and in those below it: folders with a slash, files with their bytes."""
    top, lines = opened(path, os.O_RDONLY | os.O_DIRECTORY), []
    for folder, folders, names, place in os.fwalk(".", dir_fd=top, follow_symlinks=False):
        folders.sort()
        for name in sorted((*folders, *names)):
            facts = os.stat(name, dir_fd=place, follow_symlinks=False)
            shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in os.path.normpath(f"{folder}/{name}"))
            kind = "/" if name in folders and stat.S_ISDIR(facts.st_mode) else f"  {facts.st_size:,} bytes"
            kind = kind if stat.S_ISREG(facts.st_mode) or kind == "/" else "  (no regular file)"
            lines.append(shown + kind)
            if len(lines) > most:
                return "\n".join([*lines[:most], f"[more than {most:,}: list a folder]"]).encode("utf-8", "replace")
    return ("\n".join(lines) or "[empty]").encode("utf-8", "replace")


def act(request: dict[str, object]) -> tuple[bytes, int | None]:
    """Do what is asked for; return output and exit code."""
    path, most = str(request.get("path")), int(str(request["output"]))
    content, old, new = (str(request.get(name)).encode("utf-8", "replace") for name in ("content", "old", "new"))
    try:
        match request["do"]:
            case "read":
                return read(path, most), 0
            case "write":
                write(path, content)
            case "edit":
                edit(path, old, new, most)
            case "list":
                return listed(path, LISTED), 0
            case _:
                return run(str(request["command"]), float(str(request["seconds"])), most)
    except PathRefused as refused:
        return str(refused).encode(), 1
    except OSError as error:
        return (error.strerror or type(error).__name__).encode(), 1
    return b"", 0


def packed(most: int) -> bytes | None:
    """Return an archive of this folder; None where it has more bytes than it may."""
    total = 0
    for folder, _, names in os.walk("."):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
    if total > most:
        return None
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as archive:
        os.listdir(".")  # noqa: PTH208 - raises where all would be lost
        for folder, folders, names in os.walk("."):
            folders.sort()
            for name in sorted((*folders, *names)):
                with suppress(OSError):  # a file that its owner may not read
                    archive.add(os.path.join(folder, name), recursive=False)  # noqa: PTH118
    return data.getvalue() if data.tell() <= most else None


def unpack(data: bytes) -> None:
    """Unpack an archive here; no filter is needed, as commands may write wherever this program may."""
    if data:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
            archive.extractall(**trusted)  # type: ignore[arg-type]  # noqa: S202 - it was packed here


def main() -> None:
    """Read a request, do it, and print the result."""
    request = json.loads(sys.stdin.buffer.read())
    Path("files").mkdir()
    os.chdir("files")
    unpack(base64.b64decode(request["files"]))
    output, code = act(request)
    files = packed(int(request["disk"]))
    said = {
        "output": base64.b64encode(output).decode(),
        "code": code,
        "files": None if files is None else base64.b64encode(files).decode(),
    }
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
