"""Interpreter calls of a model call, of a one-turn task and of a team's row.

``python benches/count_calls.py [agent|one_turn|team]`` prints them by room and by function. Counted are calls of Python
functions and of functions in C, as `sys.setprofile` sees them: each time a coroutine goes on is one, and so is a call
into Python that the core makes. 64 are in flight in an inline pool. What a longer run has more than a
shorter one is divided by what it does more, so that start-up and end are left out.

The server is in the same thread and event loop, uncounted: it has every request of a pass of the loop when it answers,
whatever the machine's speed, so that figures repeat within one percent. A one-turn task is counted in all, the summary
read after the run included; of a model call and a row, the run alone.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import uvloop

import teams
import trunkline as tl
from peers.loads import LOADS, Load
from peers.ours import agent, check, tasks
from trunkline.llm.batch.completion import Prompt

IN_FLIGHT = 64
SHORT, LONG = 64, 192
"""Tasks of the two runs."""


class Function(NamedTuple):
    """A function that was called: a C function is listed by the module that calls it."""

    kind: str
    module: str
    name: str


class Profile:
    """Counts calls of this thread while it is entered."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[Any, Any]] = Counter()

    def __enter__(self) -> Counter[tuple[Any, Any]]:
        sys.setprofile(self._seen)
        return self.calls

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            if frame.f_code is not _PAUSED:
                self.calls[frame.f_code, None] += 1
        elif event == "c_call" and frame.f_code is not _PAUSED:
            # Equal methods of different objects are one function.
            self.calls[frame.f_code, getattr(argument, "__qualname__", repr(argument))] += 1


class Clock:
    """A clock that a slow machine does not move: nothing that is counted is late."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def time(self) -> float:
        """A microsecond after the last time."""
        self._now += 1e-6
        return self._now


def uncounted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function during which nothing is counted."""

    @functools.wraps(function)
    def paused(*arguments: Any) -> Any:
        before = sys.getprofile()
        sys.setprofile(None)
        try:
            return function(*arguments)
        finally:
            sys.setprofile(before)

    return paused


_PAUSED = uncounted(len).__code__


class Server(asyncio.Protocol):
    """One connection of a server that calls a tool in all turns but the last; the model's name has their number."""

    @uncounted
    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport
        self._received = b""

    @uncounted
    def data_received(self, data: bytes) -> None:
        """Answer each request that has come whole."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n") + 4) > 3:
            head = self._received[:end].lower()
            size = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
            if len(self._received) < end + size:
                return
            body, self._received = self._received[end : end + size], self._received[end + size :]
            self._transport.write(_answer(body))

    @uncounted
    def eof_received(self) -> None:
        """Let the transport close."""

    @uncounted
    def connection_lost(self, error: Exception | None) -> None:
        """Forget it."""


def _answer(body: bytes) -> bytes:
    turns = int(body.partition(b'"stub-')[2].partition(b'"')[0])
    if body.count(b'"role":"tool"') + 1 < turns:
        call = b'{"id":"c","type":"function","function":{"name":"lookup","arguments":"{\\"key\\":\\"answer\\"}"}}'
        said, finish = b'"content":"","tool_calls":[' + call + b"]", b"tool_calls"
    else:
        said, finish = b'"content":"<answer>42</answer>"', b"stop"
    reply = (
        b'{"id":"x","object":"chat.completion","created":1,"model":"stub","choices":[{"index":0,"message":'
        b'{"role":"assistant",' + said + b'},"logprobs":null,"finish_reason":"' + finish + b'"}],'
        b'"usage":{"prompt_tokens":180,"completion_tokens":22,"total_tokens":202}}'
    )
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply


async def _over_http(load: Load, count: int) -> int:
    """Run tasks of one load, and return the model calls."""
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    async with server:
        llm = tl.LLM(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", max_concurrency=IN_FLIGHT)
        run = await tl.arun(agent(load), tasks(range(count)), llm=llm, reward=tl.exact_match, workers=0, seed=1)
    if load.summed or not sys.getprofile():
        check(run, load, count)
    return load.turns * count


async def _team(count: int) -> int:
    """Run questions of a team of mathematicians on a batch engine, and return the rows that it was asked for."""
    script, rows = teams.Script(0.5), 0

    @uncounted
    def replies(prompts: Sequence[Prompt]) -> list[str]:
        nonlocal rows
        rows += len(prompts)
        return [script.reply(*teams.asked(prompt.body)) for prompt in prompts]

    async def generate(prompts: Sequence[Prompt]) -> list[str]:
        return replies(prompts)

    llm: Any = tl.BatchLLM(generate, max_batch=IN_FLIGHT, max_concurrency=IN_FLIGHT)
    await tl.arun(teams.team("math"), teams.tasks(count), llm=llm, workers=0, seed=1)
    return rows


WAYS: dict[str, Callable[[int], Any]] = {
    "agent": functools.partial(_over_http, LOADS["small"]),
    "one_turn": functools.partial(_over_http, LOADS["one turn"]),
    "team": _team,
}
"""What is counted: a model call of the agent loop, a task of one turn, a team's row."""


async def count(way: str) -> dict[Function, float]:
    """Calls of each function for one model call, task or row.

    Args:
        way: A name of `WAYS`.
    """
    play = WAYS[way]
    found = []
    with mock.patch("time.monotonic", Clock().time):
        await play(SHORT)
        for size in (SHORT, LONG):
            profile = Profile()
            with profile:
                units = await play(size)
            found.append((units, _named(profile.calls)))
    (fewer, less), (more, calls) = found
    return {function: (calls[function] - less[function]) / (more - fewer) for function in calls | less}


def _named(calls: Counter[tuple[Any, Any]]) -> Counter[Function]:
    named: Counter[Function] = Counter()
    for (code, c_function), number in calls.items():
        name = code.co_qualname if c_function is None else c_function
        named[Function("C" if c_function else "Python", _module(code.co_filename), name)] += number
    return named


def _module(file: str) -> str:
    """A module's path below its package."""
    path = Path(file)
    for place, part in enumerate(path.parts):
        if part in {"trunkline", "asyncio", "site-packages"} and not file.endswith("/trunkline"):
            return "/".join(path.parts[place + (part == "site-packages") :])
    return path.name


def room(function: Function) -> str:
    """The folder of a function's module."""
    return function.module.rpartition("/")[0] or function.module


def main(*ways: str) -> None:
    """Print calls by room and by function, most first."""
    for way in ways or WAYS:
        found = uvloop.run(count(way))
        rooms: Counter[str] = Counter()
        for function, calls in found.items():
            rooms[room(function)] += calls
        python = sum(calls for function, calls in found.items() if function.kind == "Python")
        whole = sum(found.values())
        print(f"{way}: {whole:,.1f} calls, {python:,.1f} of Python and {whole - python:,.1f} of C")
        for name, calls in rooms.most_common():
            print(f"{calls:9.2f}  {name}")
        print()
        for function, calls in sorted(found.items(), key=lambda item: -item[1]):
            if calls >= 0.005:
                print(f"{calls:9.2f}  {function.kind:6}  {function.module}  {function.name}")
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
