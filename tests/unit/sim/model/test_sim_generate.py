"""SGLang's `/generate` on the simulated server: the same completions as elsewhere, in its own form."""

from __future__ import annotations

import aiohttp
import pytest

from trunkline.sim.model.tokenizer import default_bpe
from trunkline.sim.server.app import start_server

QUESTION = (
    "<|im_start|>user\nWho is the person who directs the employer of Kosa Garener?<|im_end|>\n<|im_start|>assistant\n"
)


async def post(path: str, body: dict) -> tuple[int, dict | list]:
    server = await start_server()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(server.root_url + path, json=body) as response,
        ):
            return response.status, await response.json()
    finally:
        await server.stop()


async def test_every_generation_of_a_request_is_the_completion_of_its_seed():
    prompt = default_bpe().encode(QUESTION, control=True)
    sampling = {"n": 2, "sampling_seed": 7, "max_new_tokens": 60, "temperature": 0.8}
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 2}
    status, found = await post("/generate", {**body, "return_text_in_logprobs": True})
    assert status == 200
    asked = {"model": "sim-agent", "prompt": prompt, "seed": 7, "max_tokens": 60, "temperature": 0.8}
    _, other = await post("/v1/completions", {**asked, "logprobs": 2, "return_token_ids": True})
    assert len(found) == 2
    for one, choice in zip(found, 2 * other["choices"], strict=True):
        meta = one["meta_info"]
        assert (one["text"], one["output_ids"]) == (choice["text"], choice["token_ids"])
        listed = choice["logprobs"]
        rows = list(zip(listed["token_logprobs"], choice["token_ids"], listed["tokens"], strict=True))
        assert [tuple(row) for row in meta["output_token_logprobs"]] == rows
        assert [len(top) for top in meta["output_top_logprobs"]] == [2] * len(rows)
        assert meta["finish_reason"]["type"] == choice["finish_reason"]
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(prompt), len(rows))


async def test_one_completion_is_an_object_and_the_usual_length_is_short():
    _, one = await post("/generate", {"text": QUESTION, "sampling_params": {"sampling_seed": 1}})
    assert one["meta_info"]["completion_tokens"] <= 128
    assert "output_token_logprobs" not in one["meta_info"]
    _, bare = await post(
        "/generate",
        {"text": QUESTION, "return_logprob": True, "sampling_params": {"max_new_tokens": 2, "sampling_seed": 1}},
    )
    assert [text for *_, text in bare["meta_info"]["output_token_logprobs"]] == [None, None]
    assert bare["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


@pytest.mark.parametrize(
    "body",
    [{}, {"text": "x", "input_ids": [1]}, {"text": "x", "stream": True}, {"input_ids": [10**9]}, {"input_ids": []}],
)
async def test_what_cannot_be_generated_is_refused(body: dict):
    status, reply = await post("/generate", body)
    assert status == 400
    assert reply["error"]["message"]
