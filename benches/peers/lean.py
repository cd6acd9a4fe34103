"""Loops written by hand on aiohttp, msgspec and uvloop: the best fair Python, and what the transport alone costs.

The garbage collector is left as it is by default, and as a careful author would leave it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import numpy as np

from peers.loads import ANSWER, Load, Play
from trunkline.llm.http.direct_transport import DirectTransport


class Function(msgspec.Struct):
    """What is called."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call."""

    id: str
    function: Function
    type: str = "function"


class Message(msgspec.Struct, omit_defaults=True):
    """What a model said; it is sent back as it came."""

    role: str
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Alternative(msgspec.Struct):
    """One of the likeliest tokens; its text is not needed."""

    logprob: float


class Token(msgspec.Struct):
    """A token, with the bytes that tell which part of the text it belongs to."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Alternative]


class Logprobs(msgspec.Struct):
    """The tokens of a choice."""

    content: list[Token]


class Choice(msgspec.Struct):
    """A completion."""

    message: Message
    logprobs: Logprobs | None = None


class Usage(msgspec.Struct):
    """What it cost."""

    prompt_tokens: int
    completion_tokens: int


class Completion(msgspec.Struct):
    """A reply."""

    choices: list[Choice]
    usage: Usage


@asynccontextmanager
async def loop(url: str, load: Load, lanes: int) -> AsyncIterator[Play]:
    """Encode the whole conversation for every turn, decode every reply into types, take entropies as one array."""
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Completion).decode
    fixed = load.fields
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=lanes)) as session:

        async def play(number: int | None) -> None:
            messages: list[Any] = load.messages(number)
            while True:
                body = encode({"messages": messages, **fixed})
                async with session.post(f"{url}/chat/completions", data=body) as reply:
                    choice = decode(await reply.read()).choices[0]
                if choice.logprobs is not None:
                    assert _perplexity(choice.logprobs) > 1.0
                if not choice.message.tool_calls:
                    break
                messages.append(choice.message)
                for call in choice.message.tool_calls:
                    seen = await load.tool(**msgspec.json.decode(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
            assert choice.message.content.endswith(ANSWER)

        yield play


@asynccontextmanager
async def prebuilt(url: str, load: Load, lanes: int) -> AsyncIterator[Play]:
    """Post bytes that were made before through aiohttp, and drop the replies unread.

    Conversations post equal bytes, so that the stub cannot tell them apart and times no gaps. Eight of them have copies
    of their own: what one has just sent is not what the next one finds in the cache.
    """
    copies = await _copies(load, lanes)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=lanes)) as session:

        async def play(number: int | None) -> None:
            for body in copies[(number or 0) % len(copies)]:
                async with session.post(f"{url}/chat/completions", data=body) as reply:
                    await reply.read()

        yield play


@asynccontextmanager
async def kernel(url: str, load: Load, lanes: int) -> AsyncIterator[Play]:
    """The same through Trunkline's transport: as near to what the kernel takes as a Python client comes."""
    copies = await _copies(load, lanes)
    transport, headers = DirectTransport(lanes), {"Content-Type": "application/json"}

    async def play(number: int | None) -> None:
        for body in copies[(number or 0) % len(copies)]:
            await transport.post(f"{url}/chat/completions", headers, body, 60.0)

    try:
        yield play
    finally:
        await transport.close()


async def _copies(load: Load, lanes: int) -> list[list[bytes]]:
    return [[bytes(bytearray(body)) for body in await _bodies(load)] for _ in range(min(lanes, 8))]


async def _bodies(load: Load) -> list[bytes]:
    """The request of each turn, as the loop would send it."""
    messages = load.messages(None)
    fixed = load.fields
    call = ToolCall("call_8d1f", Function("lookup", '{"key":"answer"}'))
    bodies = []
    for _ in range(load.turns):
        bodies.append(msgspec.json.encode({"messages": messages, **fixed}))
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": await load.tool(key="answer")})
    return bodies


def _perplexity(logprobs: Logprobs) -> float:
    listed = np.array([[one.logprob for one in token.top_logprobs] for token in logprobs.content])
    weights = np.exp(listed)
    mass = weights.sum(axis=1)
    return float(np.exp(np.mean(np.log(mass) - (weights * listed).sum(axis=1) / mass)))
