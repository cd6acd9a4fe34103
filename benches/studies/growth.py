"""One question's tree, grown in this process by a strategy that is shown no label."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.token_ids.renderers import renderers
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.rollout.types import TurnSink
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import search, visit
from trunkline.tree.views import Tree
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from studies.engine import SimLLM
    from trunkline._core import CoreTree
    from trunkline.llm.http.client import HttpLLM
    from trunkline.llm.request import Sampling
    from trunkline.llm.types import Reply
    from trunkline.scoring.rewards import Reward
    from trunkline.strategies.base import Strategy
    from trunkline.tools.tool import Tool
    from trunkline.types import Task

__all__ = ["SYSTEM", "agent", "grow", "label"]

SYSTEM = "Answer the question with the tools you have. Put the final answer between <answer> and </answer>."

_IDS = TokenMode(api="completions")


class Open(TurnSink):
    """A sink without back-pressure: deltas are sent nowhere."""

    async def reserve(self) -> None:
        """Go on."""

    def release(self) -> None:
        """Nothing was held."""

    def called(self, reply: Reply) -> None:
        """Nothing is recorded; usage is on the tree."""

    def grew(self, size: int = 0, turns: int = 0) -> None:
        """Nothing is sent."""

    def used(self, *_: object) -> None:
        """Nothing is recorded."""

    async def durable(self) -> None:
        """Nothing is written anywhere."""


def agent(model: str, sampling: Sampling, *, tagged: bool = False, max_turns: int = 30, system: str = SYSTEM) -> Agent:
    """The agent of the studies.

    Args:
        model: A simulated model, with its preset.
        sampling: How it samples.
        tagged: Whether it searches in tags and visits nothing, as ``sim-tagged`` does.
        max_turns: Most turns of a rollout.
        system: What it is told, where it is told anything.
    """
    tools: list[Tool[..., Any]] = [search] if tagged else [search, visit]
    dialect = "search-r1" if tagged else "native"
    return Agent(
        model=model,
        tools=tools,
        system="" if tagged else system,
        sampling=sampling,
        dialect=dialect,
        max_turns=max_turns,
    )


async def grow(
    task: Task,
    compiled: CompiledAgent,
    strategy: Strategy,
    llm: HttpLLM | SimLLM,
    seed: int,
    *,
    ids: bool | TokenMode = False,
    guide: Reward | None = None,
    core: CoreTree | None = None,
) -> Tree:
    """Grow the tree of one question, and score it once nothing grows any more.

    Args:
        task: The question.
        kit: Who plays.
        strategy: Where rollouts start.
        llm: Who answers.
        seed: Of the run.
        ids: Whether prompts are sent as token ids, so that a turn can be gone on from inside; or how ids are asked for.
        guide: What the strategy is shown as reward; it sees none without it, and never the labels.
        core: A tree to go on with.
    """
    tree = Tree(task, core)
    mode = ids if isinstance(ids, TokenMode) else _IDS
    draws = CompletionClient(llm, token_prompts=TokenPromptBuilder(mode, renderers(mode, llm.call)) if ids else None)
    await TreeRunner(tree, TreeSettings(compiled, strategy, guide, seed, draws), Open()).run()
    label(tree)
    return tree


def label(tree: Tree) -> None:
    """Score every rollout of a tree by the reference answers; what was cut off or broke has no score."""
    for rollout in tree.rollouts:
        scored = rollout.termination not in UNSCORED
        tree.core.score(rollout.id, exact_match(rollout) or 0.0 if scored else math.nan)
