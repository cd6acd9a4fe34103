"""``trunkline init``: each example runs at once as its user runs it; ``trunkline sim exec``, by which it does."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import started, trunkline
from places import ROOT, python_path

import trunkline as tl

EXAMPLES = {"eval": "eval.run", "rl": None, "team": "team.run"}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``trunkline`` and ``python`` are those of the tests."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "trunkline"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m trunkline.cli "$@"\n')
    command.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TRUNKLINE_"))}
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), clean["PATH"]])
    return clean | {"PATH": path, "PYTHONPATH": python_path()}


def asked(command: str | list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    parts = shlex.split(command) if isinstance(command, str) else command
    return subprocess.run(parts, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_at_once(name: str, tmp_path: Path, env: dict[str, str]):
    told = trunkline(tmp_path, "init", name)
    assert told.returncode == 0, told.stderr
    folder = tmp_path / name
    listed = told.stdout.splitlines()
    assert listed == sorted(f"{name}/{path.name}" for path in folder.iterdir())
    assert 1 <= len(listed) <= 3
    for file in folder.iterdir():
        assert (ROOT / "examples" / name / file.name).read_bytes() == file.read_bytes()
        assert file.suffix == ".jsonl" or len(file.read_text().splitlines()) < 45
    said, _, command = told.stderr.strip().partition(" && ")
    assert said == f"next: cd {name}"
    done = asked(command, folder, env)
    assert done.returncode == 0, done.stdout + done.stderr
    if (made := EXAMPLES[name]) is None:
        assert "'groups': 6" in done.stdout
        assert "'loss_mask': (" in done.stdout
        return
    with tl.RunReader.open(folder / made) as reader:
        accuracy = reader.summary().accuracy
        assert reader.check() == []
    assert accuracy is not None
    assert accuracy.value > 0.4
    (line,) = [line for line in (folder / f"{name}.toml").read_text().splitlines() if "; then: " in line]
    after = line.partition("; then: ")[2].partition(",")[0]
    assert asked(after, folder, env).returncode == 0


def test_no_file_is_replaced(tmp_path: Path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "questions.jsonl").symlink_to("nowhere")
    told = trunkline(tmp_path, "init", "eval", "here")
    assert (told.returncode, told.stderr) == (
        2,
        "error: here/questions.jsonl exists: name another folder, or remove it",
    )
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["questions.jsonl"]
    (tmp_path / "file").touch()
    assert "cannot write file/deep: " in trunkline(tmp_path, "init", "rl", "file/deep").stderr


def test_a_command_beside_a_simulator_ends_as_it_would_alone(tmp_path: Path):
    code = "import os, urllib.request as r; r.urlopen(os.environ['OPENAI_BASE_URL'] + '/models').read(); os._exit(7)"
    assert started("sim", "exec", sys.executable, "-c", code, cwd=tmp_path).returncode == 7
    assert started("sim", "exec", "sh", "-c", "kill -9 $$", cwd=tmp_path).returncode == 137
    told = started("sim", "exec", "no-such-command", "--seed", "x", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (2, "error: cannot run no-such-command: No such file or directory\n")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_and_the_simulator(signum: int, tmp_path: Path, env: dict[str, str]):
    wait = "import os, sys, time; print(os.environ['OPENAI_BASE_URL'], flush=True); time.sleep(100)"
    parts = [sys.executable, "-m", "trunkline.cli", "sim", "exec", sys.executable, "-c", wait]
    process = subprocess.Popen(
        parts, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"http://")
    if signum == signal.SIGINT:  # as a terminal sends it, to all processes of the command
        os.killpg(process.pid, signum)
    else:
        process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode == (143 if signum == signal.SIGTERM else 130)


@pytest.mark.parametrize(
    ("script", "code"),
    [("trap '' INT; kill -INT $PPID; exit 7", 7), ("kill -TERM $PPID; exec sleep 100", -signal.SIGTERM)],
)
def test_a_signal_loses_neither_the_exit_code_nor_the_command(
    script: str, code: int, tmp_path: Path, env: dict[str, str]
):
    """Raised as ``waitpid`` returned, it lost the code once in a hundred; as ``Popen`` returned, the command."""
    again = (
        "import os; from trunkline.cli.demo import _run_command\n"
        f"print({{_run_command(['sh', '-c', {script!r}], os.environ) for _ in range(200)}})"
    )
    done = asked([sys.executable, "-c", again], tmp_path, env)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{{{int(code)}}}\n", "")
