"""Long requests whose servers read slowly: each is sent as it is, whatever is sent meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
import string

from fault_server import OK, FaultServer, Seen

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.runner.run import arun
from trunkline.types import Task

LARGE, LONG = 6 << 20, 100 << 10
"""Characters of a prompt that no socket takes at once, and of one that is written whole."""


class SlowServer(FaultServer):
    """Reads no further than the heads of large requests until all others are answered."""

    def __init__(self, large: int, others: int) -> None:
        super().__init__(OK)
        self._missing = [large, others]
        self._all_there, self._go_on = asyncio.Event(), asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head).group(1))
        if length > LARGE:
            self._count(0, self._all_there)
            await self._go_on.wait()
        else:
            await self._all_there.wait()
        self.seen.append(Seen(head, await reader.readexactly(length), number))
        if length <= LARGE:
            self._count(1, self._go_on)
        writer.write(OK)
        await writer.drain()

    def _count(self, kind: int, last: asyncio.Event) -> None:
        self._missing[kind] -= 1
        if not self._missing[kind]:
            last.set()


async def test_a_long_request_is_not_written_over_while_its_server_reads(transport, tmp_path):
    large, others = string.ascii_uppercase[:4], string.ascii_lowercase[:12]
    tasks = [Task.ask(LARGE * letter, id=letter) for letter in large]
    tasks += [Task.ask(LONG * letter, id=letter) for letter in others]
    async with SlowServer(len(large), len(others)) as server:
        llm = LLM(server.url, max_concurrency=8).open(transport=transport(8))
        try:
            result = await arun(Agent(model="m"), tasks, llm=llm, out=tmp_path / "run")
        finally:
            await llm.close()
    assert [rollout.answer for tree in result for rollout in tree.rollouts] == ["hello"] * len(tasks)
    asked = [json.loads(seen.body)["messages"][-1]["content"] for seen in server.seen]
    assert sorted(asked) == sorted([LARGE * letter for letter in large] + [LONG * letter for letter in others])
