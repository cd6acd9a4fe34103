"""Permits beside a model that keeps two lists."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._internal.aio import ShrinkableSemaphore

MOVES = st.lists(
    st.tuples(st.sampled_from(["acquire", "release", "withdraw", "cancel"]), st.integers(0, 3)), max_size=50
)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 3), MOVES)
def test_who_asked_first_gets_the_next_one_and_none_is_lost(free: int, moves: list[tuple[str, int]]):
    async def play() -> None:
        permits, left = ShrinkableSemaphore(free), free
        waiting: list[asyncio.Task] = []
        for what, count in moves:
            if what == "acquire":
                waiting.append(asyncio.ensure_future(permits.acquire()))
            elif what == "release":
                permits.release(count)
                left += count
            elif what == "withdraw":
                permits.withdraw(count)
                left -= count
            elif count < len(waiting):
                waiting.pop(count).cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            while left > 0 and waiting:
                left -= 1
                assert waiting.pop(0).done()
            assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()

    asyncio.run(play())


async def test_one_that_comes_to_somebody_who_has_just_gone_is_passed_on():
    permits = ShrinkableSemaphore(0)
    gone, next_one = (asyncio.ensure_future(permits.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    permits.release(1)
    gone.cancel()
    async with asyncio.timeout(5):
        await next_one
    assert gone.cancelled()
