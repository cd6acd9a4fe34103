"""A study that is stopped, or whose processes are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from studies import study
from studies.study import Plan, run_study
from trunkline.errors import WorkerError

BENCHES = Path(__file__).parents[2] / "benches"


def die(_cell):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_ends_the_study_with_an_error(monkeypatch):
    monkeypatch.setattr(study, "run_cell", die)
    plan = Plan(("null",), ("Chain(4)",), seeds=2, questions=1, judged=0, processes=1)
    with pytest.raises(WorkerError, match="was killed"):
        run_study(plan, lambda line: None)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_study_that_is_stopped_says_so_in_its_code_and_leaves_no_traceback(number, code):
    # One cell of twelve is done when it is stopped.
    command = [sys.executable, str(BENCHES / "study.py"), "strategies"]
    options = ["--presets", "null", "--strategies", "chain", "--questions", "8", "--seeds", "12", "-w", "2"]
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
