"""The options of ``trunkline run`` that say where metrics and traces go, as a user gives them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from atlas import CAPITALS
from foreign import capital_cities, serving
from places import python_path


def command(folder: Path, url: str, *more: str) -> list[str]:
    questions = folder / "q.jsonl"
    questions.write_text("".join(f'{{"question": "Capital of {c}?", "answer": "{a}"}}\n' for c, a in CAPITALS.items()))
    base = [sys.executable, "-m", "trunkline.cli", "run", str(questions), "-m", "m", "--base-url", url]
    return [*base, "--tools", "atlas:lookup", "-o", str(folder / "r"), *more]


def environment(**more: str) -> dict[str, str]:
    path = python_path()
    return os.environ | {"PYTHONPATH": path, "OPENAI_API_KEY": "my-own-secretsecret"} | more


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A collector of traces that keeps what it gets."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_traces_reach_a_collector_before_the_command_ends(collector, tmp_path: Path):
    url, got = collector
    with serving(capital_cities) as server:
        done = subprocess.run(
            command(tmp_path, server.url, "--otel"),
            env=environment(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_EXPORTER_OTLP_COMPRESSION="none"),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    sent = b"".join(got)
    assert b"invoke_agent" in sent
    assert b"execute_tool lookup" in sent
    assert b"secretsecret" not in sent
    assert b"Paris" not in sent, "content is for those who ask for it"


def test_metrics_are_served_while_the_run_goes_on(tmp_path: Path):
    with serving(capital_cities, delay=1.0) as server:
        running = subprocess.Popen(
            command(tmp_path, server.url, "--metrics", "0", "-c", "1", "--log", str(tmp_path / "log")),
            env=environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert running.stderr is not None
        said = ""
        while (found := re.search(r"metrics at (http://\S+)", said)) is None:
            line = running.stderr.readline()
            assert line, said
            said += line
        with urllib.request.urlopen(found[1], timeout=10) as answer:
            assert b"trunkline_calls_total" in answer.read()
        running.terminate()
        running.communicate(timeout=60)


def test_an_address_that_is_none_is_a_mistake_in_the_call(tmp_path: Path):
    done = subprocess.run(
        command(tmp_path, "http://127.0.0.1:9/v1", "--metrics", "elsewhere"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "HOST:" in done.stderr
    assert not (tmp_path / "r").exists()
