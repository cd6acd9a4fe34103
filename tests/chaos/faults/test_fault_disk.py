"""Disks that are full or fail, by a shim between SQLite and the kernel; --full-faults fails every call."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import CAPITALS
from foreign import capital_cities, serving
from resuming import environment

from trunkline.store.reader import RunReader

FULL = bool(os.environ.get("TRUNKLINE_FULL_FAULTS"))

WRITER = """
import contextlib, json, sys
from pathlib import Path
from trunkline.errors import InfrastructureError
from trunkline.store.writer import RunWriter
path, durable = Path(sys.argv[1]), sys.argv[2] == "durable"
acked, code = [], 0
try:
    if path.exists() and path.stat().st_size:
        writer = RunWriter.open(path, durable=durable)
    else:
        writer = RunWriter.create(path, {"seed": 7}, ROWS.tasks, durable=durable, over_stub=True)
        if sys.argv[2] == "begun":
            writer.begin()
    for task in set(range(len(ROWS.tasks))) - set(writer.progress.finished):
        ROWS.commit(writer, task)
        acked.append(task)
    writer.finish("done")
except InfrastructureError as error:
    print(error, file=sys.stderr)
    code = 3
    if sys.argv[2] == "begun":
        with contextlib.suppress(InfrastructureError):
            writer.finish("failed")
print(json.dumps(acked))
sys.exit(code)
"""

ROWS = """
from trunkline import _core
from trunkline.store.derive import rows
from trunkline.types import Task

class ROWS:
    tasks = [Task.ask(f"Who is {n}?", "Ada", id=f"q{n}") for n in range(12)]

    @staticmethod
    def commit(writer, number):
        core = _core.CoreTree()
        text = b'{"role":"user","content":"%s"}' % (b"x" * 3000)
        point = core.append(0, 1, text)
        deltas = [core.delta()]
        rollout = core.open(point, [0, 0], 0)
        core.close(rollout, "llm_error", None, "no reply")
        deltas.append(core.delta())
        writer.commit([(number, seq, data) for seq, data in enumerate(deltas)], [(number, *rows(core))])
"""
SCRIPT = ROWS + WRITER


def write(path: Path, durable: str = "", **env: str) -> tuple[int, list[int], str]:
    """Write a run in a process of its own: its exit code, the tasks it was told are in the file, what it said."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), durable],
        env=environment() | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def places(calls: int, few: int) -> list[int]:
    """Which calls to fail: a few, spread over all, or every one."""
    return list(range(1, calls + 1)) if FULL else sorted({1 + calls * place // few for place in range(few)})


def count(shim: Path, folder: Path, call: str, durable: str) -> int:
    """How many calls an undisturbed run makes."""
    counted = folder / "count"
    env = {"LD_PRELOAD": str(shim), "FAIL_CALL": call, "FAIL_AT": "-1", "FAIL_ERRNO": "5", "FAIL_COUNT": str(counted)}
    code, acked, _ = write(folder / "whole", durable, FAIL_FILE=str(folder / "whole"), **env)
    assert (code, len(acked)) == (0, 12)
    return int(counted.read_text()) if counted.exists() else 0


@pytest.mark.parametrize(
    ("call", "number", "durable", "lasts"),
    [
        ("write", errno.ENOSPC, "", "on"),
        ("write", errno.EDQUOT, "durable", "on"),
        ("write", errno.EIO, "", "once"),
        ("write", errno.EROFS, "durable", "on"),
        ("fsync", errno.EIO, "durable", "once"),
        ("fsync", errno.EIO, "durable", "on"),
        ("ftruncate", errno.EIO, "", "once"),
    ],
)
def test_nothing_counts_that_is_not_in_the_file(
    shim: Path, tmp_path: Path, call: str, number: int, durable: str, lasts: str
):
    calls = count(shim, tmp_path, call, durable)
    assert calls or call == "ftruncate"
    stopped = 0
    for at in places(calls, 4):
        path = tmp_path / f"r{at}"
        env = {"LD_PRELOAD": str(shim), "FAIL_CALL": call, "FAIL_AT": str(at), "FAIL_ERRNO": str(number)}
        env |= {"FAIL_FROM": "1"} if lasts == "on" else {}
        code, acked, said = write(path, durable, FAIL_FILE=str(path), **env)
        assert code in {0, 3}
        assert said.count("\n") == (1 if code else 0), "one line"
        stopped += code == 3
        if not path.exists():
            assert acked == []
            continue
        if path.stat().st_size:
            with RunReader.open(path) as reader:
                done = [number for number, _ in reader.rows()]
                assert set(acked) <= set(done)
                assert reader.check() == []
        # Space was freed: the rest is done, and what was done is left alone.
        code, acked, said = write(path, durable)
        assert (code, said) == (0, "")
        with RunReader.open(path) as reader:
            assert len(list(reader.rows())) == 12
            assert reader.check() == []
    assert stopped or call == "ftruncate" or (call, lasts) == ("write", "once")


def test_after_a_sync_that_failed_once_nothing_more_is_said_to_be_done(shim: Path, tmp_path: Path):
    for at in places(count(shim, tmp_path, "fsync", "durable"), 5)[:-1]:
        path = tmp_path / f"r{at}"
        env = {"LD_PRELOAD": str(shim), "FAIL_CALL": "fsync", "FAIL_AT": str(at), "FAIL_ERRNO": str(errno.EIO)}
        code, acked, _ = write(path, "durable", FAIL_FILE=str(path), **env)
        assert code == 3 or len(acked) == 12, "a sync of what is in the log as well is made up for later"


def test_a_commit_that_fails_in_the_middle_is_no_loss(shim: Path, tmp_path: Path):
    first = count(shim, tmp_path, "write", "begun") // 3
    # The log was begun anew as the run began: behind the half of a frame stands one of the round before.
    for at in range(first, first + 14):
        path = tmp_path / f"r{at}"
        env = {"LD_PRELOAD": str(shim), "FAIL_CALL": "write", "FAIL_AT": str(at), "FAIL_ERRNO": str(errno.ENOSPC)}
        code, acked, _ = write(path, "begun", FAIL_FILE=str(path), FAIL_FROM="1", **env)
        assert code == 3
        with RunReader.open(path) as reader:
            assert {number for number, _ in reader.rows()} >= set(acked)
            assert reader.check() == []


def test_a_run_stops_in_one_line_when_its_disk_is_full_and_goes_on_once_there_is_space(shim: Path, tmp_path: Path):
    lines = [json.dumps({"id": c, "question": f"Capital of {c}?", "answer": a}) for c, a in CAPITALS.items()]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))

    def ask(url: str, out: Path, **env: str) -> subprocess.CompletedProcess[str]:
        told = ["--model", "m", "--base-url", url, "--tools", "atlas:lookup", "--rollouts", "2", "-c", "1", "-w", "0"]
        command = [sys.executable, "-m", "trunkline.cli", "run", str(tmp_path / "q.jsonl"), *told, "--out", str(out)]
        shimmed = environment() | {"FAIL_FILE": str(out), "FAIL_CALL": "write", "FAIL_ERRNO": str(errno.ENOSPC)} | env
        return subprocess.run(command, env=shimmed, capture_output=True, text=True, check=False, timeout=60)

    with serving(capital_cities, delay=0.02) as server:
        counted = {"LD_PRELOAD": str(shim), "FAIL_COUNT": str(tmp_path / "count"), "FAIL_AT": "-1"}
        assert ask(server.url, tmp_path / "whole", **counted).returncode == 0
        calls, out = int((tmp_path / "count").read_text()), tmp_path / "r"
        done = ask(server.url, out, LD_PRELOAD=str(shim), FAIL_AT=str(calls // 2), FAIL_FROM="1")
        assert done.returncode == 3, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.count("cannot be written (database or disk is full)") == 1
        with RunReader.open(out) as reader:
            assert reader.check() == []
            before = len(list(reader.rows()))
        done = ask(server.url, out)
        assert done.returncode == 0, done.stderr
        assert f"resumes {out}: {before} of 5" in done.stderr
    with RunReader.open(out) as reader:
        assert reader.check() == []
        assert len(list(reader.rows())) == 5


def test_a_durable_run_syncs_every_commit_and_another_does_not(shim: Path, tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    # Twelve tasks are committed; the others are those of making the file and of closing it.
    assert count(shim, tmp_path / "a", "fsync", "durable") >= count(shim, tmp_path / "b", "fsync", "") + 12


def test_a_file_that_may_not_be_written_is_refused_in_one_line(shim: Path, tmp_path: Path):
    path = tmp_path / "r"
    write(path, LD_PRELOAD=str(shim), FAIL_CALL="none", FAIL_FILE=str(path))
    held = path.read_bytes()
    program = "import sys; from trunkline.store.writer import RunWriter; RunWriter.open(sys.argv[1])"
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        done = subprocess.run(
            [*unprivileged(), sys.executable, "-c", program, str(path)],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        tmp_path.chmod(0o755)
    assert "InfrastructureError" in done.stderr
    assert "cannot be written: Permission denied" in done.stderr
    assert path.read_bytes() == held


def unprivileged() -> list[str]:
    """What runs a command without the right to write everywhere."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv to drop that")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
