"""The page's server: on loopback, for whom the token was given to."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import secrets
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from trunkline._internal.text import describe_error, printable
from trunkline.controller.control_socket import ask, is_own
from trunkline.errors import InfrastructureError, TrunklineError, UsageError
from trunkline.store.stats.compare import compare
from trunkline.view.data import RunData, TaskQuery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

TOKEN: Final = "X-Trunkline-Token"  # noqa: S105 - a header's name
STATIC: Final = {"/": "index.html", "/app.js": "app.js", "/style.css": "style.css"}
_TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_MOST: Final = 4096  # bytes of a request's body
_SAFE: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOK: Final = 1.0
"""Seconds between two looks at a run file that is followed."""

_REST: Final = 5.0  # times as long as counting the rows of a run took, until they are counted again
_ALIVE: Final = 15.0  # seconds after which a line is sent though nothing has changed


def static(name: str) -> str:
    """The text of one of the page's files."""
    return (resources.files("trunkline.view") / "static" / name).read_text("utf-8")


class ViewServer:
    """Serves the page of one or two runs; make and close it in the event loop.

    Args:
        paths: The run files, one or two.
        look: Seconds between two looks at a run file that is followed.

    Raises:
        RunFileError: A file is no readable run.
    """

    def __init__(self, paths: Sequence[Path], look: float = LOOK) -> None:
        self.token = secrets.token_urlsafe(24)
        self.port = 0
        self._look = look
        self._paths = list(paths)
        self._runs: list[RunData] = []
        self._runner: web.AppRunner | None = None
        with contextlib.ExitStack() as opened:
            for path in self._paths:
                self._runs.append(run := RunData(path))
                opened.callback(run.close)
                run.overview()  # a damaged file is said here, and not on the page
            self._opened = opened.pop_all()

    @property
    def url(self) -> str:
        """The page's address, with the token in its fragment, which browsers send to no server."""
        return f"http://127.0.0.1:{self.port}/#{self.token}"

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1; port 0 takes a free one.

        Raises:
            InfrastructureError: The port cannot be had.
        """
        app = web.Application(middlewares=[self._guard], client_max_size=_MOST)
        app.router.add_get("/api/runs", self._overviews)
        app.router.add_get("/api/compare", self._compared)
        app.router.add_get("/api/runs/{run}/live", self._live)
        app.router.add_get("/api/runs/{run}/{what}", self._read)
        app.router.add_post("/api/runs/{run}/control", self._control)
        for path in STATIC:
            app.router.add_get(path, self._static)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", port).start()
        except OSError as problem:
            await self._runner.cleanup()
            raise InfrastructureError(f"--port {port}: {problem.strerror or problem}; choose another") from None
        self.port = int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening and close the files."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._opened.close()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse what no page of ours sends; turn errors into lines."""
        try:
            response = self._refused(request) or await handler(request)
        except web.HTTPException as problem:
            response = _line(problem.status, problem.reason)
        except TrunklineError as problem:
            response = _line(400 if isinstance(problem, UsageError) else 500, str(problem))
        except ConnectionError:
            raise  # the page was closed
        except Exception as problem:  # a file may hold anything
            logger.exception("the page cannot be given %s", printable(request.path, 200))
            response = _line(500, f"this cannot be read: {describe_error(problem)}")
        if not response.prepared:
            response.headers.update(_SAFE)
        return response

    def _refused(self, request: web.Request) -> web.Response | None:
        origin = f"http://{request.headers.get('Host', '')}"
        if origin not in {f"http://127.0.0.1:{self.port}", f"http://localhost:{self.port}"}:
            return _line(403, "this page is served to 127.0.0.1 alone")
        if not ipaddress.ip_address(request.remote or "0.0.0.0").is_loopback:  # noqa: S104 - compared, not listened on
            return _line(403, "this page is served to this machine alone")
        told = request.headers.get("Origin")
        if told not in ({origin} if request.method == "POST" else {origin, None}):
            return _line(403, "another page may not ask this one")
        if request.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
            return _line(403, "another page may not ask this one")
        if request.path.startswith("/api/"):
            given = request.headers.get(TOKEN, "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, self.token.encode()):
                return _line(401, "the token is wrong: open the address that `trunkline view` printed")
        return None

    async def _static(self, request: web.Request) -> web.Response:
        name = STATIC[request.path]
        return web.Response(text=static(name), content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8")

    def _run(self, request: web.Request) -> RunData:
        number = request.match_info["run"]
        if not number.isascii() or not number.isdigit() or len(number) > 3 or int(number) >= len(self._runs):
            raise web.HTTPNotFound(reason="there is no such run")
        return self._runs[int(number)]

    def _overview(self, run: RunData) -> dict[str, Any]:
        found = run.overview()
        return found | {"controls": bool(found["live"]) and is_own(run.path)}

    async def _overviews(self, _: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(lambda: [self._overview(run) for run in self._runs]))

    async def _read(self, request: web.Request) -> web.Response:
        run, asked = self._run(request), dict(request.query)
        match request.match_info["what"]:
            case "overview":
                found: Any = await asyncio.to_thread(self._overview, run)
            case "summary":
                found = await asyncio.to_thread(run.summary)
            case "tasks":
                found = await asyncio.to_thread(run.tasks, TaskQuery.of(asked))
            case "values":
                found = await asyncio.to_thread(run.values, asked.get("field", ""))
            case "categories":
                names = None if "field" not in asked else [asked["field"]]
                found = await asyncio.to_thread(run.categories, names)
            case "task":
                found = await asyncio.to_thread(run.task, asked.get("id", ""))
            case _:
                raise web.HTTPNotFound(reason="there is no such thing to read")
        return _json(found)

    async def _compared(self, request: web.Request) -> web.Response:
        if len(self._paths) != 2:
            raise UsageError("two runs are compared: trunkline view A B")
        a, b = self._paths
        metric, selected = request.query.get("metric") or "accuracy", request.query.get("selected") == "true"
        return _json(await asyncio.to_thread(compare, a, b, metric, common=True, allow_selected=selected))

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """One line of JSON for each change of the run file, until no process writes it."""
        run = self._run(request)
        response = web.StreamResponse(headers={**_SAFE, "Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        before: object = None
        quiet = 0.0
        loop = asyncio.get_running_loop()
        while True:
            rest, began = self._look, loop.time()
            now = await asyncio.to_thread(run.version)
            if now != before or quiet >= _ALIVE:
                before, quiet = now, 0.0
                found = await asyncio.to_thread(self._overview, run)
                if found["controls"]:
                    with contextlib.suppress(TrunklineError):
                        found["progress"] = await asyncio.to_thread(ask, run.path, "progress")
                try:
                    await response.write(msgspec.json.encode(found) + b"\n")
                except ConnectionError:  # the page was closed
                    return response
                if not found["live"]:
                    return response
                rest = max(rest, _REST * (loop.time() - began))
            await asyncio.sleep(rest)
            quiet += rest

    async def _control(self, request: web.Request) -> web.Response:
        run = self._run(request)
        try:
            action = msgspec.json.decode(await request.read(), type=dict[str, str]).get("action", "")
        except msgspec.MsgspecError:
            action = ""
        if action not in {"drain", "stop"}:
            raise UsageError('say {"action": "drain"} or {"action": "stop"}')
        return _json(await asyncio.to_thread(ask, run.path, action))


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _line(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode({"error": printable(text)}), content_type="application/json"
    )
