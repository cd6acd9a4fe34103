"""Somebody's OpenAI client as an LLM: everything goes through it, and its failures become ours."""

import json

import httpx2
import openai
import pytest

from trunkline.errors import BadRequest, ConfigError, ContextTooLong, EndpointError, LLMError
from trunkline.llm.openai_client import ClientLLM, as_llm
from trunkline.llm.types import Reply, Request

KEY = "sk-client-0123456789"
BODY = b'{"model":"my \\"model\\"","messages":[{"role":"user","content":"hi"}],"seed":5}'
REQUEST = Request(BODY, 1)
REPLY = {
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello", "odd": [1]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    "unknown": {"a": 1},
}


class Spy:
    """A transport that answers as it is told and keeps every request."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.hooked = 0

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        return httpx2.Response(status, content=body if isinstance(body, bytes) else json.dumps(body).encode())

    async def hook(self, request):
        self.hooked += 1
        request.headers["X-Hook"] = "yes"

    def client(self, kind=openai.AsyncOpenAI, **options):
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self), event_hooks={"request": [self.hook]})
        return kind(api_key=KEY, http_client=http, **{"max_retries": 0} | options)


async def test_each_request_goes_through_the_client_as_it_is():
    spy = Spy((200, REPLY))
    async with spy.client(base_url="http://h.invalid/v1", default_headers={"X-Own": "1"}) as client:
        llm = as_llm(client)
        replies = [await llm.complete(REQUEST) for _ in range(3)]
        await llm.close()
        await llm.complete(REQUEST)
    assert len(spy.requests) == spy.hooked == 4
    assert replies[0].choices[0].content == "hello"
    assert (replies[0].prompt, replies[0].cached, replies[0].generated, replies[0].attempts) == (3, -1, 1, 1)
    sent = spy.requests[0]
    assert sent.content == BODY
    assert str(sent.url) == "http://h.invalid/v1/chat/completions"
    assert sent.headers["Authorization"] == f"Bearer {KEY}"
    assert sent.headers["Content-Type"] == "application/json"
    assert sent.headers["X-Hook"] == "yes"
    assert sent.headers["X-Own"] == "1"


async def test_azure_finds_its_deployment():
    spy = Spy((200, REPLY))
    options = {"azure_endpoint": "http://az.invalid", "api_version": "2026-01-01"}
    async with spy.client(openai.AsyncAzureOpenAI, **options) as client:
        assert (await as_llm(client).complete(REQUEST)).choices[0].content == "hello"
    async with spy.client(openai.AsyncAzureOpenAI, azure_deployment="mine", **options) as client:
        await as_llm(client).complete(REQUEST)
    first, second = (request.url for request in spy.requests)
    assert first.raw_path == b"/openai/deployments/my%20%22model%22/chat/completions?api-version=2026-01-01"
    assert second.path == "/openai/deployments/mine/chat/completions"
    assert spy.requests[0].headers["api-key"] == KEY


async def test_the_clients_own_retries_hold(monkeypatch):
    async def at_once(seconds):
        return None

    monkeypatch.setattr("anyio.sleep", at_once)
    spy = Spy((500, b"busy"), httpx2.ConnectError("reset"), (200, REPLY))
    async with spy.client(base_url="http://h.invalid/v1", max_retries=2) as client:
        reply = await as_llm(client).complete(REQUEST)
        assert reply.attempts == 3
        spy.answers = [(503, b"busy")]
        with pytest.raises(LLMError, match="after 3 attempts") as caught:
            await as_llm(client).complete(REQUEST)
        assert (caught.value.attempts, caught.value.retryable) == (3, True)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ((401, {"error": {"message": f"bad key {KEY}"}}), EndpointError, "check the key"),
        (
            (404, {"error": {"message": "The model does not exist", "code": "model_not_found"}}),
            EndpointError,
            "model",
        ),
        ((429, {"error": {"message": "q", "code": "insufficient_quota"}}), EndpointError, "quota"),
        ((429, {"error": {"message": "slow"}}), LLMError, "slow"),
        (
            (400, {"error": {"message": "x", "code": "context_length_exceeded"}}),
            ContextTooLong,
            "no longer fits",
        ),
        ((400, {"error": {"message": "odd"}}), BadRequest, "odd"),
        ((200, b"<html>"), LLMError, "HTML page"),
        ((200, {"error": {"message": "bad", "code": 401}}), EndpointError, "bad"),
        (httpx2.ConnectError("refused by nobody"), EndpointError, "refused by nobody"),
        (httpx2.ReadTimeout("too slow"), LLMError, "gave no answer"),
        (RuntimeError("a bug in a hook"), LLMError, "a bug in a hook"),
    ],
)
async def test_its_failures_become_ours(answer, kind, words):
    spy = Spy(answer)
    async with spy.client(base_url="http://h.invalid/v1") as client:
        with pytest.raises(kind, match=words) as caught:
            await as_llm(client).complete(REQUEST)
    assert type(caught.value) is kind
    assert KEY not in str(caught.value)
    assert KEY not in repr(as_llm(client))


async def test_a_refusal_after_a_reply_breaks_one_call_and_ten_in_a_row_the_run():
    odd = (404, {"detail": "Not Found"})
    spy = Spy((200, REPLY), odd, (200, REPLY), odd)
    async with spy.client(base_url="http://h.invalid/v1") as client:
        llm = as_llm(client)
        ends = []
        for _ in range(13):
            try:
                ends.append(type(await llm.complete(REQUEST)))
            except (LLMError, EndpointError) as error:
                ends.append(type(error))
    assert ends == [Reply, LLMError, Reply, *[LLMError] * 9, EndpointError]


def test_what_is_no_llm():
    class Blocking:
        def complete(self, request):
            return None

    class Mine:
        async def complete(self, request):
            return None

    mine = Mine()
    assert as_llm(mine) is mine
    assert isinstance(as_llm(ClientLLM(openai.AsyncOpenAI(api_key="x"))), ClientLLM)
    with pytest.raises(ConfigError, match="AsyncOpenAI"):
        as_llm(openai.OpenAI(api_key="x"))
    blocking = Blocking()
    assert as_llm(blocking) is blocking
    for odd in (object(), "http://h/v1", None, Mine, openai.AsyncOpenAI):
        with pytest.raises(ConfigError, match="is no LLM"):
            as_llm(odd)
