from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from trunkline.observability.live import ProgressLine, is_terminal, showing
from trunkline.observability.observers import Progress
from trunkline.protocol.messages import EndpointState, WorkerState


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shot(done: int, **more: object) -> Progress:
    snapshot = Progress(
        tasks=100,
        rollouts=400,
        tasks_done=done // 4,
        rollouts_done=done,
        prompt=done * 1000,
        generated=done * 100,
    )
    for name, value in more.items():
        setattr(snapshot, name, value)
    return snapshot


def test_one_plain_line_every_five_seconds_where_there_is_no_terminal() -> None:
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(stream, clock=clock) as progress:
        for second in range(21):
            clock.now = 100.0 + second
            causes = {"timeout": 1, "429": 2}
            progress.update(shot(second * 10, failed=2, retries=3, retry_causes=causes))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[-1] == (
        "50/100 tasks | 200/400 rollouts | 20 s left | 2 errors, 3 retries (2 × 429, 1 × timeout) | 10.0 rollouts/s | "
        "11k tokens/s"
    )
    assert "\x1b" not in stream.getvalue()


def test_a_pause_that_every_endpoint_asked_for_stands_before_what_a_narrow_terminal_cuts() -> None:
    waits = WorkerState(0.0, 1, 4, 0, 0.0, 0, "", 0.0, endpoints=[EndpointState("http://a/v1", 0, 4, "429", 58.4)])
    progress = ProgressLine(io.StringIO(), clock=Clock())
    assert " | 50/400 rollouts | next request in 58 s | " in progress.line(shot(50, engines={0: waits}), 101.0)


def test_latency_and_the_end() -> None:
    clock = Clock()
    progress = ProgressLine(io.StringIO(), clock=clock)
    clock.now = 140.0
    snapshot = shot(400)
    snapshot.latencies.extend([0.5] * 90 + [2.0] * 10)
    line = progress.line(snapshot, clock.now)
    assert "p50 0.50 s, p95 2.00 s" in line
    assert " | 40 s | " in line


def test_the_first_state_has_no_time_left() -> None:
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(stream, clock=clock) as progress:
        progress.update(Progress(tasks=1, rollouts=1))
    assert stream.getvalue().count("\n") == 1
    assert "left" not in stream.getvalue()
    with ProgressLine(silent := io.StringIO()):
        pass
    assert silent.getvalue() == ""


def test_a_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    clock, stream = Clock(), Terminal()
    with ProgressLine(stream, clock=clock) as progress:
        for step in range(50):
            clock.now += 0.05
            progress.update(shot(step))
    text = stream.getvalue()
    assert "\x1b[?25l" in text
    assert text.count("\x1b[?25h") == 1  # the cursor comes back
    drawings = text.count("rollouts")
    assert 10 < drawings < 40
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert plain.rstrip("\n").endswith(
        "12/100 tasks | 49/400 rollouts | 18 s left | 0 errors, 0 retries | 19.6 rollouts/s | 22k tokens/s"
    )
    drawn = [one.strip().split("\n") for one in plain.split("\r")[:-1] if "rollouts" in one]
    assert max(len(line) for lines in drawn for line in lines) <= 60
    assert all(re.fullmatch(r".* tasks \| .*/s \| .* tokens/s", " | ".join(lines)) for lines in drawn), (
        "what is longer than the terminal stands on more lines, and nothing is cut"
    )


def drawn(monkeypatch: pytest.MonkeyPatch, no_color: str) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    with ProgressLine(stream) as progress:
        progress.update(shot(4, failed=1))
    return stream.getvalue()


def test_without_colours_on_request_the_line_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured, plain = (set(re.findall(r"\x1b\[\d+m", drawn(monkeypatch, value))) for value in ("", "1"))
    assert "\x1b[31m" in coloured, "errors are red"
    assert plain == {"\x1b[0m", "\x1b[1m"}
    assert "\x1b[?25l" in drawn(monkeypatch, "1")


def test_plain_lines_where_the_terminal_is_dumb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Terminal())
    stream = Terminal()
    with ProgressLine(stream) as progress:
        progress.update(shot(1))
    assert "\x1b" not in stream.getvalue()


class Broken(io.StringIO):
    tried = 0

    def write(self, text: str) -> int:
        self.tried += 1
        raise BrokenPipeError(32, "Broken pipe")


def test_a_stream_that_goes_away_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    broken_terminal = Broken()
    monkeypatch.setattr(broken_terminal, "isatty", lambda: True)
    closed = io.StringIO()
    closed.close()
    broken = Broken()
    for stream in (broken, broken_terminal, closed):
        clock = Clock()
        with ProgressLine(stream, clock=clock) as progress:
            for _ in range(3):
                clock.now += 10
                progress.update(shot(4))
        progress.update(shot(8))  # after the end, too
    assert broken.tried == 1, "a stream that is gone is written to no more"
    assert broken_terminal.tried >= 1


def test_a_terminal_that_goes_away_gives_stderr_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    clock = Clock()
    with ProgressLine(clock=clock) as progress:
        progress.update(shot(4))
        assert sys.stderr is not stream  # what others write goes above the live line
        monkeypatch.setattr(stream, "write", Broken().write)
        clock.now += 10
        progress.update(shot(8))
        assert sys.stderr is stream


def test_no_stderr_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with ProgressLine() as progress:
        progress.update(shot(1))
        assert "1/400 rollouts" in progress.line(shot(1), 1e9), "the state is followed all the same"
    assert sys.stderr is None


def test_auto_is_a_live_line_in_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    seen: list[int] = []

    def watch(snapshot: Progress) -> None:
        seen.append(snapshot.rollouts_done)

    for stream, drawn in ((Terminal(), True), (io.StringIO(), False), (None, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with showing("auto", watch) as told:
            told(shot(4))
        if stream is not None:
            assert ("4/400 rollouts" in stream.getvalue()) == drawn
        with showing("auto", None) as told:
            assert (told is not None) == drawn
    assert seen == [4, 4, 4]
    for nothing in (None, False):
        with showing(nothing, watch) as told:
            assert told is watch


LIVE = """
import sys, time
from trunkline.observability.live import ProgressLine
from trunkline.observability.observers import Progress
with ProgressLine() as progress:
    for done in range(10):
        progress.update(Progress(tasks=10, rollouts=10, rollouts_done=done))
        print("result", done, flush=True)
        print("warning", done, file=sys.stderr, flush=True)
"""


def test_results_on_stdout_stay_clean_while_stderr_is_a_terminal() -> None:
    controller, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    env.pop("NO_COLOR", None)
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                piece = os.read(controller, 4096)
            except OSError:
                return
            if not piece:
                return
            seen.extend(piece)

    process = subprocess.Popen([sys.executable, "-c", LIVE], stdout=subprocess.PIPE, stderr=terminal, env=env)
    os.close(terminal)
    reader = threading.Thread(target=read)
    reader.start()
    out, _ = process.communicate(timeout=60)
    reader.join(10)
    os.close(controller)
    assert process.returncode == 0
    assert out.decode() == "".join(f"result {n}\n" for n in range(10))
    assert all(b"warning %d" % n in seen for n in range(10))
    assert seen.count(b"\x1b[?25h") == 1
