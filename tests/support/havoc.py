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

from trunkline.errors import TrunklineError
from trunkline.store.reader import RunReader

MARK = "TRUNKLINE_TEST_MARK"


def choices(url: str) -> int:
    """Draws that a simulator has made so far, as it counts them itself."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=10) as reply:
        return int(re.search(r"^trunkline_sim_choices_total (\d+)", reply.read().decode(), re.MULTILINE)[1])


def descriptors(pid: int) -> int:
    """Descriptors that a process has open; 0 if it is gone."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


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

    def start(self, again: str = "run") -> subprocess.Popen[str]:
        """Start it, or go on with it: by the same command (``run``), or by ``resume`` if its file is there."""
        resumes = again == "resume" and self.is_begun()
        return subprocess.Popen(
            [sys.executable, "-m", "trunkline.cli", *(["resume", str(self.file)] if resumes else self.arguments)],
            cwd=self.folder,
            env=os.environ | {MARK: str(self.folder), "TMPDIR": str(self.folder / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    @property
    def arguments(self) -> list[str]:
        """Arguments of the command line."""
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
        return ["run", "questions.jsonl", *given, *tools, *self.options]

    def is_begun(self) -> bool:
        """Whether the run file holds a turn: one that a kill has left without can only be begun again."""
        try:
            with RunReader.open(self.file) as reader:
                return any(True for _ in reader.calls())
        except TrunklineError:
            return False

    def digests(self) -> dict[str, str]:
        """What each task's tree came to."""
        with RunReader.open(self.file) as reader:
            assert reader.check() == []
            return {task: row.digest for task, row, *_ in reader.rows()}


@dataclass
class Killer:
    """Kills workers, controllers, or all of both, after so many draws as a seed says, or so soon after a start.

    Attributes:
        random: Who draws.
        kills: How many are left.
        gap: Draws of the simulator from a start or a strike to the next strike, at least and at most.
        spares_controllers: Whether it kills workers only.
        workers: Workers it has killed.
        controllers: Controllers it has killed.
        paused: Workers it has stopped for a moment.
        most: Descriptors that a controller had at most.
        said: What the commands said.
    """

    random: random.Random
    kills: int
    gap: tuple[int, int] = (10, 160)
    spares_controllers: bool = False
    workers: int = 0
    controllers: int = 0
    paused: int = 0
    most: int = 0
    said: list[str] = field(default_factory=list)

    def disturb(self, command: Command, within: float = 300.0) -> None:
        """Run a command, again and again, until it comes to its end by itself.

        Raises:
            AssertionError: If it fails, does not end within so many seconds, or leaves a process behind.
        """
        deadline = time.monotonic() + within
        process = command.start()
        try:
            while True:
                while self.kills and self.is_time(command, process, deadline):
                    self.strike(command, process)
                said, _ = process.communicate(timeout=deadline - time.monotonic())
                self.said.append(said)
                self.all_gone(command)
                if process.returncode != -signal.SIGKILL:
                    assert process.returncode == 0, said
                    return
                process = command.start(again=self.random.choice(["run", "resume"]))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def is_time(self, command: Command, process: subprocess.Popen[str], deadline: float) -> bool:
        """Wait for the next strike; False if the command has ended before."""
        due = choices(command.url) + self.random.randint(*self.gap)
        # One in six comes at any time of a start, when nothing may have been drawn yet.
        soon = time.monotonic() + (self.random.uniform(0.0, 2.0) if self.random.random() < 1 / 6 else 1e9)
        while choices(command.url) < due and time.monotonic() < soon:
            assert time.monotonic() < deadline, f"it never ends: {self.said[-3:]}"
            if process.poll() is not None:
                return False
            self.most = max(self.most, descriptors(process.pid))
            time.sleep(0.02)
        return process.poll() is None

    def strike(self, command: Command, process: subprocess.Popen[str]) -> None:
        """Kill somebody, or stop a worker for a moment: it is late then, and not dead."""
        workers = [pid for pid, parent in marked(str(command.folder)).items() if parent == process.pid]
        what = self.random.random() * (0.6 if self.spares_controllers else 1.0)
        if what < 0.1 and workers:
            self.pause(self.random.choice(workers))
            self.paused += 1
        elif what < 0.6 and workers:
            self.kill(self.random.choice(workers))
            self.workers += 1
        elif not self.spares_controllers:
            self.kill(process.pid)
            self.controllers += 1
            for pid in workers if what > 0.85 else ():
                self.kill(pid)
            process.wait()
        self.kills -= 1

    def pause(self, pid: int) -> None:
        """Stop a process for a part of a second."""
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.05, 0.3))
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return

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
