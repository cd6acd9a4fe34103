"""Endpoints as data: what a user may write, what crosses, and that the key is nowhere."""

import copy
import logging
import pickle

import msgspec
import pytest
from aiohttp.test_utils import unused_port
from llm_servers import KEY, REQUEST, completion, serve

from trunkline.errors import ConfigError, EndpointError, TrunklineError
from trunkline.llm.config import LLM
from trunkline.llm.http.aiohttp_transport import is_loopback
from trunkline.llm.types import Limits, LLMClient, Routing

URL = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


def test_the_base_url_defaults_as_people_expect(monkeypatch):
    assert LLM().base_urls == ("https://api.openai.com/v1",)
    monkeypatch.setenv("OPENAI_API_BASE", "http://old/v1")
    assert LLM().base_urls == ("http://old/v1",)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://new/v1/")
    assert LLM().base_urls == ("http://new/v1",)
    assert LLM("http://a/v1", "http://b/v1", max_concurrency=9).base_urls == (
        "http://a/v1",
        "http://b/v1",
    )


@pytest.mark.parametrize(
    "url",
    ["http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/chat/completions", " http://h:1/v1/completions "],
)
def test_a_url_is_tidied(url):
    assert LLM(url).base_urls == ("http://h:1/v1",)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:8000/v1", "must start with http"),
        ("ftp://h/v1", "must start with http"),
        ("http://", "name a host"),
        ("http:///v1", "name a host"),
        ("http://h:99999/v1", "cannot be read"),
        ("http://[::1/v1", "cannot be read"),
        ("http://user:hunter2@h/v1", "user or password"),
        ("ftp://user:hunter2@h/v1", "user or password"),
        ("http://h/v1?key=hunter2", "no query"),
        ("http://h/a b", "space"),
        ("", "must start with http"),
        (5, "must be a string"),
    ],
)
def test_a_url_that_cannot_be_used(url, words):
    with pytest.raises(ConfigError, match=words) as caught:
        LLM(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_retries": -1}, "max_retries"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"deadline": -1}, "deadline"),
        ({"api_key_env": "sk-hunter2"}, "api_key_env"),
        ({"api_key": "hunter2\nX: y"}, "no header can carry"),
        ({"api_key": ""}, "no header can carry"),
        ({"headers": {"a b": "x"}}, "no header"),
        ({"headers": {"Host": "x"}}, "no header"),
        ({"headers": {"X-A": "hunter2\r\nB: c"}}, "X-A"),
    ],
)
def test_an_option_that_cannot_be_used(options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        LLM(URL, **options)
    assert "hunter2" not in str(caught.value)


def test_a_missing_key_matters_only_at_openai(monkeypatch):
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        LLM().open()
    assert isinstance(LLM(URL).open(), LLMClient)
    monkeypatch.setenv("MY_KEY", "bad\x01key")
    with pytest.raises(ConfigError, match="MY_KEY") as caught:
        LLM(URL, api_key_env="MY_KEY").open()
    assert "bad" not in str(caught.value)


def test_it_crosses_without_what_is_secret():
    spec = LLM(URL, api_key=KEY, headers={"X-Team": "hush-hush"}, max_concurrency=10)
    forms = [
        repr(spec),
        str(spec),
        msgspec.json.encode(spec).decode(),
        repr(msgspec.to_builtins(spec)),
        repr(msgspec.structs.asdict(spec)),
        repr(msgspec.msgpack.encode(spec)),
        repr(pickle.dumps(spec)),
        repr(spec.open()),
    ]
    for form in forms:
        assert KEY not in form
        assert "hush-hush" not in form
    assert "X-Team" in forms[2]
    crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=LLM)
    assert crossed == spec == pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec)
    with pytest.raises(ConfigError, match="did not cross"):
        crossed.open()
    whole = crossed.with_secret(spec.secret)
    assert whole.secret == spec.secret
    assert KEY in whole.secret
    assert msgspec.structs.replace(whole, max_concurrency=3).secret == spec.secret
    plain = LLM(URL)
    assert plain.secret is None
    assert plain.with_secret(None) is plain


def test_it_shows_itself_as_its_user_wrote_it():
    assert repr(LLM(URL)) == "LLM('http://127.0.0.1:8000/v1')"
    spec = LLM(URL, "http://h/v1", api_key=KEY, headers={"X-Team": "hush"}, max_concurrency=9)
    assert repr(spec) == "LLM('http://127.0.0.1:8000/v1', 'http://h/v1', max_concurrency=9)"


def test_settings_name_headers_and_hold_no_value_of_them():
    spec = LLM(URL, api_key=KEY, headers={"X-Team": "hush", "A": "b"}, max_retries=1)
    assert spec.settings() == {
        "base_urls": (URL,),
        "api_key_env": "OPENAI_API_KEY",
        "max_concurrency": 256,
        "timeout": 600.0,
        "max_retries": 1,
        "deadline": 3600.0,
        "siblings": True,
        "send_seed": True,
        "price": {},
        "limits": {
            "requests_per_minute": None,
            "tokens_per_minute": None,
            "endpoint_concurrency": None,
            "adaptive": True,
            "slowdown": 5.0,
        },
        "routing": {"margin": 32, "session_headers": None, "memory": 65536, "eject_after": 3},
        "tokens": None,
        "headers": ("A", "X-Team"),
    }


def test_what_crosses_is_checked_again():
    with pytest.raises(msgspec.ValidationError, match="max_concurrency"):
        msgspec.json.decode(b'{"base_urls":["http://h/v1"],"max_concurrency":0}', type=LLM)
    with pytest.raises(msgspec.ValidationError, match="at least one"):
        msgspec.json.decode(b'{"base_urls":[]}', type=LLM)


async def test_the_key_and_headers_are_sent_and_shown_nowhere(monkeypatch, caplog):
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)

    async def echo(request):
        return (401, {}, {"error": {"message": request.headers["Authorization"]}})

    said = []
    echoes = [
        (401, {}, {"error": {"message": f"no such key: {KEY}"}}),
        (400, {}, KEY.encode()),
        (500, {}, KEY.encode()),
        (302, {"Location": f"http://{KEY}/"}, b""),
        f"{KEY} is not json".encode(),
    ]
    async with serve(*echoes, completion(KEY)) as server:
        spec = LLM(server.base_url, api_key_env="MY_KEY", headers={"X-Team": "hush"}, max_retries=0)
        llm = spec.open()
        for _ in echoes:
            with pytest.raises(TrunklineError) as caught:
                await llm.complete(REQUEST)
            said.append(str(caught.value) + repr(caught.value) + repr(vars(caught.value)))
        reply = await llm.complete(REQUEST)
        await llm.close()
    assert "MY_KEY" in said[0]
    assert reply.choices[0].content == KEY  # a model may say what it likes
    assert all(KEY not in text for text in said)
    assert KEY not in caplog.text
    assert server.seen[0][1]["Authorization"] == f"Bearer {KEY}"
    assert server.seen[0][1]["X-Team"] == "hush"


async def test_no_key_means_no_header():
    async with serve(completion()) as server:
        llm = LLM(server.base_url).open()
        await llm.complete(REQUEST)
        await llm.close()
    assert "Authorization" not in server.seen[0][1]


async def test_a_proxy_is_used_but_never_for_this_machine(monkeypatch):
    async with serve(completion("through the proxy")) as proxy, serve(completion("direct")) as server:
        address = proxy.base_url.removesuffix("/v1").removeprefix("http://")
        monkeypatch.setenv("HTTP_PROXY", f"http://someone:pass@{address}")
        monkeypatch.setenv("http_proxy", f"http://someone:pass@{address}")
        local, remote = LLM(server.base_url).open(), LLM("http://model.invalid/v1").open()
        assert (await local.complete(REQUEST)).choices[0].content == "direct"
        assert (await remote.complete(REQUEST)).choices[0].content == "through the proxy"
        await local.close()
        await remote.close()
    assert proxy.seen[0][1]["Proxy-Authorization"].startswith("Basic ")
    assert proxy.seen[0][1]["Host"] == "model.invalid"


def test_what_loopback_is():
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.9.1", "::1", "a.localhost"))
    assert not any(is_loopback(host) for host in ("localhost.example.org", "10.0.0.1", "example.org", ""))


async def test_an_unreachable_endpoint_is_one_clear_line():
    llm = LLM(f"http://127.0.0.1:{unused_port()}/v1", max_retries=0).open()
    with pytest.raises(EndpointError, match=r"^http://127\.0\.0\.1:\d+/v1/chat/completions gave no answer: "):
        await llm.complete(REQUEST)
    await llm.close()


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        (Limits, {"requests_per_minute": 0}, r"limits\.requests_per_minute \(--rpm\) must be a number above 0"),
        (Limits, {"tokens_per_minute": float("nan")}, r"limits\.tokens_per_minute"),
        (Limits, {"endpoint_concurrency": 0}, r"limits\.endpoint_concurrency must be a whole number of at least 1"),
        (Limits, {"adaptive": "yes"}, r"limits\.adaptive must be true or false, not 'yes'"),
        (Limits, {"slowdown": 1}, r"limits\.slowdown"),
        (Routing, {"margin": -1}, r"routing\.margin"),
        (Routing, {"memory": 0}, r"routing\.memory"),
        (Routing, {"eject_after": 0}, r"routing\.eject_after"),
        (Routing, {"session_headers": 1}, r"routing\.session_headers must be true, false or null, not 1"),
    ],
)
def test_limits_and_routing_name_what_they_cannot_use(settings, options, words):
    with pytest.raises(ConfigError, match=words):
        settings(**options)


def test_limits_and_routing_must_be_what_they_are_called():
    with pytest.raises(ConfigError, match=r"limits must be Limits\(\.\.\.\), not {'rpm': 3}"):
        LLM(URL, limits={"rpm": 3})
    with pytest.raises(ConfigError, match=r"routing must be Routing\(\.\.\.\)"):
        LLM(URL, routing=Limits())
    spec = LLM(URL, limits=Limits(tokens_per_minute=5.5), routing=Routing(margin=1))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=LLM) == spec
