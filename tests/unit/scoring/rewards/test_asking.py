"""Plain questions to a model: what is sent, what comes back, and what it cost."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from foreign import error, message, serving

from trunkline.errors import BadRequest, ConfigError, LLMError, ReplyError
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.llm.types import Reply, ReplyChoice, Request
from trunkline.scoring.model_client import ModelClient
from trunkline.types import Usage

QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "what?"}]


class Scripted:
    """An LLM that says what it was told to say, and keeps every body."""

    def __init__(self, text: str = "so", prompt: int = 7, cached: int = 2, generated: int = 3) -> None:
        self.bodies: list[dict[str, object]] = []
        self.closed = 0
        self._reply = Reply([ReplyChoice(text, None, [], "stop")], prompt, cached, generated, 3, 10)

    async def complete(self, request: Request) -> Reply:
        body = json.loads(request.body)
        assert body["seed"] == request.seed
        self.bodies.append(body)
        return self._reply

    async def close(self) -> None:
        self.closed += 1


async def test_a_question_is_sent_with_its_sampling_and_its_reply_is_what_was_said_aloud():
    llm = Scripted("<think>is it?</think>\nit is")
    asker = ModelClient(llm, "m", Sampling(temperature=0.5, max_tokens=9))
    asked = await asker.ask(QUESTION)
    assert asked.text.strip() == "it is"
    assert asked.usage == Usage(calls=1, prompt=7, cached=2, generated=3, retries=2)
    body = llm.bodies[0]
    assert (body["model"], body["messages"]) == ("m", QUESTION)
    assert (body["temperature"], body["max_tokens"]) == (0.5, 9)


async def test_equal_questions_have_equal_seeds_and_others_do_not():
    llm = Scripted()
    for seed in (0, 1):
        asker = ModelClient(llm, "m", seed=seed)
        for draw in (0, 0, 1):
            await asker.ask(QUESTION, draw)
        await asker.ask(QUESTION[1:])
    seeds = [body["seed"] for body in llm.bodies]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**53 for seed in seeds)


async def test_usage_adds_up_and_what_no_server_reported_is_in_no_total():
    asker = ModelClient(Scripted(), "m")
    await asyncio.gather(*(asker.ask(QUESTION, draw) for draw in range(5)))
    assert asker.usage == Usage(calls=5, prompt=35, cached=10, generated=15, retries=10)
    silent = ModelClient(Scripted(prompt=-1, cached=-1, generated=-1), "m")
    await silent.ask(QUESTION)
    assert silent.usage == Usage(calls=1, unreported=1, retries=2)


@pytest.mark.parametrize("kind", ["url", "spec"])
async def test_an_endpoint_is_opened_when_first_asked_and_closed_here(kind: str):
    with serving(lambda _body: message("yes")) as server:
        asker = ModelClient(server.url if kind == "url" else LLM(server.url, max_retries=0), "m")
        assert not server.bodies
        assert (await asker.ask(QUESTION)).text == "yes"
        await asker.close()
        await asker.close()
        assert (await asker.ask(QUESTION)).text == "yes"
        await asker.close()
        assert len(server.bodies) == 2


async def test_a_client_is_asked_and_stays_open():
    with serving(lambda _body: message("yes")) as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="key", max_retries=0) as client:
            asker = ModelClient(client, "m")
            assert (await asker.ask(QUESTION)).text == "yes"
            await asker.close()
            assert not client.is_closed()
            assert (await asker.ask(QUESTION)).text == "yes"


async def test_an_llm_of_ones_own_is_not_closed():
    llm = Scripted()
    asker = ModelClient(llm, "m")
    await asker.ask(QUESTION)
    await asker.close()
    assert llm.closed == 0


async def test_what_a_server_refuses_is_raised_and_counted_nowhere():
    with serving(lambda _body: error(400, "no such thing")) as server:
        asker = ModelClient(LLM(server.url, max_retries=0), "m")
        with pytest.raises(BadRequest, match="no such thing"):
            await asker.ask(QUESTION)
        assert asker.usage == Usage()
        await asker.close()


class Broken:
    """An LLM of somebody's own that lets out what its reader raised, or has no choices."""

    def __init__(self, reply: Reply | ReplyError) -> None:
        self._reply = reply

    async def complete(self, _request: Request) -> Reply:
        if isinstance(self._reply, ReplyError):
            raise self._reply
        return self._reply

    async def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (
            ReplyError("its \x1b[2J is no JSON", 3),
            LLMError,
            r"^what m\\n answered is no reply: its \\x1b\[2J is no JSON$",
        ),
        (Reply([], 7, 0, 0, 1, 10), ConfigError, r"^Broken\.complete\(\) returned a Reply, which has no choice"),
    ],
    ids=["unreadable", "empty"],
)
async def test_what_is_no_reply_is_the_failure_of_who_made_it(
    reply: Reply | ReplyError, kind: type[Exception], words: str
):
    with pytest.raises(kind, match=words):
        await ModelClient(Broken(reply), "m\n").ask(QUESTION)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": " "}, "^model is empty"),
        ({"sampling": {"temperature": 1}}, "sampling must be Sampling"),
        ({"seed": -1}, "seed must"),
        ({"llm": 7}, "is no LLM"),
    ],
    ids=["model", "sampling", "seed", "llm"],
)
def test_what_cannot_be_is_named(options: dict[str, object], message: str):
    given: dict[str, object] = {"llm": Scripted(), "model": "m", **options}
    with pytest.raises(ConfigError, match=message):
        ModelClient(**given)
