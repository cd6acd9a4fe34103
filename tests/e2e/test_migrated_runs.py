"""Run files of an earlier version are brought to the present one, and the original is kept."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from commands import Done, trunkline
from old_runs import FIGURES, begun, digests, figures, unpack

import trunkline as tl
from trunkline.errors import DamagedRunFile, InfrastructureError, RunFileError
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.store.migrate import migrate, migrations
from trunkline.store.schema import SCHEMA_VERSION

RUNS = json.loads(FIGURES.read_text("utf-8"))["runs"]
INTERRUPTED = [name for name in RUNS if "whole" in RUNS[name]]


def said(done: Done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def version(path: Path) -> object:
    return asked(path, "PRAGMA user_version")[0][0]


UNSEALED = "SELECT count(*) FROM trees WHERE rows_sum IS NULL OR calls_sum IS NULL OR tools_sum IS NULL"


@pytest.mark.parametrize("name", RUNS)
def test_a_migrated_file_is_sound_and_says_what_it_said(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    held = path.read_bytes()
    assert version(path) == 7
    done = migrate(path, out := tmp_path / "new.run")
    assert done is not None
    assert (done.path, done.kept, done.schema) == (out, path, 7)
    assert path.read_bytes() == held
    assert (version(out), asked(out, UNSEALED)) == (SCHEMA_VERSION, [(0,)])
    with tl.RunReader.open(out) as reader:
        assert reader.check() == []
        assert [one.schema for one in migrations(reader.meta)] == [7]
    known = {field: value for field, value in RUNS[name].items() if field != "whole"}
    assert figures(out) == known
    assert begun(out) == begun(path)
    assert {file.name for file in tmp_path.glob("*run*")} <= {f"{name}.run", "new.run"}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_run_goes_on_after_it_was_migrated(
    name: str, tmp_path: Path, world: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    path = unpack(name, tmp_path)
    assert migrate(path) is not None
    workers = "1" if name == "killed-program" else "0"
    said(trunkline(tmp_path, "resume", path.name, "--base-url", url, "--workers", workers, "--fail-on-error", "9"))
    assert digests(path) == RUNS[name]["whole"]
    said(trunkline(tmp_path, "check", path.name))


def test_without_a_new_name_the_original_is_renamed(tmp_path: Path) -> None:
    path = unpack("chain", tmp_path)
    held = path.read_bytes()
    first = said(trunkline(tmp_path, "migrate", "chain.run"))
    assert first == (
        f"chain.run: schema {SCHEMA_VERSION}, every row with its checksum; the original (schema 7) is chain.run.1\n"
    )
    assert (tmp_path / "chain.run.1").read_bytes() == held
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chain.run", "chain.run.1"]
    again = path.read_bytes()
    assert "nothing to migrate" in said(trunkline(tmp_path, "migrate", "chain.run"))
    assert path.read_bytes() == again
    assert not (tmp_path / "chain.run.2").exists()


def test_a_damaged_cell_of_a_migrated_file_is_found(tmp_path: Path) -> None:
    migrate(unpack("chain", tmp_path), path := tmp_path / "new.run")
    changed(path, "UPDATE calls SET queue = queue + 1 WHERE call = 3")
    assert trunkline(tmp_path, "check", "new.run").returncode == 1


def test_rows_that_do_not_follow_are_not_given_checksums(tmp_path: Path) -> None:
    path = unpack("chain", tmp_path)
    changed(path, "UPDATE rollouts SET reward = 1 - reward WHERE rollout = 0 AND reward IS NOT NULL")
    held = path.read_bytes()
    with pytest.raises(DamagedRunFile, match="trunkline recover"):
        migrate(path)
    assert trunkline(tmp_path, "migrate", "chain.run", "new.run").returncode == 3
    assert path.read_bytes() == held
    assert [file.name for file in tmp_path.iterdir()] == ["chain.run"]


def test_a_task_that_was_finished_in_an_earlier_schema_gets_its_checksums_later(tmp_path: Path) -> None:
    path = unpack("chain", tmp_path)
    said(trunkline(tmp_path, "score", "chain.run", "--reward", "contains"))
    changed(path, "UPDATE trees SET rows_sum = NULL, calls_sum = NULL, tools_sum = NULL WHERE task = 0")
    assert version(path) == SCHEMA_VERSION
    assert migrate(path, tmp_path / "new.run") is not None
    assert asked(tmp_path / "new.run", UNSEALED) == [(0,)]
    said(trunkline(tmp_path, "check", "new.run"))


@pytest.mark.parametrize("out", [None, "new.run"])
def test_a_file_of_a_later_version_is_refused(out: str | None, tmp_path: Path) -> None:
    path = unpack("chain", tmp_path)
    changed(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(RunFileError, match=f"schema version {SCHEMA_VERSION + 1}, but {SCHEMA_VERSION} is read here"):
        migrate(path, out and tmp_path / out)
    assert [file.name for file in tmp_path.iterdir()] == ["chain.run"]


def test_what_is_there_or_being_written_is_left_alone(tmp_path: Path) -> None:
    path, other = unpack("chain", tmp_path), unpack("math", tmp_path)
    with pytest.raises(RunFileError, match="choose another"):
        migrate(path, other)
    from trunkline.store.lock import Lock

    lock = Lock.take(path)
    try:
        with pytest.raises(RunFileError):
            migrate(path)
    finally:
        lock.release()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chain.run", "math.run"]


def test_what_a_killed_migration_left_is_removed(tmp_path: Path) -> None:
    path = unpack("chain", tmp_path)
    held = path.read_bytes()
    (tmp_path / ".chain.run.migrated").write_bytes(held)
    assert migrate(path) is not None
    assert (tmp_path / "chain.run.1").read_bytes() == held
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chain.run", "chain.run.1"]


def test_a_run_gets_its_name_back_where_the_migrated_file_cannot_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unpack("chain", tmp_path)
    held, rename = path.read_bytes(), Path.rename

    def refuse(self: Path, to: Path) -> Path:
        if self.name == ".chain.run.migrated":
            raise OSError(5, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(InfrastructureError, match="Input/output error"):
        migrate(path)
    assert path.read_bytes() == held
    assert [file.name for file in tmp_path.iterdir()] == ["chain.run"]


@pytest.mark.parametrize("out", [None, "new.run"])
def test_who_may_not_read_a_run_may_not_read_it_migrated(out: str | None, tmp_path: Path) -> None:
    path = unpack("chain", tmp_path)
    path.chmod(0o600)
    done = migrate(path, out and tmp_path / out)
    assert done is not None
    assert done.path.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_refused(tmp_path: Path) -> None:
    done = trunkline(tmp_path, "migrate", ".")
    assert (done.returncode, done.stderr) == (2, "error: . is a directory, expected a run file")
