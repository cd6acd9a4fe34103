"""Environments that fail, hang or are cancelled: each is closed, and what happened is data."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import pytest
from forking import Late, words, written
from notebook import Notebook, Paper, account, forget, look
from scripted import Say, Scripted, Silent, grow

from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import EnvironmentFailed
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.strategies.chain import Chain
from trunkline.strategies.stopping import Stopping
from trunkline.tools.tool import tool
from trunkline.tree.views import Tree
from trunkline.types import Task, Termination


def failing(method: str, when: int = 0, hang: bool = False) -> type[Notebook]:
    """A notebook, one of whose methods fails or hangs at one of its calls, counted over all notebooks."""

    class Failing(Notebook):
        timeout = 0.05
        calls: ClassVar[list[str]] = []

    plain = getattr(Notebook, method)

    async def fail(self: Notebook, *given: Any) -> Any:
        Failing.calls.append(method)
        found = await plain(self, *given)
        if len(Failing.calls) - 1 != when:
            return found
        if hang:
            await asyncio.Event().wait()
        raise RuntimeError("\x1b[31m sk-abcdefghijklmnopqrstuvwx")

    setattr(Failing, method, fail)
    return Failing


@pytest.mark.parametrize("hang", [False, True], ids=["raises", "hangs"])
async def test_one_that_cannot_be_made_ends_its_own_rollout(hang):
    forget()
    tree, _ = await grow(Chain(3), words, tools=[look], environment=failing("fresh", 1, hang))
    assert account().count("fresh") == 3
    assert [r.termination for r in tree.rollouts] == [Termination.ANSWER, Termination.TOOL_ERROR, Termination.ANSWER]
    error = tree.rollouts[1].error
    assert error.kind == "EnvironmentFailed"
    what = "took longer than 0.05 s" if hang else "raised RuntimeError: \\x1b[31m (not stored)"
    assert error.message == f"fresh() of the environment Failing {what}"


@pytest.mark.parametrize("hang", [False, True], ids=["raises", "hangs"])
async def test_one_that_cannot_be_restored_fails_its_fork_alone(hang):
    forget()
    tree, _ = await grow(Late(1, 2), words, tools=[look], environment=failing("restore", 0, hang))
    account()
    assert [r.termination for r in tree.rollouts] == [Termination.ANSWER, Termination.TOOL_ERROR, Termination.ANSWER]
    assert tree.rollouts[1].error.message.startswith("restore() of the environment Failing ")
    assert written(tree, 2) == ["q a", "q a b", "q a b x"]


async def test_a_snapshot_that_fails_costs_nothing_but_a_replay(caplog):
    forget()
    with caplog.at_level(logging.WARNING):
        tree, _ = await grow(Late(2), words, tools=[look], environment=failing("snapshot", 1))
    done = account()
    assert done[done.index("close") + 1 :][:3] == ["restore", "write b", "write x"]
    assert written(tree, 1) == ["q a", "q a b", "q a b x"]
    (record,) = caplog.records
    assert record.getMessage() == (
        "task 'q', no snapshot: snapshot() of the environment Failing raised RuntimeError: \\x1b[31m (not stored) "
        "(said once a task)"
    )


@pytest.mark.parametrize("hang", [False, True], ids=["raises", "hangs"])
async def test_one_that_does_not_close_takes_nothing_from_its_rollout(hang, caplog):
    forget()
    with caplog.at_level(logging.WARNING):
        tree, _ = await grow(Chain(3), words, tools=[look], environment=failing("close", 0, hang))
    account()
    assert [rollout.termination for rollout in tree.rollouts] == [Termination.ANSWER] * 3
    assert len(caplog.records) == 1


async def test_a_function_that_makes_none_any_more_fails_its_rollout():
    made = []

    def once() -> Paper:
        made.append(1)
        if len(made) > 2:
            raise OSError("\x07 no room")
        return Paper()

    tree, _ = await grow(Chain(2), words, tools=[look], environment=once)
    assert sorted(rollout.termination for rollout in tree.rollouts) == [Termination.ANSWER, Termination.TOOL_ERROR]
    broken = next(rollout for rollout in tree.rollouts if rollout.error)
    assert broken.error.message == "the environment could not be made: OSError: \\x07 no room"
    assert broken.error.kind == EnvironmentFailed.__name__


async def test_a_function_that_makes_something_else_fails_its_rollout():
    made = []

    def once() -> object:
        made.append(1)
        return Paper() if len(made) == 1 else {}

    tree, _ = await grow(Chain(1), words, tools=[look], environment=once)
    (rollout,) = tree.rollouts
    assert (rollout.termination, rollout.error.kind) == (Termination.TOOL_ERROR, "EnvironmentFailed")
    assert rollout.error.message == "the environment could not be made: what was returned is a dict"


async def test_a_rollout_that_breaks_closes_its_environment():
    def script(conversation, seed):
        raise RuntimeError("the model is gone")

    forget()
    tree, _ = await grow(Chain(2), script, tools=[look], environment=Paper)
    assert account() == ["fresh", "fresh", "close", "close"]
    assert {rollout.termination for rollout in tree.rollouts} == {Termination.LLM_ERROR}


class Held(Notebook):
    """Stops wherever a test wants it to, and says that it did."""

    where: ClassVar[str] = ""
    reached: ClassVar[asyncio.Event]
    let: ClassVar[asyncio.Event]

    async def stop(self, method: str) -> None:
        if method == self.where:
            self.reached.set()
            await self.let.wait()

    async def fresh(self, task: Task) -> None:
        await super().fresh(task)
        await self.stop("fresh")

    async def snapshot(self) -> bytes:
        await self.stop("snapshot")
        return await super().snapshot()

    async def restore(self, snapshot: bytes) -> None:
        await super().restore(snapshot)
        await self.stop("restore")

    async def stepped(self) -> None:
        await self.stop("stepped")

    async def final_info(self) -> None:
        await self.stop("final_info")

    async def close(self) -> None:
        await self.stop("close")
        await super().close()


@tool(name="look")
async def look_and_stop(what: str, notes: Held) -> str:
    """Write a word down, and stop there."""
    await notes.stop("tool")
    return notes.write(what)


@pytest.mark.parametrize("where", ["fresh", "tool", "stepped", "snapshot", "final_info", "close", "restore"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
async def test_whoever_is_cancelled_wherever_closes_every_environment(where, twice, monkeypatch):
    forget()
    monkeypatch.setattr(Held, "where", where)
    monkeypatch.setattr(Held, "reached", asyncio.Event(), raising=False)
    monkeypatch.setattr(Held, "let", asyncio.Event(), raising=False)
    tree = Tree(Task.ask("what?", "yes", id="q"))
    compiled = CompiledAgent(Agent(model="scripted", tools=[look_and_stop], environment=Held))
    session = TreeRunner(
        tree, TreeSettings(compiled, Late(1, 2, chains=3), None, 7, CompletionClient(Scripted(words))), Silent()
    )
    running = asyncio.create_task(session.run())
    await asyncio.wait_for(Held.reached.wait(), 5)
    for _ in range(1 + twice):
        running.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
    Held.let.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    for _ in range(20):  # one that was cancelled while it closed goes on to its end
        await asyncio.sleep(0)
    done = account()
    assert done.count("fresh") >= 1
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_who_has_answered_is_not_cut_while_its_environment_is_asked_for_its_facts():
    forget()
    asked: list[Notebook] = []
    let = asyncio.Event()

    class Slow(Notebook):
        async def final_info(self) -> dict[str, Any]:
            asked.append(self)
            if len(asked) == 1:
                await let.wait()
            else:
                asyncio.get_running_loop().call_soon(let.set)
            return {}

    def script(conversation: list[dict], seed: int) -> Say:
        return Say("yes", final=True)

    tree = Tree(Task.ask("what?", "yes", id="q"))
    compiled = CompiledAgent(Agent(model="scripted", tools=[look], environment=Slow))
    stopping = Stopping(enough=1)
    await TreeRunner(
        tree, TreeSettings(compiled, Chain(2), None, 7, CompletionClient(Scripted(script)), stopping=stopping), Silent()
    ).run()
    account()
    assert [rollout.termination for rollout in tree.rollouts] == [Termination.ANSWER] * 2
    assert [rollout.answer for rollout in tree.rollouts] == ["yes"] * 2
