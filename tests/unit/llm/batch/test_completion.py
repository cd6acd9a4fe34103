"""What a batch engine is given and may give back; whatever is wrong with one result is the fault of that one alone."""

from __future__ import annotations

import array
import asyncio
import json
import math
import pickle

import pytest
from batching import echo, request

from trunkline import _core
from trunkline.errors import ContextTooLong, EndpointError, LLMError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.batch.completion import Completion, Prompt
from trunkline.llm.response import read
from trunkline.llm.types import Request, ToolCall

CALL = {"id": "", "name": "look", "arguments": '{"x":1}'}


async def answered(result: object, asked: Request | None = None, **settings: object):
    """The reply to one request whose engine gives this."""
    return await BatchLLM(lambda _: [result], **settings).open().complete(asked or request(1))


def body_taken(result: object) -> bytes:
    """The bytes that a request's own reader gets to see."""
    seen: list[bytes] = []

    def take(data, first, attempts, micros):
        seen.append(data)
        assert (first, attempts) == (0, 1)
        return read(data, first, attempts, micros)

    asked = request(1)
    asked.take = take
    asyncio.run(answered(result, asked))
    return seen[0]


def test_a_prompt_holds_everything_that_a_server_would_get():
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "é"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "temperature": 0.5,
        "chat_template_kwargs": {"x": 1},
        "n": 3,
        "seed": 9,
    }
    prompt = Prompt(json.dumps(body).encode(), 4, 1, 10)
    for one in (prompt, pickle.loads(pickle.dumps(prompt))):
        assert (one.model, one.messages, one.tools) == (body["model"], body["messages"], body["tools"])
        assert one.sampling == {"temperature": 0.5, "chat_template_kwargs": {"x": 1}}
        assert (one.key, one.n, one.seed, one.token_ids) == (4, 1, 10, None)
    assert Prompt(b'{"prompt":[1,2]}').token_ids == [1, 2]
    assert Prompt(b'{"prompt":"text"}').token_ids is None
    assert Prompt(b"{}").messages == Prompt(b"{}").tools == []


async def test_an_engine_without_n_gets_a_prompt_a_draw_with_its_own_seed():
    seen = []

    def generate(prompts):
        seen.extend((prompt.n, prompt.seed) for prompt in prompts)
        return [{"text": echo(prompt), "usage": {"prompt_tokens": 5, "completion_tokens": 2}} for prompt in prompts]

    reply = await BatchLLM(generate).open().complete(request(7, n=3))
    assert seen == [(1, 7), (1, 8), (1, 9)]
    assert [choice.content for choice in reply.choices] == ["s7", "s8", "s9"]
    assert (reply.prompt, reply.generated) == (15, 6), "each draw had a prompt of its own"


async def test_an_engine_with_n_gets_as_many_draws_at_once_as_fit_into_a_batch():
    seen = []

    def generate(prompts):
        seen.append([(prompt.n, prompt.seed) for prompt in prompts])
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        found = []
        for prompt in prompts:
            texts = echo(prompt) if prompt.n > 1 else [echo(prompt)]
            completions = [{"text": text, "usage": usage} for text in texts]
            found.append(completions if prompt.n > 1 else completions[0])
        return found

    reply = await BatchLLM(generate, supports_n=True, max_batch=2).open().complete(request(7, n=5))
    assert seen == [[(2, 7)], [(2, 9)], [(1, 11)]]
    assert [choice.content for choice in reply.choices] == ["s7", "s8", "s9", "s10", "s11"]
    assert (reply.prompt, reply.cached, reply.generated) == (15, 12, 10), "draws of one prompt share it"


async def test_the_seed_is_read_from_the_body_where_the_request_does_not_say_it():
    seen = []

    def generate(prompts):
        seen.extend(prompt.seed for prompt in prompts)
        return ["x"] * len(prompts)

    batcher = BatchLLM(generate).open()
    await batcher.complete(Request(b'{"seed":5}', 1))
    await batcher.complete(Request(b"{}", 1, n=2))
    assert seen == [5, None, None]


async def test_a_count_that_one_prompt_does_not_say_is_known_of_none():
    def generate(prompts):
        return [{"text": "x", "usage": {"prompt_tokens": 5}} if prompt.seed == 7 else "y" for prompt in prompts]

    reply = await BatchLLM(generate).open().complete(request(7, n=2))
    assert (reply.prompt, reply.generated) == (-1, -1)


@pytest.mark.parametrize(
    ("result", "content", "calls", "finish"),
    [
        ("hi", "hi", [], "stop"),
        ({"text": "hi", "finish": "length"}, "hi", [], "length"),
        ({"text": "", "tool_calls": [CALL]}, "", [ToolCall(**CALL)], "tool_calls"),
        (Completion(text="hi", tool_calls=[ToolCall(**CALL)], finish="stop"), "hi", [ToolCall(**CALL)], "stop"),
        ("\ud800", "\ufffd", [], "stop"),
        (Completion(text="a\x00\x1b[31m"), "a\x00\x1b[31m", [], "stop"),
    ],
)
async def test_a_completion_may_be_a_text_a_dict_or_a_struct(result, content, calls, finish):
    choice = (await answered(result)).choices[0]
    assert (choice.content, choice.tool_calls, choice.finish) == (content, calls, finish)


def test_token_ids_log_probabilities_and_thinking_reach_the_reader_of_replies():
    ids, logprobs = [7, 8, 4_000_000_000], [-0.25, 0.0, -9.5]
    result = Completion(
        text="x",
        reasoning="hm",
        token_ids=array.array("I", ids),
        logprobs=array.array("d", logprobs),
        prompt_token_ids=[1, 2],
    )
    found = _core.read_reply(body_taken(result))
    choice = found.choices[0]
    assert (list(choice.tokens.ids), list(choice.tokens.logprobs), choice.reasoning) == (ids, logprobs, "hm")
    assert (list(found.prompt_ids), found.prompt, found.generated) == ([1, 2], 2, 3)


async def test_usage_is_what_the_engine_says_or_unknown():
    reply = await answered("x")
    assert (reply.prompt, reply.cached, reply.generated) == (-1, -1, -1)
    reply = await answered({"text": "x", "token_ids": [1, 2], "usage": {"prompt_tokens": 9, "completion_tokens": "no"}})
    assert (reply.prompt, reply.generated) == (9, -1)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "must return text, a dict or a Completion for each prompt, not None"),
        (b"bytes", "must return text"),
        (["x"], "must return text"),
        ({}, "missing required field `text`"),
        ({"text": 5}, r"Expected `str`, got `int` - at `\$.text`"),
        ({"text": "x", "txt": "y"}, "unknown field `txt`"),
        (Completion(text=5), "Expected `str`"),
        ({"text": "x", "tool_calls": [{"name": "f", "arguments": "{}"}]}, "missing required field `id`"),
        ({"text": "x", "tool_calls": [{**CALL, "arguments": {}}]}, "Expected `str`, got `object`"),
        ({"text": "x", "token_ids": ["7"]}, "Expected `int`"),
        ({"text": "x", "token_ids": [-1]}, "Expected `int` >= 0"),
        ({"text": "x", "token_ids": [2**32]}, "Expected `int` <= 4294967295"),
        ({"text": "x", "token_ids": [2**70]}, r"at `\$\.token_ids\[0\]`"),
        ({"text": "x", "token_ids": [1, 2], "logprobs": [-1.0]}, "1 logprobs and 2 token_ids"),
        ({"text": "x", "logprobs": [-1.0]}, "1 logprobs and no token_ids"),
        ({"text": "x", "token_ids": [1], "logprobs": [math.nan]}, "not finite"),
        ({"text": "x", "token_ids": [1], "logprobs": [-math.inf]}, "not finite"),
        ({"text": "x", "token_ids": [1], "logprobs": [0.5]}, "a log-probability is 0.5"),
        ({"text": "x", "usage": {"prompt_tokens": object()}}, "object is no data"),
        ({"text": "x", 5: 1}, "invalid completion"),
        ({"text": "x", "\x1b[31m": 1}, r"unknown field `\\x1b\[31m`"),
    ],
)
async def test_one_bad_result_fails_alone_and_the_error_says_why(result: object, words: str):
    def generate(prompts):
        return ["good", result, "good"]

    batcher = BatchLLM(generate).open()
    replies = await asyncio.gather(*(batcher.complete(request(seed)) for seed in range(3)), return_exceptions=True)
    assert replies[0].choices[0].content == replies[2].choices[0].content == "good"
    assert type(replies[1]) is LLMError
    assert not replies[1].retryable
    with pytest.raises(LLMError, match=words):
        raise replies[1]
    assert "the batch engine generate" in str(replies[1])
    assert str(replies[1]).isprintable()


@pytest.mark.parametrize(
    "results",
    [None, "ab", ["a"], ["a", "b", "c"], {"a": 1, "b": 2}, iter("ab"), {"a", "b"}],
    ids=lambda value: type(value).__name__,
)
async def test_results_that_are_not_one_a_prompt_fail_the_batch_and_not_the_next(results: object):
    given = [results]
    batcher = BatchLLM(lambda prompts: given.pop() if given else ["fine"] * len(prompts)).open()
    failed = await asyncio.gather(*(batcher.complete(request(seed)) for seed in range(2)), return_exceptions=True)
    for error in failed:
        with pytest.raises(LLMError, match="must return a list of 2 results for as many prompts"):
            raise error
    assert (await batcher.complete(request(3))).choices[0].content == "fine"


class Unsayable(Exception):
    def __str__(self):
        raise ValueError


class OwnTooLong(ContextTooLong):
    """Made in a way of its own, and without what the base class notes."""

    def __init__(self, tokens: int) -> None:
        Exception.__init__(self, f"{tokens} tokens")


@pytest.mark.parametrize(
    ("raised", "kind", "words", "retryable"),
    [
        (RuntimeError("CUDA \x1b[31m sk-abcdefghijkl"), LLMError, r"raised RuntimeError: CUDA \\x1b\[31m \(not", True),
        (Unsayable(), LLMError, "raised Unsayable", True),
        (SystemExit(3), LLMError, "raised SystemExit: 3", True),
        (StopIteration(), LLMError, "raised (StopIteration|RuntimeError)", True),
        (asyncio.CancelledError(), LLMError, "was cancelled from within", True),
        (LLMError("not now", attempts=3, retryable=True), LLMError, "^not now$", True),
        (ContextTooLong("too long"), ContextTooLong, "^too long$", False),
        (OwnTooLong(5000), ContextTooLong, "^5000 tokens$", False),
        (RuntimeError("x" * 990 + " sk-abcdefghijkl"), LLMError, "raised RuntimeError: x", True),
        (LLMError("y" * 10**6), LLMError, "^y{999}…$", False),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("way", ["sync", "async"])
async def test_what_an_engine_raises_fails_each_request_of_its_batch(way, raised, kind, words, retryable):
    def generate(prompts):
        raise raised

    async def agenerate(prompts):
        raise raised

    batcher = BatchLLM(generate if way == "sync" else agenerate).open()
    failed = await asyncio.gather(*(batcher.complete(request(seed)) for seed in range(2)), return_exceptions=True)
    assert failed[0] is not failed[1]
    for error in failed:
        assert type(error) is kind
        assert error.retryable is retryable
        with pytest.raises(kind, match=words):
            raise error
        assert "sk-" not in str(error)


async def test_an_engine_can_say_that_there_is_no_point_in_going_on():
    def generate(prompts):
        raise EndpointError("no weights are loaded")

    with pytest.raises(EndpointError, match="no weights"):
        await BatchLLM(generate).open().complete(request(1))


def noting() -> tuple[Request, list[tuple[int, int]]]:
    """A request for four draws, and what its reader sees: the first draw and the number of draws of each answer."""
    seen: list[tuple[int, int]] = []
    asked = request(1, n=4)

    def take(data, first, attempts, micros):
        reply = read(data, first, attempts, micros)
        seen.append((first, len(reply.choices)))
        return reply

    asked.take = take
    return asked, seen


async def test_draws_of_a_prompt_are_read_together():
    asked, seen = noting()
    reply = await answered(
        [{"text": "x", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}] * 4, asked, supports_n=True
    )
    assert (seen, len(reply.choices), reply.prompt, reply.generated) == ([(0, 4)], 4, 3, 8)


async def test_a_draw_that_failed_is_told_once_the_others_have_been_read():
    asked, seen = noting()
    with pytest.raises(LLMError, match="not None"):
        await answered(["a", None, "c", "d"], asked, supports_n=True)
    assert seen == [(0, 1), (2, 2)]
    seen.clear()
    with pytest.raises(LLMError, match="a log-probability is 2"):
        await answered(["a", {"text": "b", "token_ids": [1], "logprobs": [2.0]}, "c", "d"], asked, supports_n=True)
    assert seen == [(0, 1), (2, 1), (3, 1)], "what cannot be read together is read one by one"


@pytest.mark.parametrize(("result", "given"), [(["a", "b"], "2 of them"), ("abcd", "'abcd'"), (None, "None")])
async def test_a_prompt_for_several_draws_needs_a_list_of_as_many(result: object, given: str):
    with pytest.raises(LLMError, match=f"list of 4 completions for a prompt with n=4, not {given}"):
        await answered(result, request(1, n=4), supports_n=True)
