"""Where recorded runs happen: servers that keep what they were asked, a world with questions, and pools of workers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import ssl
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from dump import run_dump, shortened, timeless
from places import TESTS

import trunkline as tl
from trunkline.errors import TrunklineError
from trunkline.runner.pool import Pool
from trunkline.sim.server.app import App
from trunkline.sim.server.options import Settings
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world

TLS = TESTS / "fixtures" / "tls"

Handler = Callable[[dict[str, Any], int], "web.StreamResponse | dict[str, Any] | Awaitable[Any]"]
"""From the body of a request, and how often that very body came before, to the reply."""

DROPPED = object()
"""A reply that stands for none: the connection is cut."""

_FOREIGN = re.compile(r"OPENAI_|TRUNKLINE_|(?:\w+_)?PROXY\Z", re.IGNORECASE)
"""Variables of the environment that change what a run does."""

_HEADERS = ("authorization", "content-type", "x-team")


class Asked(NamedTuple):
    """A request as it reached a server."""

    server: str
    path: str
    headers: dict[str, str]
    body: str


class Servers:
    """Servers on a loop in a thread of its own, which keep what they are asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.labels: dict[str, str] = {}
        self._runners: list[web.AppRunner] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def simulated(self, label: str, tls: bool = False, **settings: Any) -> str:
        """Start a simulator, without a prefix cache, whose figures depend on what came first; return its base URL."""
        return self._do(self._listen(App(Settings(**({"cache_tokens": 0} | settings))).web, label, tls))

    def scripted(self, handler: Handler, label: str, tls: bool = False) -> str:
        """Start a server that replies as ``handler`` says; return its base URL."""
        came: Counter[bytes] = Counter()

        async def reply(request: web.Request) -> web.StreamResponse:
            data = await request.read()
            came[data] += 1
            found = handler(msgspec.json.decode(data), came[data] - 1)
            if isinstance(found, Awaitable):
                found = await found
            if found is DROPPED:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return found if isinstance(found, web.StreamResponse) else web.json_response(found)

        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{tail:.*}", reply)
        return self._do(self._listen(app, label, tls))

    def stop(self) -> None:
        """Stop the servers that were started and forget what they were asked."""
        self._do(self._stop())
        self.asked.clear()
        self.labels.clear()

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(30)

    async def _listen(self, app: web.Application, label: str, tls: bool) -> str:
        @web.middleware
        async def keep(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            body = (await request.read()).decode()
            headers = {name: request.headers[name] for name in _HEADERS if name in request.headers}
            self.asked.append(Asked(label, request.path, headers, body))
            return await handler(request)

        app.middlewares.insert(0, keep)
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        address = f"127.0.0.1:{runner.addresses[0][1]}"
        self.labels[address] = label
        return f"{'https' if tls else 'http'}://{address}/v1"

    async def _stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()


class House:
    """What the cases of a session share: servers' thread, world, and pools."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.servers = Servers()
        self.stack.callback(self.servers.close)
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="recorded-")))
        write_world(make_world(3, 120, 40), self.folder)
        unset = dict.fromkeys(name for name in os.environ if _FOREIGN.match(name))
        self.stack.enter_context(environment(**(unset | {CORPUS_VARIABLE: str(self.folder / "corpus.jsonl")})))
        self.questions = tl.load_tasks(str(self.folder / "questions.jsonl"))
        self._pools: dict[int, Pool] = {}

    def pool(self, workers: int) -> Pool:
        """A pool of so many worker processes, which all cases share."""
        if workers not in self._pools:
            self._pools[workers] = self.stack.enter_context(Pool(workers=workers))
        return self._pools[workers]

    def close(self) -> None:
        self.stack.close()


class Stage:
    """One case under way: its servers, its folder, and what its runs came to.

    Attributes:
        folder: An empty folder.
        parts: What is recorded, by the name of the run that it is of.
    """

    def __init__(self, house: House) -> None:
        self.house = house
        self.folder = house.folder / "case"
        self.folder.mkdir()
        self.parts: dict[str, dict[str, Any]] = {}

    def sim(self, label: str = "server", **settings: Any) -> str:
        return self.house.servers.simulated(label, **settings)

    def serve(self, handler: Handler, label: str = "server", **options: Any) -> str:
        return self.house.servers.scripted(handler, label, **options)

    def batches(self, generate: Callable[[list[tl.llms.Prompt]], Any], **settings: Any) -> tl.BatchLLM:
        """A batch engine whose prompts are kept like requests."""

        def keep(prompts: list[tl.llms.Prompt]) -> Any:
            for prompt in prompts:
                drawn = f"n={prompt.n} seed={prompt.seed}"
                self.house.servers.asked.append(Asked("engine", drawn, {}, bytes(prompt.body).decode()))
            return generate(prompts)

        return tl.BatchLLM(keep, **settings)

    def questions(self, count: int = 2, kind: str = "lookup", hops: int = 2) -> list[tl.Task]:
        """The first questions of a kind in the world."""
        found = [
            task
            for task in self.house.questions
            if task.metadata["kind"] == kind and (kind != "lookup" or task.metadata["hops"] <= hops)
        ]
        return found[:count]

    def run(self, agent: Any, tasks: list[tl.Task] | None, name: str = "run", **options: Any) -> Path:
        """Make a run in this process, unless ``workers`` says otherwise, and record it.

        With ``workers``, it is made by a pool of all cases; ``pool=None`` gives it a pool of its own.
        """
        workers = options.pop("workers", 0)
        if workers and "pool" not in options:
            options["pool"] = self.house.pool(workers)
        elif options.get("pool") is None:
            options["workers"] = workers
        out = options.pop("out", self.folder / f"{name}.run")
        error = None
        try:
            tl.run(agent, tasks, **{"seed": 5, "out": out} | options)
        except TrunklineError as problem:
            error = f"{type(problem).__name__}: {problem}"
        self.record(out, name, error)
        return out

    def record(self, path: Path, name: str, error: str | None = None) -> None:
        """Record a run file, and what servers were asked since the last one."""
        found = run_dump(path) if path.exists() else {}
        found["requests"] = _grouped(self.house.servers.asked, path)
        if error is not None:
            found["error"] = error
        self.house.servers.asked.clear()
        self.parts[name] = found

    def close(self) -> dict[str, dict[str, Any]]:
        """Return what is recorded, without addresses and folders."""
        text = timeless(json.dumps(self.parts, ensure_ascii=False))
        for address, label in self.house.servers.labels.items():
            text = text.replace(address, label)
        text = text.replace(str(self.folder), "FOLDER").replace(str(self.house.folder), "FOLDER")
        self.house.servers.stop()
        shutil.rmtree(self.folder)
        runs = json.loads(text)
        return {
            run: {part: value if part == "requests" else shortened(value) for part, value in found.items()}
            for run, found in runs.items()
        }


def _grouped(asked: list[Asked], path: Path) -> dict[str, list[Any]]:
    """Requests by the task whose prompt is in them, each group sorted; equal ones once, with their number in front.

    How often a server is asked to render the same depends on what is asked at the same time: of these the number is 1.
    """
    prompts: dict[str, str] = {}
    if path.exists():
        with tl.RunReader.open(path) as reader:
            for task in reader.tasks():
                said = task.messages[-1]["content"] if task.messages else ""
                prompts[task.id] = json.dumps(said, ensure_ascii=False)[1:-1]
    counts: dict[str, Counter[tuple[str, ...]]] = {}
    for one in asked:
        task = next((name for name, prompt in prompts.items() if prompt and prompt in one.body), "")
        headers = ", ".join(f"{name}: {value}" for name, value in one.headers.items())
        counts.setdefault(task, Counter())[one.server, one.path, headers, one.body] += 1
    return {
        task: [
            [1 if path == "/tokenize" else found[server, path, headers, body], server, path, headers, body]
            for server, path, headers, body in sorted(found)
        ]
        for task, found in sorted(counts.items())
    }


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Set variables of the environment for a while, or unset them."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
