"""What tools print in a worker: escaped, bounded, and said how much was dropped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._internal import tool_output
from trunkline._internal.text import printable
from trunkline._internal.tool_output import OutputForwarder, OutputLimit, limited_output

NOTICE = re.compile(r"it printed more than is shown: ([\d,]+) bytes were dropped\n$")


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in pairwise(places)]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_what_fits_is_shown_as_lines_that_steer_no_terminal(data: bytes, at: list[int]):
    limit = OutputLimit("it")
    shown = "".join(map(limit.take, cut(data, at))) + limit.settle()
    *lines, last = data.split(b"\n")
    lines += [last] if last else []
    assert shown == "".join(printable(line.removesuffix(b"\r").decode("utf-8", "replace")) + "\n" for line in lines)
    assert not limit.waits


@given(st.text("ab\n", max_size=400), st.lists(st.integers(0, 400)), st.lists(st.booleans(), max_size=20))
def test_every_byte_is_shown_or_counted_and_a_pause_lets_more_through(text: str, at: list[int], pauses: list[bool]):
    now, shown, dropped = 0.0, 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_output, "_BURST", 60)
        patch.setattr(tool_output, "_RATE", 30)
        patch.setattr(tool_output, "_LINE", 8)
        limit = OutputLimit("it", lambda: now)
        unended = 0
        for piece, pause in zip(cut(text.encode(), at), [*pauses, *[False] * 400], strict=False):
            said = limit.take(piece)
            if pause:
                now += 1.0
                said += limit.settle()
            for line in said.splitlines(keepends=True):
                if found := NOTICE.search(line):
                    dropped += int(found[1].replace(",", ""))
                else:
                    shown += len(line.removesuffix("\n").removesuffix("…")) + 1
                    assert len(line) <= 10
        said = limit.settle()
        for line in said.splitlines(keepends=True):
            if found := NOTICE.search(line):
                dropped += int(found[1].replace(",", ""))
            else:
                shown += len(line.removesuffix("\n").removesuffix("…")) + 1
        unended = shown + dropped - len(text)
    assert 0 <= unended <= 1 + sum(pauses), "a line that had not ended gets an end"
    assert shown <= 60 + 30 * sum(pauses)


def forward(source: str) -> None:
    """Run a program and show what it prints."""
    output, printed = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", source], stdout=printed, stderr=printed)
    os.close(printed)
    forwarder = OutputForwarder("worker 7", process.pid, output)
    assert process.wait(60) == 0
    forwarder.join(60)


@pytest.mark.parametrize(
    ("source", "bytes_", "most"),
    [
        ("import os\nfor _ in range(1000): os.write(1, b'x' * 100_000)", 100_000_000, 5000),
        ("print('and so on\\n' * 1_000_000, end='')", 10_000_000, 300_000),
    ],
)
def test_a_flood_is_cut_and_one_line_says_by_how_much(
    source: str, bytes_: int, most: int, capfd: pytest.CaptureFixture[str]
):
    forward(source)
    said = capfd.readouterr().err
    assert len(said) < most
    assert said.count("were dropped") == 1
    last = said.splitlines()[-1]
    assert last.startswith("worker 7 printed more than is shown: ")
    dropped = int(last.split(": ")[1].split()[0].replace(",", ""))
    assert bytes_ - most < dropped < bytes_


def test_what_a_process_says_last_is_shown_though_another_keeps_its_pipe(capfd: pytest.CaptureFixture[str]):
    forward("import subprocess\nsubprocess.Popen(['sleep', '2'])\nprint('\\x1b]0;title\\x07 last words', end='')")
    assert capfd.readouterr().err == "\\x1b]0;title\\x07 last words\n"


@pytest.mark.filterwarnings("error")
def test_output_without_a_standard_error_is_dropped(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    for stream in (None, open(os.devnull)):  # noqa: SIM115, PTH123
        monkeypatch.setattr(sys, "stderr", stream)
        forward("print('unseen')")
    stream.close()
    assert capfd.readouterr() == ("", "")


def test_output_of_this_process_is_limited_for_a_while_and_for_all_threads(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tool_output, "_BURST", 100)
    monkeypatch.setattr(tool_output, "_RATE", 0)
    before = sys.stdout, sys.stderr
    with limited_output("a tool"):
        sys.stdout.writelines(["to \x1b[31m", "standard output\n"])
        sys.stderr.write("\ud800\n")
        writers = [threading.Thread(target=sys.stdout.write, args=("ten bytes\n" * 100,)) for _ in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert sys.stdout.encoding == before[0].encoding
    assert (sys.stdout, sys.stderr) == before
    said = capfd.readouterr()
    assert said.out == ""
    first, second, *lines, last = said.err.splitlines()
    assert (first, second) == ("to \\x1b[31mstandard output", "\\ud800")
    assert lines == ["ten bytes"] * len(lines)
    assert 0 < len(lines) < 10
    assert last == f"a tool printed more than is shown: {4000 - 10 * len(lines):,} bytes were dropped"


def test_a_pause_ends_the_dropping(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setattr(tool_output, "_LINE", 4)
    monkeypatch.setattr(tool_output, "_QUIET", 0.01)
    with limited_output("a tool"):
        sys.stdout.write("123456")
        said = ""
        while "dropped" not in said:
            said += capfd.readouterr().err
    assert said == "1234…\na tool printed more than is shown: 2 bytes were dropped\n"
