"""What an answer says of its endpoint when its status does not: errors inside a success, and several draws at once."""

import json

import pytest
from test_llm_outage import BODY, idle, make, rollouts
from virtual_time import REPLY, VirtualServers, VirtualTime

from trunkline.llm.types import Request


class Bodies(VirtualServers):
    """Servers that always say 200, with the body that a function gives."""

    def __init__(self, time, body):
        super().__init__(time)
        self.body = body

    async def post(self, url, headers, body, limit):
        said = self.body()
        return (await super().post(url, headers, body, limit))._replace(body=said)


async def test_an_outage_told_inside_a_200_is_an_outage():
    time = VirtualTime()
    down = b'{"error": {"code": 503, "message": "no upstream"}}'
    servers = Bodies(time, lambda: down if 5 <= time.now < 65 else REPLY)
    llm = make(servers)
    results = await rollouts(llm, 40, 10)
    assert not [each for each in results if isinstance(each, BaseException)]
    assert len([moment for moment in servers.times() if 8 <= moment < 65]) <= 10
    assert idle(llm)


async def test_single_draws_after_grouped_ones_are_no_slowdown():
    """Sixteen draws side by side have sixteen times the tokens in the same time."""
    time, grouped = VirtualTime(), json.loads(REPLY)
    grouped["usage"]["completion_tokens"] = 16 * 50
    kept = [json.dumps(grouped).encode()]
    llm = make(Bodies(time, lambda: kept[0]))
    await time.run(*(llm.complete(Request(BODY, key, n=16)) for key in range(64)))
    kept[0] = REPLY
    await time.run(*(llm.complete(Request(BODY, key)) for key in range(256)))
    assert llm.endpoints[0].queue.window.size == pytest.approx(16)
