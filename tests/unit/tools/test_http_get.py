"""The tool that fetches pages: what it asks, what it refuses, and what hostile servers can do with it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import pytest
from aiohttp import web

import trunkline as tl
from trunkline._internal.serialization import load, pack
from trunkline.errors import ConfigError, ToolError
from trunkline.tools.builtin.http_get import check_public

PAGES = {
    "/text": web.Response(text="caf\u00e9"),
    "/large": web.Response(text="x" * 1_000_000),
    "/bytes": web.Response(body=b"a\xff\xfe\0b", headers={"Content-Type": "text/html; charset=unicode_escape"}),
    "/picture": web.Response(body=b"\x89PNG", content_type="image/png"),
    "/packed": web.Response(body=b"\x1f\x8b", headers={"Content-Type": "text/plain", "Content-Encoding": "gzip"}),
    "/there": web.Response(status=302, headers={"Location": "/text"}),
    "/inside": web.Response(status=302, headers={"Location": "http://127.0.0.2:1/secret"}),
    "/elsewhere": web.Response(status=307, headers={"Location": "//user@example.org/"}),
    "/file": web.Response(status=301, headers={"Location": "file:///etc/passwd"}),
    "/round": web.Response(status=308, headers={"Location": "/round"}),
    "/gone": web.Response(status=404, text="no"),
}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a server with these pages."""

    async def answer(request: web.Request) -> web.Response:
        assert "Cookie" not in request.headers
        if request.path == "/never":
            await asyncio.sleep(60)
        page = PAGES[request.path]
        return web.Response(status=page.status, body=page.body, headers=page.headers)

    app = web.Application()
    app.router.add_get("/{name}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield site._server.sockets[0].getsockname()[1]
    await runner.cleanup()


async def said(tool: Any, url: str) -> str:
    """What the model reads."""
    try:
        return await tool(url)
    except ToolError as error:
        return str(error)


async def test_pages_of_allowed_hosts(port: int):
    tool = tl.tools.http_get(f"localhost:{port}", private=True, size=1000, seconds=30)
    base = f"http://LOCALHOST:{port}"
    assert await said(tool, f"{base}/text#part") == "[200 text/plain]\ncaf\u00e9"
    assert await said(tool, f"{base}/there") == "[200 text/plain]\ncaf\u00e9"
    assert await said(tool, f"{base}/large") == "[200 text/plain]\n" + "x" * 1000 + "\n[cut: the first 1,000 bytes]"
    assert await said(tool, f"{base}/bytes") == "[200 text/html]\na\ufffd\ufffd\0b"
    assert await said(tool, f"{base}/picture") == "[200 image/png]\n[it is no text]"
    assert "compressed" in await said(tool, f"{base}/packed")
    assert await said(tool, f"{base}/gone") == "[404 text/plain]\nno"
    assert "redirects to 127.0.0.2:1: not allowed" in await said(tool, f"{base}/inside")
    assert "must not have a user name" in await said(tool, f"{base}/elsewhere")
    assert "must begin with https" in await said(tool, f"{base}/file")
    assert "redirects more than 5 times" in await said(tool, f"{base}/round")
    quick = tl.tools.http_get(f"localhost:{port}", private=True, seconds=0.2)
    assert await said(quick, f"{base}/never") == "Error: the page did not come within 0.2 s."


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/text",
        "http://localhost:22/",
        "http://a@localhost:{port}/text",
        "http://evil.org\\@localhost:{port}/",
        "http://localhost:{port}.evil.org/",
        "http://[::ffff:127.0.0.1]:{port}/text",
        "http://2130706433:{port}/text",
        "ftp://localhost:{port}/",
        "localhost:{port}/text",
        "http://localhost:{port}/\r\nX: y",
        "http://localhost:99999/",
        "http://" + "x" * 3000,
        "",
    ],
)
async def test_others_are_refused(port: int, url: str):
    tool = tl.tools.http_get(f"localhost:{port}", private=True)
    answer = await said(tool, url.format(port=port))
    assert answer.startswith("Error: ")
    assert answer.isprintable()


async def test_private_addresses_are_refused_whatever_a_name_says_later(port: int, monkeypatch: pytest.MonkeyPatch):
    named = tl.tools.http_get(f"*.example.org:{port}")
    loop = asyncio.get_running_loop()
    answers = ["127.0.0.1"]
    asked = []

    async def lookup(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr(loop, "getaddrinfo", lookup)
    url = f"http://a.example.org:{port}/text"
    assert "has the address 127.0.0.1, which is private or local" in await said(named, url)
    # The name leads elsewhere at every further look: the address that was checked is the one that is asked.
    answers[:] = ["127.0.0.1", "127.0.0.9"]
    allowed = tl.tools.http_get(f"*.example.org:{port}", private=True, seconds=30)
    assert await said(allowed, url) == "[200 text/plain]\ncaf\u00e9"
    assert asked == ["a.example.org"] * 2


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:1::",
    ],
)
def test_addresses_that_are_not_public(address: str):
    with pytest.raises(ToolError, match="private or local"):
        check_public("host", ip_address(address))


def test_public_addresses_pass():
    for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"):
        check_public("host", ip_address(address))
    with pytest.raises(ConfigError, match="name the hosts"):
        tl.tools.http_get()


@pytest.mark.parametrize("host", ["http://a.org", "a.org/x", "*", "a.org:99999", "a b", "", 3])
def test_a_host_that_is_none_is_named(host: Any):
    with pytest.raises(ConfigError, match="a host is written as"):
        tl.tools.http_get(host)


def test_it_reaches_other_processes_by_its_settings():
    tool = tl.tools.http_get("a.org", "*.b.org", seconds=3)
    again = load(pack(tool, "tool", by_value=False))
    assert again.made_by == tool.made_by
    assert again.definition == tool.definition


def test_texts_name_tools_of_the_library():
    agent = tl.Agent(model="m", tools=["calculator", ["http_get=a.org+*.b.org"]])
    assert [tool.name for tool in agent.tools] == ["calculator", "http_get"]
    assert agent.tools[1].made_by.hosts == ("a.org", "*.b.org")
    with pytest.raises(ConfigError, match=r"call it: tl.tools.python\(\)"):
        tl.Agent(model="m", tools=[tl.tools.python])
    for text, words in (("calculator=3", "takes no value"), ("nix", "tools of the library are python"), ("a,b", "'a'")):
        with pytest.raises(ConfigError, match=words):
            tl.Agent(model="m", tools=text)
