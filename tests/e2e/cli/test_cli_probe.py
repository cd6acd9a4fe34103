"""`trunkline probe` against a simulated server in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from trunkline.cli.demo import simulator


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline.cli", "probe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_what_a_server_can_do_is_a_table_or_json():
    with simulator("default", False, "--no-tool-logprobs") as url:
        told = probe(url, "--model", "sim-agent")
        found = json.loads(probe(url, "-m", "sim-agent", "--json").stdout)
    assert (told.returncode, told.stderr) == (0, "")
    lines = dict(line.rsplit("  ", 1) for line in told.stdout.splitlines())
    words = {label.strip(): word for label, word in lines.items()}
    assert words["log-probs of tool calls"] == "no"
    assert words["token ids of prompt and reply in chat completions"] == "yes"
    assert words["model"] == "sim-agent"
    assert (found["tool_logprobs"], found["generate"]) == (False, True)


def test_a_server_that_is_not_there_or_does_not_know_the_model_is_an_error_of_one_line(url: str):
    gone = probe("http://127.0.0.1:9/v1", "-m", "m")
    assert gone.returncode == 3
    assert gone.stderr.count("\n") == 1
    unknown = probe(url, "-m", "nobody")
    assert unknown.returncode == 3
    assert "does not serve this model" in unknown.stderr


class LlamaCpp(BaseHTTPRequestHandler):
    """Answers anything with one completion, under the name of llama.cpp."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "llama.cpp"

    def log_message(self, *_: object) -> None: ...


def test_of_llama_cpp_it_says_how_many_threads_a_run_wants():
    with ThreadingHTTPServer(("127.0.0.1", 0), LlamaCpp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told = probe(f"http://127.0.0.1:{server.server_port}/v1", "-m", "m")
        server.shutdown()
    assert (told.returncode, told.stderr) == (0, "")
    assert "--threads-http N, N above --max-concurrency" in told.stdout.splitlines()[-2]
