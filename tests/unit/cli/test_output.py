from __future__ import annotations

import io
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from call_logs import delta_with

from trunkline.cli import output
from trunkline.cli.output import put
from trunkline.errors import InfrastructureError
from trunkline.store.derive import rows
from trunkline.store.schema import CallRow
from trunkline.store.writer import RunWriter
from trunkline.tree.views import Tree
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = [sys.executable, "-m", "trunkline.cli"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run whose picture fills more than a pipe takes, and whose name could steer a terminal."""
    path = tmp_path / "a\x1b[2Jb.run"
    task = Task.ask("Who?", "Ada", id="q")
    writer = RunWriter.create(path, {}, [task])
    core = Tree(task).core
    point = core.append(0, 1, json.dumps(task.messages[0]).encode())
    for draw in range(40):
        rollout = core.open(point, [0, draw], draw)
        said = json.dumps({"role": "assistant", "content": f"{draw} \u2192 " + "x" * 3_000}).encode()
        core.turn(rollout, said, 0, 0, 0, 5, 0, 2, 0, 9)
        core.close(rollout, "answer", str(draw))
    calls = [CallRow("http://h/v1", 1, 5, 0, 2, 1, 0, -1, 9, 0)] * 40
    writer.commit([(0, 0, delta_with(core, calls))], [(0, *rows(core))])
    writer.finish()
    return path


def shell(line: str, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = shlex.join([*COMMAND, *map(str, arguments)])
    return subprocess.run(
        ["/bin/bash", "-c", line.format(command)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_leaves_is_no_error(run: Path, more: list[str]) -> None:
    done = shell("{} | head -c 5; exit ${{PIPESTATUS[0]}}", "show", run, *more)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) == 5


def test_a_full_disk_is_one_line(run: Path) -> None:
    for command in (["show", run], ["show", run, "--json"], ["check", run]):
        done = shell("{} > /dev/full", *command)
        assert done.returncode == 3
        assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_without_a_standard_output_the_exit_code_tells(run: Path) -> None:
    for command in (["show", run], ["show", run, "--json"], ["check", run]):
        done = shell("{} >&-", *command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_check_shows_a_path_safely_and_keeps_its_exit_code(run: Path) -> None:
    done = shell("{}", "check", run)
    assert done.returncode == 0
    assert done.stdout == f"{run.parent}/a\\x1b[2Jb.run: 1 task, every row follows from the deltas\n"
    torn = run.with_name("torn")
    torn.write_bytes(run.read_bytes())
    connection = sqlite3.connect(torn)
    connection.execute("UPDATE rollouts SET turns = 7")
    connection.commit()
    connection.close()
    done = shell("{}", "check", torn)
    assert done.returncode == 1
    assert 'task "q": rollout 0: turns is 7' in done.stdout
    done = shell("{} | true; exit ${{PIPESTATUS[0]}}", "check", torn)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_unexpected_error_is_not_taken_for_problems_found() -> None:
    program = (
        "import click; from trunkline.cli.app import run_app; run_app(click.Command('x', callback=lambda: {}['y']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (70, "KeyError: 'y'")


@pytest.mark.parametrize("command", [["show"], ["check"], ["resume"], ["answers"], ["score", "--reward", "f1"]])
def test_a_named_pipe_is_refused_before_it_is_opened(tmp_path: Path, command: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = shell("{}", *command, tmp_path / "pipe")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"error: {tmp_path}/pipe is no regular file, but a named pipe")


def test_an_output_that_lacks_the_characters(run: Path) -> None:
    done = shell("{}", "show", run, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u25c6 #0 answer" in done.stdout


class Failing(io.StringIO):
    def __init__(self, problem: OSError) -> None:
        super().__init__()
        self.problem = problem

    def flush(self) -> None:
        raise self.problem


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make", [lambda: None, closed, lambda: Failing(BrokenPipeError(32, "Broken pipe"))])
def test_nothing_is_raised_where_nobody_reads(
    make: Callable[[], io.StringIO | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make()
    monkeypatch.setattr(sys, "stdout", stream)
    put("text")
    assert sys.stdout is stream, "whoever else prints finds what was there"
    assert stream is None or stream.closed or stream.getvalue() == "text\n", "it was tried where it could be"


def test_another_failure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Failing(OSError(5, "Input/output error")))
    with pytest.raises(InfrastructureError, match=r"^cannot write to standard output: Input/output error$"):
        put("text")


def test_long_work_with_large_files_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    told = threading.Event()
    monkeypatch.setattr(output, "_SOON", 0.0)
    monkeypatch.setattr(output, "tell", lambda line: [said.append(line), told.set()])
    file = tmp_path / "run"
    with output.telling("reading", file):
        assert not told.wait(0.05), "there is no such file"
    with file.open("wb") as large:
        large.truncate(output._LARGE)
    with output.telling("reading", file, quiet=True):
        assert not told.wait(0.05)
    with output.telling("reading", file):
        assert told.wait(60)
    assert said == ["reading"]


def test_help_lists_every_option_of_run_once_and_in_a_group():
    from click.testing import CliRunner

    from trunkline.cli.run import run

    text = CliRunner().invoke(run, ["--help"]).output
    shown = re.findall(r"^  (?:-\w, )*(--[\w-]+)", text, re.MULTILINE)
    flags = [next(flag for flag in one.opts if flag.startswith("--")) for one in run.params if one.name != "questions"]
    assert sorted(shown) == sorted([*flags, "--help"])
    assert re.findall(r"--[\w-]+", text.split("Other options:")[1]) == ["--help"]
