"""Permits beside a model that keeps two lists; work that several wait for."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._internal.aio import SharedTasks, ShrinkableSemaphore

MOVES = st.lists(
    st.tuples(st.sampled_from(["acquire", "release", "withdraw", "cancel"]), st.integers(0, 3)), max_size=50
)


async def acquired(permits: ShrinkableSemaphore) -> None:
    """Take a permit."""
    if (waits := permits.acquire()) is not None:
        await waits


@settings(max_examples=100)
@given(st.integers(0, 3), MOVES)
def test_who_asked_first_gets_the_next_one_and_none_is_lost(free: int, moves: list[tuple[str, int]]):
    async def play() -> None:
        permits, left = ShrinkableSemaphore(free), free
        waiting: list[asyncio.Task] = []
        for what, count in moves:
            if what == "acquire":
                waiting.append(asyncio.ensure_future(acquired(permits)))
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
    gone, next_one = (asyncio.ensure_future(acquired(permits)) for _ in range(2))
    await asyncio.sleep(0)
    permits.release(1)
    gone.cancel()
    async with asyncio.timeout(5):
        await next_one
    assert gone.cancelled()


async def test_work_is_shared_by_its_key_and_ends_with_its_last_waiter():
    shared: SharedTasks[str] = SharedTasks()
    events: list[str] = []
    free = asyncio.Event()

    async def work(name: str) -> str:
        events.append(f"{name} starts")
        try:
            await free.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            events.append(f"{name} is cancelled")
            raise
        if name == "bad":
            raise ValueError(name)
        return name

    def ask(name: str) -> asyncio.Task[str]:
        return asyncio.ensure_future(shared.run(name.encode(), lambda: work(name)))

    first, second, other, bad, worse = ask("a"), ask("a"), ask("b"), ask("bad"), ask("bad")
    await asyncio.sleep(0.001)
    assert events == ["a starts", "b starts", "bad starts"]
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    assert len(events) == 3
    assert b"a" in shared
    other.cancel()
    await asyncio.wait([other])
    assert events[3:] == ["b is cancelled"], "its last waiter returns after the end of the work"
    assert b"b" not in shared
    free.set()
    assert await second == "a"
    for one in (bad, worse):
        with pytest.raises(ValueError, match="bad"):
            await one
    assert b"a" not in shared
    assert await ask("a") == "a"
    assert events[4:] == ["a starts"], "what has ended is done anew"


async def test_shared_work_ends_when_it_is_closed():
    shared: SharedTasks[bool] = SharedTasks()
    waiter = asyncio.ensure_future(shared.run(b"k", asyncio.Event().wait))
    await asyncio.sleep(0.001)
    await shared.close()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    await shared.close()
