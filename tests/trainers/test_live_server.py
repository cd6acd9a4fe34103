"""The server over a live model: the tokens and log-probabilities of its model, by seed, also while weights change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from frameworks import MARKS, load
from live_server import LiveServer, serving, weights_of
from tiny import ends, policy

(torch,) = load("torch")
pytestmark = MARKS

PROMPTS = [[5, 9, 300], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    model, tokenizer = policy(tmp_path_factory.mktemp("policy"))
    with serving(model, tokenizer, ends=ends(tokenizer)) as server:
        yield server


def post(server: LiveServer, *bodies: dict[str, Any], route: str = "/completions") -> list[tuple[int, dict[str, Any]]]:
    """Answers to requests that are sent at once."""

    async def one(session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        async with session.post(server.url + route, json=body) as answer:
            return answer.status, await answer.json()

    async def all_of() -> list[tuple[int, dict[str, Any]]]:
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(one(session, body) for body in bodies))

    return asyncio.run(all_of())


def choices(answer: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    assert answer[0] == 200, answer[1]
    return answer[1]["choices"]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_those_of_the_distribution_that_is_drawn_from(server: LiveServer, temperature: float):
    bodies = [{"prompt": one, "max_tokens": 9, "temperature": temperature, "n": 2, "seed": 3} for one in PROMPTS]
    answers = post(server, *bodies)
    largest = 0.0
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        for choice in choices(answer):
            ids = choice["token_ids"]
            assert choice["prompt_token_ids"] == prompt
            assert len(ids) <= 9
            assert (choice["finish_reason"] == "stop") == (ids[-1] in server.ends)
            with torch.no_grad():
                logits = server.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            found = (logits / (temperature or 1.0)).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
            largest = max(largest, (found - torch.tensor(choice["logprobs"]["token_logprobs"])).abs().max().item())
            if not temperature:
                assert ids == logits.argmax(-1).tolist()
    assert largest < 1e-5


def test_a_seed_alone_decides_what_is_drawn(server: LiveServer):
    bodies = [{"prompt": PROMPTS[0], "max_tokens": 8, "seed": seed} for seed in range(6)]
    together = [choices(answer)[0]["token_ids"] for answer in post(server, *bodies, {"prompt": PROMPTS[2], "n": 3})]
    alone = [choices(post(server, body)[0])[0]["token_ids"] for body in bodies]
    assert together[:6] == alone
    assert len(set(map(tuple, alone))) > 1
    siblings = choices(post(server, bodies[2] | {"n": 4})[0])
    assert [one["token_ids"] for one in siblings] == alone[2:]
    loose = post(server, *[{"prompt": PROMPTS[0], "max_tokens": 8}] * 6)
    assert len({tuple(choices(one)[0]["token_ids"]) for one in loose}) > 1


def test_a_text_ends_a_completion(server: LiveServer):
    (whole,) = choices(post(server, {"prompt": PROMPTS[1], "max_tokens": 200, "seed": 11})[0])
    word = server.tokenizer.decode(whole["token_ids"][1:2])
    (cut,) = choices(post(server, {"prompt": PROMPTS[1], "max_tokens": 200, "seed": 11, "stop": [word]})[0])
    assert cut["finish_reason"] == "stop"
    assert cut["token_ids"] == whole["token_ids"][: len(cut["token_ids"])]
    assert len(cut["token_ids"]) <= 2


def test_chats_are_rendered_with_the_template(server: LiveServer):
    messages = [{"role": "user", "content": "what?"}]
    ((status, answer),) = post(server, {"messages": messages, "max_tokens": 4, "seed": 1}, route="/chat/completions")
    assert status == 200
    rendered = server.tokenizer.decode(answer["prompt_token_ids"])
    assert rendered == "<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n"
    (choice,) = answer["choices"]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], "not a JSON object"),
        ({"prompt": [1], "top_p": 0.5, "top_k": 3}, "not supported: top_k, top_p"),
        ({"prompt": [1], "stream": True}, "not supported: stream"),
        ({"prompt": "text"}, "prompt must be a list of token ids from 0 to"),
        ({"prompt": [10**6]}, "prompt must be a list of token ids from 0 to"),
        ({"prompt": [1], "n": "2"}, "n and seed must be whole numbers"),
        ({"prompt": [1], "temperature": "hot"}, "temperature must be a number from 0 to 100, not 'hot'"),
        ({"prompt": [1], "stop": [""]}, "stop must be a text, or a list of texts"),
        ({"prompt": [1] * 1000, "max_tokens": 100}, "max_tokens is 100, and the context has room for 24"),
    ],
)
def test_what_would_be_lost_is_refused(server: LiveServer, body: Any, text: str):
    ((status, answer),) = post(server, body)
    assert status == 400
    assert text in answer["error"]["message"]


def test_weights_change_between_batches_alone(server: LiveServer):
    before = weights_of(server.model)
    body = {"prompt": PROMPTS[0], "max_tokens": 6, "temperature": 0}
    (old,) = choices(post(server, body)[0])
    waiting: list[Any] = []
    with server.update() as model:
        asked = threading.Thread(target=lambda: waiting.extend(post(server, body)))
        asked.start()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-1)
        asked.join(0.2)
        assert not waiting, "no batch is decoded meanwhile"
    asked.join()
    (new,) = choices(waiting[0])
    assert new["logprobs"] != old["logprobs"]
    server.load(before.items())
    (again,) = choices(post(server, body)[0])
    assert again == old


def test_requests_at_once_are_one_batch(server: LiveServer):
    before = server.usage
    with server.update():
        first = threading.Thread(target=lambda: post(server, {"prompt": [1], "max_tokens": 2}))
        first.start()
        others = threading.Thread(target=lambda: post(server, *[{"prompt": [1], "max_tokens": 2}] * 20))
        others.start()
        while server.usage.requests < before.requests + 21:
            first.join(0.01)
    first.join()
    others.join()
    assert server.usage.batches - before.batches <= 3
