"""Trees that grow piece by piece, break off after any piece, and go on elsewhere.

A delta is taken after every single callback of the event loop, and whenever somebody says that the tree grew: whatever
a run could have had in its file when it broke off is among these.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, NamedTuple

from exact_runs import serving
from recorder import Recorder, replayed

from trunkline._core import CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.token_ids.renderers import renderers
from trunkline.llm.types import LLMClient
from trunkline.rollout.budget import Budget
from trunkline.rollout.checkpoint import CarriedOver
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
from trunkline.rollout.task_budget import BudgetSources
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.scoring.notes import Verdict, read
from trunkline.scoring.rewards import Reward
from trunkline.store.schema import TreeEnding
from trunkline.strategies.base import Strategy
from trunkline.strategies.stopping import Stopping
from trunkline.tools.tool import Tool
from trunkline.tree.views import Tree
from trunkline.types import Task


class Watched(asyncio.SelectorEventLoop):
    """An event loop that says when a callback is over."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: Callable[[], None] = lambda: None

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        def call() -> None:
            callback(*args)
            self.passed()

        return super().call_soon(call, context=context)


class Grown(NamedTuple):
    """A tree that has grown to its end, or as far as it came."""

    deltas: list[bytes]
    digest: str
    rollouts: list[tuple[str | None, str | None, str | None, str]]
    verdicts: list[list[Verdict]]
    ending: TreeEnding
    turns: int
    asked: int

    @property
    def same(self) -> tuple[object, ...]:
        """What must not depend on where it broke off."""
        return self.digest, self.rollouts, self.verdicts, self.ending


class Setting(NamedTuple):
    """All that a tree grows from.

    Attributes:
        strategy: Where rollouts start.
        llm: Makes who answers.
        tools: The agent's tools.
        agent: What the agent has beside them.
        mode: How a simulated server is asked, which then answers in the place of ``llm``.
    """

    strategy: Strategy
    llm: Callable[[], LLMClient] | None = None
    tools: Sequence[Tool] = ()
    agent: dict[str, Any] = {}
    sampling: Sampling = Sampling(max_tokens=50, logprobs=True, top_logprobs=2)
    reward: Reward | None = None
    filters: Sequence[Any] = ()
    stopping: Stopping | None = None
    budget: Budget | None = None
    prices: dict[str, Any] = {}
    task: Task = Task.ask("what?", "1", id="q")
    mode: TokenMode | None = None

    def grow(self, before: Sequence[bytes] = (), taken: int = 0) -> Grown:
        """Grow it from some deltas on, of which the first ones are an earlier run's."""
        with asyncio.Runner(loop_factory=Watched) as runner:
            return runner.run(self._grow(before, taken))

    async def _grow(self, before: Sequence[bytes], taken: int) -> Grown:
        core, begun = CoreTree(), CarriedOver()
        for number, data in enumerate(before, 1):
            core.apply(data)
            begun = CarriedOver.of(core) if number == taken else begun
        async with self._asked() as (asked, exact):
            return await self._play(core, begun, list(before), asked, exact)

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[tuple[Counted, TokenPromptBuilder | None]]:
        """Who answers, and how it is asked."""
        if self.mode is None:
            assert self.llm is not None
            yield Counted(self.llm()), None
            return
        async with serving(self.mode) as (llm, _):
            yield Counted(llm), TokenPromptBuilder(self.mode, renderers(self.mode, llm.call))

    async def _play(
        self, core: CoreTree, taken: CarriedOver, before: list[bytes], asked: Counted, exact: TokenPromptBuilder | None
    ) -> Grown:
        recorder = Recorder(core)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Watched)
        loop.passed = recorder.grew
        compiled = CompiledAgent(Agent(model="sim-agent", tools=self.tools, sampling=self.sampling, **self.agent))
        session = TreeRunner(
            Tree(self.task, core),
            TreeSettings(
                compiled,
                self.strategy,
                self.reward,
                11,
                CompletionClient(asked, None, exact),
                filters=self.filters,
                stopping=self.stopping,
                sources=None if self.budget is None else BudgetSources(self.budget, None, self.prices),
            ),
            recorder,
            taken=taken,
        )
        async with asyncio.timeout(30):
            await session.run()
        await compiled.toolbox.close()
        recorder.grew()
        core.check()
        return grown(core, before + recorder.deltas, session.ending, asked.turns)


class Counted:
    """An LLM, and how many turns it was asked for."""

    def __init__(self, llm: LLMClient) -> None:
        self.siblings = getattr(llm, "siblings", False)
        self.turns = 0
        self._llm = llm

    async def complete(self, request: Any) -> Any:
        self.turns += request.n
        return await self._llm.complete(request)

    async def close(self) -> None:
        await self._llm.close()


def check(whole: Grown, before: Sequence[bytes], again: Grown) -> None:
    """What went on is what was undisturbed, and nothing was asked for that was there."""
    assert again.same == whole.same, f"broken off after {len(before)} deltas"
    assert again.asked <= whole.asked - turns(before)


def broken_anywhere(grows: Setting) -> Grown:
    """Break off after every delta, go on, and return what it is undisturbed."""
    whole = grows.grow()
    for kept in range(len(whole.deltas) + 1):
        before = whole.deltas[:kept]
        check(whole, before, grows.grow(before))
    return whole


def broken_often(grows: Setting, luck: random.Random, times: int, first: Sequence[bytes] = ()) -> Grown:
    """Break off anywhere, go on, and break off again; return what it is undisturbed.

    Args:
        grows: What to grow.
        luck: Where it breaks off.
        times: How often.
        first: An earlier run's deltas.
    """
    whole = found = grows.grow(first, len(first))
    before = list(first)
    for _ in range(times):
        before = found.deltas[: luck.randint(len(before), len(found.deltas))]
        found = grows.grow(before, len(first))
        assert found.same == whole.same, f"broken off after {len(before)} deltas"
        assert found.asked <= whole.asked - turns(before) + turns(first)
    return whole


def grown(core: CoreTree, deltas: list[bytes], ending: TreeEnding, asked: int) -> Grown:
    """Look at a tree."""
    facts = [core.rollout(number) for number in range(core.rollouts)]
    return Grown(
        deltas,
        core.digest(),
        [(one.termination, one.answer, one.error, repr(one.reward)) for one in facts],
        [read(one.note) for one in facts],
        ending,
        sum(one.usage[0] for one in facts),
        asked,
    )


def turns(deltas: Sequence[bytes]) -> int:
    """Model turns that are on the tree, each as often as it was drawn."""
    core = replayed(deltas)
    return sum(core.rollout(number).usage[0] for number in range(core.rollouts))
