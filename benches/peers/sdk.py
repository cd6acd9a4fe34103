"""Clients on the OpenAI SDK. They run on the standard event loop: the SDK gains nothing from another."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from openai import AsyncOpenAI, DefaultAioHttpClient
from openai.types.chat.chat_completion import Choice

from peers.loads import ANSWER, Load, Play


@asynccontextmanager
async def shared(url: str, load: Load, lanes: int) -> AsyncIterator[Play]:
    """One client for all calls, as the SDK's documentation asks for."""
    del lanes
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        yield _player(lambda: client, load, _at_once)


@asynccontextmanager
async def each(url: str, load: Load, lanes: int) -> AsyncIterator[Play]:
    """A new client for every call, never closed, and entropies token by token, as ParallelMuse publishes it."""
    del lanes
    yield _player(lambda: AsyncOpenAI(base_url=url, api_key="none"), load, _one_by_one)


@asynccontextmanager
async def on_aiohttp(url: str, load: Load, lanes: int) -> AsyncIterator[Play]:
    """One client, whose transport is aiohttp."""
    del lanes
    async with AsyncOpenAI(base_url=url, api_key="none", http_client=DefaultAioHttpClient()) as client:
        yield _player(lambda: client, load, _at_once)


def _player(client: Any, load: Load, perplexity: Any) -> Play:
    async def play(number: int | None) -> None:
        messages: list[Any] = load.messages(number)
        while True:
            reply = await client().chat.completions.create(messages=messages, **load.fields)
            choice = reply.choices[0]
            if load.logprobs:
                assert perplexity(choice) > 1.0
            if not choice.message.tool_calls:
                break
            messages.append(choice.message)
            for call in choice.message.tool_calls:
                seen = await load.tool(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
        assert choice.message.content.endswith(ANSWER)

    return play


def _at_once(choice: Choice) -> float:
    """Perplexity of a reply, its entropies taken as one array."""
    listed = np.array([[one.logprob for one in token.top_logprobs] for token in choice.logprobs.content])
    weights = np.exp(listed)
    mass = weights.sum(axis=1)
    return float(np.exp(np.mean(np.log(mass) - (weights * listed).sum(axis=1) / mass)))


def _one_by_one(choice: Choice) -> float:
    """Perplexity of a reply, its entropies taken in turn."""
    entropies = []
    for token in choice.logprobs.content:
        listed = np.array([one.logprob for one in token.top_logprobs])
        weights = np.exp(listed)
        mass = np.sum(weights)
        entropies.append(np.log(mass) - np.sum(weights * listed) / mass)
    return float(np.exp(np.mean(entropies)))
