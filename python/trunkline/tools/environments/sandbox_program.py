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
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path


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


def act(request: dict[str, object]) -> tuple[bytes, int | None]:
    """Do what is asked for; return output and exit code."""
    path, most = str(request.get("path")), int(str(request["output"]))
    try:
        if request["do"] == "read":
            with Path(path).open("rb") as file:
                return file.read(most), 0
        if request["do"] == "write":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(str(request["content"]), "utf-8", "replace", newline="")
            return b"", 0
    except OSError as error:
        return (error.strerror or type(error).__name__).encode(), 1
    return run(str(request["command"]), float(str(request["seconds"])), most)


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
        for name in sorted(os.listdir(".")):  # noqa: PTH208
            with suppress(OSError):  # a file that its owner may not read
                archive.add(name)
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
