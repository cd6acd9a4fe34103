"""What a rollout counts when its tools are used."""

from __future__ import annotations

import json

from trunkline import _core
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.types import Reply, Request, ToolCall
from trunkline.rollout.rollout import Rollout
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.sampler import Sampler
from trunkline.rollout.types import TurnSink
from trunkline.store.derive import rows
from trunkline.tools.tool import tool
from trunkline.types import Task, Usage


@tool
async def half(n: int) -> int:
    """Halve an even number.

    Args:
        n: The number.
    """
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n // 2


class Silent(TurnSink):
    """An LLM that must get no request, and a sink that counts deltas."""

    grown = 0

    async def complete(self, request: Request) -> Reply:
        raise AssertionError(request)

    async def close(self) -> None: ...

    async def reserve(self) -> None: ...

    def release(self) -> None: ...

    def called(self, reply: Reply) -> None:
        raise AssertionError(reply)

    def grew(self, size: int = 0, turns: int = 0) -> None:
        assert not turns
        self.grown += 1


async def test_failed_tool_calls_are_counted_in_the_tree_and_its_rows() -> None:
    core = _core.CoreTree()
    point = core.append(0, _core.PROMPT, b'{"role":"user","content":"?"}')
    number = core.open(point, [0, 0])
    silent = Silent()
    rollout = Rollout.of(Sampler(core, Task.ask("?", id="q"), CompletionClient(silent), silent, seed=7), number)
    rollout.turn = 1  # calls are answered after a turn
    calls = [
        ToolCall("", "half", '{"n": 8}'),
        ToolCall("", "half", '{"n": 7}'),
        ToolCall("", "third", "{}"),
        ToolCall("", "half", '{"n":'),
    ]
    await rollout.use(CompiledAgent(Agent(model="m", tools=[half])), calls)
    await rollout.use(CompiledAgent(Agent(model="m", tools=[half])), calls[:1])

    texts = [json.loads(core.message(node))["content"] for node in core.path(rollout.leaf)[1:]]
    assert texts[0] == texts[4] == "4"
    assert "7 is odd" in texts[1]
    assert Usage(*core.rollout(number).usage) == Usage(tools=5, tool_errors=3)
    assert (rollout.tool_calls, silent.grown) == (5, 2), "told once a turn: a delta has all observations or none"

    core.close(number, "answer", "4")
    copy = _core.CoreTree()
    assert copy.apply(core.delta() or b"")
    for tree in (core, copy):
        (row,) = rows(tree)[1]
        assert (row.calls, row.retries, row.tools, row.tool_errors) == (0, 0, 5, 3)
        facts = core.rollout(number)
        assert (row.llm_micros, row.tool_micros) == (facts.llm_micros, facts.tool_micros)
