"""A run that is drained or stopped through its socket."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from atlas import agent
from commands import trunkline
from foreign import Server, capital_cities, serving

import trunkline as tl
from trunkline.controller import control_socket
from trunkline.controller.control_socket import ControlSocket, ask, is_own
from trunkline.errors import UsageError
from trunkline.observability.observers import Progress
from trunkline.runner.run import Interrupted
from trunkline.store.reader import RunReader

TASKS = [tl.Task.ask(f"Capital of {c}?", "Tokyo", id=f"{c}{n}") for n in range(40) for c in ("Japan", "Chile")]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own for sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "trunkline"


@pytest.fixture
def slow() -> object:
    with serving(capital_cities, delay=0.3) as server:
        yield server


def asked_when_begun(path: Path, *actions: str) -> threading.Thread:
    """A thread that asks, once something has grown."""

    def grown() -> bool:
        with contextlib.suppress(UsageError):
            return bool(ask(path, "progress")["calls"])
        return False

    def work() -> None:
        while not grown():
            time.sleep(0.01)
        for action in actions:
            with contextlib.suppress(UsageError):  # it may have ended meanwhile
                ask(path, action)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("actions", [("drain",), ("drain", "drain"), ("stop",), ("drain", "stop")])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_socket_does_what_signals_do(
    slow: Server, tmp_path: Path, runtime: Path, actions: tuple[str, ...], workers: int
) -> None:
    path = tmp_path / ("deep" * 40) / "a.run"  # longer than a socket's path may be
    thread = asked_when_begun(path, *actions)
    with pytest.raises(Interrupted, match="trunkline resume"):
        tl.run(agent(), TASKS, llm=tl.LLM(slow.url, max_concurrency=8), out=path, workers=workers)
    thread.join()
    with RunReader.open(path) as reader:
        assert reader.meta["state"] == "interrupted"
        assert reader.check() == []
        assert reader.finished < len(TASKS)
    assert not runtime.exists()
    assert not is_own(path)
    done = trunkline(path.parent, "ctl", path.name, "drain")
    assert done.returncode == 2
    assert "no process of this user drives this run now" in done.stderr


async def test_a_run_in_a_loop_of_ones_own_is_drained(slow: Server, tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    thread = asked_when_begun(path, "drain")
    found = await tl.arun(agent(), TASKS, llm=tl.LLM(slow.url, max_concurrency=8), out=path, workers=0)
    thread.join()
    assert found.state == "interrupted"


def test_the_socket_is_its_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.run"
    path.touch()
    seen: list[bool] = []
    with ControlSocket(path, seen.append, Progress(3, 12, tasks_done=2)):
        place = control_socket._address(path)
        assert ask(path, "progress")["tasks_done"] == 2
        assert seen == []
        assert ask(path, "drain")["asked"] == "drain"
        for said in (b"", b"\n", b"kill\n", b"\xff\xfe\n", b"x" * 70_000 + b"\n"):
            with socket.socket(socket.AF_UNIX) as other, contextlib.suppress(OSError):
                other.settimeout(10)
                other.connect(place)
                other.sendall(said)
                other.shutdown(socket.SHUT_WR)
                assert b"error" in other.recv(1000)
        assert ask(path, "stop")["asked"] == "stop"
    assert seen == [False, True]


def test_another_user_is_neither_answered_nor_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.run"
    path.touch()
    seen: list[bool] = []
    with ControlSocket(path, seen.append, Progress(1, 1)):
        with monkeypatch.context() as patch:
            patch.setattr(control_socket, "_peer", lambda _connection: os.getuid() + 1)
            assert not is_own(path)
            with pytest.raises(UsageError, match="nothing to drain"):
                ask(path, "drain")
            with socket.socket(socket.AF_UNIX) as other:
                other.settimeout(10)
                other.connect(control_socket._address(path))
                with contextlib.suppress(OSError):
                    other.sendall(b"drain\n")
                    assert other.recv(1000) == b""
        assert is_own(path)
    assert seen == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.touch()
    with ControlSocket(path, lambda _: None, Progress(1, 1)):
        with ControlSocket(path, lambda _: None, Progress(2, 2)):
            assert ask(path, "progress")["tasks"] == 1
        assert ask(path, "progress")["tasks"] == 1
    assert not is_own(path)
