"""Where an export goes: a file that is there whole or not at all, and that is nobody else's."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from exporting import read_lines, write_run
from groves import D6, grove

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.store.export import target as module
from trunkline.store.export.target import target


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a.run", [grove(D6)])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def put(out: Path, data: bytes, then: Callable[[], object] = str, *, force: bool = False) -> None:
    """Write a file; when all of it is written, something comes to pass, or is raised."""
    with target(out, force=force) as stream:
        stream.write(data)
        found = then()
        if isinstance(found, BaseException):
            raise found


@pytest.mark.parametrize("force", [False, True])
def test_the_run_itself_is_never_replaced(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "hard").hardlink_to(run)
    held = run.read_bytes()
    for out in (run, "a.run", f"../{tmp_path.name}/a.run", "link", "hard", "a.run-wal", "a.run-shm"):
        with pytest.raises(ConfigError, match="that is the run itself"):
            tl.export(run, out, format="messages", force=force)
    assert run.read_bytes() == held
    assert names(tmp_path) == ["a.run", "hard", "link"]


def test_no_database_is_replaced(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "b.run", [grove(D6)])
    held = other.read_bytes()
    with pytest.raises(ConfigError, match="a database is there, which may be a run"):
        tl.export(run, other, format="messages", force=True)
    assert other.read_bytes() == held
    with sqlite3.connect(other) as connection:
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (1,)
    connection.close()


def test_a_file_that_is_there_is_replaced_when_that_is_said(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    out.write_text("mine")
    with pytest.raises(ConfigError, match=r"x\.jsonl: it is there already; force=True \(--force\) replaces it"):
        tl.export(run, out)
    assert out.read_text() == "mine"
    assert tl.export(run, out, force=True).records == 6
    assert len(read_lines(out)) == 6
    assert names(tmp_path) == ["a.run", "x.jsonl"]


def test_a_link_stays_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "there.jsonl").write_text("mine")
    out = tmp_path / "x.jsonl"
    out.symlink_to(tmp_path / "deep" / "there.jsonl")
    tl.export(run, out, force=True)
    assert out.is_symlink()
    assert len(read_lines(tmp_path / "deep" / "there.jsonl")) == 6
    (tmp_path / "nowhere.jsonl").symlink_to(tmp_path / "deep" / "new.jsonl")
    with pytest.raises(ConfigError, match="it is there already"):
        tl.export(run, tmp_path / "nowhere.jsonl")
    tl.export(run, tmp_path / "nowhere.jsonl", force=True)
    assert len(read_lines(tmp_path / "deep" / "new.jsonl")) == 6


def test_what_is_no_file_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name, why in (("folder.jsonl", "it is a directory"), ("pipe.jsonl", "it is no regular file")):
        with pytest.raises(ConfigError, match=why):
            tl.export(run, tmp_path / name, force=True)
    with pytest.raises(ConfigError, match="No such file or directory"):
        tl.export(run, tmp_path / "none" / "x.jsonl")
    assert stat.S_ISFIFO((tmp_path / "pipe.jsonl").stat().st_mode)
    assert names(tmp_path) == ["a.run", "folder.jsonl", "pipe.jsonl"]


def test_a_long_name_can_be_written(run: Path, tmp_path: Path) -> None:
    out = tmp_path / ("x" * 249 + ".jsonl")
    assert tl.export(run, out).records == 6


def test_a_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "x"
    with target(out, force=False) as stream:
        stream.write(b"half")
        stream.flush()
        assert not out.exists()
    assert out.read_bytes() == b"half"
    assert out.stat().st_nlink == 1
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~mask
    with pytest.raises(KeyboardInterrupt):
        put(out, b"other", KeyboardInterrupt, force=True)
    assert out.read_bytes() == b"half"
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("links", [True, False])
def test_who_makes_the_file_meanwhile_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def refuse(path: Path, other: Path) -> None:
        raise PermissionError(1, "no links here")

    if not links:
        monkeypatch.setattr(module.Path, "hardlink_to", refuse)
    out = tmp_path / "x"
    with pytest.raises(ConfigError, match="another process has made it meanwhile"):
        put(out, b"mine", lambda: out.write_bytes(b"theirs"))
    assert out.read_bytes() == b"theirs"
    put(tmp_path / "y", b"mine")
    assert (tmp_path / "y").read_bytes() == b"mine"
    assert names(tmp_path) == ["x", "y"]
