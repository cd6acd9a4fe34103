"""Programs that gather, group, race, give up and queue, deep inside one another: one tree, whatever comes first."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plays import Actors, cuts, play, turns

from trunkline.agent import Agent
from trunkline.errors import BadRequest, LLMError
from trunkline.llm.types import Reply, Request
from trunkline.rollout.programs.context import ProgramContext

ROLES = {name: Agent(model=name, name=name) for name in "abcx"}

leaves: Any = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from("abx")),
    st.sampled_from([("observe",), ("call",), ("yield",), ("event",)]),
)
nests = ["gather", "group", "first", "all", "queue", "shield", "timeout", "cancel", "tasks"]


def lines_of(leaves: Any, nests: Sequence[str] = nests) -> Any:
    """Lines of such things, and of such nests of lines."""
    return st.recursive(
        st.lists(leaves, min_size=1, max_size=3),
        lambda inner: st.lists(
            st.one_of(leaves, st.tuples(st.sampled_from(nests), st.lists(inner, min_size=1, max_size=3))),
            min_size=1,
            max_size=3,
        ),
        max_leaves=12,
    )


lines = lines_of(leaves)
finite = lines_of(leaves.filter(lambda leaf: leaf[-1] != "x"), [nest for nest in nests if nest != "shield"])
"""Lines that leave nothing behind that goes on beside what comes after them."""

timed = lines_of(st.one_of(leaves, st.sampled_from([("hurry",), ("sleep",)])))


def buried(line: list[Any], depth: int) -> list[Any]:
    """A line within so many gathers and groups."""
    for level in range(depth):
        line = [("gather" if level % 2 else "group", [line, [("yield",)]])]
    return line


def scripted(plan: list[Any], *, hurried: bool = False) -> Any:
    """A program that does what a plan says; all that it was told decides what it says.

    Args:
        plan: The plan.
        hurried: Whether a role that never answers is asked under a timeout at its beginning and its end.
    """

    async def program(rollout: ProgramContext) -> str:
        heard: list[str] = []

        async def hurry() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.002):
                    await rollout.ask(ROLES["c"], [{"role": "user", "content": "never"}])
            heard.append("gave up")

        async def follow(line: list[Any]) -> None:
            for step in line:
                await do(*step)

        async def do(kind: str, what: Any = None) -> None:
            try:
                match kind:
                    case "ask":
                        words = [{"role": "user", "content": "|".join(heard) or "?"}]
                        heard.append((await rollout.ask(ROLES[what], words)).text)
                    case "observe":
                        heard.append((await rollout.observe(f"{len(heard)} {rollout.random.random():.3f}")).text)
                    case "call":
                        heard.append(str(await rollout.call(len, [*heard])))
                    case "hurry":
                        await hurry()
                    case "sleep":
                        await asyncio.sleep(0.001)
                    case "yield":
                        await asyncio.sleep(0)
                    case "event":
                        event = asyncio.Event()
                        asyncio.get_running_loop().call_soon(event.set)
                        await event.wait()
                    case _:
                        await nest(kind, [partial(follow, one) for one in what])
            except LLMError as error:
                heard.append(str(error))
                raise
            except asyncio.CancelledError:
                heard.append(f"{kind} was cancelled")
                raise
            finally:
                heard.append(f"{kind} is over")

        async def nest(kind: str, inner: list[Any]) -> None:
            match kind:
                case "gather":
                    found = await asyncio.gather(*(one() for one in inner), return_exceptions=True)
                    heard.extend(type(one).__name__ for one in found)
                case "group":
                    with contextlib.suppress(BaseExceptionGroup):
                        async with asyncio.TaskGroup() as group:
                            for one in inner:
                                group.create_task(one())
                case "first" | "all":
                    when = asyncio.FIRST_COMPLETED if kind == "first" else asyncio.FIRST_EXCEPTION
                    done, left = await asyncio.wait([asyncio.create_task(one()) for one in inner], return_when=when)
                    heard.append(f"{len(done)} of {len(done) + len(left)}")
                    for task in left:
                        task.cancel()
                    await asyncio.gather(*done, *left, return_exceptions=True)
                case "queue":
                    queue: asyncio.Queue[Any] = asyncio.Queue(2)

                    async def work() -> None:
                        while (one := await queue.get()) is not None:
                            with contextlib.suppress(LLMError):
                                await one()

                    workers = [asyncio.create_task(work()) for _ in range(2)]
                    for one in [*inner, None, None]:
                        await queue.put(one)
                    await asyncio.gather(*workers)
                case "shield":
                    with contextlib.suppress(LLMError):
                        await asyncio.gather(*(asyncio.shield(one()) for one in inner))
                case "timeout":
                    with contextlib.suppress(LLMError, TimeoutError):
                        async with asyncio.timeout(3600):
                            await asyncio.gather(*(one() for one in inner))
                case "cancel":
                    tasks = [asyncio.create_task(one()) for one in inner]
                    await asyncio.sleep(0)
                    with contextlib.suppress(LLMError):
                        await tasks[0]
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                case "tasks":
                    with contextlib.suppress(LLMError):
                        for one in inner:
                            await asyncio.create_task(one())

        if hurried:
            await hurry()
        with contextlib.suppress(LLMError):
            await follow(plan)
        if hurried:
            await hurry()
        return "|".join(heard)

    return program


class Shuffled(Actors):
    """Answers, of all requests that are out, one by chance at a time; some are never answered.

    Args:
        seed: Of the chance.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(says)
        self._chance = random.Random(seed)
        self._out: list[asyncio.Future[None]] = []

    async def complete(self, request: Request) -> Reply:
        if b'"never"' in request.body:
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._out:
            loop.call_later(0, self._next)
        self._out.append(turn)
        await turn
        return await super().complete(request)

    def _next(self) -> None:
        self._out = [turn for turn in self._out if not turn.done()]
        if self._out:
            self._out.pop(self._chance.randrange(len(self._out))).set_result(None)
        if self._out:
            asyncio.get_running_loop().call_later(0, self._next)


def says(messages: list[dict[str, Any]], model: str) -> Any:
    said = "|".join(str(one["content"]) for one in messages)
    return BadRequest("no") if model == "x" else f"{model}{len(said)}"


MOST = {"max_turns": 1000}
"""No plan has so many turns."""


async def check(program: Any, seed: int) -> None:
    """Play a program with three orders of arrival, and run it again from wherever it may have been broken off."""
    whole = await play(program, Actors(says) if seed % 2 else Shuffled(seed + 1), **MOST)
    assert whole.end[0] == "answer", whole.end
    for order in range(seed, seed + 2):
        other = await play(program, Shuffled(order), **MOST)
        assert other.end == whole.end, "what a program is told"
        assert other.tree.digest() == whole.tree.digest(), "the order of arrival"
    points = cuts(other.deltas)
    for core in random.Random(seed).sample(points, min(len(points), 5)):
        before, marks = turns(core), core.marks()
        again = await play(program, Shuffled(seed + 2), core, **MOST)
        assert again.end == whole.end, f"broken off with {before} turns, {marks}"
        assert again.tree.digest() == whole.tree.digest(), f"broken off with {before} turns"
        assert again.tree.core.marks() == whole.tree.core.marks() or any("given up" in mark for mark in marks)


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(lines, st.integers(0, 1000), st.sampled_from([0, 0, 14, 20]))
def test_one_tree_whatever_comes_first(plan: list[Any], seed: int, depth: int):
    asyncio.run(check(scripted(buried(plan, depth)), seed))


@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(finite, st.integers(0, 1000))
def test_a_timeout_that_struck_strikes_again_where_it_did(plan: list[Any], seed: int):
    async def check_record() -> None:
        program = scripted(plan, hurried=True)
        whole = await play(program, Shuffled(seed), **MOST)
        assert whole.end[0] == "answer", whole.end
        assert sum('"timer"' in mark for mark in whole.tree.core.marks()) == 2
        for core in cuts(whole.deltas):
            before = turns(core)
            again = await play(program, Shuffled(seed + 1), core, **MOST)
            assert again.end == whole.end, f"broken off with {before} turns, {core.marks()}"
            assert again.tree.digest() == whole.tree.digest(), f"broken off with {before} turns"

    asyncio.run(check_record())


@settings(max_examples=50, suppress_health_check=list(HealthCheck), deadline=None)
@given(timed, st.integers(0, 1000))
def test_what_time_decided_is_decided_by_the_record(plan: list[Any], seed: int):
    async def check_record() -> None:
        program = scripted(plan)
        whole = await play(program, Shuffled(seed), **MOST)
        assert whole.end[0] == "answer", whole.end
        growing = [core for core in cuts(whole.deltas) if core.growing]
        for core in random.Random(seed).sample(growing, min(len(growing), 3)):
            again = await play(program, Shuffled(seed + 1), core, **MOST)
            assert again.end[0] == "answer", (again.end, core.marks())
        last = growing[-1]
        if sum('"ask"' in mark for mark in last.marks()) == sum('"ask"' in mark for mark in whole.tree.core.marks()):
            again = await play(program, Shuffled(seed + 2), last, **MOST)
            assert (again.end, again.tree.digest()) == (whole.end, whole.tree.digest())

    asyncio.run(check_record())
