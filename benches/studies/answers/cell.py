"""One cell: a preset and a world, in which every arm makes one answer of chains of every question."""

from __future__ import annotations

import asyncio
import math
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from studies.answers.arms import ARMS
from studies.answers.readers import Reader, judge
from studies.cell import APART
from studies.engine import SimLLM
from studies.growth import SYSTEM, agent, grow
from studies.null import even_odds
from studies.tries import COSTS, TOKENS, price, tries_of
from trunkline.agent import CompiledAgent
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.scoring.aggregators.voting import key_of
from trunkline.scoring.confidence import candidates
from trunkline.scoring.reports.extractive import extract
from trunkline.sim.server.options import Settings
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from studies.answers.arms import Arm
    from studies.answers.readers import Judged
    from trunkline.scoring.aggregators.base import Candidate, Decision
    from trunkline.tree.views import Tree
    from trunkline.types import Task, Usage

__all__ = ["SOURCES", "Asked", "Cell", "Point", "run_cell"]

SOURCES: Final = ("logprob", "verbalised")
"""Where arms take confidences from, names in ``CONFIDENCES``."""

_SYSTEM: Final = f"{SYSTEM} Then say how sure you are, as <confidence>0.5</confidence> does."
_SAMPLING: Final = Sampling(temperature=1.0, max_tokens=4096)
_IDS: Final = TokenMode(api="chat")
"""Replies come with token ids, so that the log-probability of every token is known."""

_FRESH: Final = 24
"""Chains of another seed, by which it is found out which questions of ``null`` have one wrong answer."""


class Cell(NamedTuple):
    """What is to be run.

    Attributes:
        preset: How the model errs.
        seed: Of the world and of the run.
        corpus: Path of the world's documents.
        tasks: Path of its questions.
        questions: How many of them.
        pool: Chains of each question.
        most: The largest group of chains that is made one answer of; the budget is what so many cost.
        windows: Groups of each size, which begin evenly apart in the pool.
    """

    preset: str
    seed: int
    corpus: str
    tasks: str
    questions: int
    pool: int
    most: int
    windows: int


class Point(NamedTuple):
    """What an arm made of so many chains of a question, on average over the groups.

    Attributes:
        right: Share of answers that are accepted.
        tokens: Generated tokens, those of the chains and of the arm's own calls.
        cost: Cost of both in generated tokens, by ``COSTS``.
    """

    right: float
    tokens: float
    cost: float


class Asked(NamedTuple):
    """What came of one question.

    Attributes:
        preset: Of the cell.
        seed: Of the cell.
        question: Its id.
        stratum: Its kind and number of hops.
        even: In ``null``, whether one wrong answer can be chosen: there may be none, or two. Elsewhere False.
        rewards: Of the chains; NaN where one was cut off or broke.
        sure: Their confidences by source; NaN where nobody knows.
        points: Of each arm, what it made of 1, 2, 3, ... chains; of one try, of 1 alone.
    """

    preset: str
    seed: int
    question: str
    stratum: str
    even: bool
    rewards: list[float]
    sure: dict[str, list[float]]
    points: dict[str, list[Point]]


def run_cell(cell: Cell) -> list[Asked]:
    """Run a cell in this process; the answers depend on the cell alone."""
    os.environ[CORPUS_VARIABLE] = cell.corpus
    return asyncio.run(_cell(cell))


async def _cell(cell: Cell) -> list[Asked]:
    compiled = CompiledAgent(agent(f"sim-agent:{cell.preset}", _SAMPLING, system=_SYSTEM))
    return [await _question(cell, task, compiled) for task in load_tasks(cell.tasks, limit=cell.questions)]


async def _question(cell: Cell, task: Task, compiled: CompiledAgent) -> Asked:
    tree = await grow(task, compiled, Chain(cell.pool), SimLLM(Settings()), cell.seed, ids=_IDS)
    pool = await _Pool.of(cell, tree)
    return Asked(
        cell.preset,
        cell.seed,
        task.id,
        f"{task.metadata['kind']} {task.metadata['hops']}",
        cell.preset == "null" and await _even(task, cell.seed),
        [rollout.reward for rollout in tree.rollouts],
        {by: [one.confidence if one else math.nan for one in pool.tries[by]] for by in SOURCES},
        {name: await pool.points(arm) for name, arm in ARMS.items()},
    )


async def _even(task: Task, seed: int) -> bool:
    """Whether one wrong answer can be chosen, by chains that no arm is given."""
    compiled = CompiledAgent(agent("sim-agent:null", Sampling(temperature=1.0)))
    return even_odds(tries_of(await grow(task, compiled, Chain(_FRESH), SimLLM(Settings()), seed + APART)))


class _Pool:
    """The chains of one question, as arms are given them.

    Attributes:
        tries: For each source of confidence a candidate for each chain; None where one was cut off or broke.
    """

    def __init__(self, cell: Cell, tree: Tree) -> None:
        self.tries: dict[str, list[Candidate | None]] = {}
        for by in SOURCES:
            found = {one.id: one for one in candidates(tree, by, messages=by == SOURCES[0])}
            self.tries[by] = [found.get(rollout.id) for rollout in tree.rollouts]
        self._cell = cell
        self._task = tree.task
        self._accepted = {key_of(reference) for reference in tree.task.reference}
        self._chains = tries_of(tree)
        self._reader = Reader(cell.preset)
        self._judged: dict[int, Judged] = {}

    @classmethod
    async def of(cls, cell: Cell, tree: Tree) -> _Pool:
        """The pool of a tree, its tries judged."""
        pool = cls(cell, tree)
        for one in pool.tries[SOURCES[0]]:
            if one is not None:
                pool._judged[one.id] = await judge(pool._reader, tree.task.question, one)
        return pool

    async def points(self, arm: Arm) -> list[Point]:
        """What an arm makes of 1, 2, 3, ... chains."""
        shown = [self._shown(arm, one) for one in self.tries[arm.by]]
        around = [*shown, *shown]
        if arm.single:
            return [self._point(1, [await self._decide(arm, [one]) for one in shown])]
        starts = [place * self._cell.pool // self._cell.windows for place in range(self._cell.windows)]
        return [
            self._point(size, [await self._decide(arm, around[start : start + size]) for start in starts])
            for size in range(1, self._cell.most + 1)
        ]

    def _shown(self, arm: Arm, one: Candidate | None) -> Candidate | None:
        """A try as an arm is shown it: never its true reward."""
        if one is None:
            return None
        changes: dict[str, object] = {"reward": self._judged[one.id].reward if arm.judged else math.nan}
        if arm.extracted:
            changes["report"] = extract(one.messages, answer=one.answer)
        return msgspec.structs.replace(one, value=math.nan, **changes)

    async def _decide(self, arm: Arm, group: Sequence[Candidate | None]) -> Point:
        """Whether the answer is right, and what the arm's own calls cost."""
        there = [one for one in group if one is not None]
        decision = await arm.make(self._reader).decide(self._task.question, there)
        spent = [self._judged[one.id].usage for one in there] if arm.judged else [decision.usage]
        return Point(
            _right(decision, self._accepted),
            math.fsum(usage.generated for usage in spent),
            math.fsum(map(_priced, spent)),
        )

    def _point(self, size: int, made: Sequence[Point]) -> Point:
        """The mean of what an arm made of groups of a size, with what the chains cost."""
        right, tokens, cost = (math.fsum(values) / len(made) for values in zip(*made, strict=True))
        # Chains are alike, so a group costs its share of the pool.
        share = size / len(self._chains)
        return Point(right, tokens + share * price(self._chains, TOKENS), cost + share * price(self._chains, COSTS))


def _right(decision: Decision, accepted: Collection[str]) -> float:
    """Whether a decision is right; a tie counts as its expectation under a fair draw.

    Aggregators take the first by the alphabet. Numbers of word problems that are wrong come after the right one.
    """
    weight = next((party.weight for party in decision.parties if party.answer == decision.answer), None)
    tied = [party.answer for party in decision.parties if party.weight == weight] if decision.tied else []
    answers = tied or [answer for answer in (decision.answer,) if answer is not None]
    return sum(key_of(answer) in accepted for answer in answers) / max(len(answers), 1)


def _priced(usage: Usage) -> float:
    return COSTS.generated * usage.generated + COSTS.uncached * (usage.prompt - usage.cached)
