"""The loop of a program: asyncio over it works as over any, and what reaches beyond it is refused by name."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from plays import Actors, cuts, play
from virtual_time import JumpingLoop

from trunkline.agent import Agent
from trunkline.errors import ProgramError
from trunkline.rollout.programs.context import ProgramContext
from trunkline.rollout.programs.loop import ProgramLoop
from trunkline.rollout.programs.replay import ReplaySlot
from trunkline.rollout.sampling.turns import PendingTurn
from trunkline.tools.tool import tool

A, B = (Agent(model=name, name=name) for name in "ab")


def says(messages: list[dict[str, Any]], model: str) -> str:
    return f"{model} after {len(messages)}"


async def to_thread(rollout: ProgramContext) -> str:
    return str(await asyncio.to_thread(len, "four"))


async def connection(rollout: ProgramContext) -> str:
    return str(await asyncio.open_connection("127.0.0.1", 9))


async def child(rollout: ProgramContext) -> str:
    return str(await asyncio.create_subprocess_exec("true"))


async def from_elsewhere(rollout: ProgramContext) -> str:
    asyncio.get_running_loop().call_soon_threadsafe(print)
    return "done"


async def in_a_group(rollout: ProgramContext) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(len, "four"))
    return "done"


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (to_thread, "asyncio.to_thread and run_in_executor"),
        (connection, "create_connection"),
        (child, "subprocess_exec"),
        (from_elsewhere, "call_soon_threadsafe"),
        (in_a_group, "asyncio.to_thread and run_in_executor"),
    ],
)
async def test_what_reaches_beyond_its_rollout_is_refused_by_name(program: Any, name: str):
    grown = await play(program, Actors(says))
    assert grown.end[0] == "lost"
    assert name in (grown.end[2] or ""), grown.end
    assert "await rollout.call(function)" in (grown.end[2] or "")


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_future_of_another_loop_is_refused(grouped: bool):
    elsewhere = asyncio.get_running_loop().create_future()

    async def program(rollout: ProgramContext) -> str:
        if grouped:
            async with asyncio.TaskGroup() as group:
                group.create_task(waits())
        return str(await elsewhere)

    async def waits() -> None:
        await elsewhere

    grown = await play(program, Actors(says))
    assert grown.end[0] == "lost"
    assert "another event loop" in (grown.end[2] or "")
    assert "await rollout.call(function)" in (grown.end[2] or "")


async def test_a_lock_of_another_loop_is_refused_where_it_would_wait():
    lock = asyncio.Lock()

    async def program(rollout: ProgramContext) -> str:
        async with lock:
            await rollout.ask(A)
        return "done"

    async with lock:
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        grown = await play(program, Actors(says))
        waiting.cancel()
    assert grown.end[0] == "lost"
    assert "await rollout.call(function)" in (grown.end[2] or "")


@pytest.mark.parametrize("asks", [False, True])
async def test_a_program_that_waits_for_nothing_that_can_come_ends_at_once(asks: bool):
    async def program(rollout: ProgramContext) -> str:
        if asks:
            await asyncio.gather(rollout.ask(A), rollout.ask(B))
        await asyncio.Event().wait()
        return "never"

    grown = await asyncio.wait_for(play(program, Actors(says)), 10)
    assert grown.end[0] == "lost"
    assert "waits for something that cannot come" in (grown.end[2] or "")
    assert len(asyncio.all_tasks()) == 1


async def test_a_program_that_swallows_every_end_ends_all_the_same():
    async def program(rollout: ProgramContext) -> str:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(True)

    swallowed: list[bool] = []
    grown = await asyncio.wait_for(play(program, Actors(says)), 10)
    assert grown.end[0] == "lost"
    assert 1 < len(swallowed) < 100
    gc.collect()


async def test_an_exit_in_a_task_of_a_program_ends_its_rollout_alone():
    async def leaves() -> None:
        sys.exit(3)

    async def program(rollout: ProgramContext) -> str:
        await asyncio.gather(rollout.ask(A), leaves())
        return "done"

    grown = await play(program, Actors(says))
    assert grown.end[0] == "lost"
    assert "the program raised SystemExit: 3" in (grown.end[2] or "")


async def test_loops_and_tasks_are_those_that_run():
    outside = asyncio.get_running_loop(), asyncio.current_task()
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")
    word.set("outside")

    @tool
    async def look() -> str:
        """Look."""
        return f"{word.get()} {asyncio.get_running_loop() is outside[0]}"

    async def calls() -> str:
        return f"{word.get()} {asyncio.get_running_loop() is outside[0]} {asyncio.current_task() is not None}"

    async def program(rollout: ProgramContext) -> str:
        async def one(name: str) -> str:
            own = asyncio.current_task()
            assert own is not None
            assert own in asyncio.all_tasks()
            before = word.get()
            word.set(name)
            await rollout.ask(A)
            assert (asyncio.current_task(), word.get()) == (own, name)
            return f"{before}: {await rollout.call(calls)}, {(await rollout.tool(look)).text}"

        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProgramLoop)
        assert loop is not outside[0]
        assert loop.is_running()
        heard = await asyncio.gather(one("first"), one("second"))
        assert loop is asyncio.get_running_loop()
        assert word.get() == "outside"
        return "; ".join(heard)

    grown = await play(program, Actors(says))
    assert grown.end[1] == "outside: first True True, first True; outside: second True True, second True", grown.end
    assert (asyncio.get_running_loop(), asyncio.current_task()) == outside
    assert word.get() == "outside"


def by_the_clock(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(work)


def test_timers_fire_in_the_order_of_their_times_and_the_time_of_the_loop_is_theirs():
    by_the_clock(check_order())


async def check_order() -> None:
    async def program(rollout: ProgramContext) -> str:
        loop = asyncio.get_running_loop()
        fired: list[tuple[str, float]] = []
        for name, delay in (("late", 0.03), ("soon", 0.01), ("never", 0.02)):
            timer = loop.call_later(delay, lambda name=name: fired.append((name, loop.time())))
            if name == "never":
                assert timer.when() == 0.02
                timer.cancel()
                assert timer.cancelled()
        assert loop.time() == 0
        await asyncio.sleep(0.04)
        return f"{fired} {loop.time()}"

    grown = await play(program, Actors(says))
    assert grown.end[1] == "[('soon', 0.01), ('late', 0.03)] 0.04"
    records = [mark for mark in grown.tree.core.marks() if '"timer"' in mark]
    assert [mark[:22] for mark in records] == [
        '{"record":[0,1,"timer"',
        '{"record":[0,0,"timer"',
        '{"record":[0,3,"timer"',
    ]


def test_timers_fire_again_in_the_order_in_which_they_fired_and_not_in_that_of_their_times():
    by_the_clock(check_order_again())


async def check_order_again() -> None:
    async def moment() -> None:
        await asyncio.sleep(0.02)

    async def program(rollout: ProgramContext) -> str:
        async def first() -> None:
            await asyncio.sleep(0.05)
            await rollout.observe("made first")

        async def second() -> None:
            await rollout.call(moment)
            await asyncio.sleep(0.049)
            await rollout.observe("made second, for an earlier time of the loop")

        await asyncio.gather(first(), second())
        return (await rollout.ask(A)).text

    whole = await play(program, Actors(says))
    assert b"made first" in whole.tree.core.message(2)
    for core in cuts(whole.deltas)[-2:]:
        again = await play(program, Actors(says), core)
        assert again.end == whole.end
        assert again.tree.digest() == whole.tree.digest()


async def test_an_hour_that_passed_is_no_hour_in_a_replay():
    async def program(rollout: ProgramContext) -> str:
        await asyncio.sleep(seconds)
        async with asyncio.timeout(seconds + 1):
            return (await rollout.ask(A)).text

    seconds = 0.001
    whole = await play(program, Actors(says))
    seconds = 3600.0
    (core,) = [core for core in cuts(whole.deltas) if sum('"timer"' in mark for mark in core.marks()) and core.growing][
        -1:
    ]
    again = await asyncio.wait_for(play(program, Actors(says), core), 30)
    assert again.end == whole.end
    assert again.tree.digest() == whole.tree.digest()


async def test_what_an_abandoned_generator_cleans_up_is_done_in_the_loop_of_its_program():
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(asyncio.get_running_loop())

    async def program(rollout: ProgramContext) -> str:
        async for _ in numbers():
            break
        gc.collect()
        await rollout.ask(A)
        return str(closed == [asyncio.get_running_loop()])

    closed: list[Any] = []
    grown = await play(program, Actors(says))
    assert grown.end[1] == "True"


async def test_an_error_of_a_callback_is_reported_to_the_loop_of_the_worker():
    async def program(rollout: ProgramContext) -> str:
        asyncio.get_running_loop().call_soon(int, "no number")
        return (await rollout.ask(A)).text

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    grown = await play(program, Actors(says))
    assert grown.end[0] == "answer"
    assert [type(one["exception"]) for one in told] == [ValueError]


async def test_a_busy_program_lets_the_loop_of_its_worker_get_on():
    async def program(rollout: ProgramContext) -> str:
        while not ticks:
            await asyncio.sleep(0)
        return "done"

    ticks: list[int] = []
    asyncio.get_running_loop().call_later(0.01, ticks.append, 1)
    assert (await asyncio.wait_for(play(program, Actors(says)), 30)).end[1] == "done"


async def test_what_a_turn_took_is_freed_without_the_collector():
    async def program(rollout: ProgramContext) -> str:
        before = held()
        for _ in range(5):
            await asyncio.gather(rollout.ask(A), rollout.ask(B))
        return str(held() - before)

    def held() -> int:
        return sum(isinstance(one, PendingTurn | ReplaySlot) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        assert (await play(program, Actors(says))).end[1] == "0"
    finally:
        gc.enable()


async def _returns(rollout: ProgramContext) -> str:
    return (await rollout.ask(A)).text


async def _finishes(rollout: ProgramContext) -> str:
    rollout.finish((await rollout.ask(A)).text)


async def _leaves_work(rollout: ProgramContext) -> str:
    left = asyncio.ensure_future(rollout.ask(B))
    said = await rollout.ask(A)
    left.cancel()
    return said.text


@pytest.mark.parametrize("ends", [_returns, _finishes, _leaves_work])
async def test_what_a_rollout_took_is_freed_without_the_collector(ends):
    freed = list[weakref.ref[ProgramContext]]()

    async def program(rollout: ProgramContext) -> str:
        freed.append(weakref.ref(rollout))
        return await ends(rollout)

    gc.collect()
    gc.disable()
    try:
        await play(program, Actors(says))
        assert [rollout() for rollout in freed] == [None]
    finally:
        gc.enable()


async def test_a_loop_that_is_closed_takes_nothing_more():
    loop = ProgramLoop(asyncio.get_running_loop())  # type: ignore[abstract]
    loop.close()
    assert loop.is_closed()
    assert not loop.is_running()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)
    with pytest.raises(ProgramError, match="run_forever cannot be used here"):
        loop.run_forever()
