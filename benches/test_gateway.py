"""CPU of a call through the gateway, which is sent all of its history each time, beside what cannot be saved.

Agents in a process of their own, which is not counted, send a history of some size, are answered at once, and ask
again with the reply and one more result, each over one connection, all at the same time. A rollout is one conversation.
Beside them a program of ours asks the same model for the same conversations: what the gateway adds is the difference.
The floor is one JSON scan of the body, which makes its objects, and one hash of its bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec
import pytest
import uvloop
from aiohttp import web

import trunkline as tl
from trunkline.llm.types import Reply, ReplyChoice, ToolCall
from trunkline.rollout.programs.context import ProgramContext

pytestmark = pytest.mark.timeout(1800)

SIZES = {2: 1_000, 50: 50_000, 500: 500_000}
"""Bytes of history at the first call, by kilobytes: a call adds 0.3 of these."""
FEW, MANY = 2, 8
"""Calls of two rollouts; a call costs the difference, so that what a rollout costs is left out."""
ROLLOUTS = {2: 100, 50: 40, 500: 10}
ROUNDS = {2: 9, 50: 5, 500: 3}
"""The shorter a round, the more it tells of what else the machine does."""
LONGEST_RESULT = 2_000
TARGET_US, TARGET_RATIO = 60, 2
"""What the gateway may add: at 2 KB in microseconds, beyond that in floors."""


def history(task: str, size: int) -> list[dict[str, Any]]:
    """A conversation of calls and their results that has so many bytes as JSON."""
    found: list[dict[str, Any]] = [{"role": "user", "content": task}]
    while len(json.dumps(found)) < size:
        number = f"h{len(found)}"
        function = {"name": "look", "arguments": json.dumps({"place": len(found)})}
        call = {"id": number, "type": "function", "function": function}
        found.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
        found.append({"role": "tool", "tool_call_id": number, "content": "x" * min(size // 4, LONGEST_RESULT)})
    return found


class Instant:
    """A model that answers at once: it looks at one place."""

    async def complete(self, request: Any) -> Reply:
        call = ToolCall("any", "look", '{"place": 1}')
        return Reply([ReplyChoice("I look.", None, [call], "tool_calls")], 10, 0, 7)


async def converse(url: str, task: str, size: int, calls: int) -> None:
    """Play a conversation over one connection."""
    messages, parts = history(task, size), urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    for _ in range(calls):
        body = json.dumps({"model": "any", "messages": messages}).encode()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        top = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(top.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        message = json.loads(await reader.readexactly(length))["choices"][0]["message"]
        messages.append(message)
        number = message["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": number, "content": "There."})
    writer.close()
    print(task, flush=True)


async def serve() -> None:
    """Play the conversations that are asked for on standard input, all at once, and say which is done."""
    asked = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    async with asyncio.TaskGroup() as playing:
        while line := await asked.readline():
            playing.create_task(converse(*json.loads(line)))


class Played(NamedTuple):
    """CPU microseconds of a call.

    Attributes:
        gateway: Through the gateway.
        program: By a program of ours.
        server: Of a server that only answers.
    """

    gateway: float
    program: float
    server: float


async def play(program: Any, tasks: list[tl.Task], calls: int) -> float:
    """CPU seconds of a run in this process."""
    llm: Any = Instant()
    start = time.process_time()
    run = await tl.arun(
        tl.Agent(model="m", max_turns=calls), tasks, llm=llm, program=program, strategy=tl.Chain(1), workers=0, seed=1
    )
    spent = time.process_time() - start
    summary = run.summary()
    assert summary.usage.calls == calls * len(tasks), summary.failures
    return spent


class Client:
    """The agents' process; enter it in an event loop."""

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(sys.executable, __file__, stdin=pipe, stdout=pipe)
        self._playing: dict[str, asyncio.Event] = {}
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._listening
        await self._process.wait()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self._playing[line.decode().strip()].set()

    async def play(self, url: str, task: str, size: int, calls: int) -> None:
        """Play a conversation."""
        assert self._process.stdin is not None
        done = self._playing[task] = asyncio.Event()
        self._process.stdin.write(json.dumps([url, task, size, calls]).encode() + b"\n")
        await done.wait()


async def through_gateway(tasks: list[tl.Task], calls: int, size: int) -> float:
    """Let an agent of another process ask."""
    async with Client() as played:

        async def agent(client: Any, task: tl.Task) -> str:
            await played.play(str(client.base_url).rstrip("/"), task.messages[0]["content"], size, calls)
            return "done"

        return await play(tl.External(agent=agent, effects="none"), tasks, calls)


async def of_server(tasks: list[tl.Task], calls: int, size: int) -> float:
    """Let it ask a server that reads no body, and always says the same."""
    function = {"name": "look", "arguments": "{}"}
    said = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    reply = json.dumps({"choices": [{"message": said}]}).encode()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=reply, content_type="application/json")

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with Client() as client:
            start = time.process_time()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            await asyncio.gather(*(client.play(url, task.id, size, calls) for task in tasks))
            return time.process_time() - start
    finally:
        await runner.cleanup()


async def by_program(tasks: list[tl.Task], calls: int) -> float:
    """Let a program ask, whose tasks hold the history."""

    async def program(rollout: ProgramContext) -> str:
        for _ in range(calls):
            said = await rollout.ask()
            await rollout.observe({"role": "tool", "tool_call_id": said.calls[0].id, "content": "There."})
        return "done"

    return await play(program, tasks, calls)


def spend(kilobytes: int) -> dict[int, list[float]]:
    """CPU seconds of the three ways, by the calls of a rollout."""
    size, rollouts = SIZES[kilobytes], ROLLOUTS[kilobytes]
    names = [f"question {number}" for number in range(rollouts)]
    short = [tl.Task.ask(name, id=name) for name in names]
    long = [tl.Task(id=name, messages=history(name, size)) for name in names]
    found: dict[int, list[float]] = {}
    for calls in (FEW, FEW, MANY):  # the first warms up
        ways = through_gateway(short, calls, size), by_program(long, calls), of_server(short, calls, size)
        found[calls] = [uvloop.run(way) for way in ways]
    return found


def a_call(kilobytes: int, found: list[dict[int, list[float]]]) -> Played:
    """What a call costs by the best of some rounds: other load of the machine only adds."""
    few, many = ([min(times) for times in zip(*(one[calls] for one in found), strict=True)] for calls in (FEW, MANY))
    more = 1e-6 * ROLLOUTS[kilobytes] * (MANY - FEW)
    return Played(*((most - least) / more for least, most in zip(few, many, strict=True)))


def floor(size: int) -> float:
    """CPU microseconds of one JSON scan and one hash of a request."""
    body = json.dumps({"model": "any", "messages": history("question", size)}).encode()
    found = []
    for _ in range(20):
        times, start = max(1, 2_000_000 // len(body)), time.process_time()
        for _ in range(times):
            msgspec.json.decode(body)
            hashlib.blake2b(body, digest_size=16).digest()
        found.append(1e6 * (time.process_time() - start) / times)
    return min(found)


@pytest.mark.benchmark(group="a call through the gateway", timer=time.process_time)
@pytest.mark.parametrize("kilobytes", SIZES)
def test_gateway(benchmark: Any, kilobytes: int, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[dict[int, list[float]]] = []
    benchmark.pedantic(lambda: found.append(spend(kilobytes)), rounds=ROUNDS[kilobytes])
    gateway, program, server = a_call(kilobytes, found)
    least, added = floor(SIZES[kilobytes]), gateway - program
    allowed = TARGET_US if kilobytes == min(SIZES) else TARGET_RATIO * least
    with capsys.disabled():
        print(
            f"\n{kilobytes} KB: {gateway:,.0f} us a call, {program:,.0f} us by a program: the gateway adds {added:,.0f}"
            f" us, {added / least:.1f} floors of {least:,.0f} us, {added / server:.1f} times a server that only"
            f" answers; allowed are {allowed:,.0f} us: {'met' if added <= allowed else 'NOT MET'}"
        )


if __name__ == "__main__":
    asyncio.run(serve())
