"""The lean transport: what it sends, which connection it uses, and that it never has more than it may."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest
import uvloop
from fault_server import OK, FaultServer, Peer, http

from trunkline.llm.http import connection
from trunkline.llm.http.direct_transport import DirectTransport
from trunkline.llm.http.transport import Transport, TransportError

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sk-x"}


@pytest.fixture
async def transport():
    made = []

    def make(size: int = 4, **options: float) -> Transport:
        made.append(DirectTransport(size, **options))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def post(transport: Transport, server: FaultServer, body: bytes = b"{}", limit: float = 5.0):
    return await transport.post(server.url + "/chat/completions", HEADERS, body, limit)


async def settle() -> None:
    """Let what was closed become known."""
    await asyncio.sleep(0.02)


async def test_the_request_is_what_it_says(transport):
    async with FaultServer(OK) as server:
        answer = await post(transport(), server, b'{"a":1}')
    assert (
        server.seen[0].head
        == (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUser-Agent: trunkline\r\n"
            "Content-Type: application/json\r\nAuthorization: Bearer sk-x\r\nContent-Length: 7\r\n\r\n"
        ).encode()
    )
    assert server.seen[0].body == b'{"a":1}'
    assert (answer.status, answer.headers["CONTENT-TYPE"]) == (200, "application/json")
    assert 0 < answer.first < 5


async def test_what_is_stopped_before_the_pass_ends_is_never_written(transport):
    async with FaultServer(OK) as server:
        t = transport()
        await asyncio.gather(*(post(t, server) for _ in range(3)))
        asked = [asyncio.ensure_future(post(t, server, b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        asked[1].cancel()
        first, stopped, third = await asyncio.gather(*asked, return_exceptions=True)
        assert (first.status, third.status) == (200, 200)
        assert isinstance(stopped, asyncio.CancelledError)
        await settle()
        assert sorted(one.body for one in server.seen[3:]) == [b"0", b"2"]


async def test_headers_of_each_request_are_its_own(transport):
    async with FaultServer(OK) as server:
        t = transport()
        for session in ("a", "b", "a"):
            await t.post(server.url, HEADERS | {"X-Session-ID": session, "user-agent": "mine"}, b"", 5.0)
    sessions = [seen.head.split(b"X-Session-ID: ")[1][:1] for seen in server.seen]
    assert sessions == [b"a", b"b", b"a"]
    assert all(seen.head.lower().count(b"user-agent") == 1 for seen in server.seen)


@pytest.mark.parametrize("headers", [{"X": "a\r\nY: b"}, {"X\n": "a"}, {"X": "a\x00"}, {"X": "\u20ac"}, {"a: b": "c"}])
async def test_a_header_that_would_be_two_is_refused(transport, headers):
    async with FaultServer(OK) as server:
        with pytest.raises(TransportError, match="no header can carry") as caught:
            await transport().post(server.url, headers, b"", 5.0)
    assert (caught.value.retry, server.seen) == (False, [])


@pytest.mark.parametrize("url", ["ftp://h/v1", "h/v1", "http://", "http://h:99999/", "http://[::1/", ""])
async def test_what_is_no_plain_url_is_refused(transport, url):
    with pytest.raises(TransportError, match="no valid URL") as caught:
        await transport().post(url, HEADERS, b"", 5.0)
    assert not caught.value.retry


@pytest.mark.parametrize("size", [0, 16_384, 16_385, 5_000_000])
async def test_bodies_of_any_size_go_out_and_come_back_whole(transport, size):
    body = random.Random(size).randbytes(size)
    async with FaultServer(http(body)) as server:
        t = transport()
        for _ in range(2):
            assert (await post(t, server, body)).body == body
        assert [seen.body for seen in server.seen] == [body, body]
        assert server.connections == 1


async def test_the_connection_used_last_is_used_next(transport):
    async with FaultServer(OK) as server:
        t = transport(4)
        await asyncio.gather(*(post(t, server) for _ in range(4)))
        assert server.connections == 4
        for _ in range(5):
            await post(t, server)
        assert len({seen.connection for seen in server.seen[4:]}) == 1


async def test_there_are_never_more_connections_than_allowed_and_who_came_first_is_served_first(transport):
    order = []

    async def numbered(number: int) -> None:
        await post(t, server, b"%d" % number)
        order.append(number)

    async def slow(peer: Peer) -> None:
        await asyncio.sleep(0.002)
        await peer.send(OK)

    async with FaultServer(slow) as server:
        t = transport(1)
        await asyncio.gather(*(numbered(i) for i in range(20)))
        assert server.connections == 1
    assert order == list(range(20)) == [int(seen.body) for seen in server.seen]


async def test_waiting_for_a_connection_counts_towards_the_limit(transport):
    async with FaultServer(Peer.silence) as server:
        t = transport(1)
        first = asyncio.ensure_future(post(t, server))
        await settle()
        with pytest.raises(TransportError, match=r"no whole answer within 0\.05 s"):
            await post(t, server, limit=0.05)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        server.answers = [OK]
        assert (await post(t, server)).status == 200


async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again(transport):
    async def answer_and_close(peer: Peer) -> None:
        await peer.send(OK)
        peer.hang_up()

    async with FaultServer(answer_and_close) as server:
        t = transport()
        for _ in range(3):
            await post(t, server)
            await settle()
        assert [seen.connection for seen in server.seen] == [1, 2, 3]


async def test_a_connection_is_not_kept_for_longer_than_it_may_be(transport):
    async with FaultServer(OK) as server:
        t = transport(keep=0.03)
        await post(t, server)
        await asyncio.sleep(0.04)
        await post(t, server)
        assert [seen.connection for seen in server.seen] == [1, 2]


async def test_what_died_on_a_used_connection_is_sent_once_more_and_only_once(transport):
    async def drop(peer: Peer) -> None:
        peer.hang_up()

    async with FaultServer(OK, drop, OK) as server:
        t = transport()
        await post(t, server)
        assert (await post(t, server)).status == 200
        assert [seen.connection for seen in server.seen] == [1, 1, 2]
        server.answers = [drop]
        with pytest.raises(TransportError, match="closed before an answer"):
            await post(t, server)
        assert [seen.connection for seen in server.seen[3:]] == [2, 3]
        with pytest.raises(TransportError, match="closed before an answer"):
            await post(t, server)
        assert len(server.seen) == 6  # a new connection that dies is not sent again


async def test_a_connection_that_closed_on_its_way_to_a_request_does_not_take_it(transport):
    async with FaultServer(OK) as server:
        t = transport()
        await post(t, server)
        (connection,) = t.driver._open.values()
        connection.transport.abort()  # the loop says so only later
        assert (await post(t, server)).status == 200
        assert [seen.connection for seen in server.seen] == [1, 2]


async def test_what_died_after_a_byte_of_its_answer_is_not_sent_again(transport):
    async def begin(peer: Peer) -> None:
        await peer.send(b"H")
        peer.hang_up()

    async with FaultServer(OK, begin) as server:
        t = transport()
        await post(t, server)
        with pytest.raises(TransportError, match="broke off"):
            await post(t, server)
        assert len(server.seen) == 2


async def test_an_answer_before_the_request_was_read_costs_the_connection(transport):
    """What is left of the request would otherwise stand before the next one."""
    answered = asyncio.Event()

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await answered.wait()
        writer.close()

    listener = await asyncio.start_server(early, "127.0.0.1", 0, limit=1024)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    t = transport()
    assert (await t.post(url, HEADERS, b"x" * 30_000_000, 5.0)).status == 200
    while t._table.held(0):
        await settle()
    answered.set()
    listener.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_localhost_is_found_on_either_address(transport, host, monkeypatch):
    async def both(name: str, port: int, **kinds: int) -> list[tuple]:
        assert name == "localhost"
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
    async with FaultServer(OK, host=host) as server:
        t = transport()
        url = f"http://localhost:{server.port}/v1"
        assert (await t.post(url, HEADERS, b"", 5.0)).status == 200
    assert f"Host: localhost:{server.port}".encode() in server.seen[0].head
    with pytest.raises(TransportError, match=r"no connection \(Connection refused\)") as caught:
        await transport().post(url, HEADERS, b"", 5.0)
    assert caught.value.unreachable


async def test_an_ipv6_address_is_written_as_the_protocol_wants_it(transport):
    async with FaultServer(OK, host="::1") as server:
        assert (await post(transport(), server)).status == 200
    assert f"Host: [::1]:{server.port}\r\n".encode() in server.seen[0].head


async def test_a_connection_that_is_lost_before_it_is_ours_gives_its_slot_back(transport, monkeypatch):
    loop = asyncio.get_running_loop()
    create = loop.create_connection

    async def slowly(*given: object, **options: object) -> object:
        made = await create(*given, **options)
        await settle()
        return made

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    monkeypatch.setattr(loop, "create_connection", slowly)
    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    t = transport(1)
    for _ in range(3):
        with pytest.raises(TransportError, match=r"closed before an answer|the connection broke"):
            await t.post(url, HEADERS, b"", 5.0)
    listener.close()
    assert t._table.held(0) == 0


async def test_closing_ends_what_waits_connects_and_runs(transport):
    async with FaultServer(Peer.silence) as server:
        t = transport(2)
        tasks = [asyncio.ensure_future(post(t, server)) for _ in range(5)]
        await settle()
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            with socket.create_connection(full.getsockname()):
                url = f"http://127.0.0.1:{full.getsockname()[1]}/"
                tasks += [asyncio.ensure_future(t.post(url, HEADERS, b"", 5.0)) for _ in range(3)]
                await settle()
                await asyncio.wait_for(t.close(), 1)
        for problem in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(problem, TransportError)
            assert str(problem) == "the client is closed"


async def test_closing_while_a_connection_is_late_in_this_very_moment(transport, monkeypatch):
    expired = asyncio.Event()

    async def never(*_: object, **__: object) -> socket.socket:
        try:
            await asyncio.Event().wait()
        finally:
            expired.set()  # the time is up, and it takes a few turns of the loop to end
            await settle()
        raise AssertionError

    monkeypatch.setattr("trunkline.llm.http.origin.HttpOrigin.connect", never)
    t = transport(1, connect=0.01)
    task = asyncio.ensure_future(t.post("http://127.0.0.1:9/", HEADERS, b"", 5.0))
    await expired.wait()
    await asyncio.wait_for(t.close(), 1)
    with pytest.raises(TransportError, match="not established in time"):
        await task


def play(seed: int) -> int:
    """Post, cancel, break and close at random: everyone is told something, and the pool is whole again.

    Returns:
        How many posts ended.
    """
    rng = random.Random(seed)

    async def moody(peer: Peer) -> None:
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.003]))
        match rng.randrange(8):
            case 0:
                peer.hang_up()
            case 1:
                peer.reset()
            case 2:
                await peer.send(OK + OK)
            case 3:
                await peer.send(OK)
                peer.hang_up()
            case _:
                await peer.send(OK)

    async def scene() -> int:
        transport = DirectTransport(3)
        async with FaultServer(moody) as server:
            tasks = []
            for _ in range(60):
                tasks.append(asyncio.ensure_future(post(transport, server, limit=rng.choice([0.002, 5.0, 5.0]))))
                if rng.random() < 0.3:
                    rng.choice(tasks).cancel()
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.choice([0, 0.001]))
                assert transport._table.held(0) <= 3
            if rng.random() < 0.5:
                server.answers = [OK]
                for answer in await asyncio.gather(*(post(transport, server) for _ in range(6))):
                    assert answer.status == 200
            await asyncio.wait_for(transport.close(), 1)
            for result in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 1):
                assert isinstance(result, tuple | TransportError | asyncio.CancelledError)
        assert transport._table.held(0) == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return sum(task.done() for task in tasks)

    with asyncio.Runner(loop_factory=rng.choice([asyncio.new_event_loop, uvloop.new_event_loop])) as runner:
        return runner.run(scene())


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_events_loses_a_connection_or_a_waiter(seed):
    assert play(seed) == 60


async def test_an_address_that_is_late_is_looked_up_again(transport, monkeypatch):
    """A name may have moved to another address since."""
    loop, asked = asyncio.get_running_loop(), []
    lookup = loop.getaddrinfo

    async def getaddrinfo(*args: object, **options: object):
        asked.append(args)
        return await lookup(*args, **options)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        t = transport(connect=0.05)
        for _ in range(2):
            with pytest.raises(TransportError, match="not established in time"):
                await t.post(f"http://127.0.0.1:{address[1]}/", HEADERS, b"", 5.0)
        for filler in fillers:
            filler.close()
    assert len(asked) == 2


async def test_connections_are_begun_some_in_a_pass_and_all_at_once_are_there(transport, monkeypatch):
    monkeypatch.setattr(connection, "_DIALS", 2)
    together = asyncio.Barrier(9)

    async def answer(peer: Peer) -> None:
        await together.wait()
        await peer.send(OK)

    async with FaultServer(answer) as server:
        t = transport(9)
        answers = await asyncio.gather(*(post(t, server) for _ in range(9)))
    assert [answer.status for answer in answers] == [200] * 9
    assert len({seen.connection for seen in server.seen}) == 9


async def test_what_is_stopped_before_its_connection_is_begun_leaves_the_others_alone(transport, monkeypatch):
    monkeypatch.setattr(connection, "_DIALS", 1)
    async with FaultServer(OK) as server:
        t = transport(5)
        asked = [asyncio.ensure_future(post(t, server, b"%d" % number)) for number in range(5)]
        while not t.driver._dialing:
            await asyncio.sleep(0)
        asked[4].cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [getattr(answer, "status", type(answer)) for answer in found] == [200] * 4 + [asyncio.CancelledError]
        assert sorted(seen.body for seen in server.seen) == [b"0", b"1", b"2", b"3"]
        assert (await post(t, server)).status == 200


async def test_a_transport_closes_while_connections_are_still_to_be_begun(transport, monkeypatch):
    monkeypatch.setattr(connection, "_DIALS", 1)
    async with FaultServer(OK) as server:
        t = transport(5)
        asked = [asyncio.ensure_future(post(t, server)) for _ in range(5)]
        while not t.driver._dialing:
            await asyncio.sleep(0)
        await asyncio.wait_for(t.close(), 5)
        with pytest.raises(TransportError):
            await asked[4]
        await asyncio.gather(*asked, return_exceptions=True)
