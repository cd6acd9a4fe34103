"""Calls with side effects: what is on record before they begin decides whether they ever begin again."""

from __future__ import annotations

import asyncio

import pytest

from trunkline import _core
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import TreeError, UnknownEffect
from trunkline.llm.types import ToolCall
from trunkline.rollout.rollout import Rollout
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.sampler import Sampler
from trunkline.rollout.side_effects import SideEffectLog, lose, unresolved_effects
from trunkline.rollout.types import TurnSink
from trunkline.tools.calls import Origin, current_call
from trunkline.tools.tool import tool
from trunkline.tree.records import Failure
from trunkline.types import Task

RAN: list[str] = []


@tool(side_effects=True)
async def send(text: str) -> str:
    """Send something.

    Args:
        text: What.
    """
    RAN.append(f"{text} {current_call().id}")
    if text == "hang":
        await asyncio.sleep(600)
    return "sent"


@tool
async def look(text: str) -> str:
    """Look at something.

    Args:
        text: What.
    """
    RAN.append(text)
    return text


class Sink(TurnSink):
    """Everything is in the run file when the test says so."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.acked = asyncio.Event()
        self.acked.set()

    def grew(self, size: int = 0, turns: int = 0) -> None:
        self.log.append("grew")

    async def durable(self) -> None:
        self.log.append("durable")
        await self.acked.wait()


COMPILED = CompiledAgent(Agent(model="m", tools=[send, look]))
SEND = ToolCall("", "send", '{"text": "a"}')
LOOK = ToolCall("", "look", '{"text": "b"}')


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def tree() -> _core.CoreTree:
    core = _core.CoreTree()
    core.open(core.append(0, _core.PROMPT, b'{"role":"user","content":"?"}'), [0, 0])
    return core


def rollout(core: _core.CoreTree, sink: Sink) -> Rollout:
    made = Rollout.of(Sampler(core, Task.ask("?", id="q"), CompletionClient(None), sink, seed=7), 0)
    made.turn = 1  # calls follow a turn
    return made


async def test_a_call_begins_when_its_intent_is_in_the_run_file_and_not_before():
    core, sink = tree(), Sink()
    sink.acked.clear()
    using = asyncio.create_task(rollout(core, sink).use(COMPILED, [LOOK, SEND, SEND]))
    await asyncio.sleep(0.01)
    origin = Origin(7, "q", 0, (0, 0), 0)
    intents = [f'{{"intent":[0,0,{index}],"tool":"send","id":"{origin.call(index).id}"}}' for index in (1, 2)]
    assert core.marks() == intents
    assert (sink.log, RAN) == (["grew", "durable"], [])
    sink.acked.set()
    await using
    assert core.marks()[2:] == ['{"effect":[0,0,1]}', '{"effect":[0,0,2]}']
    assert sorted(RAN) == sorted(["b", f"a {origin.call(1).id}", f"a {origin.call(2).id}"])


@pytest.mark.parametrize(
    "call", [LOOK, ToolCall("", "send", "{"), ToolCall("", "send", '{"what": 1}'), ToolCall("", "other", "{}")]
)
async def test_what_has_no_effect_is_not_written_down(call: ToolCall):
    core, sink = tree(), Sink()
    await rollout(core, sink).use(COMPILED, [call])
    assert core.marks() == []
    assert sink.log == ["grew"]


def begun(*places: tuple[int, int, int]) -> _core.CoreTree:
    """A tree in which calls have begun."""
    core = tree()
    for place in places:
        core.mark(f'{{"intent":{list(place)},"tool":"send","id":"x{place[2]}"}}')
    return core


def test_what_began_and_is_not_on_record_is_in_doubt_rollout_by_rollout():
    core = begun((1, 0, 0), (0, 0, 0), (0, 1, 2), (0, 1, 1))
    for mark in ('{"effect":[0,0,0]}', '{"effect":[2,0,0]}', '{"round":0}', '{"effect":[0,0,0]}'):
        core.mark(mark)
    found = unresolved_effects(core)
    assert set(found) == {0, 1}
    assert "send had begun when its worker or its run ended (call id x2)" in str(found[0]), "the first"
    assert unresolved_effects(tree()) == {}
    core.mark('{"intent":[0,0]}')
    with pytest.raises(TreeError, match="side effects is damaged"):
        unresolved_effects(core)


def test_who_is_lost_with_a_call_in_doubt_is_recorded_as_that():
    core = begun((0, 0, 0))
    core.open(1, [0, 1])
    lose(core, Failure("WorkerError", "it is gone"))
    ends = [(facts.termination, Failure.decode(facts.error).kind) for facts in map(core.rollout, (0, 1))]
    assert ends == [("unknown_effect", "UnknownEffect"), ("lost", "WorkerError")]


async def test_only_a_call_that_is_given_up_leaves_a_doubt():
    core, sink = tree(), Sink()
    one = rollout(core, sink)
    await one.use(COMPILED, [SEND])
    assert one.effects.unresolved_effect is None

    sink.acked.clear()
    hanging = ToolCall("", "send", '{"text": "hang"}')
    one.turn = 2
    using = asyncio.create_task(one.use(COMPILED, [hanging]))
    await asyncio.sleep(0.01)
    assert one.effects.unresolved_effect is None, "it has not begun yet"
    sink.acked.set()
    await asyncio.sleep(0.01)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert isinstance(one.effects.unresolved_effect, UnknownEffect)
    assert "ended while send ran" in str(one.effects.unresolved_effect)


async def test_of_calls_side_by_side_each_is_in_doubt_until_it_is_on_record():
    effects = SideEffectLog(tree(), 0, Sink())
    origin = Origin(7, "q", 0, (0, 0), 0)
    await effects.begin([("send", origin.call(0))])
    await effects.begin([("pay", origin.call(5))])
    effects.known(0, [0, 1])
    assert "ended while pay ran" in str(effects.unresolved_effect)
    effects.known(1, [5])
    assert effects.unresolved_effect is not None
    effects.known(0, [5])
    assert effects.unresolved_effect is None
