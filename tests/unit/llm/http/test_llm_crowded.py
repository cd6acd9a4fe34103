"""Servers with few threads that hold one for each kept connection: new connections are served all the same."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from fault_server import OK, FaultServer, Peer

from trunkline.llm.http import direct_transport
from trunkline.llm.http.direct_transport import DirectTransport


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
    transport = DirectTransport(size)
    try:
        yield transport
    finally:
        await transport.close()


async def post(transport: DirectTransport, server: FaultServer) -> int:
    return (await transport.post(server.url, {}, b"{}", 60.0)).status


async def test_idle_connections_are_closed_where_new_ones_are_not_served(monkeypatch):
    monkeypatch.setattr(direct_transport, "_PATIENCE", 0.05)
    async with FewThreads(2, OK) as server, opened(12) as transport:
        assert await asyncio.gather(*(post(transport, server) for _ in range(12))) == [200] * 12
        assert len(server.seen) == 12


async def test_a_connection_in_constant_use_makes_way_for_one_that_is_not_served(monkeypatch):
    monkeypatch.setattr(direct_transport, "_PATIENCE", 0.05)
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
