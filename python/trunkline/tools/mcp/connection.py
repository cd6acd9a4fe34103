"""A connection to one MCP server, by the official SDK: its start, its tools, and calls whose results become text."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.aio import PerLoopSemaphore, wait_uninterrupted
from trunkline._internal.registry import load_extra
from trunkline._internal.text import loads, printable, without_key, without_secrets
from trunkline.errors import ConfigError, InfrastructureError, ToolError
from trunkline.tools.mcp.process import LONGEST, ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trunkline.tools.mcp.servers import ServerSetup

_START: Final = 60.0
"""Seconds for a server to start and to agree on a version of the protocol."""

_STARTING: Final = PerLoopSemaphore(8)
"""Servers that start at the same time; each of the others waits, which does not count as time it takes."""

_CLOSE: Final = 10.0
"""Seconds for the end of a session, a process excepted."""

_MOST_SAID: Final = 16 << 20
"""Bytes that a server may say between two requests of ours."""

_REQUESTS: Final = 100
"""Requests of a server, such as pings, that are answered between two of ours."""

_SHOWN: Final = 300
_MOST_PAGES: Final = 100
MOST_TOOLS: Final = 512
_MOST_TEXT: Final = 1 << 20
"""Characters of one result that are put together; a toolbox keeps fewer."""

logger = logging.getLogger(__name__)


def sdk() -> Any:
    """Return the SDK; ConfigError where it is missing, or of the first version."""
    found = load_extra("mcp", "mcp", "tl.MCP")
    if not hasattr(found, "Client"):
        raise ConfigError("tl.MCP needs version 2 of the package mcp: pip install 'trunkline[mcp]'")
    for name in ("mcp", "httpx2", "httpcore2"):  # they log what servers say, and addresses as they are
        theirs = logging.getLogger(name)
        if theirs.level == logging.NOTSET:
            theirs.setLevel(logging.CRITICAL + 1)
    return found


class _Peek(msgspec.Struct):
    """What a message is, read before the SDK reads it."""

    id: msgspec.Raw = msgspec.Raw(b"null")
    method: msgspec.Raw = msgspec.Raw(b"null")


class ServerConnection:
    """One session with a server, which a task of its own opens and closes.

    Args:
        name: What the server is called.
        setup: What to start or to ask.
        version: The version of the protocol that it is known to speak; None to find out.
        relist: Whether calls need its list of tools, for arguments that are sent as headers.
    """

    def __init__(self, name: str, setup: ServerSetup, version: str | None = None, *, relist: bool = False) -> None:
        self.name = name
        self._setup = setup
        self._version = version
        self._relist = relist
        self._process: ServerProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Any] | None = None
        self._closing = asyncio.Event()
        self._said = 0  # bytes since the last request
        self._asked = 0
        self._why = ""

    @property
    def ended(self) -> bool:
        """Whether it cannot be asked any more."""
        return bool(self._why) or (self._task is not None and self._task.done())

    async def client(self) -> Any:
        """Return the SDK's client, once the server has started.

        Raises:
            ToolError: It did not start, or has ended.
        """
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._client = loop.create_future()
            self._task = loop.create_task(self._keep(self._client))
        assert self._client is not None
        if not self._client.done():
            await asyncio.wait((self._client,))
        if self._client.exception() is not None:
            raise ToolError(f"Error: the MCP server {self.name} did not start: {self._client.exception()}")
        if self.ended:
            raise ToolError(f"Error: the MCP server {self.name} {self._why or 'has ended'}.")
        return self._client.result()

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool, and return its result as text.

        Raises:
            ToolError: The call failed; the text is for the model.
        """
        client, types = await self.client(), load_extra("mcp_types", "mcp", "tl.MCP")
        self._said = self._asked = 0
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(self._setup.timeout) as limit:
                result = await client.session.send_request(request, types.CallToolResult)
        except Exception as problem:  # noqa: BLE001 - what a server says can break anything in the SDK
            if limit.expired():
                seconds = f"{self._setup.timeout:g} s"
                raise ToolError(
                    f"Error: {printable(tool, 80)} gave no result within {seconds}, and its call was given up."
                ) from None
            raise ToolError(await self._failed(problem)) from None
        if result.result_type == "input_required":
            raise ToolError(f"Error: the MCP server {self.name} asks a person for something, and none is here.")
        text = self._cleaned(text_of(result))
        if result.is_error:
            raise ToolError(text if text.startswith("Error") else f"Error: {text or 'the call failed'}")
        return text

    async def tools(self) -> tuple[str, list[Any]]:
        """Return the version of the protocol, and the tools that the server lists.

        Raises:
            ToolError: It did not start, or has ended.
            ConfigError: It lists too many, or no tools.
        """
        client, found, cursor = await self.client(), [], None
        for _ in range(_MOST_PAGES):
            self._said = self._asked = 0
            try:
                page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            except Exception as problem:  # noqa: BLE001
                raise ToolError(await self._failed(problem)) from None
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) > MOST_TOOLS:
                break
        else:
            raise ConfigError(f"MCP server {self.name}: its list of tools has no end")
        return str(client.protocol_version), found

    async def close(self) -> None:
        """End the session, and the server's process."""
        self._closing.set()
        if self._task is not None and self._client is not None and not self._client.done():
            self._task.cancel()
        if self._task is not None:
            ending = asyncio.get_running_loop().create_task(self._end(self._task))
            await wait_uninterrupted(ending)
            ending.result()

    async def _end(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait((task,), timeout=_CLOSE)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=_CLOSE)
        if self._process is not None:
            await self._process.close()

    async def _keep(self, opened: asyncio.Future[Any]) -> None:
        """Open the session, and close it in the same task, as the SDK asks for."""
        try:
            async with AsyncExitStack() as stack:
                async with _STARTING.here(), asyncio.timeout(_START):
                    client = await stack.enter_async_context(await self._open())
                    if self._relist:
                        await client.list_tools(cache_mode="bypass")
                opened.set_result(client)
                await self._closing.wait()
        except BaseException as problem:
            if not opened.done():
                opened.set_exception(InfrastructureError(await self._reason(problem)))
                opened.exception()  # retrieved
            self._why = self._why or ("" if self._process else "lost the connection")
            logger.debug("MCP server %s: the session ended with %s", self.name, type(problem).__name__)
            if isinstance(problem, asyncio.CancelledError):
                raise
        finally:
            if self._process is not None:
                await self._process.close()
                if self._process.err:
                    err = without_key(self._process.err, self._setup.secrets)
                    logger.debug("MCP server %s wrote: %s", self.name, without_secrets(err))

    async def _open(self) -> Any:
        mcp, setup = sdk(), self._setup
        modes = {} if self._version is None else {"mode": _mode(self._version)}
        if setup.url:
            return mcp.Client(_http(setup), **modes)
        self._process = ServerProcess(setup.command, setup.env, setup.folder)
        await self._process.start()
        return mcp.Client(self._pipes(self._process), **modes)

    async def _reason(self, problem: BaseException) -> str:
        """Say on one printable line why a server did not start."""
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        if isinstance(problem, TimeoutError):
            return f"it said nothing within {_START:g} s"
        known, process = isinstance(problem, InfrastructureError | ConfigError), self._process
        if not known and process is not None and (self._why or process.reader.at_eof()):
            return f"it {self._why or await process.how()}"
        return self._excerpt(str(problem) or type(problem).__name__)

    async def _failed(self, problem: Exception) -> str:
        """Say why a call failed, in a text for the model."""
        if self._process is not None and self._process.reader.at_eof() and not self._why:
            self._why = await self._process.how()
        if self._why:
            return f"Error: the MCP server {self.name} {self._why}."
        said: Any = getattr(problem, "error", None)
        if getattr(said, "code", None) == load_extra("mcp_types", "mcp", "tl.MCP").CONNECTION_CLOSED:
            return f"Error: the MCP server {self.name} gave no answer: {self._excerpt(str(said.message))}"
        if isinstance(getattr(said, "code", None), int):
            return f"Error: the MCP server {self.name} refused the call: {self._excerpt(str(said.message))}"
        if type(problem).__name__ == "ValidationError":
            return f"Error: the MCP server {self.name} answered with what the protocol does not have."
        return f"Error: the MCP server {self.name} cannot be asked: {type(problem).__name__}"

    def _excerpt(self, text: str) -> str:
        return printable(without_secrets(self._cleaned(text[:8192])), _SHOWN)

    def _cleaned(self, text: str) -> str:
        """Return a server's text without the keys that it was given, and with its folder as ``.``."""
        folder = "" if self._process is None else self._process.folder
        return without_key(text.replace(folder, ".") if folder else text, self._setup.secrets)

    @asynccontextmanager
    async def _pipes(self, process: ServerProcess) -> AsyncIterator[tuple[Any, Any]]:
        """Provide the streams of the SDK over the pipes of a process; lines are bounded before they are read."""
        anyio, messages = load_extra("anyio", "mcp", "tl.MCP"), load_extra("mcp.shared.message", "mcp", "tl.MCP")
        incoming, read = anyio.create_memory_object_stream(0)
        write, asked = anyio.create_memory_object_stream(0)

        async def take() -> None:
            with incoming:
                while (line := await self._line(process)) is not None:
                    if (message := self._message(line)) is not None:
                        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                            await incoming.send(messages.SessionMessage(message))
            if self._why:
                await process.close()

        async def ask() -> None:
            with asked:
                async for item in asked:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.write(text.encode("utf-8", "replace") + b"\n")
                    await process.writer.drained()

        tasks = [asyncio.get_running_loop().create_task(each()) for each in (take, ask)]
        try:
            yield read, write
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (incoming, read, write, asked):
                stream.close()

    async def _line(self, process: ServerProcess) -> bytes | None:
        """Return the next line; None at the end, or where the server says too much."""
        try:
            line = await process.reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None
        except (OSError, asyncio.LimitOverrunError):
            line = b""
        self._said += len(line)
        if not line or self._said > _MOST_SAID or self._asked > _REQUESTS:
            self._why = "was stopped, as it said too much"
            return None
        return line

    def _message(self, line: bytes) -> Any:
        """Read a line; None for what is no message, and for notifications, which nothing here needs."""
        peek = _peek(line) or _peek(line := _mended(line))
        if peek is None or bytes(peek.id) == b"null":
            return None
        self._asked += bytes(peek.method) != b"null"
        refusal = b'{"jsonrpc":"2.0","id":%s,"error":{"code":-32700,"message":"its answer is no message"}}'
        read = load_extra("mcp_types", "mcp", "tl.MCP").jsonrpc_message_adapter
        for text in (line, refusal % bytes(peek.id)):
            with suppress(ValueError, RecursionError):
                return read.validate_json(text, by_name=False)
        return None


def _peek(line: bytes) -> _Peek | None:
    try:
        return msgspec.json.decode(line, type=_Peek)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _mended(line: bytes) -> bytes:
    """Return a message without lone surrogates; ValueError or RecursionError where it is no JSON."""
    try:
        return msgspec.json.encode(loads(line))
    except (ValueError, RecursionError):
        return b""


def _mode(version: str) -> str:
    """Return how the SDK is told which protocol to speak."""
    return version if version in modern_versions() else "legacy"


def modern_versions() -> tuple[str, ...]:
    """Return the versions of the protocol that know no sessions."""
    return tuple(load_extra("mcp_types.version", "mcp", "tl.MCP").MODERN_PROTOCOL_VERSIONS)


@asynccontextmanager
async def _http(setup: ServerSetup) -> AsyncIterator[tuple[Any, Any]]:
    """Provide the SDK's transport over HTTP, whose replies are bounded."""
    httpx, http = load_extra("httpx2", "mcp", "tl.MCP"), load_extra("mcp.client.streamable_http", "mcp", "tl.MCP")

    class Bounded(httpx.AsyncByteStream):  # type: ignore[misc,name-defined]
        """The body of a reply, up to the longest message."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for piece in self._stream:
                size += len(piece)
                if size > LONGEST:
                    raise httpx.ReadError("the server said too much")
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx.ReadError("the server compressed its reply, which it was asked not to do")
        response.stream = Bounded(response.stream)

    headers = {"accept-encoding": "identity", **setup.headers}
    limit = httpx.Timeout(setup.timeout, connect=min(setup.timeout, 10.0))
    async with (
        httpx.AsyncClient(headers=headers, timeout=limit, event_hooks={"response": [bound]}) as client,
        http.streamable_http_client(setup.url, http_client=client, max_sse_event_size=LONGEST) as streams,
    ):
        yield streams


def text_of(result: Any) -> str:
    """Return a result as text; what is no text is described."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return "\n".join(parts)[:_MOST_TEXT]


def _part(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return f"[{block.type}, {printable(str(block.mime_type), 80)}, about {len(block.data) * 3 // 4:,} bytes]"
        case "resource_link":
            return f"[resource {printable(str(block.name), 80)}: {printable(str(block.uri), 300)}]"
        case _:
            inside = block.resource
            if isinstance(text := getattr(inside, "text", None), str):
                return text
            return f"[resource {printable(str(inside.uri), 300)}, about {len(inside.blob) * 3 // 4:,} bytes]"
