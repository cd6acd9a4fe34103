"""What an owner has set up on a client holds for each request: transport, hooks, auth, headers, query, retries."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai
import pytest

from trunkline.errors import ConfigError, TrunklineError
from trunkline.llm.openai_client import ClientLLM, as_llm
from trunkline.llm.response import read
from trunkline.llm.types import Request

KEY = "sk-owner-0123456789abcdef"
BODY = b'{"model":"a model","messages":[],"n":2,"return_token_ids":true,"seed":5}'
CHOICES = [
    {"index": i, "message": {"role": "assistant", "content": f"c{i}"}, "finish_reason": "stop", "token_ids": [i, 7]}
    for i in range(2)
]
REPLY = json.dumps({"model": "m", "choices": CHOICES, "prompt_token_ids": [1, 2, 3]}).encode()


class Wire(httpx2.AsyncBaseTransport):
    """A transport of the owner's own; answers come from a function, after a turn of the loop."""

    def __init__(self, answer=lambda request: httpx2.Response(200, content=REPLY)) -> None:
        self.answer = answer
        self.requests: list[httpx2.Request] = []
        self.now = self.most = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return self.answer(request)


class Signed(httpx2.Auth):
    """Auth that asks twice: the first answer tells what to sign with."""

    requires_response_body = True

    def auth_flow(self, request):
        response = yield request
        request.headers["Authorization"] = f"Signed {response.headers.get('nonce', '')}"
        yield request


def client(wire: Wire, kind=openai.AsyncOpenAI, *, http=None, **options):
    options = {"api_key": KEY, "max_retries": 0} | options
    if kind is openai.AsyncOpenAI:
        options.setdefault("base_url", "http://h.invalid/v1")
    return kind(http_client=httpx2.AsyncClient(transport=wire, **(http or {})), **options)


def kinds_of_clients() -> dict:
    class Own(openai.AsyncOpenAI):
        pass

    azure = {"azure_endpoint": "http://az.invalid", "api_version": "2026-01-01"}
    return {
        "plain": (openai.AsyncOpenAI, {}, "/v1/chat/completions"),
        "own": (Own, {"base_url": "http://h.invalid/v2/"}, "/v2/chat/completions"),
        "azure": (openai.AsyncAzureOpenAI, azure, "/openai/deployments/a%20model/chat/completions"),
        "deployment": (
            openai.AsyncAzureOpenAI,
            azure | {"azure_deployment": "mine"},
            "/openai/deployments/mine/chat/completions",
        ),
        "azure url": (
            openai.AsyncAzureOpenAI,
            {"base_url": "http://az.invalid/openai/deployments/its", "api_version": "1"},
            "/openai/deployments/its/chat/completions",
        ),
    }


@pytest.mark.parametrize("kind", kinds_of_clients())
async def test_body_and_reply_go_through_raw_whatever_the_client_is(kind: str):
    cls, options, path = kinds_of_clients()[kind]
    wire, taken = Wire(), []

    def take(data, first, attempts, micros):
        taken.append((data, first, attempts))
        return read(data, first, attempts, micros)

    reply = await as_llm(client(wire, cls, **options)).complete(Request(BODY, 1, n=2, seed=5, take=take))
    assert taken == [(REPLY, 0, 1)]
    assert [choice.content for choice in reply.choices] == ["c0", "c1"]
    (sent,) = wire.requests
    assert sent.content == BODY
    assert sent.url.raw_path.decode().partition("?")[0] == path
    assert reply.endpoint == f"http://{sent.url.host}{_base(path)}"
    assert (reply.first, reply.micros >= reply.queue >= 0) == (-1, True)


def _base(path: str) -> str:
    return path.replace("/deployments/a%20model", "").removesuffix("/chat/completions")


async def test_hooks_auth_headers_and_query_see_each_request():
    seen: list[str] = []

    async def asked(request):
        seen.append("asked")
        request.headers["X-Hook"] = str(len(seen))

    async def answered(response):
        seen.append(f"answered {response.status_code}")

    wire = Wire(lambda request: httpx2.Response(200, headers={"nonce": "n1"}, content=REPLY))
    owned = client(
        wire,
        http={"event_hooks": {"request": [asked], "response": [answered]}, "auth": Signed()},
        default_headers={"X-Own": "1", "OpenAI-Project": "p"},
        default_query={"tenant": "t 1"},
        organization="org",
    )
    llm = as_llm(owned)
    for _ in range(3):
        await llm.complete(Request(BODY, 1))
    assert len(wire.requests) == 6, "the auth asks twice for each"
    assert seen == ["asked", "answered 200"] * 6
    for request in wire.requests:
        assert (request.headers["X-Own"], request.headers["OpenAI-Project"]) == ("1", "p")
        assert request.headers["OpenAI-Organization"] == "org"
        assert request.url.params["tenant"] == "t 1"
    assert wire.requests[-1].headers["Authorization"] == "Signed n1"


async def test_the_retries_of_the_client_each_reach_its_transport(monkeypatch: pytest.MonkeyPatch):
    async def at_once(_seconds):
        return None

    monkeypatch.setattr("anyio.sleep", at_once)
    answers = [
        httpx2.Response(429, headers={"Retry-After": "1"}),
        httpx2.Response(503),
        httpx2.Response(200, content=REPLY),
    ]
    wire = Wire(lambda _request: answers.pop(0))
    reply = await as_llm(client(wire, max_retries=2)).complete(Request(BODY, 1))
    assert (reply.attempts, len(wire.requests)) == (3, 3)
    assert {request.content for request in wire.requests} == {BODY}


async def test_a_client_with_other_options_is_used_with_these():
    wire = Wire(lambda _request: httpx2.Response(500))
    base = client(wire, max_retries=2)
    derived = base.with_options(max_retries=0, default_headers={"X-Run": "7"}, timeout=1.5)
    with pytest.raises(TrunklineError, match="500"):
        await as_llm(derived).complete(Request(BODY, 1))
    (sent,) = wire.requests
    assert sent.headers["X-Run"] == "7"
    assert sent.extensions["timeout"]["read"] == 1.5


async def test_azure_takes_its_token_from_a_provider():
    async def provider():
        return "token-0123456789"

    wire = Wire()
    owned = client(
        wire,
        openai.AsyncAzureOpenAI,
        api_key=None,
        azure_endpoint="http://az.invalid",
        api_version="1",
        azure_ad_token_provider=provider,
    )
    await as_llm(owned).complete(Request(BODY, 1))
    assert wire.requests[0].headers["Authorization"] == "Bearer token-0123456789"


def test_requests_in_flight_are_limited_in_each_event_loop_anew():
    wire = Wire()
    llm = ClientLLM(client(wire), max_concurrency=3)

    async def many():
        return await asyncio.gather(*(llm.complete(Request(BODY, 1)) for _ in range(10)))

    for _ in range(2):
        replies = asyncio.run(many())
        assert max(reply.queue for reply in replies) > 0
    assert (wire.most, len(wire.requests)) == (3, 20)


def test_loops_in_several_threads_do_not_lift_the_limit_of_each_other():
    wires = threading.local()
    both = threading.Barrier(2)

    class Wires(httpx2.AsyncBaseTransport):
        """A wire for each thread; both threads are in a request before either goes on."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            both.wait(10)
            wire = wires.here
            wire.now += 1
            wire.most = max(wire.most, wire.now)
            while wire.most < 2:  # however late a thread is, its first two requests are there at once
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            wire.now -= 1
            return wire.answer(request)

    llm = ClientLLM(client(Wires()), max_concurrency=2)

    async def many() -> int:
        wires.here = Wire()
        await asyncio.gather(*(llm.complete(Request(BODY, 1)) for _ in range(12)))
        return wires.here.most

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: asyncio.run(many()), range(2))) == [2, 2]


@pytest.mark.parametrize("value", [0, 1.5, "many", True])
def test_a_limit_that_makes_no_sense_is_refused(value: object):
    with pytest.raises(ConfigError, match="ClientLLM: max_concurrency must be a whole number"):
        ClientLLM(client(Wire()), max_concurrency=value)


@pytest.mark.parametrize("value", [None, 5, object(), openai.AsyncOpenAI], ids=lambda value: type(value).__name__)
def test_what_is_no_client_is_refused(value: object):
    with pytest.raises(ConfigError, match=r"ClientLLM: client must be an openai\.AsyncOpenAI client, not"):
        ClientLLM(value)


def test_a_blocking_client_is_refused():
    for kind in (
        openai.OpenAI(api_key=KEY),
        openai.AzureOpenAI(api_key=KEY, azure_endpoint="http://h", api_version="1"),
    ):
        with pytest.raises(ConfigError, match=f"{type(kind).__name__} blocks; give its async form") as raised:
            ClientLLM(kind)
        assert KEY not in str(raised.value)


def echoing(request: httpx2.Request) -> str:
    """What a server finds as the key in a request."""
    return (request.headers.get("Authorization") or request.headers["api-key"]).rpartition(" ")[2]


ECHOES = {
    "error": lambda key: httpx2.Response(400, json={"error": {"message": f"bad: {key}", "code": key}}),
    "key": lambda key: httpx2.Response(401, json={"error": {"message": f"no such key {key}", "param": key}}),
    "text": lambda key: httpx2.Response(500, content=f"failed for {key}".encode()),
    "page": lambda key: httpx2.Response(200, content=f"<html>{key}".encode()),
    "garbage": lambda key: httpx2.Response(200, content=b'{"choices":' + key.encode()),
    "redirect": lambda key: httpx2.Response(307, headers={"Location": f"http://{key}.invalid/"}),
    "wait": lambda key: httpx2.Response(429, headers={"Retry-After": key, "X-Key": key}, content=key.encode()),
    "inside": lambda key: httpx2.Response(200, json={"error": {"message": key, "code": 400}}),
}


@pytest.mark.parametrize("echo", [*ECHOES, "raised"])
@pytest.mark.parametrize("carrier", ["api_key", "changing", "azure", "azure token", "hook"])
async def test_no_error_has_the_key_whoever_says_it_and_however_it_was_sent(echo: str, carrier: str):
    async def hook(request):
        request.headers["Authorization"] = f"Bearer hooked-{KEY}"

    async def provider():
        return f"provided-{KEY}"

    def answer(request):
        if echo == "raised":
            raise httpx2.ConnectError(f"cannot reach it with {echoing(request)}", request=request)
        return ECHOES[echo](echoing(request))

    azure = {"kind": openai.AsyncAzureOpenAI, "azure_endpoint": "http://az.invalid", "api_version": "1"}
    options = {
        "api_key": {},
        "changing": {"api_key": provider},
        "azure": azure,
        "azure token": azure | {"api_key": None, "azure_ad_token": f"ad-{KEY}"},
        "hook": {"http": {"event_hooks": {"request": [hook]}}},
    }[carrier]
    with pytest.raises(TrunklineError) as raised:
        await as_llm(client(Wire(answer), **options)).complete(Request(BODY, 1))
    seen: BaseException | None = raised.value
    assert KEY not in f"{seen!r} {seen} {seen.__cause__!r}"
    assert seen.__suppress_context__
