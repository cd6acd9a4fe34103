"""A server that answers as llama.cpp's does: usage is that of the first choice, and a character is one entry.

Its tokens are bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from aiohttp import web

OPEN, CLOSE = 256, 257
_SPECIAL = {"<|open|>": OPEN, "<|close|>": CLOSE}


def encode(text: str) -> list[int]:
    """Bytes, and an id for each special token."""
    ids: list[int] = []
    while text:
        special = next((word for word in _SPECIAL if text.startswith(word)), None)
        ids += [_SPECIAL[special]] if special else list(text[0].encode())
        text = text[len(special or "x") :]
    return ids


def decode(ids: list[int]) -> str:
    """What ids spell."""
    words = {number: word.encode() for word, number in _SPECIAL.items()}
    return b"".join(words.get(one) or bytes([one]) for one in ids).decode("utf-8", "replace")


def template(messages: list[dict], *, opened: bool) -> str:
    """The chat template. An assistant's last message is left open, to be gone on with."""
    written = "".join(f"<|open|>{message['role']}\n{message['content'] or ''}<|close|>\n" for message in messages)
    if messages[-1]["role"] == "assistant":
        return written.removesuffix("<|close|>\n")
    return written + ("<|open|>assistant\n" if opened else "")


def entries(ids: list[int]) -> Iterator[dict]:
    """Log-probs of what was sampled: the tokens of a character are one entry, with the id of the last."""
    held: list[int] = []
    for one in ids:
        held.append(one)
        if decode(held).endswith("\ufffd"):
            continue
        entry = {"id": one, "token": decode(held), "bytes": None, "logprob": -0.5}
        yield entry | {"top_logprobs": [entry]}
        held = []


class LlamaServer:
    """Says ``said`` and the seed.

    Args:
        said: What it says.
    """

    def __init__(self, said: str = "no ") -> None:
        self.said = said
        self.bodies: list[dict] = []
        self.generated = 0
        self.url = ""

    async def complete(self, request: web.Request) -> web.Response:
        """Chat completions and completions."""
        body = await request.json()
        self.bodies.append(body)
        chat = "messages" in body
        prompt = encode(template(body["messages"], opened=True)) if chat else body["prompt"]
        sampled = [
            [*encode(f"{self.said}{(body.get('seed', 0) + place) % 100}"), CLOSE][: body["max_tokens"]]
            for place in range(body.get("n", 1))
        ]
        self.generated += sum(map(len, sampled))
        choices = [
            {
                "index": place,
                **({"message": {"role": "assistant", "content": _text(ids)}} if chat else {"text": _text(ids)}),
                "logprobs": {"content": list(entries(ids))} if body.get("logprobs") else None,
                "finish_reason": "stop" if ids[-1] == CLOSE else "length",
            }
            for place, ids in enumerate(sampled)
        ]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled[0])}
        usage["prompt_tokens_details"] = {"cached_tokens": 0}
        return web.json_response({"choices": choices, "usage": usage, "timings": {"predicted_n": len(sampled[0])}})

    async def tokenize(self, request: web.Request) -> web.Response:
        """Of a text; messages are not looked at."""
        return web.json_response({"tokens": encode((await request.json()).get("content", ""))})

    async def detokenize(self, request: web.Request) -> web.Response:
        """The text of ids."""
        return web.json_response({"content": decode((await request.json())["tokens"])})

    async def apply(self, request: web.Request) -> web.Response:
        """The text of messages."""
        body = await request.json()
        return web.json_response({"prompt": template(body["messages"], opened=body["add_generation_prompt"])})


def _text(ids: list[int]) -> str:
    return decode(ids).removesuffix("<|close|>")


@contextlib.asynccontextmanager
async def llama_server(said: str = "no ") -> AsyncIterator[LlamaServer]:
    """Start one."""
    server, app = LlamaServer(said), web.Application()
    app.router.add_post("/v1/chat/completions", server.complete)
    app.router.add_post("/v1/completions", server.complete)
    app.router.add_post("/tokenize", server.tokenize)
    app.router.add_post("/detokenize", server.detokenize)
    app.router.add_post("/apply-template", server.apply)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
