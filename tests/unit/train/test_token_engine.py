"""The batch engine over a trainer's engine of token ids: what it asks with, and what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trunkline.errors import ConfigError, LLMError
from trunkline.llm.batch.completion import Completion, Prompt
from trunkline.train.adapters.token_engine import Sampled, TokenEngine


class Letters:
    """A tokenizer whose ids are code points; 0 is special."""

    all_special_ids = [0]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(map(chr, ids))


async def ask(asked: dict[str, Any], sampled: Sampled, **params: Any) -> tuple[Completion, dict[str, Any]]:
    seen: list[Any] = []

    async def sample(ids: list[int], sampling: dict[str, Any], key: int) -> Sampled:
        seen.extend([ids, sampling, key])
        return sampled

    body = {"model": "m", "prompt": [1, 2], "logprobs": 0, "return_token_ids": True, "max_tokens": 9} | asked
    prompt = Prompt(json.dumps(body).encode(), key=5, seed=3)
    (completion,) = await TokenEngine(sample, Letters(), params).generate([prompt])
    assert [seen[0], seen[2]] == [[1, 2], 5]
    return completion, seen[1]


async def test_a_request_may_add_to_the_parameters_of_the_trainer():
    asked = {"stop": ["</x>"], "include_stop_str_in_output": True, "temperature": 0.5}
    completion, params = await ask(
        asked, Sampled([72, 105, 0], [-1.0, -2.0, -3.0], False), temperature=0.5, max_tokens=7, logprobs=1, stop=None
    )
    assert params == {"stop": ["</x>"], "temperature": 0.5, "max_tokens": 7, "logprobs": 1}
    assert completion == Completion(text="Hi", finish="stop", token_ids=[72, 105, 0], logprobs=[-1.0, -2.0, -3.0])


async def test_a_special_token_of_a_reply_that_was_cut_is_text():
    completion, params = await ask({}, Sampled([72, 0], [-1.0, -1.0], True), max_tokens=20)
    assert params == {"max_tokens": 9}
    assert (completion.text, completion.finish) == ("H\0", "length")


async def test_a_request_that_samples_otherwise_than_the_trainer_is_refused():
    with pytest.raises(ConfigError, match=r"temperature=0.2.*temperature=1.0: leave it out"):
        await ask({"temperature": 0.2}, Sampled([1], [0.0], False), temperature=1.0)


async def test_an_engine_that_samples_nothing_can_be_asked_again():
    with pytest.raises(LLMError, match="sampled nothing") as caught:
        await ask({}, Sampled([], [], False))
    assert caught.value.retryable
