"""Exports on disks that are full or fail: one error, nothing left behind, and what was there stays."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from exporting import write_run
from groves import Try, grove
from resuming import environment

SCRIPT = """
import json, os, secrets, sys
from pathlib import Path
from trunkline.errors import InfrastructureError
from trunkline.store.export import parquet as columns
from trunkline.store.export.export import export
secrets.token_hex = lambda size: "known"
columns._MOST_ROWS = 20
run, out, count, full = Path(sys.argv[1]), Path(sys.argv[2]), Path(os.environ["FAIL_COUNT"]), sys.argv[3] == "full"

def made():
    return int(count.read_text()) if count.exists() else 0

os.environ["FAIL_AT"] = "1000000"
whole = out.with_name("whole" + out.suffix)
export(run, whole)
calls, found = made(), []
for at in range(1, calls + 1) if full else sorted({1, (calls + 1) // 2, calls}):
    for before in (None, b"mine"):
        out.unlink(missing_ok=True)
        if before is not None:
            out.write_bytes(before)
        os.environ["FAIL_AT"] = str(made() + at)
        try:
            export(run, out, force=before is not None)
            said = ""
        except InfrastructureError as error:
            said = str(error)
        left = out.read_bytes() if out.exists() else None
        names = sorted(path.name for path in out.parent.iterdir() if path != out)
        found.append([said, left == before, left == whole.read_bytes(), names])
os.environ["FAIL_AT"] = "1000000"
export(run, out, force=True)
print(json.dumps([calls, found, out.read_bytes() == whole.read_bytes()]))
"""


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(("call", "number"), [("write", errno.ENOSPC), ("write", errno.EIO), ("fsync", errno.EIO)])
def test_a_disk_that_fails_keeps_what_was_there(shim: Path, tmp_path: Path, suffix: str, call: str, number: int):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    tries = [Try([f"{place} " + str(place) * 500]) for place in range(30)]
    run = write_run(tmp_path / "a.run", [grove(tries, str(task)) for task in range(3)])
    folder = tmp_path / "out"
    folder.mkdir()
    env = {"LD_PRELOAD": str(shim), "FAIL_CALL": call, "FAIL_ERRNO": str(number), "FAIL_COUNT": str(tmp_path / "count")}
    env |= {"FAIL_FILE": str(folder / ".trunkline-export-known")} | ({"FAIL_FROM": "1"} if call == "write" else {})
    full = "full" if os.environ.get("TRUNKLINE_FULL_FAULTS") else "few"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(run), str(folder / f"x{suffix}"), full],
        env=environment() | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    calls, found, again = json.loads(done.stdout)
    assert calls >= (1 if call == "fsync" else 2)
    for said, kept, whole, names in found:
        assert said == f"{folder}/x{suffix} cannot be written: {os.strerror(number)}; nothing of it was kept"
        assert (kept, whole) == (True, False)
        assert names == [f"whole{suffix}"]
    assert again, "once there is space, all of it is written"
