"""The copy of an agent's folder: the same files, and no link that leads out of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.rollout.external import supervisor

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
LEADS = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=5).map("/".join)
ENTRIES = st.lists(st.tuples(PATHS, st.none() | LEADS | st.sampled_from(["/etc", "../source/a"])), max_size=6)


def made(root: Path, entries: list[tuple[str, str | None]]) -> None:
    """Make files, and links where there is a place to lead to; leave out what does not fit."""
    root.mkdir()
    for path, leads in entries:
        there = root / path
        if any(parent.is_symlink() or parent.is_file() for parent in [there, *there.parents]) or there.exists():
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        if leads is None:
            there.write_text(path)
        else:
            there.symlink_to(leads)


def links(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_symlink()]


def leads_out(root: Path, link: Path) -> bool:
    return link.readlink().is_absolute() or not Path(os.path.realpath(link)).is_relative_to(root)


@settings(deadline=None)
@given(entries=ENTRIES)
def test_a_folder_is_copied_as_it_is_or_refused(entries: list[tuple[str, str | None]]) -> None:
    top = Path(os.path.realpath(tempfile.mkdtemp()))
    try:
        made(top / "source", entries)
        shutil.copytree(top / "source", top / "deeper" / "plain", symlinks=True)
        plain = top / "deeper" / "plain"
        copy = top / "deeper" / "copy"
        copy.mkdir()
        any_out = any(leads_out(top / "source", link) for link in links(top / "source"))
        any_out = any_out or any(leads_out(plain, link) for link in links(plain))
        try:
            supervisor._copy_folder(top / "source", copy, 1 << 20)
        except supervisor._Refused:
            # By its names, a link may leave the folder and come back by another link; no folder needs that.
            assert any_out or any(".." in link.readlink().parts for link in links(plain))
            return
        assert not any_out
        there = sorted(path.relative_to(plain) for path in plain.rglob("*"))
        assert sorted(path.relative_to(copy) for path in copy.rglob("*")) == there
        for path in there:
            if (plain / path).is_symlink():
                assert (copy / path).readlink() == (plain / path).readlink()
            elif (plain / path).is_file():
                assert (copy / path).read_text() == (plain / path).read_text()
                assert (copy / path).stat().st_mtime_ns == (top / "source" / path).stat().st_mtime_ns
    finally:
        shutil.rmtree(top)


@pytest.mark.parametrize("path", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize("link", [None, "a", "a/b", "a/b/c"])
def test_no_link_is_followed_on_the_way_to_an_answer(tmp_path: Path, path: str, link: str | None) -> None:
    other, folder = tmp_path / "other", tmp_path / "folder"
    for root, text in ((other, "theirs"), (folder, "its own")):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(text)
    followed = link is not None and f"{path}/".startswith(f"{link}/")
    if followed and link is not None:
        shutil.move(folder / link, tmp_path / "away")
        (folder / link).symlink_to(other / link)
    assert supervisor._text_of(str(folder), path, 3) == (None if followed else b"own")
