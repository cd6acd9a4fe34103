"""llama.cpp's own server, in a process that ends with that of the tests; and what this server says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MISSING = (
    "" if importlib.util.find_spec("xllamacpp") else "xllamacpp is not installed: it has no wheel for this platform"
)
SLOTS = 4


class Counts(NamedTuple):
    """Tokens by the server's /metrics, since its start."""

    evaluated: int
    cached: int
    generated: int

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(one - two for one, two in zip(self, other, strict=True)))


class LlamaCpp:
    """A server of a model.

    Args:
        model: The GGUF file.
        log: The file for what the server prints.
        context: Tokens that a slot holds.
        slots: Requests that are worked on at once.
    """

    def __init__(self, model: Path, log: Path, context: int = 1024, slots: int = SLOTS) -> None:
        self._arguments = [str(model), str(context * slots), str(slots)]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.origin = ""

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def start(self) -> None:
        """Start the server; again at the port that it had."""
        port = self.origin.rpartition(":")[2] or "0"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, port, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().split()
        assert said[:1] == ["listening"], self._log.read_text()[-2000:]
        self.origin = said[1]

    def kill(self) -> None:
        """End the server at once."""
        process = self._process
        assert process is not None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def ask(self, route: str, body: dict[str, Any] | None = None) -> Any:
        """The answer of a route: JSON, or text."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.origin + route, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        return text if route == "/metrics" else json.loads(text)

    def status(self, body: dict[str, Any]) -> int:
        """The status of the answer to a chat."""
        try:
            self.ask("/v1/chat/completions", body)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 200

    def metric(self, name: str) -> int:
        """A figure of /metrics."""
        lines = dict(line.rsplit(" ", 1) for line in self.ask("/metrics").splitlines() if not line.startswith("#"))
        return int(float(lines[f"llamacpp:{name}"]))

    def counts(self) -> Counts:
        """Tokens since the start, of requests that have ended."""
        names = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
        return Counts(*map(self.metric, names))

    def busy(self) -> int:
        """Slots that work, and requests that wait for one."""
        return sum(slot["is_processing"] for slot in self.ask("/slots")) + self.metric("requests_deferred")

    def prompt(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> list[int]:
        """The ids of a conversation by the server's template and tokenizer."""
        written = self.ask("/apply-template", {"messages": messages, **({"tools": tools} if tools else {})})["prompt"]
        return self.ask("/tokenize", {"content": written, "add_special": True, "parse_special": True})["tokens"]


@contextlib.contextmanager
def llama_cpp(model: Path, log: Path, **options: int) -> Iterator[LlamaCpp]:
    """A server that is started, and killed in the end."""
    server = LlamaCpp(model, log, **options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def until(found: Any, seconds: float = 60.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def serve(port: str, model: str, context: str, slots: str) -> None:
    """Serve a model until standard input is closed, which its parent's end does."""
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path, params.model_alias = model, {"words"}
    params.port, params.n_ctx, params.n_parallel = int(port), int(context), int(slots)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = params.endpoint_slots = True
    server = Server(params)
    print("listening", server.listening_address, flush=True)  # noqa: T201 - the parent reads it
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    serve(*sys.argv[1:])
