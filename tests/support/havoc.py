"""A run by the command line in processes of its own, and somebody who kills them: seeded, again and again."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from trunkline.store.reader import RunReader

MARK = "TRUNKLINE_TEST_MARK"


def choices(url: str) -> int:
    """Draws that a simulator has made so far, as it counts them itself."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=10) as reply:
        return int(re.search(r"^trunkline_sim_choices_total (\d+)", reply.read().decode(), re.MULTILINE)[1])


def marked(mark: str) -> dict[int, int]:
    """Live processes whose environment carries a mark, each with its parent."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    found[int(folder.name)] = int(parent)
        except OSError:
            continue
    return found


@dataclass
class Command:
    """``trunkline run`` over the embedded world, with what it needs to be the same command each time.

    Attributes:
        folder: Where it runs; its run file is ``r.run`` there.
        url: The simulator.
        tasks: Questions it takes.
        workers: Its workers.
        concurrency: Its requests in flight.
        options: Further options.
    """

    folder: Path
    url: str
    tasks: int
    workers: int = 3
    concurrency: int = 24
    options: list[str] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "r.run"

    def start(self) -> subprocess.Popen[str]:
        """Start it, or go on with it."""
        options = {
            "--model": "sim-agent",
            "--base-url": self.url,
            "--limit": self.tasks,
            "--seed": 5,
            "--workers": self.workers,
            "--max-concurrency": self.concurrency,
            "--out": self.file,
        }
        given = [str(part) for option in options.items() for part in option]
        tools = ["--tools", "trunkline.sim.tools:search", "--tools", "trunkline.sim.tools:visit"]
        return subprocess.Popen(
            [sys.executable, "-m", "trunkline.cli", "run", "questions.jsonl", *given, *tools, *self.options],
            cwd=self.folder,
            env=os.environ | {MARK: str(self.folder), "TMPDIR": str(self.folder / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def digests(self) -> dict[str, str]:
        """What each task's tree came to."""
        with RunReader.open(self.file) as reader:
            assert reader.check() == []
            return {task: row.digest for task, row, *_ in reader.rows()}


@dataclass
class Killer:
    """Kills workers, controllers, or all of both, at times that follow a seed.

    Attributes:
        random: Who draws.
        kills: How many are left.
        workers: Workers it has killed.
        controllers: Controllers it has killed.
        said: What the commands said.
    """

    random: random.Random
    kills: int
    workers: int = 0
    controllers: int = 0
    said: list[str] = field(default_factory=list)

    def disturb(self, command: Command, *, pause: tuple[float, float] = (0.15, 0.8), within: float = 300.0) -> None:
        """Run a command, again and again, until it comes to its end by itself with nobody left to kill."""
        deadline = time.monotonic() + within
        process = command.start()
        try:
            while True:
                assert time.monotonic() < deadline, f"it never ends: {self.said[-3:]}"
                try:
                    said, _ = process.communicate(timeout=self.random.uniform(*pause) if self.kills else 5)
                except subprocess.TimeoutExpired:
                    if self.kills:
                        self.strike(command, process)
                    continue
                self.said.append(said)
                if process.returncode >= 0:
                    assert process.returncode == 0, said
                    return
                self.all_gone(command)
                process = command.start()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def strike(self, command: Command, process: subprocess.Popen[str]) -> None:
        """Kill somebody, if somebody is there."""
        workers = [pid for pid, parent in marked(str(command.folder)).items() if parent == process.pid]
        what = self.random.random()
        if what < 0.6 and workers:
            self.kill(self.random.choice(workers))
            self.workers += 1
        elif what < 0.7 and workers:
            # Stopped for a moment only: it is late, and not dead.
            pid = self.random.choice(workers)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.05, 0.3))
            os.kill(pid, signal.SIGCONT)
            return
        elif what < 0.9 or not workers:
            self.kill(process.pid)
            self.controllers += 1
        else:
            for pid in [process.pid, *workers]:
                self.kill(pid)
            self.controllers += 1
        self.kills -= 1

    @staticmethod
    def kill(pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    @staticmethod
    def all_gone(command: Command, within: float = 5.0) -> None:
        """Wait until nothing of a command is left."""
        deadline = time.monotonic() + within
        while left := marked(str(command.folder)):
            assert time.monotonic() < deadline, f"{len(left)} processes outlive their controller"
            time.sleep(0.02)
