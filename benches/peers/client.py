"""One client in a process of its own: `python -m peers.client NAME LOAD URL CONVERSATIONS LANES [unchecked]`.

It plays some conversations to warm up, says `ready`, waits for a line, then plays and prints what that took as JSON:
`calls`, `wall` and `cpu` seconds, and `rss`, the peak resident memory of the process (and of its worker) in bytes.

Of a whole run, what a run takes that plays as many conversations as are in flight is subtracted, and these are played
in addition: start-up, connections and the end of the file are left out. A worker's CPU is added, and that of reading
the summary where a load asks for it. `served` are all calls after the line. What a run has written is checked after it
was measured; `unchecked` leaves that away where everything that the process does is counted.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence

import uvloop

from peers.loads import LOADS, Client, Load, play_all

Cost = dict[str, float]

WARM = 8
"""Conversations that are played before anything is counted; loops play as many as are in flight."""

PLAYED = {
    "openai": "sdk:shared",
    "openai, a client a call": "sdk:each",
    "openai on aiohttp": "sdk:on_aiohttp",
    "aiohttp + msgspec": "lean:loop",
    "prebuilt, aiohttp": "lean:prebuilt",
    "prebuilt, lean": "lean:kernel",
    "trunkline, LLM path": "ours:path",
}
RUN = {"trunkline, inline": 0, "trunkline, 1 worker": 1, "trunkline, 2 workers": 2}
CLIENTS = (*PLAYED, *RUN)


def main() -> None:
    """Play what the command line asks for."""
    name, load, url, conversations, lanes, *unchecked = sys.argv[1:]
    arguments = (LOADS[load], url, int(conversations), int(lanes))
    if name in RUN:
        cost = whole(RUN[name], *arguments, checked=not unchecked)
    else:
        cost = asyncio_or_uvloop(name)(played(name, *arguments))
    calls = int(conversations) * LOADS[load].turns
    served = calls + int(lanes) * LOADS[load].turns * (name in RUN)
    print(json.dumps(cost | {"calls": calls, "served": served, "rss": peak()}))


def asyncio_or_uvloop(name: str) -> Callable[..., Cost]:
    """The event loop that is best for a client."""
    return asyncio.run if name.startswith("openai") else uvloop.run


async def played(name: str, load: Load, url: str, conversations: int, lanes: int) -> Cost:
    """Play conversations over one client."""
    module, _, attribute = PLAYED[name].partition(":")
    client: Client = getattr(importlib.import_module(f"peers.{module}"), attribute)
    async with client(url, load, lanes) as play:
        await play_all(play, [None] * (WARM if name.startswith("openai") else lanes), lanes)
        wait_for_start()
        before = used()
        await play_all(play, range(conversations), lanes)
        return since(before)


def whole(workers: int, load: Load, url: str, conversations: int, lanes: int, *, checked: bool = True) -> Cost:
    """Run conversations as tasks."""
    from peers import ours  # noqa: PLC0415 - here, for the memory of clients that do not need it

    def cost(numbers: Sequence[int | None]) -> Cost:
        before = used()
        result = ours.whole(url, load, lanes, numbers, workers)
        if load.summed:
            result.summary()
        cost = since(before)
        if checked:
            ours.check(result, load, len(numbers))
        return cost

    cost([None] * WARM)
    start = cost([None] * lanes)
    wait_for_start()
    measured = cost([*[None] * lanes, *range(conversations)])
    return {name: measured[name] - start[name] for name in measured}


def wait_for_start() -> None:
    """Tell the other side that the warm-up is over, and wait for it."""
    print("ready", flush=True)
    sys.stdin.readline()


def used() -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process and of its workers that have ended."""
    cpu = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        cpu += usage.ru_utime + usage.ru_stime
    return time.perf_counter(), cpu


def since(before: tuple[float, float]) -> Cost:
    """What was used since."""
    wall, cpu = (now - then for now, then in zip(used(), before, strict=True))
    return {"wall": wall, "cpu": cpu}


def peak() -> int:
    """Bytes of memory at most, this process's and its largest child's together."""
    return sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024


if __name__ == "__main__":
    main()
