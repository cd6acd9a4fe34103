"""Turns of the event loop that are counted for others."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.rollout.programs.replay import after


@settings(max_examples=50)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_whoever_waits_gets_a_dozen_turns_and_hardly_more(begins: list[int]):
    async def play() -> None:
        loop = asyncio.get_running_loop()
        turn, taken = 0, {}

        async def wait(number: int, begin: int) -> None:
            while turn < begin:
                await asyncio.sleep(0)
            since, waiting = turn, loop.create_future()
            after(waiting)
            await waiting
            taken[number] = turn - since

        waiting = [asyncio.ensure_future(wait(number, begin)) for number, begin in enumerate(begins)]
        while not all(task.done() for task in waiting):
            await asyncio.sleep(0)
            turn += 1
            assert turn < 100
        assert all(12 <= count <= 15 for count in taken.values())
        assert len(taken) == len(begins)

    asyncio.run(play())


async def test_who_gives_up_meanwhile_keeps_nobody():
    loop = asyncio.get_running_loop()
    gone, stays = loop.create_future(), loop.create_future()
    after(gone)
    after(stays)
    gone.cancel()
    async with asyncio.timeout(5):
        await stays
    assert stays.done()
    assert gone.cancelled()
