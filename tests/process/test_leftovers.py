"""Child processes, frames, and what ended processes leave behind: processes and folders."""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from descriptors import open_descriptors
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._internal import leftovers
from trunkline._internal.child import Child, read_frame
from trunkline._internal.leftovers import (
    MARK,
    end_marked,
    make_folder,
    marked,
    new_mark,
    remove_folder,
    sweep,
)
from trunkline._internal.processes import HEAD, children, drain, frame, receive


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, empty."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_thread_that_ends_hides_no_child_of_another(monkeypatch: pytest.MonkeyPatch):
    """Threads are listed first, and read one by one: one may end in between."""
    child = subprocess.Popen(["sleep", "60"])
    read = Path.read_text

    def gone(path: Path, *more: object) -> str:
        if path.name == "children" and path.parent.name == vanished:
            raise FileNotFoundError(path)
        return read(path, *more)

    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        listed = [folder.name for folder in Path("/proc/self/task").iterdir()]
        found = []
        for vanished in listed:  # noqa: B007 - gone() reads it
            monkeypatch.setattr(Path, "read_text", gone)
            found.append(child.pid in children(os.getpid()))
            monkeypatch.undo()
    finally:
        over.set()
        thread.join()
        child.kill()
        child.wait()
    assert len(listed) > 1
    assert found.count(False) == 1, "only the thread that started it knows of it"


def test_marked_processes_are_found_and_ended_wherever_they_are(monkeypatch: pytest.MonkeyPatch):
    mark = new_mark()
    below = f"{mark}/tool"
    ones = [
        subprocess.Popen(["sleep", "60"], env=os.environ | {MARK: value}, start_new_session=True)
        for value in (mark, below, f"{mark}0")
    ]
    try:
        for one in ones:  # for a moment after exec, a process shows no environment
            while not Path(f"/proc/{one.pid}/environ").read_bytes():
                time.sleep(0.001)
        assert marked(mark, below=False) == [ones[0].pid]
        assert sorted(marked(mark)) == [ones[0].pid, ones[1].pid]
        end_marked(mark, below=False)
        assert ones[0].wait(10) == -9
        assert ones[1].poll() is None
        end_marked(mark)
        assert ones[1].wait(10) == -9
        assert ones[2].poll() is None, "another mark that begins with the same letters"
    finally:
        for one in ones:
            one.kill()
            one.wait()


OWNER = """
from trunkline._internal.leftovers import make_folder
print(make_folder("trunkline-tool-")[0], flush=True)
input()
"""


def test_a_sweep_removes_the_folders_of_the_dead_and_no_other(tmp: Path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=os.environ | {"TMPDIR": str(tmp)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    folder = Path(owner.stdout.readline().strip())
    (folder / "file").write_text("x")
    elsewhere = tmp / "elsewhere"
    elsewhere.mkdir()
    (tmp / "trunkline-tool-link-locked").symlink_to(elsewhere)
    kept = [elsewhere, tmp / "trunkline-tool-old", tmp / "another-locked", tmp / "trunkline-tool-file-locked"]
    for path in kept[1:3]:
        path.mkdir()
    kept[3].touch()
    own, lock = make_folder("trunkline-code-")
    sweep()
    assert (folder / "file").exists(), "its owner lives"
    owner.kill()
    owner.communicate()
    sweep()
    assert not folder.exists()
    assert all(path.exists() for path in [*kept, Path(own)])
    os.close(lock)
    sweep()
    assert not Path(own).exists()


def test_a_folder_that_a_sweep_takes_before_it_is_locked_is_made_again(tmp: Path, monkeypatch: pytest.MonkeyPatch):
    sweeps = [sweep, sweep, lambda: None]

    def flock(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        sweeps.pop(0)()
        monkeypatch.setattr(fcntl, "flock", flock)
        lock(descriptor, how)

    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    folder, descriptor = make_folder("trunkline-tool-")
    assert sweeps == []
    assert [str(path) for path in tmp.iterdir()] == [folder]
    assert os.path.samestat(Path(folder).stat(), os.fstat(descriptor))
    os.close(descriptor)


def test_a_folder_deeper_than_any_path_is_removed(tmp: Path):
    top = tmp / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_folder(str(top), 0.0)
    assert top.exists(), "there was no time"
    remove_folder(str(top), math.inf)
    assert not top.exists()


TREE = st.recursive(
    st.sampled_from(["file", "link", "fifo"]),
    lambda inside: st.tuples(
        st.sampled_from([0o700, 0o500, 0o000]),
        st.dictionaries(
            st.sampled_from(["a", "b", "\udcff", ".", " "]).map(lambda name: f"-{name}"), inside, max_size=4
        ),
    ),
    max_leaves=12,
)


def plant(path: Path, tree: object, outside: Path) -> None:
    if tree == "file":
        path.write_text("x")
    elif tree == "link":
        path.symlink_to(outside)
    elif tree == "fifo":
        os.mkfifo(path)
    else:
        mode, inside = tree
        path.mkdir()
        for name, below in inside.items():
            plant(path / name, below, outside)
        path.chmod(mode)


@settings(max_examples=50)
@given(TREE)
def test_whatever_is_in_a_folder_goes_and_nothing_outside(tree: object):
    with tempfile.TemporaryDirectory() as root:
        outside = Path(root, "outside")
        outside.mkdir()
        (outside / "file").write_text("x")
        top = Path(root, "top")
        top.mkdir()
        plant(top / "tree", tree, outside)
        remove_folder(str(top), math.inf)
        assert not top.exists()
        assert (outside / "file").exists()
    remove_folder(str(top))  # one that is not there is none to complain about


def test_a_process_that_starts_others_as_fast_as_they_are_killed_ends_the_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leftovers, "_END", 0.0)
    mark = new_mark()
    child = subprocess.Popen(["sleep", "60"], env=os.environ | {MARK: mark})
    try:
        end_marked(mark)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@settings(max_examples=100)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=4), st.integers(1, 9), st.integers(0, 30))
def test_frames_are_read_whatever_pieces_they_come_in(payloads: list[bytes], most: int, cut: int):
    data = bytearray(b"".join(map(frame, payloads)))
    assert len(data) == sum(HEAD.size + len(payload) for payload in payloads)

    def read(size: int) -> bytes:
        piece = bytes(data[: min(size, most)])
        del data[: len(piece)]
        return piece

    assert [receive(read) for _ in payloads] == payloads
    assert receive(read) == b"", "the stream has ended"
    data += frame(b"x" * 31)[: HEAD.size + cut]
    assert receive(read) == b"", "it ended within a frame"


async def test_a_frame_that_is_too_long_is_refused_before_it_is_read():
    reader = asyncio.StreamReader()
    reader.feed_data(frame(b"12345") + HEAD.pack(6))
    assert await read_frame(reader, 5) == b"12345"
    with pytest.raises(EOFError, match="a frame of 6 bytes was announced; the limit is 5"):
        await read_frame(reader, 5)


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
below = subprocess.Popen(["sleep", "60"])
print(below.pid, flush=True)
time.sleep(60)
"""


def test_a_child_that_ignores_a_request_to_end_is_killed_with_its_group():
    child = Child(["-c", STUBBORN], os.environ, stdout=subprocess.PIPE)
    below = int(child.stdout.readline())
    assert os.getpgid(below) == os.getsid(below) == child.pid != os.getpgid(0)
    assert child.end(0.1) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while Path(f"/proc/{below}/stat").exists() and "Z" not in Path(f"/proc/{below}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert child.end() == -signal.SIGKILL, "it says so again"


async def test_a_child_is_waited_for_and_no_other():
    other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])
    ended = asyncio.Event()
    child = Child(["-c", "import sys; raise SystemExit(len(sys.argv))"], os.environ, sockets=2)
    child.watch(ended.set)
    assert await child.wait(30) == 4, "it is told of two sockets and of its parent"
    await asyncio.wait_for(ended.wait(), 10)
    assert not child.alive
    child.close_sockets()
    assert other.wait(10) == 5


def test_a_child_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = open_descriptors()
    with pytest.raises(FileNotFoundError):
        Child(["-c", ""], os.environ, sockets=2, marked=True)
    assert not open_descriptors() - before


TIED = """
import os, sys
from trunkline._internal.processes import die_with_parent
die_with_parent(os.getppid() + int(sys.argv[1]))
print("tied", flush=True)
sys.stdin.read()
"""


def test_a_process_ends_at_once_if_its_parent_is_gone_and_lives_while_it_is_there():
    for other, said, code in ((1, "", 1), (0, "tied\n", 0)):
        tied = subprocess.run([sys.executable, "-c", TIED, str(other)], input="", capture_output=True, text=True)
        assert (tied.stdout, tied.returncode) == (said, code), tied.stderr


ADOPTING = """
import os, subprocess, sys
from trunkline._internal.processes import adopt_orphans, children, end_below
adopt_orphans()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
orphan = int(child.stdout.readline())
assert children(os.getpid()) == [child.pid]
seen = []
ended = end_below(children, lambda statuses: seen.append(dict(statuses)))
assert ended == {child.pid: 9, orphan: 9}, ended
assert seen[0] == {}
assert children(os.getpid()) == []
"""


def test_all_processes_below_one_are_ended_and_waited_for_and_orphans_adopted():
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", ADOPTING, code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_rest_of_a_pipe_is_read_without_waiting_for_its_end():
    read, write = os.pipe()
    os.write(write, b"x" * 1000)
    assert drain(read, 1 << 20) == b"x" * 1000
    assert drain(read, 1 << 20) == b""
    os.close(write)
    assert drain(read, 1 << 20) == b""
    os.close(read)
