"""The making of the run files in ``tests/fixtures/recorded/files``, which need not be repeated.

It was run with trunkline 0.1.0 when run files had schema 8 and deltas format 7:

PYTHONPATH=tests/support python tests/e2e/recorded/make_files.py

Files are as that version wrote them, but for what is true of one machine alone: who wrote them, and the folders they
were begun in. ``old_files.py`` says which cases they are of; ``figures.json`` has what commands said of each file then.
"""

from __future__ import annotations

import json
import lzma
import signal
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from cases import CASES
from old_files import BEGUN, FILES, FINISHED
from old_runs import figures
from process_cases import begun
from stage import House, Stage

from trunkline.store.sqlite import transaction
from trunkline.store.sums import Seal


def neutral(path: Path) -> None:
    """Take out of a file what is true of this machine alone."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        meta = {key: json.loads(value) for key, value in connection.execute("SELECT * FROM meta") if value[:1] in '[{"'}
        meta["command"] = ["script.py"]
        meta["holder"] |= {"pid": 1000, "host": "localhost"}
        meta["job"]["folder"] = ""
        if meta["job"]["packed"] is not None:
            meta["job"]["packed"]["path"] = []
        facts = {
            key: json.dumps(meta[key], ensure_ascii=False, separators=(",", ":"))
            for key in ("command", "holder", "job")
        }
        with transaction(connection):
            Seal.load(connection).put(connection, facts)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
    held = path.read_bytes()
    for own in {str(Path.cwd()), str(Path.home()), sys.prefix, sys.base_prefix, tempfile.gettempdir()}:
        assert own.encode() not in held, own


def main() -> None:
    """Make all files, and write down what is read of them."""
    FILES.mkdir(exist_ok=True)
    house, found = House(), {}
    for name in [*FINISHED, *BEGUN]:
        stage = Stage(house)
        if name in BEGUN:
            kind, killed = BEGUN[name]
            path, _ = begun(stage, kind, 1, signal.SIGKILL if killed else signal.SIGINT)
        else:
            CASES[FINISHED[name]](stage)
            path = stage.folder / "run.run"
        neutral(path)
        found[name] = figures(path)
        packed = lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        (FILES / f"{name}.run.xz").write_bytes(packed)
        stage.close()
    house.close()
    text = json.dumps(found, indent=1, ensure_ascii=False)
    (FILES / "figures.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
