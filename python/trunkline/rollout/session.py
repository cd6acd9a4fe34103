"""The session: drives one task's tree from its prompt to its last reward."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trunkline._core import PROMPT, ROOT
from trunkline.errors import (
    BadRequest,
    ConfigError,
    ContentFiltered,
    ContextTooLong,
    InfrastructureError,
    LLMError,
    RolloutError,
    ToolError,
    UsageError,
)
from trunkline.rollout.desk import Desk, Outlet
from trunkline.rollout.loop import agent_loop
from trunkline.rollout.rollout import Finished, Rollout
from trunkline.rollout.siblings import Siblings
from trunkline.rollout.speech import Speech
from trunkline.score.rewards import Reward, apply
from trunkline.tree.failure import Failure
from trunkline.tree.trajectory import Trajectory
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.rollout.agent import Agent, Kit
    from trunkline.rollout.draws import Draws
    from trunkline.rollout.strategy import Strategy
    from trunkline.tree.tree import Tree

__all__ = ["Session", "plant"]

logger = logging.getLogger(__name__)

_ENDS: tuple[tuple[type[RolloutError], Termination], ...] = (
    (ContextTooLong, Termination.MAX_CONTEXT),
    (ContentFiltered, Termination.CONTENT_FILTER),
    (BadRequest, Termination.BAD_REQUEST),
    (LLMError, Termination.LLM_ERROR),
    (ToolError, Termination.TOOL_ERROR),
)


def plant(tree: Tree, agent: Agent, strategy: Strategy) -> list[int]:
    """Write the prompt into an empty tree and open the rollouts that a strategy begins with.

    It asks no model, so that anyone who knows the job can say which rollouts a task was to have.

    Args:
        tree: A tree with nothing in it.
        agent: Who plays; its system prompt and what its dialect adds come first.
        strategy: Where rollouts start.

    Returns:
        The rollouts' ids, in order of draws.

    Raises:
        ConfigError: If the strategy raises, or begins with no rollout.
    """
    core, node = tree.core, ROOT
    speech = Speech(agent.dialect, agent.tools, agent.sampling)
    for message in speech.opening(agent.system, tree.task.messages):
        node = core.append(node, PROMPT, message)
    return [core.open(node, (0, draw), draw) for draw in range(_draws(strategy, tree))]


def _draws(strategy: Strategy, tree: Tree) -> int:
    """Ask a strategy how many draws of the prompt it begins with; it may be anybody's code."""
    name = type(strategy).__name__
    try:
        draws = sum(fork.n for fork in strategy.start(tree))
    except Exception as error:
        raise ConfigError(f"strategy {name} raised {type(error).__name__} at the start of a task: {error}") from error
    if not isinstance(draws, int) or draws < 1:
        raise ConfigError(f"strategy {name} begins task {tree.task.id!r} with {draws} rollouts; it must begin with one")
    return draws


class Session:
    """One task's tree while it grows. It has one owner and lives in one event loop.

    Args:
        tree: The task's tree, with nothing in it yet.
        kit: The agent that plays it.
        strategy: Where rollouts start.
        reward: Scores each finished rollout; None leaves them unscored.
        seed: The run's seed.
        draws: Who answers.
        outlet: Where rollouts say that they grew.
    """

    def __init__(
        self, tree: Tree, kit: Kit, strategy: Strategy, reward: Reward | None, seed: int, draws: Draws, outlet: Outlet
    ) -> None:
        self.tree = tree
        self._kit = kit
        self._strategy = strategy
        self._reward = reward
        self._seed = seed
        self._outlet = outlet
        self._desk = Desk(tree.core, tree.task.id, draws, outlet)

    async def run(self) -> None:
        """Grow every rollout the strategy asks for, and score it.

        A failed rollout is recorded and the others go on.

        Raises:
            ConfigError: If the strategy breaks.
            EndpointError: If the endpoint serves nobody: there is no point in going on.
        """
        await self.grow(plant(self.tree, self._kit.agent, self._strategy))

    def fork(self, n: int) -> list[int]:
        """Open the next draws of the prompt: those after the ones that were opened there before.

        Args:
            n: How many.

        Returns:
            The rollouts' ids.
        """
        core = self.tree.core
        first = core.rollouts
        return [core.open(core.rollout(0).point, (0, draw), draw) for draw in range(first, first + n)]

    async def grow(self, numbers: Sequence[int]) -> None:
        """Grow rollouts that were opened at one fork point; see :meth:`run`.

        Args:
            numbers: Their ids, in the order of their draws.
        """
        siblings = Siblings(self._desk) if len(numbers) > 1 else None
        core, task = self.tree.core, self.tree.task
        rollouts = [Rollout(core, number, task, self._seed, self._desk, self._outlet, siblings) for number in numbers]
        try:
            async with asyncio.TaskGroup() as group:
                for rollout in rollouts:
                    group.create_task(self._play(rollout))
        finally:
            # One that is cancelled ends nothing itself.
            for rollout in rollouts:
                rollout.lane.end()

    async def _play(self, rollout: Rollout) -> None:
        """Play one rollout to its end, close it and score it."""
        answer, failure = None, None
        try:
            await agent_loop(rollout, self._kit)
        except Finished as end:
            termination, answer = end.termination, end.answer
        except RolloutError as error:
            termination = next((end for kind, end in _ENDS if isinstance(error, kind)), Termination.LLM_ERROR)
            failure = Failure.of(error)
        except (InfrastructureError, UsageError):
            raise
        except Exception as error:
            # A fault of ours or of user code that nobody foresaw: it ends this rollout, and no other.
            logger.exception("task %r, rollout %d broke", self.tree.task.id, rollout.id)
            termination, failure = Termination.LOST, Failure.of(error)
        rollout.lane.end()
        self.tree.core.close(rollout.id, termination.value, answer, failure.encode() if failure else None)
        if self._reward is not None and termination not in UNSCORED:
            self.tree.core.score(rollout.id, await apply(self._reward, Trajectory(self.tree, rollout.id)))
        self._outlet.grew()
