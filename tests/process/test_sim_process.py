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

from trunkline.sim.server.__main__ import main

ARGS = [sys.executable, "-m", "trunkline.sim.server", "--port", "0"]


def start(*options, stdin=subprocess.DEVNULL, **variables):
    return subprocess.Popen(
        [*ARGS, *options],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


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


def test_a_background_job_is_not_ended_by_the_interrupt_of_its_shell():
    command = [sys.executable, "-m", "trunkline.sim.server", "--port", "0", "--preset", "null"]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    process = subprocess.Popen(ignoring, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    for _ in range(5):
        assert ask(url)["choices"][0]["message"]["role"] == "assistant"
        time.sleep(0.1)
    process.terminate()
    ended(process)


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
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    outlived = alive(child)
    if outlived:
        os.kill(child, signal.SIGKILL)
    assert not outlived


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--preset", "hard"], 2, "invalid choice"),
        (["--dial", "skil=1"], 2, "no dial 'skil'"),
        (["--dial", "skill"], 2, "expected NAME=VALUE"),
        (["--dial", "skill=high"], 2, "skill"),
        (["--port", "70000"], 2, "--port: expected a whole number from 0 to 65535"),
        (["--port", "-1"], 2, "--port: expected a whole number from 0 to 65535"),
        (["--cache-tokens", "-1"], 2, "--cache-tokens: "),
        (["--prt", "1"], 2, "unrecognized arguments: --prt"),
        (["--noncanonical", "2"], 2, "noncanonical"),
        (["--latency", "sometimes"], 2, "expected NAME=VALUE"),
        (["--latency", "speed=1"], 2, "speed"),
        (["--host", "192.0.2.1"], 3, "cannot listen"),
    ],
)
def test_wrong_options_are_one_clear_line(options, code, words, capsys):
    try:
        ended_with = main(["--port", "0", *options])
    except SystemExit as end:
        ended_with = end.code
    out, err = capsys.readouterr()
    assert ended_with == code
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_options_from_the_environment():
    settings = {"PRESET": "null", "DIAL": "skill=0.4", "MAX_CONTEXT": "4096", "PORT": "99999"}
    process = start(**{f"TRUNKLINE_SIM_SERVE_{name}": value for name, value in settings.items()})
    url = process.stdout.readline().strip()
    with urllib.request.urlopen(url + "/models/sim-agent", timeout=10) as response:
        row = json.loads(response.read())
    assert row["max_model_len"] == 4096
    assert row["system_fingerprint"].startswith("sim-1:null+dials-")
    process.terminate()
    ended(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_serves_ends_it_quietly(number, tmp_path):
    """The signal comes in the middle of an import, where a module of this test holds it up.

    It sleeps in small pieces: Python answers no signal that comes just before one long sleep begins.
    """
    (tmp_path / "uvloop.py").write_text(
        "import time\nprint('importing', flush=True)\nwhile True:\n    time.sleep(0.01)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    process = start(PYTHONPATH=path)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    ended(process, 128 + number)


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.3, 0.45, 0.6, 0.9])
def test_a_signal_at_any_time_leaves_nothing_on_standard_error(delay):
    process = start("--latency", "on")
    time.sleep(delay)
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert process.returncode in {0, 143, -signal.SIGTERM}  # the last: before Python ran any of this package
    assert err == ""
    assert out.count("\n") <= 1


def test_nobody_left_to_read_the_url():
    process = start()
    process.stdout.close()
    process.stdout = None
    assert process.wait(20) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the full device")
def test_a_url_that_cannot_be_written_is_one_clear_line():
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(ARGS, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 3
    assert process.stderr == "error: cannot print the server's URL: No space left on device\n"


def test_closed_standard_output_does_not_matter():
    read, write = os.pipe()
    os.close(write)
    code = f"import os,sys; os.close(1); os.execv(sys.executable, {[*ARGS, '--exit-with-parent']!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=read, stderr=subprocess.PIPE, text=True)
    os.close(read)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


def test_a_signal_under_load_leaves_nothing_on_standard_error():
    hurry = (
        "import sys,threading,urllib.request as u\n"
        "def ask(i):\n"
        '    body=b\'{"model":"sim-solver","stream":%s,"messages":[{"role":"user","content":"x"}]}\'\n'
        "    try:\n"
        "        while True: u.urlopen(sys.argv[1], body % (b'true' if i % 2 else b'false')).read()\n"
        "    except Exception: pass\n"
        "for i in range(40): threading.Thread(target=ask, args=(i,)).start()\n"
    )
    for delay in (0.4, 0.55, 0.7):
        process = start("--latency", "on")
        url = process.stdout.readline().strip()
        client = subprocess.Popen([sys.executable, "-c", hurry, url + "/chat/completions"], stdin=subprocess.DEVNULL)
        time.sleep(delay)
        process.terminate()
        ended(process)
        assert client.wait(20) == 0
