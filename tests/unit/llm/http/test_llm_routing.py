"""Several servers, limits and health, over real sockets."""

import asyncio
import contextlib
import itertools

import pytest
from aiohttp import web
from llm_servers import completion, serve

from trunkline.errors import EndpointError
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.types import Request, Routing

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
OK = completion()


@contextlib.asynccontextmanager
async def client(*servers, **options):
    llm = HttpLLM([getattr(server, "base_url", server) for server in servers], None, **options)
    try:
        yield llm
    finally:
        await llm.close()


def slow(seconds):
    async def answer(request):
        await asyncio.sleep(seconds)
        return web.json_response(OK)

    return answer


async def ask(llm, *keys):
    return await asyncio.gather(*(llm.complete(Request(BODY, key)) for key in keys))


async def test_each_tree_stays_with_one_server_and_trees_are_spread():
    async with serve(slow(0.02)) as a, serve(slow(0.02)) as b, serve(slow(0.02)) as c, client(a, b, c) as llm:
        for _ in range(4):
            await ask(llm, *range(12))
        for server in (a, b, c):
            keys = [headers["X-SMG-Routing-Key"] for _, headers, _ in server.seen]
            assert len(keys) == 16
            assert len(set(keys)) == 4
            assert keys == [headers["X-Session-ID"] for _, headers, _ in server.seen]


async def test_a_crowded_server_gives_trees_away():
    held = asyncio.Event()
    held.set()

    async def answer(request):
        await held.wait()
        return web.json_response(OK)

    async with serve(answer) as a, serve(OK) as b, client(a, b, routing=Routing(margin=3)) as llm:
        await ask(llm, *[0] * 4)
        assert (len(a.seen), len(b.seen)) == (4, 0)
        held.clear()
        asked = [asyncio.ensure_future(llm.complete(Request(BODY, 0))) for _ in range(9)]
        given_away = [await reply for reply in itertools.islice(asyncio.as_completed(asked), 5)]
        assert {reply.endpoint for reply in given_away} == {b.base_url}
        assert (len(a.seen), len(b.seen)) == (8, 5)
        held.set()
        replies = await asyncio.gather(*asked)
        assert sum(reply.endpoint == a.base_url for reply in replies) == 4


async def test_a_burst_of_429s_shrinks_a_servers_share_once():
    busy = True

    async def answer(request):
        await asyncio.sleep(0.01)
        return web.json_response({}, status=429) if busy else web.json_response(OK)

    async with serve(answer) as server, client(server, max_concurrency=20) as llm:
        window = llm.endpoints[0].queue.window
        burst = [asyncio.ensure_future(llm.complete(Request(BODY, key))) for key in range(60)]
        while len(server.seen) < 50:
            await asyncio.sleep(0.005)
        assert window.size == pytest.approx(14)
        busy = False
        await asyncio.gather(*burst)
        assert window.size == pytest.approx(14)


async def test_a_dead_address_among_three_costs_few_attempts(unused_tcp_port):
    dead = f"http://127.0.0.1:{unused_tcp_port}/v1"
    async with serve(OK) as a, serve(OK) as b, client(dead, a, b) as llm:
        replies = []
        for step in range(20):
            replies += await ask(llm, *range(6 * step, 6 * step + 6))
        assert sum(reply.attempts - 1 for reply in replies) <= 8
        assert len(a.seen) + len(b.seen) == 120


async def test_a_server_that_is_left_out_is_named_without_the_key_it_repeats(caplog):
    key = "sk-test-0123456789abcdef"
    refusal = (401, {}, {"error": {"message": f"Incorrect API key provided: {key}"}})
    async with serve(refusal) as a, serve(OK) as b:
        llm = HttpLLM([a.base_url, b.base_url], key)
        await ask(llm, *range(8))
        await llm.close()
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert a.base_url in said
    assert "check the key in the environment variable OPENAI_API_KEY" in said
    assert key not in caplog.text


async def test_other_routes_share_limits_and_come_back_as_they_are():
    async with serve(b'{"tokens":[1,2]}') as server, client(server) as llm:
        assert await llm.call("//tokenize", b'{"prompt":"hi"}', key=3) == b'{"tokens":[1,2]}'
        server.answers = [OK]
        await llm.complete(Request(BODY, 3, route="/completions"))
        server.answers = [(500, {}, b""), (404, {}, b"no")]
        with pytest.raises(EndpointError, match=r"/generate answered 404"):
            await llm.call("//generate", b"{}")
        server.answers = [OK]
        await llm.complete(Request(BODY, 3))
    paths = [path for path, _, _ in server.seen]
    assert paths == ["/tokenize", "/v1/completions", "/generate", "/generate", "/v1/chat/completions"]
    assert server.seen[0][2] == b'{"prompt":"hi"}'


async def test_session_headers_can_be_left_out_and_are_never_sent_to_a_hosted_service():
    async with serve(OK) as server:
        async with client(server, routing=Routing(session_headers=False)) as llm:
            await ask(llm, 1)
        assert "X-Session-ID" not in server.seen[0][1]
        async with client(server, headers={"X-Session-ID": "mine"}) as llm:
            await ask(llm, 1)
        assert server.seen[1][1]["X-Session-ID"] == "mine"
    async with client("https://api.example.com/v1") as llm:
        assert llm._sessions is None
    async with client("https://api.example.com/v1", routing=Routing(session_headers=True)) as llm:
        assert llm._sessions(255)["X-SMG-Routing-Key"] == "000000ff"
