"""The server as a process: its one line, its signals, its parent, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ARGS = [sys.executable, "-m", "trunkline.sim.server", "--port", "0"]


def start(*options, stdin=subprocess.DEVNULL):
    return subprocess.Popen([*ARGS, *options], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ask(url, path="/chat/completions", **fields):
    body = {"model": "sim-solver", "messages": [{"role": "user", "content": "hello"}], **fields}
    with urllib.request.urlopen(url + path, json.dumps(body).encode(), timeout=10) as response:
        return json.loads(response.read())


def ended(process, code=0):
    begin = time.monotonic()
    try:
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == code, err
    assert err == ""
    return out, time.monotonic() - begin


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_when_ready_and_a_quick_end(number):
    process = start("--preset", "null", "--latency", "on")
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("/v1")
    assert ask(url)["choices"][0]["message"]["role"] == "assistant"
    process.send_signal(number)
    out, took = ended(process)
    assert out == ""
    assert took < 2.5  # below 1 s on an idle machine


def test_a_reply_in_flight_does_not_delay_the_end():
    process = start("--latency", "overhead=30,tail=0")
    url = process.stdout.readline().strip()
    client = subprocess.Popen(
        [sys.executable, "-c", f"import urllib.request as u; u.urlopen({url + '/models'!r})"],
        stdin=subprocess.DEVNULL,
    )
    assert client.wait(10) == 0
    body = b'{"model":"sim-solver","messages":[{"role":"user","content":"x"}]}'
    target = url + "/chat/completions"
    code = f"import urllib.request as u\ntry: u.urlopen({target!r}, {body!r})\nexcept OSError: pass"
    client = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    time.sleep(0.6)
    process.terminate()
    _, took = ended(process)
    assert took < 2.5  # below 1 s on an idle machine
    client.wait(10)


def test_it_ends_when_the_parent_closes_its_input():
    process = start("--exit-with-parent", stdin=subprocess.PIPE)
    process.stdout.readline()
    time.sleep(0.1)
    assert process.poll() is None
    process.stdin.close()
    process.stdin = None
    _, took = ended(process)
    assert took < 2.5  # below 1 s on an idle machine


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_it_ends_when_the_parent_is_killed():
    command = [*ARGS, "--exit-with-parent"]
    code = (
        "import subprocess,sys,time\n"
        f"p=subprocess.Popen({command!r},"
        "stdin=subprocess.DEVNULL,stdout=subprocess.PIPE,text=True)\n"
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the server outlived its parent")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--preset", "hard"], 2, "invalid choice"),
        (["--dial", "skil=1"], 2, "no dial 'skil'"),
        (["--dial", "skill"], 2, "expected NAME=VALUE"),
        (["--dial", "skill=high"], 2, "skill"),
        (["--noncanonical", "2"], 2, "noncanonical"),
        (["--latency", "sometimes"], 2, "expected NAME=VALUE"),
        (["--latency", "speed=1"], 2, "speed"),
        (["--host", "192.0.2.1"], 3, "cannot listen"),
    ],
)
def test_wrong_options_are_one_clear_line(options, code, words):
    process = start(*options)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    if "invalid choice" not in words:
        assert err.count("\n") == 1
