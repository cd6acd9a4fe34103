"""What a program gives up, or leaves behind: it is on record, it is paid for, and nothing stays reserved for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import plays
import pytest
from plays import Actors, cuts, play
from recorder import Recorder

from trunkline._core import CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import BadRequest
from trunkline.llm.types import Reply, Request
from trunkline.rollout.programs.context import ProgramContext
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.strategies.chain import Chain
from trunkline.tools.tool import tool
from trunkline.tree.views import Tree
from trunkline.types import Task

A, B, C = (Agent(model=name, name=name) for name in "abc")


class Counting(Recorder):
    """Counts what is reserved, and the replies it was told of."""

    def __init__(self, core: CoreTree) -> None:
        super().__init__(core)
        self.reserved = self.told = 0
        books.append(self)

    async def reserve(self) -> None:
        self.reserved += 1

    def release(self) -> None:
        self.reserved -= 1

    async def durable(self) -> None: ...

    def called(self, reply: object) -> None:
        self.told += 1

    def grew(self, size: int = 0, turns: int = 0) -> None:
        self.reserved -= turns
        super().grew(size, turns)


books: list[Counting] = []


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    books.clear()
    monkeypatch.setattr(plays, "Recorder", Counting)


def says(messages: list[dict[str, object]], model: str) -> str:
    return f"{model} after {len(messages)}"


async def test_replies_that_were_left_behind_are_counted_and_nothing_stays_reserved():
    async def program(rollout: ProgramContext) -> str:
        await rollout.ask(A)
        left.extend(asyncio.create_task(rollout.ask(role)) for role in (B, C))
        while "c" not in answered:
            await asyncio.sleep(0.001)
        return "done"

    def script(messages: list[dict[str, object]], model: str) -> str:
        answered.append(model)
        return says(messages, model)

    answered: list[str] = []
    left: list[asyncio.Task[object]] = []
    grown = await play(program, Actors(script, lambda model: 10**9 if model == "b" else 0))
    assert all(task.cancelled() for task in left)
    assert grown.roles == ["a"]
    assert (books[0].reserved, books[0].told) == (0, 2), "c had answered, but b comes before it"


async def test_what_is_given_up_before_it_began_is_not_sent():
    async def program(rollout: ProgramContext) -> str:
        hasty = asyncio.create_task(rollout.ask(B))
        await asyncio.sleep(0)
        hasty.cancel()
        return (await rollout.ask(A)).text

    grown = await play(program, Actors(says))
    assert (grown.end[0], grown.llm.asked) == ("answer", ["a"])
    assert (books[0].reserved, books[0].told) == (0, 1)


class Persistent(Actors):
    """Answers although its request is cancelled."""

    async def complete(self, request: Request) -> Reply:
        if b"quick!" in request.body:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return await super().complete(request)


async def test_a_reply_that_comes_after_it_was_given_up_is_counted_and_its_permit_given_back():
    async def program(rollout: ProgramContext) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await rollout.ask(B, [{"role": "user", "content": "quick!"}])
        return (await rollout.ask(A)).text

    grown = await play(program, Persistent(says))
    assert (grown.end[0], grown.roles) == ("answer", ["a"])
    assert (books[0].reserved, books[0].told) == (0, 2)


async def test_a_program_that_is_finished_while_others_answer_pays_for_them():
    async def program(rollout: ProgramContext) -> str:
        async def first() -> None:
            await rollout.ask(A)
            rollout.finish("done")

        await asyncio.gather(first(), rollout.ask(B), rollout.ask(C))
        return "late"

    grown = await play(program, Actors(says))
    assert (grown.end[1], grown.roles) == ("done", ["a"])
    assert (books[0].reserved, books[0].told) == (0, 3)


async def test_the_limit_of_turns_comes_after_the_turns_before_it():
    async def program(rollout: ProgramContext) -> str:
        return str(await asyncio.gather(*(rollout.ask(role) for role in (A, B, C))))

    grown = await play(program, Actors(says), max_turns=2)
    assert (grown.end[0], grown.roles) == ("max_turns", ["a", "b"])
    assert (books[0].reserved, books[0].told) == (0, 2)


async def patient(rollout: ProgramContext) -> str:
    """Gives one role up, and asks it again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await rollout.ask(B, [{"role": "user", "content": "quick!"}])
    return (await rollout.ask(A)).text + (await rollout.ask(B)).text


async def grouped(rollout: ProgramContext) -> str:
    """Is given up by a group one of whose members failed, and asks the others again."""
    with contextlib.suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for role in (A, B, C):
                group.create_task(rollout.ask(role))
    return (await rollout.ask(C)).text + (await rollout.ask(A)).text


stuck: list[str] = []
"""What waits for ever."""


class Slow(Actors):
    """Never answers who is in a hurry, and fails the first that b is asked."""

    async def complete(self, request: object) -> object:  # type: ignore[override]
        if b"quick!" in request.body:  # type: ignore[attr-defined]
            stuck.append("model")
            await asyncio.Event().wait()
        return await super().complete(request)  # type: ignore[arg-type]


@pytest.mark.parametrize("program", [patient, grouped])
async def test_what_was_given_up_is_given_up_again_and_asked_again_after_it(program: object):
    def script(messages: list[dict[str, object]], model: str) -> object:
        return BadRequest("no") if model == "b" and program is grouped else says(messages, model)

    whole = await play(program, Slow(script))  # type: ignore[arg-type]
    assert whole.end[0] == "answer", whole.end
    for core in cuts(whole.deltas):
        again = await play(program, Slow(script), core)  # type: ignore[arg-type]
        assert again.end == whole.end
        assert again.tree.digest() == whole.tree.digest()
    assert {book.reserved for book in books} == {0}


async def test_many_rollouts_that_are_run_again_in_one_loop_are_no_divergence():
    async def program(rollout: ProgramContext) -> str:
        heard = await asyncio.gather(*(rollout.ask(A) for _ in range(10)))
        heard += await asyncio.gather(*(rollout.ask(B) for _ in range(10)))
        return str(len(heard))

    whole = await play(program, Actors(says), strategy=Chain(20))
    core = cuts(whole.deltas)[-25]
    again = await play(program, Actors(says), core, strategy=Chain(20))
    assert {again.tree.core.rollout(number).termination for number in range(20)} == {"answer"}
    assert again.tree.digest() == whole.tree.digest()


async def test_a_cancellation_that_nobody_asked_for_ends_one_rollout():
    async def program(rollout: ProgramContext) -> str:
        await rollout.ask(A)
        raise asyncio.CancelledError

    grown = await asyncio.wait_for(play(program, Actors(says)), 5)
    assert grown.end[0] == "lost"


@tool(side_effects=True)
async def pay(amount: int) -> str:
    """Pay.

    Args:
        amount: How much.
    """
    if amount > 1:
        stuck.append("pay")
        await asyncio.Event().wait()
    return "paid"


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def pays_long(rollout: ProgramContext) -> str:
    """What it looks up is there before what it pays is."""
    await asyncio.gather(rollout.tool(pay, amount=2), rollout.tool(look))
    return "done"


async def pays_in_line(rollout: ProgramContext) -> str:
    """It has paid, and that is not on record: something else comes before it."""
    await asyncio.gather(rollout.ask(B, [{"role": "user", "content": "quick!"}]), rollout.tool(pay, amount=1))
    return "done"


async def has_paid(rollout: ProgramContext) -> str:
    """It has paid, and that is on record."""
    await rollout.tool(pay, amount=1)
    return (await rollout.ask(B, [{"role": "user", "content": "quick!"}])).text


@pytest.mark.parametrize(
    ("program", "end"), [(pays_long, "unknown_effect"), (pays_in_line, "unknown_effect"), (has_paid, "censored")]
)
async def test_what_is_cut_before_its_effect_is_on_record_is_in_doubt(program: object, end: str):
    tree = Tree(Task.ask("what?", "yes", id="q"))
    compiled = CompiledAgent(Agent(model="lead"))
    shared = Program(program, compiled)  # type: ignore[arg-type]
    session = TreeRunner(
        tree,
        TreeSettings(compiled, Chain(1), None, 7, CompletionClient(Slow(says)), program=shared),
        Counting(tree.core),
    )
    stuck.clear()
    running = asyncio.ensure_future(session.run())
    # Until one waits for ever, and all else is done.
    while not stuck:
        await asyncio.sleep(0)
    for _ in range(200):
        await asyncio.sleep(0)
    session.cut("stopped", "by hand")
    await asyncio.wait_for(running, 60)
    await shared.close()
    assert tree.core.rollout(0).termination == end


class CountedTrees:
    """A turn engine whose trees are counted."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.opened, self.left = 0, set[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def open(self, *tree: Any) -> int:
        number = self.engine.open(*tree)
        self.opened += 1
        self.left.add(number)
        return number

    def close(self, number: int) -> None:
        self.engine.close(number)
        self.left.remove(number)


async def test_the_engine_has_a_tree_once_and_keeps_none_whoever_sends_its_turns(monkeypatch: pytest.MonkeyPatch):
    clients: list[CompletionClient] = []

    def client(llm: Any) -> CompletionClient:
        clients.append(made := CompletionClient(llm))
        made.engine = CountedTrees(made.engine)  # type: ignore[assignment]
        return made

    monkeypatch.setattr(plays, "CompletionClient", client)

    async def program(rollout: ProgramContext) -> str:
        for agent in (A, B, C):
            await rollout.ask(agent)
        return "done"

    grown = await play(program, Actors(lambda messages, model: "said"))
    assert grown.end[0] == "answer"
    (engine,) = [made.engine for made in clients]
    assert isinstance(engine, CountedTrees)
    assert (engine.opened, engine.left) == (1, set())
