"""The settings of token-exact mode, and the bodies they make."""

from __future__ import annotations

import json

import pytest

from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.llm.request import GENERATE, Sampling, draws, part
from trunkline.llm.token_ids.base import TokenMode, form_of
from trunkline.llm.types import Request


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"api": "completion"}, "TokenMode: api must be one of chat, completions, generate, not 'completion'"),
        ({"drift": "ignore"}, "TokenMode: drift must be one of bridge, realign, fork"),
        ({"realign_limit": 0}, "TokenMode: realign_limit"),
        ({"tokenizer": ""}, "TokenMode: tokenizer is empty"),
        ({"tokenizer": 3}, "TokenMode: tokenizer"),
        ({"tokenizer": "x"}, "is of no use with api='chat'"),
        ({"api": "generate", "template": "x"}, "template needs tokenizer"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, object], says: str):
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        TokenMode(**fields)


def test_a_mode_crosses_with_its_endpoint():
    import pickle

    spec = LLM("http://host/v1", tokens=TokenMode(api="generate", drift="fork"))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.settings()["tokens"]["drift"] == "fork"
    with pytest.raises(ConfigError, match="tokens must be a TokenMode"):
        LLM("http://host/v1", tokens=7)


SAMPLING = Sampling(max_tokens=9, temperature=0.5, stop=("x",), logprobs=True, top_logprobs=3, extra={"top_k": 4})


def body(mode: TokenMode, seed: int | None, n: int) -> dict:
    form = form_of(mode, "m", SAMPLING, b'[{"type":"function"}]')
    return json.loads(form.head + b"7,8" + form.constant + draws(seed, n, form.route))


def test_every_interface_is_asked_for_ids_and_log_probs():
    chat = body(TokenMode(), 5, 2)
    assert (chat["logprobs"], chat["top_logprobs"], chat["return_token_ids"]) == (True, 3, True)
    assert (chat["n"], chat["seed"], chat["tools"]) == (2, 5, [{"type": "function"}])
    completion = body(TokenMode(api="completions"), 5, 1)
    assert completion == {
        "model": "m",
        "prompt": [7, 8],
        "max_tokens": 9,
        "temperature": 0.5,
        "stop": ["x"],
        "top_k": 4,
        "logprobs": 3,
        "return_token_ids": True,
        "seed": 5,
    }
    generate = body(TokenMode(api="generate"), None, 3)
    assert generate == {
        "model": "m",
        "input_ids": [7, 8],
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "top_logprobs_num": 3,
        "sampling_params": {"max_new_tokens": 9, "temperature": 0.5, "stop": ["x"], "top_k": 4, "n": 3},
    }
    assert body(TokenMode(api="generate"), 5, 1)["sampling_params"]["sampling_seed"] == 5


def test_a_part_of_the_draws_keeps_its_interface():
    form = form_of(TokenMode(api="generate"), "m", SAMPLING)
    end = draws(5, 4, form.route)
    whole = form.head + form.constant + end
    one = part(Request(whole, 0, 4, 5, len(whole) - len(end), route=GENERATE), 2, 1)
    assert one.route == GENERATE
    assert json.loads(one.body)["sampling_params"]["sampling_seed"] == 7


def test_a_limit_of_tokens_is_needed_where_servers_have_a_low_one():
    for api in ("completions", "generate"):
        with pytest.raises(ConfigError, match=r"needs sampling\.max_tokens"):
            form_of(TokenMode(api=api), "m", Sampling())
    form_of(TokenMode(), "m", Sampling())


def test_what_only_a_chat_can_keep_is_refused_elsewhere():
    sampling = Sampling(max_tokens=9, extra={"chat_template_kwargs": {"enable_thinking": False}})
    for api in ("completions", "generate"):
        with pytest.raises(ConfigError, match=r"cannot keep sampling\.extra\['chat_template_kwargs'\]"):
            form_of(TokenMode(api=api), "m", sampling)
    form_of(TokenMode(), "m", sampling)


@pytest.mark.parametrize("extra", [{"include_stop_str_in_output": True, "no_stop_trim": True}, {"no_stop_trim": True}])
def test_sglang_gets_no_parameter_that_only_vllm_knows(extra: dict[str, bool]):
    form = form_of(TokenMode(api="generate"), "m", Sampling(max_tokens=9, stop=("x",), extra=extra))
    sent = json.loads(form.head + form.constant + draws(1, 1, form.route))["sampling_params"]
    assert sent == {"max_new_tokens": 9, "stop": ["x"], "no_stop_trim": True, "n": 1, "sampling_seed": 1}
