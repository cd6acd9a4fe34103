"""Removes the containers and images of a process that has died: a process that reads their names from a pipe.

Started by path, with the standard library only. Each line is ``+`` or ``-``, ``container`` or ``image``, and a name:
``-`` removes an image, and forgets a container, which its owner has removed.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import ClassVar, Final

_REMOVE: Final = {"container": ("rm", "--force", "--volumes"), "image": ("rmi", "--force")}

_PAUSES: Final = (0.0, 1.0, 5.0)
"""Seconds before each try: what was being made when its owner died may come into being after a first one."""

_PATIENCE: Final = 120.0


class Guard:
    """The owner's side: one guard for each engine in a process."""

    _known: ClassVar[dict[str, Guard]] = {}

    def __init__(self, program: str) -> None:
        # Without the mark of its worker, so that it outlives that one.
        env = {name: value for name, value in os.environ.items() if name != "TRUNKLINE_PROCESS"}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
        )
        atexit.register(self.close)

    @classmethod
    def of(cls, program: str) -> Guard:
        """Return this process's guard for an engine's program, started if there is none."""
        guard = cls._known.get(program)
        if guard is None or guard._process.poll() is not None:
            guard = cls._known[program] = cls(program)
        return guard

    def hold(self, kind: str, name: str) -> None:
        """Have something removed when this process ends."""
        self._write(f"+{kind} {name}\n")

    def release(self, kind: str, name: str) -> None:
        """Forget a container; remove an image."""
        self._write(f"-{kind} {name}\n")

    def close(self) -> None:
        """Have everything removed now, and wait for it."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), line.encode("ascii"))


def _remove(program: str, kind: str, names: list[str]) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [program, *_REMOVE[kind], *names],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
        )


def main(program: str) -> None:
    """Read names until the owner ends, then remove what is left."""
    held: dict[str, dict[str, None]] = {kind: {} for kind in _REMOVE}
    for line in sys.stdin:
        kind, name = line[1:].split()
        if line.startswith("+"):
            held[kind][name] = None
            continue
        held[kind].pop(name, None)
        if kind == "image":
            threading.Thread(target=_remove, args=(program, kind, [name])).start()
    for pause in _PAUSES if any(held.values()) else ():
        time.sleep(pause)
        for kind, names in held.items():
            if names:
                _remove(program, kind, list(names))


if __name__ == "__main__":
    main(sys.argv[1])
