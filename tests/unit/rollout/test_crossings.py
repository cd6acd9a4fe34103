"""How often a turn crosses into the native core."""

from __future__ import annotations

import sys
from collections import Counter

from draws_table import Counted, completion, open_table
from fault_client import client
from fault_server import FaultServer, http

from trunkline.llm.http.aiohttp_transport import SwitchTransport
from trunkline.llm.types import LLMClient


async def crossings(llm: LLMClient, turns: int) -> Counter[str]:
    """The calls into the core of the turns of one rollout behind its first, which interns names."""
    table = open_table(llm, 1)
    (rollout,) = table.rollouts
    await rollout.ask(table.compiled)
    crossed: Counter[str] = Counter()

    def note(_frame: object, event: str, called: object) -> None:
        owner = type(getattr(called, "__self__", None)).__module__
        if event == "c_call" and "trunkline._core" in (owner, getattr(called, "__module__", "")):
            crossed[getattr(called, "__name__", "?")] += 1

    sys.setprofile(note)
    try:
        for _ in range(turns):
            await rollout.ask(table.compiled)
    finally:
        sys.setprofile(None)
    return crossed


async def test_a_turn_of_a_users_llm_crosses_into_the_core_five_times():
    crossed = await crossings(Counted(lambda body: completion(["and on"])), 1)
    assert crossed == {"ask": 1, "gather": 1, "take": 1, "request": 1, "append_reply": 1}


async def test_a_turn_over_http_crosses_once_to_ask_and_a_few_times_a_pass():
    async with FaultServer(http(completion(["and on"]))) as server, client(SwitchTransport, server.url) as llm:
        crossed = await crossings(llm, 8)
    # Those of a pass are shared by all turns that it brings: one that sends, and one that reads the answer.
    once = {name: crossed[name] for name in ("ask", "route", "send", "feed")}
    assert once == dict.fromkeys(once, 8)
    assert crossed["land"] <= 2 * 8 + 1
    assert crossed["act"] <= 2 * 8 + 1
    assert crossed["gather"] <= 2 * 8
    assert crossed.keys() == {*once, "land", "act", "gather"}
