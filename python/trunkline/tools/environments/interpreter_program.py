"""Serves Python code that keeps its variables, in a confinement: one process supervises, one forked from it interprets.

Its source is what the confinement runs, with that of ``sandbox_program`` as a module, so it needs nothing but the
standard library and that program. Requests and answers are JSON in frames at the standard input, a socket. Between
calls all processes but the supervising one are stopped.
"""

from __future__ import annotations

import ast
import base64
import builtins
import importlib
import io
import json
import linecache
import os
import random
import select
import signal
import stat
import struct
import sys
import tarfile
import time
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

from trunkline.tools.environments.sandbox_program import packed, unpack

HEAD = struct.Struct("<I")
PIPE = 1 << 16
"""Bytes that a pipe holds."""


def interpret(code: int, done: int, output: int, seed: int) -> None:
    """Run code that comes in frames, one after the other, with variables that last; say after each one that it is."""
    random.seed(seed)
    sys.path[0] = ""
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "write_through": True}
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    number, this = 0, os.getpid()
    while source := read(code):
        number += 1
        importlib.invalidate_caches()
        for target in (1, 2):  # whatever the last call made of them
            os.dup2(output, target)
        streams = [io.TextIOWrapper(io.FileIO(target, "w", closefd=False), **options) for target in (1, 2)]
        out, err = streams
        vars(sys).update(stdout=out, stderr=err, __stdout__=out, __stderr__=err)
        execute(source.decode("utf-8", "replace"), f"<call {number}>", main.__dict__)
        if os.getpid() != this:
            os._exit(0)  # a fork that came back from the code, as its parent does
        for stream in (*streams, sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os.write(done, b"\n%d\n" % number)
    os._exit(0)


def execute(source: str, name: str, space: dict[str, Any]) -> None:
    """Run code; show the value of an expression at its end, or a traceback of its own frames."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        body = ast.parse(source, name).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), name, "exec"), space)  # noqa: S102 - that is what it is for
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval"), space))  # noqa: S307
    except BaseException as error:  # noqa: BLE001 - SystemExit as well: only the process's end is an end
        with suppress(Exception):
            sys.stdout.flush()
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != name:
            frames = frames.tb_next
        with suppress(Exception):
            traceback.print_exception(type(error), error.with_traceback(frames), frames, limit=20)


def read(descriptor: int) -> bytes:
    """Read one frame; empty at the end."""
    data = bytearray()
    for size in (HEAD.size, -1):
        most = size if size > 0 else HEAD.unpack(data)[0]
        if size < 0:
            data.clear()
        while len(data) < most:
            piece = os.read(descriptor, min(most - len(data), 1 << 20))
            if not piece:
                return b""
            data += piece
    return bytes(data)


def write(descriptor: int, data: bytes) -> None:
    """Write one frame."""
    rest = memoryview(HEAD.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class Interpreter:
    """The process that interprets, seen from the one that supervises it."""

    def __init__(self, seed: int) -> None:
        code, self._code = os.pipe()
        self._done, done = os.pipe()
        self._output, output = os.pipe()
        self._calls = 0
        self.pid = os.fork()
        if not self.pid:
            with suppress(BaseException):
                os.setsid()
                null = os.open(os.devnull, os.O_RDONLY)
                for source, target in ((null, 0), (output, 1), (output, 2)):
                    os.dup2(source, target)
                for descriptor in range(3, 256):
                    if descriptor not in {code, done, output}:
                        with suppress(OSError):
                            os.close(descriptor)
                interpret(code, done, output, seed)
            os._exit(1)
        for descriptor in (code, done, output):
            os.close(descriptor)
        for descriptor in (self._done, self._output, self._code):
            os.set_blocking(descriptor, False)

    def run(self, source: bytes, seconds: float, most: int) -> tuple[bytes, str]:
        """Run code; return its output, and how the process ended where it did."""
        deadline = time.monotonic() + seconds
        self._calls += 1
        said, awaited = b"", str(self._calls).encode()
        rest, kept, ending = memoryview(HEAD.pack(len(source)) + source), bytearray(), "time"
        while (left := deadline - time.monotonic()) > 0:
            ready = select.select([self._output, self._done], [self._code] if rest else [], [], left)
            if self._output in ready[0]:
                kept += os.read(self._output, 65536)[: most - len(kept)]
            if self._done in ready[0]:
                piece = os.read(self._done, 4096)
                said = (said + piece)[-4096:]  # code may write here as well
                if not piece or awaited in said.split(b"\n"):
                    ending = "" if piece else "exit"
                    break
            if self._code in ready[1]:
                try:
                    rest = rest[os.write(self._code, rest[:4096]) :]
                except OSError:
                    rest = rest[:0]
        with suppress(BlockingIOError):  # once, as threads of the code may print for ever
            kept += os.read(self._output, PIPE)[: most - len(kept)]
        return bytes(kept), ending

    def end(self) -> int:
        """End all processes but this one, and return how the one that interprets ended."""
        signal_all(signal.SIGKILL)
        status = 0
        with suppress(ChildProcessError):
            while True:
                pid, how = os.wait()
                if pid == self.pid:
                    status = how
        for descriptor in (self._code, self._done, self._output):
            os.close(descriptor)
        return status


def signal_all(number: int) -> None:
    """Send a signal to all other processes of this user, who has a confinement of its own."""
    with suppress(ProcessLookupError):
        os.kill(-1, number)


def state_of_files() -> list[tuple[str, int, int, int]]:
    """Return what changes with any file here."""
    found = []
    for folder, folders, names in os.walk("."):
        for name in (*folders, *names):
            with suppress(OSError):
                path = os.path.join(folder, name)  # noqa: PTH118
                facts = os.lstat(path)
                found.append((path, facts.st_ctime_ns, facts.st_size, facts.st_mode))
    return sorted(found)


def replace_files(data: bytes) -> None:
    """Have the files of an archive here, and no others; folders that it has stay, as code may be in one."""
    kept = set[str]()
    if data:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            kept = {os.path.normpath(entry.name) for entry in archive if entry.isdir()}
    for folder, folders, names in os.walk(".", topdown=False):
        for name in (*names, *folders):
            path = os.path.join(folder, name)  # noqa: PTH118
            with suppress(OSError):  # a folder whose owner may not look into it
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    os.unlink(path)  # noqa: PTH108
                elif os.path.normpath(path) not in kept:
                    os.rmdir(path)  # noqa: PTH106
    unpack(data)


def serve(channel: int) -> None:
    """Answer requests until the other side hangs up."""
    interpreter: Interpreter | None = None
    state: list[tuple[str, int, int, int]] | None = None
    while data := read(channel):
        request = json.loads(data)
        if request["files"] is not None:
            replace_files(base64.b64decode(request["files"]))
            state = None
        if state is None:
            state = state_of_files()
        if interpreter is None:
            interpreter = Interpreter(int(request["seed"]))
        else:
            signal_all(signal.SIGCONT)
        source = str(request["code"]).encode("utf-8", "replace")
        output, ending = interpreter.run(source, float(request["seconds"]), int(request["output"]))
        status = 0
        if ending:
            status, interpreter = interpreter.end(), None
        else:
            signal_all(signal.SIGSTOP)
        now = state_of_files()
        files = packed(int(request["disk"])) if now != state else b""
        said = {
            "output": base64.b64encode(output).decode(),
            "ending": ending,
            "status": status,
            "files": None if files is None else base64.b64encode(files).decode(),
            "changed": now != state,
        }
        state = now
        write(channel, json.dumps(said).encode())


def main() -> None:
    """Take the socket from the standard input, and serve it in a folder for files."""
    channel, null = os.dup(0), os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    Path("files").mkdir()
    os.chdir("files")
    serve(channel)


if __name__ == "__main__":
    main()
