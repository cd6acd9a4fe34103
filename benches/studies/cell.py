"""One cell of the study: a preset and a world, in which every arm answers every question."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from studies.arms import ARMS
from studies.engine import SimLLM
from studies.estimators import guesses
from studies.growth import agent, grow
from studies.null import deciding_turn, draws_of
from studies.tries import tries_of
from studies.truth import true_steps
from trunkline.agent import CompiledAgent
from trunkline.llm.request import Sampling
from trunkline.sim.server.options import Settings
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.chain import Chain

if TYPE_CHECKING:
    from studies.estimators import Guess
    from studies.tries import Try
    from studies.truth import Worth
    from trunkline.tree.views import Tree
    from trunkline.types import Task

__all__ = ["APART", "POOL", "SAMPLING", "Cell", "Group", "run_cell"]

POOL: Final = "pool"
"""Name of the chains that every arm is compared with."""

SAMPLING: Final = {
    "": Sampling(temperature=1.0),
    "logprobs": Sampling(temperature=1.0, logprobs=True, top_logprobs=16),
    "ids": Sampling(temperature=1.0, max_tokens=4096),
}
"""How an agent samples, by what its strategy must know."""


class Cell(NamedTuple):
    """What is to be run.

    Attributes:
        preset: How the model errs.
        seed: Of the world and of the run.
        corpus: Path of the world's documents.
        tasks: Path of its questions.
        questions: How many of them.
        judged: Of so many, steps are judged by the truth.
        pool: Chains of each question that arms are compared with.
        continuations: Of each state whose truth is wanted.
        arms: Names of the arms.
    """

    preset: str
    seed: int
    corpus: str
    tasks: str
    questions: int
    judged: int
    pool: int
    continuations: int
    arms: tuple[str, ...]


class Group(NamedTuple):
    """What came of one question under one arm.

    Attributes:
        preset: Of the cell.
        seed: Of the cell.
        question: Its id.
        stratum: Its kind and number of hops: what decides how long its chains are, and is known before anybody answers.
        arm: The arm, or ``POOL``.
        tries: Its rollouts, in the order they were opened.
        draws: In ``null``, how many of them drew the choice that decides; else 0.
        guesses: What estimators say of the steps of one of them, where the truth was found out.
    """

    preset: str
    seed: int
    question: str
    stratum: str
    arm: str
    tries: list[Try]
    draws: int
    guesses: list[Guess]


def run_cell(cell: Cell) -> list[Group]:
    """Run a cell in this process; the answers depend on the cell alone."""
    os.environ[CORPUS_VARIABLE] = cell.corpus
    return asyncio.run(_cell(cell))


async def _cell(cell: Cell) -> list[Group]:
    compiled_agents = {
        needs: CompiledAgent(agent(f"sim-agent:{cell.preset}", sampling)) for needs, sampling in SAMPLING.items()
    }
    plain = compiled_agents[""]
    groups = []
    # Each preset judges other questions: how hard one is, it is under all of them.
    first = _hash(cell.preset) % cell.questions
    judged = {(first + count) % cell.questions for count in range(cell.judged)}
    for place, task in enumerate(load_tasks(cell.tasks, limit=cell.questions)):
        # Chains of another run seed, so that no arm shares a draw with what it is compared with.
        pool = await grow(task, plain, Chain(cell.pool), SimLLM(Settings()), cell.seed + APART)
        turn = deciding_turn(task.question, pool) if cell.preset == "null" else None
        groups.append(_group(cell, task, POOL, pool, turn, []))
        known: dict[bytes, Worth] = {}
        for name in cell.arms:
            arm = ARMS[name]
            compiled, ids = compiled_agents[arm.needs], arm.needs == "ids"
            seed = cell.seed + 3 * APART * arm.again
            tree = await grow(task, compiled, arm.strategy, SimLLM(Settings()), seed, ids=ids, guide=arm.guide)
            found = await _judge(cell, tree, compiled if ids else plain, known, ids=ids) if place in judged else []
            groups.append(_group(cell, task, name, tree, turn, found))
    return groups


async def _judge(
    cell: Cell, tree: Tree, compiled: CompiledAgent, known: dict[bytes, Worth], *, ids: bool
) -> list[Guess]:
    """Let estimators say what the steps of one of a tree's rollouts were worth, each rollout as likely as another.

    Arms that have a rollout in common, such as a first chain, tend to be judged by the same one, which is cheaper.
    """
    scored = [rollout for rollout in tree.rollouts if not math.isnan(rollout.reward)]
    if len(scored) < 2:
        return []
    picked = min(scored, key=lambda rollout: _hash(f"{cell.seed} {tree.task.id} {rollout.path}"))
    steps = await true_steps(tree, picked, compiled, cell.seed + 2 * APART, known, cell.continuations, ids=ids)
    return guesses(tree, steps)


def _group(cell: Cell, task: Task, arm: str, tree: Tree, turn: int | None, found: list[Guess]) -> Group:
    stratum = f"{task.metadata['kind']} {task.metadata['hops']}"
    draws = 0 if turn is None else draws_of(tree, turn)
    return Group(cell.preset, cell.seed, task.id, stratum, arm, tries_of(tree), draws, found)


def _hash(key: str) -> int:
    """A whole number that depends on a key alone."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


APART: Final = 1_000_003
"""Between the seeds of arms, of the chains they are compared with, of continuations and of the repeated control."""
