"""Token ids where rollouts are asked before a message and behind it: whose reply comes first changes nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from toy_model import ToyLLM, known

from trunkline._core import OBSERVATION
from trunkline.agent import Agent
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.types import Reply, Request
from trunkline.rollout.programs.context import ProgramContext
from trunkline.runner.run import run
from trunkline.strategies.base import Fork
from trunkline.strategies.chain import Chain
from trunkline.tools.tool import tool
from trunkline.tree.views import Tree
from trunkline.types import Task


@tool
async def look(what: str) -> str:
    """Look at something.

    Args:
        what: The thing.
    """
    return f"seen {what}"


AGENT = Agent(model="toy", tools=[look], dialect="hermes", max_turns=3, sampling=Sampling(max_tokens=300))
TASK = Task.ask("what is it?", id="q")


class Told:
    """Rollouts at the prompt and behind a message there, then at an observation and behind a message there."""

    def rollouts(self) -> int:
        return 7

    def start(self, view: Any) -> list[Fork]:
        return [Fork(n=2), Fork(n=2, say="think again")]

    def ended(self, view: Any) -> list[Fork]:
        core = view.tree.core
        if core.rollouts > 4 or core.growing:
            return []
        seen = [core.node(node).parent for node in range(len(core)) if core.node(node).turns == 2]
        point = next(node for node in seen if core.node(node).kind == OBSERVATION)
        return [Fork(point, n=2), Fork(point, say="and now")]


async def tells(rollout: ProgramContext) -> str:
    """A program that asks behind a message, or behind two."""
    await rollout.observe("first", by="desk")
    if rollout.random.random() < 0.5:
        await rollout.observe("second", by="desk")
    first = await rollout.ask(AGENT)
    return first.text


class Late(ToyLLM):
    """The model, which answers long prompts or short ones late."""

    late = True

    async def complete(self, request: Request) -> Reply:
        """Complete one request."""
        ids = await self.prompt(json.loads(request.body))
        said = self.tokenizer.decode(ids)
        if any(word in said for word in ("again", "now", "second")) == self.late:
            for _ in range(200):
                await asyncio.sleep(0)
        return await super().complete(request)


def grown(folder: Path, api: str, drift: str, late: bool, **options: Any) -> Tree:
    llm = Late(folder, api)
    llm.tokens = TokenMode(api=api, drift=drift, tokenizer=None if api == "chat" else str(folder))
    llm.late = late
    (tree,) = run(AGENT, [TASK], llm=llm, seed=3, workers=0, **options)
    if (api, drift) != ("chat", "bridge"):
        assert set(known(tree.core)) == set(llm.calls)
    assert tree.tokens.exact
    return tree


@pytest.mark.parametrize(
    "options", [{"strategy": Told()}, {"strategy": Chain(5), "program": tells}], ids=["say", "observe"]
)
@pytest.mark.parametrize("drift", ["bridge", "realign", "fork"])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_who_is_answered_first_changes_no_ids(api: str, drift: str, options: dict[str, Any], tmp_path: Path):
    one, other = (grown(tmp_path, api, drift, late, **options) for late in (True, False))
    assert one.digest() == other.digest()
    assert one.tokens == other.tokens
