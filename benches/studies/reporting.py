"""What reports on a tree cost where what is shared is reported once, and where every leaf is reported from scratch."""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from studies.engine import SimLLM
from studies.growth import agent, grow
from studies.study import FIRST_WORLD
from trunkline.agent import CompiledAgent
from trunkline.llm.request import Sampling
from trunkline.scoring.reports.reporter import Reporter
from trunkline.scoring.reports.segments import GENERATED, segments
from trunkline.sim.server.options import Settings
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tree.views import Kind, Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.scoring.reports.segments import Share
    from trunkline.strategies.base import Strategy
    from trunkline.types import Task

__all__ = ["GROWN", "PRICES", "Cost", "Reporting", "lengthened", "reporting_markdown", "run_reporting"]

GROWN: Final[dict[str, Strategy]] = {
    "chains": Chain(6),
    "trees": TreeGRPO(trees=2, forks=2, rounds=1),
    "one trunk": TreeGRPO(trees=1, forks=5, rounds=1),
}
"""How six rollouts of a question are grown."""

PRICES: Final = (1.0, 0.5, 0.1)
"""What a cached prompt token costs in uncached ones: all of it, where there is no cache, to a tenth."""

_FILL: Final = "The register goes on with entries that have no bearing on this. "


class Cost(NamedTuple):
    """What the reports of a tree cost, on average.

    Attributes:
        requests: Model calls.
        prompt: Prompt tokens.
        uncached: Prompt tokens that a prefix cache of the reports of this tree did not hold.
        generated: Generated tokens.
    """

    requests: float
    prompt: float
    uncached: float
    generated: float

    def priced(self, cached: float) -> float:
        """Cost in prompt tokens, a generated one counted as ``GENERATED``.

        Args:
            cached: What a cached prompt token costs in uncached ones.
        """
        return self.uncached + cached * (self.prompt - self.uncached) + GENERATED * self.generated


class Reporting(NamedTuple):
    """What came of one kind of tree.

    Attributes:
        grown: How it was grown, of ``GROWN``.
        hops: Of its questions.
        outputs: Characters of every tool output; 0 where they were left as they came.
        leaves: Reported leaves of a tree, on average.
        segments: Its segments, on average.
        costs: What reports cost, by how they are shared: ``never``, ``always``, and ``auto`` with what cached prompt
            tokens cost, for each of ``PRICES``.
    """

    grown: str
    hops: int
    outputs: int
    leaves: float
    segments: float
    costs: dict[str, Cost]

    def ratio(self, share: str, cached: float) -> float:
        """What reports that are shared cost, over those from scratch.

        Args:
            share: How: ``always`` or ``auto``, which is told what cached tokens cost.
            cached: What a cached prompt token costs in uncached ones, of ``PRICES``.
        """
        own = self.costs[share if share == "always" else _auto(cached)]
        return own.priced(cached) / self.costs["never"].priced(cached)


def run_reporting(grown: str, hops: int, questions: int, outputs: int = 0) -> Reporting:
    """Grow trees, report on them in each way, and count; in this process, with the simulator's models.

    Args:
        grown: How trees are grown, of ``GROWN``.
        hops: Of the questions.
        questions: How many.
        outputs: Characters to which every tool output is lengthened, as outputs of real searches are longer than the
            simulator's.
    """
    with tempfile.TemporaryDirectory(prefix="trunkline-study-") as folder:
        made = make_world(FIRST_WORLD, 600, 2 * questions, (hops,))
        corpus, path = write_world(made, folder)
        os.environ[CORPUS_VARIABLE] = str(corpus)
        tasks = [task for task in load_tasks(str(path)) if task.metadata["kind"] == "lookup"][:questions]
        return asyncio.run(_run(grown, hops, tasks, outputs))


async def _run(grown: str, hops: int, tasks: Sequence[Task], outputs: int) -> Reporting:
    compiled = CompiledAgent(agent("sim-agent:default", Sampling(temperature=1.0), max_turns=80))
    trees = []
    for task in tasks:
        tree = await grow(task, compiled, GROWN[grown], SimLLM(Settings(cache_tokens=0)), 0)
        trees.append(lengthened(tree, outputs) if outputs else tree)
    cut = [segments(tree) for tree in trees]
    leaves = sum(one.leaf for found in cut for one in found) / len(trees)
    costs = {"never": await _cost(trees, "never"), "always": await _cost(trees, "always")}
    costs |= {_auto(cached): await _cost(trees, "auto", cached) for cached in PRICES}
    return Reporting(grown, hops, outputs, leaves, sum(map(len, cut)) / len(trees), costs)


def _auto(cached: float) -> str:
    return f"auto {cached:g}"


async def _cost(trees: Sequence[Tree], share: Share, cached: float = 1.0) -> Cost:
    spent = []
    for tree in trees:
        # A server of its own for each tree, so that nothing but the tree's own requests is cached.
        llm = SimLLM(Settings(dials={"empty": 0.0}))
        reporter = Reporter(llm, "sim-reporter", share=share, cached=cached, again=True)
        spent.append((await reporter.write(tree)).usage)
    count = len(spent)
    return Cost(
        sum(usage.calls for usage in spent) / count,
        sum(usage.prompt for usage in spent) / count,
        sum(usage.prompt - usage.cached for usage in spent) / count,
        sum(usage.generated for usage in spent) / count,
    )


def lengthened(tree: Tree, characters: int) -> Tree:
    """A tree with longer tool outputs, and otherwise the same.

    Args:
        tree: The tree.
        characters: Of every output that is shorter; none is cut.
    """
    old, made = tree.core, Tree(tree.task)
    new = made.core
    known: dict[int, int] = {0: 0}
    for number in range(old.rollouts):
        facts = old.rollout(number)
        path = [0, *old.path(facts.leaf)]
        place = path.index(facts.point)
        for node, parent in zip(path[1 : place + 1], path, strict=False):
            if node not in known:
                known[node] = new.append(known[parent], Kind.PROMPT, old.message(node), new.name(old.node(node).agent))
        rollout = new.open(known[facts.point], facts.path, facts.subgroup)
        for node in path[place + 1 :]:
            known[node] = _said(made, rollout, tree, node, characters)
        if facts.termination is not None:
            new.close(rollout, facts.termination, facts.answer, facts.error)
    return made


def _said(made: Tree, rollout: int, tree: Tree, node: int, characters: int) -> int:
    """Say what a node says once more."""
    old, new = tree.core.node(node), made.core
    message, agent = tree.core.message(node), new.name(old.agent)
    if old.kind == Kind.TURN:
        figures = (-1 if old.prompt is None else old.prompt, 0, -1 if old.generated is None else old.generated, 0, 0)
        aside = tree.core.aside(node)
        names = new.name(old.namespace), new.name(old.finish)
        return new.turn(rollout, message, agent, *names, *figures, None if aside is None else aside.encode())
    if old.kind == Kind.MESSAGE:
        return new.tell(rollout, message, agent)
    content: dict[str, Any] = msgspec.json.decode(message)
    missing = characters - len(content["content"])
    if missing > 0:
        filler = (_FILL * math.ceil(missing / len(_FILL)))[: missing - 1]
        content["content"] = f"{content['content']}\n{filler}"
    return new.observe(rollout, msgspec.json.encode(content), agent, 0)


def reporting_markdown(found: Sequence[Reporting]) -> str:
    """The table of what reports cost, each figure for one tree.

    Args:
        found: What was measured.
    """
    head = ["grown", "hops", "outputs", "leaves", "segments", "scratch: prompt", "uncached", "generated"]
    head += ["all forks: prompt", "uncached", "generated"]
    head += [f"{share}, {price:g}" for share in ("all forks", "auto") for price in PRICES]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for one in found:
        cells = [one.grown, str(one.hops), f"{one.outputs:,}" if one.outputs else "as they are"]
        cells += [f"{one.leaves:.1f}", f"{one.segments:.1f}"]
        for share in ("never", "always"):
            cost = one.costs[share]
            cells += [f"{cost.prompt:,.0f}", f"{cost.uncached:,.0f}", f"{cost.generated:,.0f}"]
        cells += [f"{one.ratio(share, price):.2f}" for share in ("always", "auto") for price in PRICES]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
