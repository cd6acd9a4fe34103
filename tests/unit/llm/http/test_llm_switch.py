"""Which transport a URL gets."""

from __future__ import annotations

import pytest
from fault_server import OK, FaultServer, Peer
from llm_servers import KEY
from places import SUPPORT

from trunkline.llm.http import origin
from trunkline.llm.http.aiohttp_transport import AioTransport, SwitchTransport
from trunkline.llm.http.direct_transport import DirectTransport
from trunkline.llm.http.transport import TransportError


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("url", "proxy", "kind"),
    [
        ("http://127.0.0.1:1/v1", "", DirectTransport),
        ("http://far.example/v1", "", DirectTransport),
        ("https://far.example/v1", "", DirectTransport),
        ("https://far.example/v1", "http://proxy.example:3128", AioTransport),
        ("http://far.example/v1", "http://proxy.example:3128", AioTransport),
        ("http://localhost/v1", "http://proxy.example:3128", DirectTransport),
        ("http://user:word@far.example/v1", "", AioTransport),
        ("http://[::1/", "", DirectTransport),
    ],
)
async def test_what_needs_no_proxy_goes_directly(monkeypatch, url, proxy, kind):
    if proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("https_proxy", proxy)
    switch = SwitchTransport(4)
    assert type(switch._choose(url)) is kind
    await switch.close()


async def test_one_switch_serves_both_ways_at_once(monkeypatch):
    async def as_proxy(peer: Peer) -> None:
        assert peer.seen.head.startswith(b"POST http://far.example/v1 HTTP/1.1\r\n")
        await peer.send(OK)

    switch = SwitchTransport(4)
    async with FaultServer(as_proxy) as proxy, FaultServer(OK) as server:
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}:{proxy.port}")
        for url in (server.url, "http://far.example/v1"):
            assert (await switch.post(url, {"Authorization": KEY}, b"{}", 5.0)).status == 200
        assert (len(proxy.seen), len(server.seen)) == (1, 1)
    await switch.close()
    await switch.close()
    for url in (server.url, "http://far.example/v1"):
        with pytest.raises(TransportError, match="closed"):
            await switch.post(url, {}, b"{}", 5.0)


async def test_a_certificate_in_ssl_cert_file_is_trusted(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(SUPPORT / "certificate.pem"))
    monkeypatch.setattr(FaultServer, "encrypted", True)
    origin._context.cache_clear()
    switch = SwitchTransport(4)
    try:
        async with FaultServer(OK) as server:
            for _ in range(2):
                assert (await switch.post(server.url, {"Authorization": KEY}, b"{}", 5.0)).status == 200
            assert server.connections == 1
    finally:
        await switch.close()
        origin._context.cache_clear()
