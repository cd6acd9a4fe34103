"""Servers with few threads that hold one for each kept connection: new connections are served all the same."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from fault_server import OK, FaultServer, Peer
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.llm.http import connection_pool
from trunkline.llm.http.connection import ConnectionLimits
from trunkline.llm.http.connection_pool import ConnectionPool, PlainTransport


class FewThreads(FaultServer):
    """Serves as many connections at a time as it has threads, each until the client closes it, in their order."""

    def __init__(self, threads: int, *answers: object) -> None:
        super().__init__(*answers)
        self._threads = asyncio.Semaphore(threads)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._threads:
            await super()._connected(reader, writer)


@asynccontextmanager
async def opened(size: int):
    transport = PlainTransport(size)
    try:
        yield transport
    finally:
        await transport.close()


async def post(transport: PlainTransport, server: FaultServer) -> int:
    return (await transport.post(server.url, {}, b"{}", 60.0)).status


async def test_idle_connections_are_closed_where_new_ones_are_not_served(monkeypatch):
    monkeypatch.setattr(connection_pool, "_PATIENCE", 0.05)
    async with FewThreads(2, OK) as server, opened(12) as transport:
        assert await asyncio.gather(*(post(transport, server) for _ in range(12))) == [200] * 12
        assert len(server.seen) == 12


async def test_a_connection_in_constant_use_makes_way_for_one_that_is_not_served(monkeypatch):
    monkeypatch.setattr(connection_pool, "_PATIENCE", 0.05)
    async with FewThreads(1, OK) as server, opened(12) as transport:
        await post(transport, server)
        late = asyncio.ensure_future(post(transport, server))
        second = asyncio.ensure_future(post(transport, server))
        while not (late.done() and second.done()):
            await post(transport, server)
        assert (late.result(), second.result()) == (200, 200)


async def test_a_server_that_serves_all_keeps_its_connections():
    together = asyncio.Barrier(4)

    async def answer(peer: Peer) -> None:
        await together.wait()
        await peer.send(OK)

    async with FaultServer(answer) as server, opened(4) as transport:
        for _ in range(5):
            await asyncio.gather(*(post(transport, server) for _ in range(4)))
        assert server.connections == 4


class Fake:
    """What the pool knows of a connection."""

    def __init__(self, sent: float) -> None:
        self.sent = self.moment = sent
        self.first = True
        self.closed = False

    def abort(self) -> None:
        self.closed = True


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.just(("new", 0)),
            st.tuples(st.just("answered"), st.integers(0, 30)),
            st.tuples(st.just("wait"), st.sampled_from([1, 3, 12, 700])),
        ),
        max_size=60,
    )
)
def test_which_connections_are_kept(events):
    """Against a model that looks at all connections each time."""
    now, crowded = 0.0, -1.0
    pool = ConnectionPool("h", 80, 99, 1.0, ConnectionLimits(60, 15, 1000))
    there: list[Fake] = []
    overtaken: set[Fake] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_pool.time, "monotonic", lambda: now)
        for kind, value in events:
            now += 0.001
            if kind == "wait":
                now += value / 10
            elif kind == "new":
                there.append(Fake(now))
                pool._unserved[there[-1]] = None
            elif there:
                one = there[value % len(there)]
                unserved = [each for each in there if each.first and each not in overtaken]
                if one.first:
                    one.first = False
                    if one in unserved:
                        overtaken |= {each for each in unserved if each.sent < one.sent}
                elif unserved and now - unserved[0].sent > 1.0 and one.sent > unserved[0].sent:
                    crowded = now + 60.0
                unserved = [each for each in there if each.first and each not in overtaken]
                assert pool._crowds(one) == (bool(unserved) and now < crowded)
                one.sent = now
