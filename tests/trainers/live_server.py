"""An OpenAI-compatible server over a live torch model of this process, for rollouts of the policy that is trained.

``POST /v1/completions`` takes prompts as token ids and answers with ids and log-probabilities; so does
``/v1/chat/completions``, which renders messages with the tokenizer's chat template. Log-probabilities are those of the
distribution that is drawn from (the temperature applied), so a trainer that divides its logits by the temperature finds
the same.

Requests that arrive while a batch is decoded make the next batch. Equal seeds draw equal tokens, whatever else is in
the batch, up to the rounding of sums over padding. There is one lock: :meth:`LiveServer.update` holds it, and no
forward pass runs meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from aiohttp import web


class Draw(NamedTuple):
    """One sequence to decode.

    Attributes:
        prompt: Its token ids.
        most: How many tokens it may have.
        temperature: 0 is greedy.
        seed: Of its random numbers; None for any.
        stop: Texts that end it.
    """

    prompt: Sequence[int]
    most: int
    temperature: float
    seed: int | None
    stop: Sequence[str]


class Drawn(NamedTuple):
    """The sampled ids, their log-probabilities in nats, and whether the sequence ended by itself."""

    ids: list[int]
    logprobs: list[float]
    stopped: bool


class Usage(NamedTuple):
    """What a server has done: requests, batches, and tokens of prompts and completions."""

    requests: int = 0
    batches: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


KNOWN = {
    *("model", "prompt", "messages", "tools", "n", "max_tokens", "temperature", "seed", "stop", "stream"),
    *("logprobs", "top_logprobs", "return_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
}
"""Fields of a request. Others are refused: a setting that is not followed would be lost silently."""


class LiveServer:
    """Decodes for HTTP clients with a model that may change between batches.

    Args:
        model: A causal language model of transformers, on any device. It is used as it is, not copied.
        tokenizer: Of transformers, with a chat template for chats.
        ends: Ids that end a completion; the tokenizer's end-of-sequence token when None.
        most: The most sequences of a batch.
    """

    def __init__(self, model: Any, tokenizer: Any, *, ends: Iterable[int] | None = None, most: int = 64) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.ends = {tokenizer.eos_token_id} if ends is None else set(ends)
        self.most = most
        self.usage = Usage()
        self.url = ""
        self._lock = threading.Lock()
        self._waiting: list[tuple[Draw, asyncio.Future[Drawn]]] = []
        self._arrived = asyncio.Event()

    @contextlib.contextmanager
    def update(self) -> Iterator[Any]:
        """Hold the model still and yield it, such as to load weights; requests wait meanwhile."""
        with self._lock:
            yield self.model

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy parameters by name into the model."""
        own = dict(self.model.named_parameters())
        with self.update(), torch.no_grad():
            for name, value in weights:
                own[name].copy_(value)

    @torch.no_grad()
    def decode(self, draws: Sequence[Draw]) -> list[Drawn]:
        """Decode a batch: prompts padded on the left, all sequences one step at a time."""
        device = self.model.device
        longest = max(len(draw.prompt) for draw in draws)
        ids = torch.zeros(len(draws), longest, dtype=torch.int64)
        mask = torch.zeros(len(draws), longest, dtype=torch.int64)
        for row, draw in enumerate(draws):
            ids[row, longest - len(draw.prompt) :] = torch.tensor(draw.prompt)
            mask[row, longest - len(draw.prompt) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        # Each sequence has random numbers of its own, so that its seed alone decides.
        chances = torch.stack([torch.rand(draw.most, generator=_generator(draw.seed)) for draw in _padded(draws)])
        temperatures = torch.tensor([draw.temperature for draw in draws], device=device)[:, None]
        found = [Drawn([], [], stopped=False) for _ in draws]
        open_rows = list(range(len(draws)))
        cache = None
        while open_rows:
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            made = self.model(
                input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
            )
            cache = made.past_key_values
            step = len(found[open_rows[0]].ids)
            tokens, logprobs = _sample(made.logits[:, -1].float(), temperatures, chances[:, step].to(device))
            for row, token, logprob in zip(range(len(draws)), tokens.tolist(), logprobs.tolist(), strict=True):
                if row in open_rows:
                    found[row].ids.append(token)
                    found[row].logprobs.append(logprob)
                    if self._ended(draws[row], found[row].ids):
                        found[row] = found[row]._replace(stopped=True)
            open_rows = [r for r in open_rows if not found[r].stopped and len(found[r].ids) < draws[r].most]
            ids = tokens[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
        return found

    def _ended(self, draw: Draw, ids: list[int]) -> bool:
        if ids[-1] in self.ends:
            return True
        if not draw.stop:
            return False
        # A text ends with the token that completes it.
        said = self.tokenizer.decode(ids[-2 * max(map(len, draw.stop)) - 4 :])
        return any(stop in said for stop in draw.stop)

    async def run(self) -> None:
        """Decode what is waiting, batch after batch, until cancelled."""
        with ThreadPoolExecutor(1) as thread:
            while True:
                await self._arrived.wait()
                # Let requests in that are on their way already.
                await asyncio.sleep(0.002)
                batch, self._waiting = self._waiting[: self.most], self._waiting[self.most :]
                if not self._waiting:
                    self._arrived.clear()
                draws = [draw for draw, _ in batch]
                try:
                    drawn = await asyncio.get_running_loop().run_in_executor(thread, self._locked, draws)
                except Exception as error:  # noqa: BLE001 - a request is told, and the server goes on
                    for _, waiter in batch:
                        if not waiter.done():
                            waiter.set_exception(RuntimeError(f"decoding failed: {error}"))
                    continue
                self.usage = Usage(
                    self.usage.requests,
                    self.usage.batches + 1,
                    self.usage.prompt_tokens + sum(len(draw.prompt) for draw in draws),
                    self.usage.generated_tokens + sum(len(one.ids) for one in drawn),
                )
                for (_, waiter), one in zip(batch, drawn, strict=True):
                    if not waiter.done():
                        waiter.set_result(one)

    def _locked(self, draws: Sequence[Draw]) -> list[Drawn]:
        with self._lock:
            return self.decode(draws)

    async def complete(self, request: web.Request) -> web.Response:
        """Answer a completion or a chat."""
        try:
            body = await request.json()
            prompt, draws = self._read(body)
        except ValueError as wrong:
            return web.json_response({"error": {"message": str(wrong)}}, status=400)
        self.usage = self.usage._replace(requests=self.usage.requests + 1)
        loop = asyncio.get_running_loop()
        waiters = [loop.create_future() for _ in draws]
        self._waiting += zip(draws, waiters, strict=True)
        self._arrived.set()
        try:
            drawn = await asyncio.gather(*waiters)
        except RuntimeError as error:
            return web.json_response({"error": {"message": str(error)}}, status=500)
        chat = "messages" in body
        return web.json_response(
            {
                "object": "chat.completion" if chat else "text_completion",
                "model": body.get("model", ""),
                "choices": [self._choice(n, prompt, one, chat=chat) for n, one in enumerate(drawn)],
                "usage": {
                    "prompt_tokens": len(prompt),
                    "completion_tokens": sum(len(one.ids) for one in drawn),
                },
                **({"prompt_token_ids": prompt} if chat else {}),
            }
        )

    def _read(self, body: Any) -> tuple[list[int], list[Draw]]:
        """Read a request; ValueError says what is wrong with it."""
        if not isinstance(body, dict):
            raise ValueError("the body is not a JSON object")  # noqa: TRY004 - all that is wrong is one error
        unknown = sorted(name for name in body.keys() - KNOWN if body[name] is not None)
        if unknown or body.get("stream"):
            raise ValueError(f"not supported: {', '.join(unknown or ['stream'])}")
        if "messages" in body:
            prompt = self.tokenizer.apply_chat_template(
                body["messages"], tools=body.get("tools"), add_generation_prompt=True, return_dict=False
            )
        else:
            prompt = body.get("prompt")
        size = self.model.config.vocab_size
        if not isinstance(prompt, list) or not prompt or not all(type(i) is int and 0 <= i < size for i in prompt):
            raise ValueError(f"prompt must be a list of token ids from 0 to {size - 1}")
        most, n, seed = body.get("max_tokens") or 16, body.get("n") or 1, body.get("seed")
        if not all(type(one) is int for one in (most, n, seed or 0)) or not 1 <= n <= 1024:
            raise ValueError("max_tokens, n and seed must be whole numbers, and n from 1 to 1024")
        room = self.model.config.max_position_embeddings - len(prompt)
        if not 1 <= most <= room:
            raise ValueError(f"max_tokens is {most}, and the context has room for {room}")
        stop, temperature = body.get("stop") or [], body.get("temperature")
        temperature = 1.0 if temperature is None else temperature
        if not isinstance(temperature, int | float) or not 0 <= temperature <= 100:
            raise ValueError(f"temperature must be a number from 0 to 100, not {temperature!r}")
        stop = [stop] if isinstance(stop, str) else stop
        if not isinstance(stop, list) or not all(isinstance(one, str) and one for one in stop):
            raise ValueError("stop must be a text, or a list of texts")
        draw = Draw(prompt, most, temperature, seed, stop)
        return prompt, [draw._replace(seed=None if seed is None else seed + one) for one in range(n)]

    def _choice(self, number: int, prompt: list[int], drawn: Drawn, *, chat: bool) -> dict[str, Any]:
        words = [self.tokenizer.decode([one]) for one in drawn.ids]
        said = self.tokenizer.decode([one for one in drawn.ids if one not in self.ends])
        reason = {"index": number, "finish_reason": "stop" if drawn.stopped else "length", "token_ids": drawn.ids}
        if chat:
            entries = [
                {"token": word, "logprob": value, "bytes": list(word.encode()), "top_logprobs": []}
                for word, value in zip(words, drawn.logprobs, strict=True)
            ]
            message = {"role": "assistant", "content": said}
            return reason | {"message": message, "logprobs": {"content": entries}}
        listed = {"tokens": words, "token_logprobs": drawn.logprobs, "top_logprobs": None}
        return reason | {"text": said, "prompt_token_ids": prompt, "logprobs": listed}


def _padded(draws: Sequence[Draw]) -> list[Draw]:
    most = max(draw.most for draw in draws)
    return [draw._replace(most=most) for draw in draws]


def _generator(seed: int | None) -> torch.Generator:
    made = torch.Generator()
    if seed is None:
        made.seed()
    else:
        made.manual_seed(seed)
    return made


def _sample(
    logits: torch.Tensor, temperatures: torch.Tensor, chances: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token of each row by its chance, the greedy one at temperature 0, with its log-probability."""
    greedy = temperatures[:, 0] == 0
    logprobs = (logits / torch.where(greedy[:, None], 1.0, temperatures)).log_softmax(-1)
    sums = logprobs.exp().cumsum(-1)
    drawn = torch.searchsorted(sums, (chances[:, None] * sums[:, -1:])).clamp(max=logits.shape[-1] - 1)[:, 0]
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


@contextlib.contextmanager
def serving(model: Any, tokenizer: Any, **options: Any) -> Iterator[LiveServer]:
    """Serve a model in a thread of this process; ``url`` of the yielded server is where."""
    started: threading.Event = threading.Event()
    held: dict[str, Any] = {}

    async def main() -> None:
        server = held["server"] = LiveServer(model, tokenizer, **options)
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", server.complete)
        app.router.add_post("/v1/chat/completions", server.complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        held["loop"], held["stop"] = asyncio.get_running_loop(), asyncio.Event()
        decoding = asyncio.create_task(server.run())
        started.set()
        await held["stop"].wait()
        decoding.cancel()
        await asyncio.wait([decoding])
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="live server", daemon=True)
    thread.start()
    started.wait()
    try:
        yield held["server"]
    finally:
        held["loop"].call_soon_threadsafe(held["stop"].set)
        thread.join()


def weights_of(model: Any) -> Mapping[str, torch.Tensor]:
    """The parameters of a model by name, copied."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}
