"""A study that is stopped, or whose processes are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from places import ROOT

from studies import study
from studies.answers import study as answers
from studies.study import Plan, run_study
from study import app
from trunkline.errors import WorkerError

BENCHES = ROOT / "benches"


def die(_cell):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_ends_the_study_with_an_error(monkeypatch):
    monkeypatch.setattr(study, "run_cell", die)
    plan = Plan(("null",), ("Chain(4)",), worlds=2, questions=1, judged=0, processes=1)
    with pytest.raises(WorkerError, match="was killed"):
        list(run_study(plan, lambda line: None))


@pytest.mark.parametrize("command", ["strategies", "answers"])
def test_what_was_found_before_a_study_failed_is_written(command, tmp_path, monkeypatch):
    module = study if command == "strategies" else answers
    work = module.run_cell

    def fail(cell):
        if cell.seed == 9:
            raise WorkerError("a process was killed")
        return work(cell)

    monkeypatch.setattr(module, "run_cell", fail)
    out = tmp_path / "tables.md"
    options = ["--presets", "default,null", "--questions", "1", "--first-world", "7", "--worlds", "3", "-w", "0"]
    few = ["--strategies", "chain(4)", "--sharing", "0"] if command == "strategies" else []
    done = CliRunner().invoke(app, [command, *options, *few, "--out", str(out)])
    assert isinstance(done.exception, WorkerError)
    report = out.read_text("utf-8")
    assert report.startswith("**This study was stopped before its end.**")
    assert report.count("2 questions of worlds 7 to 8.") == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_study_that_is_stopped_says_so_writes_what_it_has_and_leaves_no_traceback(number, code, tmp_path):
    # The first cell was kept when it is told of.
    out = tmp_path / "tables.md"
    command = [sys.executable, str(BENCHES / "study.py"), "strategies", "--out", str(out)]
    options = ["--presets", "null", "--strategies", "chain(4)", "--questions", "8", "--worlds", "12", "-w", "2"]
    options += ["--judged", "0", "--sharing", "0"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            process.stderr.readline()
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == code
    assert "Traceback" not in said
    assert out.read_text("utf-8").startswith("**This study was stopped before its end.**")
