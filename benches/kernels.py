"""Drives `trunkline-bench`, the program that times the core's kernels beside their floors in its own process."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


def names(program: Path) -> list[str]:
    """Every case it knows."""
    return subprocess.run([program, "list"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()


@dataclass(frozen=True)
class Round:
    """Seconds that one call took."""

    kernel: float
    floor: float


class Kernel:
    """One case in a process of its own, and a clock that advances by what that process measured."""

    def __init__(self, program: Path, name: str) -> None:
        self._process = subprocess.Popen([program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        item, items, floor = self._read().split("\t")
        self.item, self.items, self.floor = item, int(items), floor
        self.rounds: list[Round] = []

    def _read(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            message = f"trunkline-bench ended with {self._process.wait()}"
            raise RuntimeError(message)
        return line.rstrip("\n")

    def measure(self) -> None:
        """Time the kernel and its floor once each, one after the other."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        kernel, floor = (float(text) / 1e9 for text in self._read().split("\t"))
        self.rounds.append(Round(kernel, floor))

    def clock(self) -> float:
        """Seconds that all calls of the kernel have taken, as its own process saw them."""
        return sum(each.kernel for each in self.rounds)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
