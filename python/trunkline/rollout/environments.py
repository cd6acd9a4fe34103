"""Environments, snapshots, restore by replay."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trunkline._internal.text import excerpt, format_error, from_difference, without_secrets
from trunkline.errors import EnvironmentFailed, ForkRefused
from trunkline.llm import messages
from trunkline.llm.response import RecordedStep, steps
from trunkline.scoring.notes import note, noted
from trunkline.tools.calls import Origin
from trunkline.tools.environment import Environment
from trunkline.tree.views import Node, message_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from trunkline.agent import CompiledAgent
    from trunkline.llm.batch.activity import CombinedRolloutActivity, RolloutActivity
    from trunkline.llm.types import ReplyChoice
    from trunkline.strategies.base import Strategy
    from trunkline.tree.views import Tree
    from trunkline.types import Task


__all__ = ["EnvironmentHandle", "EnvironmentManager", "KeptSnapshot", "SnapshotCache"]


Use = tuple[int, int, int]
"""When a snapshot was used last: the round, the rollout, and how many turns that had taken."""


class KeptSnapshot(NamedTuple):
    """A snapshot that is kept.

    Attributes:
        node: The state it was taken at.
        rollout: Whose it was.
        turns: Model turns on the path to the state.
        snapshot: What the environment gave.
        size: Its bytes, where it is bytes.
    """

    node: int
    rollout: int
    turns: int
    snapshot: Any
    size: int


class SnapshotCache:
    """Keeps the snapshots that were used last.

    Which these are depends on rounds, rollouts and turns alone, never on who was faster: once one was dropped, an
    older one is not taken in any more.

    Args:
        most: How many are kept.
        most_bytes: How many bytes of them.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._round = 0
        self._kept: dict[Use, KeptSnapshot] = {}
        self._bytes = 0
        self._dropped: Use = (0, 0, 0)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._bytes

    def next_round(self) -> None:
        """Note that whatever is used from now on is used later than all before."""
        self._round += 1

    def put(self, node: int, rollout: int, turns: int, snapshot: Any) -> None:
        """Take in the snapshot of a state, unless it is too large or too old to be kept.

        Args:
            node: The state.
            rollout: Whose it is.
            turns: Model turns on the path to it.
            snapshot: The snapshot.
        """
        size = memoryview(snapshot).nbytes if isinstance(snapshot, bytes | bytearray | memoryview) else 0
        use = (self._round, rollout, turns)
        if size > self._most_bytes or use <= self._dropped:
            return
        self._kept[use] = KeptSnapshot(node, rollout, turns, snapshot, size)
        self._bytes += size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._dropped = min(self._kept)
            self._bytes -= self._kept.pop(self._dropped).size

    def find(self, path: Sequence[int], rollout: int) -> KeptSnapshot | None:
        """Return the snapshot of the last state on a path that has one; it counts as used.

        Several rollouts may have passed a state; the snapshot is that of the first one.

        Args:
            path: Nodes from the root on.
            rollout: Who wants it.
        """
        on_path = set(path)
        passed = [use for use, kept in self._kept.items() if kept.node in on_path]
        if not passed:
            return None
        use = max(passed, key=lambda use: (self._kept[use].turns, -self._kept[use].rollout))
        kept = self._kept.pop(use)
        self._kept[self._round, rollout, kept.turns] = kept
        return kept


logger = logging.getLogger(__name__)

_BEFORE = 20
"""Characters that are shown of two texts before the first difference."""


class RolloutPosition(Protocol):
    """Where a rollout stands on its tree."""

    id: int
    task: Task
    leaf: int
    turn: int
    activity: RolloutActivity | CombinedRolloutActivity


class EnvironmentManager:
    """What the environments of one tree have in common.

    Args:
        tree: The tree.
        compiled: The agent that plays it.
        strategy: Who forks it.
        read_turn: Returns a turn of the tree as the program was given it.
        seed: The run's seed.
    """

    def __init__(
        self,
        tree: Tree,
        compiled: CompiledAgent,
        strategy: Strategy,
        read_turn: Callable[[int], ReplyChoice],
        seed: int,
    ) -> None:
        self.tree = tree
        self.compiled = compiled
        self.read_turn = read_turn
        self._seed = seed
        # Without these hooks nothing forks but the prompt.
        hooks = hasattr(strategy, "ended") or hasattr(strategy, "stepped")
        self._forks = bool(getattr(strategy, "branches", hooks))
        self._snapshots: SnapshotCache | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()

    def next_round(self) -> None:
        """A round begins."""
        if self._snapshots is not None:
            self._snapshots.next_round()

    def of(self, rollout: RolloutPosition) -> EnvironmentHandle | None:
        """Return the state of a rollout that begins in this round, called in logical order; None without environment.

        Args:
            rollout: The rollout.
        """
        if self.compiled.agent.environment is None:
            return None
        path = self.tree.core.path(rollout.leaf)
        kept = None if self._snapshots is None else self._snapshots.find(path, rollout.id)
        return EnvironmentHandle(self, rollout, path, kept)

    def origin(self, step: RecordedStep) -> Origin:
        """Return the turn that made the calls of a step: that of the rollout that took it."""
        core = self.tree.core
        path = tuple(core.state(step.observations[-1])[0])
        owner = next(number for number in range(core.rollouts) if core.rollout(number).path == path)
        return Origin(self._seed, self.tree.task.id, owner, path, step.number)

    async def take(self, environment: Environment, rollout: RolloutPosition) -> None:
        """Take a snapshot of where a rollout stands, if it may be needed."""
        if not self._forks or not environment.snapshots:
            return
        try:
            snapshot = await self.compiled.toolbox.manage(environment, "snapshot")
        except EnvironmentFailed as error:
            self.warn("no snapshot", error)
            return
        if snapshot is None:
            return
        if self._snapshots is None:
            self._snapshots = SnapshotCache(environment.snapshots, environment.snapshot_bytes)
        self._snapshots.put(rollout.leaf, rollout.id, rollout.turn, snapshot)

    async def close(self, environment: Environment) -> None:
        """Close an environment. A rollout that is cancelled meanwhile does not cut that short."""
        task = asyncio.get_running_loop().create_task(self._close(environment))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.shield(task)

    async def _close(self, environment: Environment) -> None:
        try:
            await self.compiled.toolbox.manage(environment, "close")
        except EnvironmentFailed as error:
            self.warn("not closed", error)

    def warn(self, what: str, error: Exception) -> None:
        """Log what went wrong, once for each kind of it: a tree can have thousands of rollouts."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("task %r, %s: %s (said once a task)", self.tree.task.id, what, format_error(error))


class EnvironmentHandle:
    """The environment of one rollout.

    Args:
        manager: What it shares with the others of its tree.
        rollout: The rollout.
        path: Nodes from the root to where it begins.
        kept: The snapshot to begin with, if there is one.
    """

    def __init__(
        self, manager: EnvironmentManager, rollout: RolloutPosition, path: Sequence[int], kept: KeptSnapshot | None
    ) -> None:
        self.environment: Environment | None = None
        self._manager = manager
        self._rollout = rollout
        self._kept = kept
        self._missed = path if kept is None else path[path.index(kept.node) + 1 :]

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Have the environment, in the state of the node where the rollout begins, until the program is over.

        Raises:
            EnvironmentFailed: It could not be made.
            ForkRefused: The state cannot be had.
        """
        activity = self._rollout.activity
        activity.leave()
        environment = self._made()
        try:
            await self._bring(environment)
            self.environment = environment
            activity.run()
            yield
        except ForkRefused as refusal:
            self._manager.warn("fork refused", refusal)
            raise
        finally:
            activity.leave()
            await self._manager.close(environment)

    async def passed(self) -> None:
        """Note that the rollout has come to another state."""
        if self.environment is not None:
            await self._manager.take(self.environment, self._rollout)

    def _made(self) -> Environment:
        """Make an environment that holds nothing."""
        try:
            made = self._manager.compiled.agent.environment()
        except Exception as error:
            what = f"{type(error).__name__}: {without_secrets(format_error(error))}"
            raise EnvironmentFailed(f"the environment could not be made: {what}") from error
        if not isinstance(made, Environment):
            raise EnvironmentFailed(f"the environment could not be made: what was returned is a {type(made).__name__}")
        return made

    async def _bring(self, environment: Environment) -> None:
        """Bring an environment to the state: from a snapshot or the start, and over the calls that it missed."""
        manage = self._manager.compiled.toolbox.manage
        if self._kept is None:
            await manage(environment, "fresh", self._rollout.task)
        else:
            await manage(environment, "restore", self._kept.snapshot)
        start, replayed = time.perf_counter(), 0
        for step in steps(self._manager.tree.core, self._missed):
            replayed += await self._again(step, environment)
        if replayed:
            note(self._manager.tree.core, self._rollout.id, noted(replayed))
            logger.debug(
                "rollout %d: %d calls replayed in %.3f s", self._rollout.id, replayed, time.perf_counter() - start
            )

    async def _again(self, step: RecordedStep, environment: Environment) -> int:
        """Run the calls of a step again, and compare what they say with the record; returns how many there were."""
        compiled, tree = self._manager.compiled, self._manager.tree
        calls = compiled.dialect.read(self._manager.read_turn(step.turn)).calls
        if not calls or not step.observations:  # calls that have not run yet are not on record
            return 0
        if len(calls) != len(step.observations):
            raise ForkRefused(f"turn {step.number} has {len(calls)} calls and {len(step.observations)} observations")
        observations = await compiled.toolbox.replay(calls, environment, self._manager.origin(step))
        for index, (call, node, seen) in enumerate(zip(calls, step.observations, observations, strict=True)):
            if seen is None:
                continue
            message = compiled.dialect.observation(call, seen.text, messages.call_id(step.number, index))
            if message != tree.core.message(node):
                differs = _difference(message_text(Node(tree, node).message), seen.text)
                raise ForkRefused(
                    f"call {index} of turn {step.number} ({excerpt(call.name, 64)}), run again, {differs}"
                )
        return sum(seen is not None for seen in observations)


def _difference(was: str, now: str) -> str:
    """Show two texts where they begin to differ."""
    start, *texts = from_difference(was, now, _BEFORE)
    shown = [without_secrets(excerpt(text[:200], 80)) for text in texts]
    place = f" (from character {start})" if start else ""
    return f"says '{shown[1]}' where the record says '{shown[0]}'{place}"
