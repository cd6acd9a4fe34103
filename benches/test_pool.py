"""From the call of ``run`` to its first request: with processes of its own, and on a pool that has them already.

A training loop begins a run at every step. Half of the steps run on a warm pool, half start two workers each, in turn;
the server is a thread of this process that notes when the first request of a step arrives.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trunkline as tl
import work

STEPS = 15
REPLY = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "<answer>x</answer>"}}]})


class Clock(BaseHTTPRequestHandler):
    """Answers at once, and notes when the first request came."""

    protocol_version = "HTTP/1.1"
    first: float | None = None

    def do_POST(self) -> None:
        if Clock.first is None:
            Clock.first = time.perf_counter()
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(REPLY)))
        self.end_headers()
        self.wfile.write(REPLY.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def step(url: str, **where: object) -> tuple[float, float]:
    """Seconds from the call to the first request, and to the end."""
    Clock.first = None
    began = time.perf_counter()
    tl.run(work.AGENT, work.tasks(4), llm=tl.LLM(url), **where)
    ended = time.perf_counter()
    assert Clock.first is not None
    return Clock.first - began, ended - began


def test_a_warm_pool_asks_its_first_request_sooner() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Clock)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    cold, warm = [], []
    with server, tl.Pool(workers=2) as pool:
        step(url, pool=pool)
        for _ in range(STEPS):
            cold.append(step(url, workers=2))
            warm.append(step(url, pool=pool))
        server.shutdown()
    for name, steps in (("cold", cold), ("warm", warm)):
        first, whole = (1000 * statistics.median(times) for times in zip(*steps, strict=True))
        print(f"\n{name}: {first:.1f} ms to the first request, {whole:.1f} ms for the step of 4 tasks", end="")
    assert statistics.median(warm)[0] < statistics.median(cold)[0]
