"""Servers of recorded runs: what they reply follows from the request, and from how often it came before."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from aiohttp import web
from scripted import token_of
from small_teams import reply as team_reply
from stage import Handler

Body = dict[str, Any]


def completion(choices: list[Body], usage: Body | None = None, **more: Any) -> Body:
    """A whole reply."""
    told = {} if usage is None else {"usage": usage}
    return {"id": "x", "object": "chat.completion", "model": "served", "choices": choices} | told | more


def choice(content: str | None, calls: list[tuple[str, str]] = (), index: int = 0, **more: Any) -> Body:
    """One choice of a reply, with calls as name and arguments."""
    message: Body = {"role": "assistant", "content": content} | more.pop("message", {})
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(calls)
        ]
    return {"index": index, "message": message, "finish_reason": "tool_calls" if calls else "stop"} | more


def says(text: str, **usage: int) -> Body:
    """A reply that is one text."""
    return completion([choice(text)], {"prompt_tokens": 10, "completion_tokens": 3} | usage)


def length(drawn: Body) -> int:
    """Tokens of a choice: those that are listed, else some."""
    listed = drawn.get("logprobs", {}).get("content")
    return len(listed) if listed else 9 * max(1, len(drawn["message"].get("tool_calls", ())))


def lost_in(
    words: int = 2,
    depth: int = 4,
    stop: float = 0.3,
    *,
    honours_n: bool = True,
    logprobs: bool = True,
    usage: bool = True,
    tool: str = "look",
    thought: bool = False,
) -> Handler:
    """A model that looks words up until it answers with one; what it says follows from its seed and the messages.

    Args:
        words: How many different things it can say; of few, turns merge.
        depth: Turns of the longest rollout.
        stop: Chance that a turn is the last.
        honours_n: Whether it takes notice of ``n``.
        logprobs: Whether it says how sure it was.
        usage: Whether it counts tokens.
        tool: What it calls; a turn in five calls it twice.
        thought: Whether it returns its thinking beside the text.
    """

    def draw(body: Body, index: int) -> Body:
        luck = random.Random(f"{body.get('seed', 0) + index} {len(body['messages'])}")
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        word, last = luck.randrange(words), turn + 1 >= depth or luck.random() < stop
        calls = [(tool, json.dumps({"what": f"w{word + more}"})) for more in range(2 if luck.random() < 0.2 else 1)]
        more: Body = {"message": {"reasoning_content": f"thought {word}"}} if thought else {}
        if logprobs and body.get("logprobs"):
            doubt = random.Random(f"{word} {last} {len(body['messages'])}")
            more["logprobs"] = {
                "content": [token_of(place, [-doubt.random(), -1 - doubt.random()]) for place in range(3 + word)]
            }
        return choice(f"<answer>{word}</answer>", index=index, **more) if last else choice(None, calls, index, **more)

    def reply(body: Body, nth: int) -> Body:
        count = body.get("n") or 1 if honours_n else 1
        drawn = [draw(body, index) for index in range(count)]
        figures = {
            "prompt_tokens": 10 * len(body["messages"]),
            "completion_tokens": sum(map(length, drawn)),
            "prompt_tokens_details": {"cached_tokens": 5},
        }
        return completion(drawn, figures if usage else None)

    return reply


def cast(body: Body, nth: int) -> Body:
    """The models of the small teams, each choice by a seed of its own; an absent one is refused."""
    if body["model"] == "absent":
        return refused(400, "not here", "model_not_here")
    drawn = [team_reply(body | {"seed": body["seed"] + index}) for index in range(body.get("n") or 1)]
    choices = [one["choices"][0] | {"index": index} for index, one in enumerate(drawn)]
    return drawn[0] | {"choices": choices}


def refused(status: int, message: str, code: str | None = None, **headers: str) -> web.Response:
    """An error in the OpenAI form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "code": code, "param": None}}
    return web.json_response(body, status=status, headers=headers)


def at_once(status: int, message: str = "busy", code: str | None = None) -> web.Response:
    """An error after which the client may come again at once."""
    return refused(status, message, code, **{"retry-after-ms": "1"})


def failing_first(times: int, fault: Callable[[], web.Response], inner: Handler, share: float = 1.0) -> Handler:
    """A server that fails so many times for a share of all requests, then replies as ``inner``."""

    def reply(body: Body, nth: int) -> Any:
        chosen = random.Random(json.dumps(body)).random() < share
        return fault() if chosen and nth < times else inner(body, nth)

    return reply


def chatty(body: Body, nth: int) -> Body:
    """A model that says the same over and over, at a length that follows from its seed."""
    return says(
        "so be it, so be it, " * (body["seed"] % 3 * 20) + "<answer>1</answer>", completion_tokens=body["seed"] % 30
    )
