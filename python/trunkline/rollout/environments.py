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
    from trunkline.llm.batch.activity import RolloutActivity, UnreadActivity
    from trunkline.llm.types import ReplyChoice
    from trunkline.tree.views import Tree
    from trunkline.types import Task


Use = tuple[int, int, int]
"""When a snapshot was used last: the round, the rollout, and how many turns that had taken."""


class KeptSnapshot(NamedTuple):
    """A snapshot with the node and rollout it was taken at, its turns, and its size where it is bytes."""

    node: int
    rollout: int
    turns: int
    snapshot: Any
    size: int


class SnapshotCache:
    """Keeps the most recently used snapshots, in logical order of round, rollout and turns, never in arrival order."""

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
        """Bytes of all snapshots."""
        return self._bytes

    def next_round(self) -> None:
        """Begin a round: its uses count as later than all before."""
        self._round += 1

    def put(self, node: int, rollout: int, turns: int, snapshot: Any) -> None:
        """Keep the snapshot of a node, unless it is too large or older than one that was dropped."""
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
        """Return the snapshot of the last node on a path that has one, of its first rollout; it counts as used."""
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
    """The position of a rollout on its tree."""

    id: int
    task: Task
    leaf: int
    turn: int
    activity: RolloutActivity | UnreadActivity


class EnvironmentManager:
    """Makes, snapshots and closes the environments of one tree; ``forks``: something may fork beyond the prompt."""

    def __init__(
        self,
        tree: Tree,
        compiled: CompiledAgent,
        read_turn: Callable[[int], ReplyChoice],
        seed: int,
        *,
        forks: bool,
    ) -> None:
        self.tree = tree
        self.compiled = compiled
        self.read_turn = read_turn
        self._seed = seed
        self._forks = forks
        self._snapshots: SnapshotCache | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()

    def next_round(self) -> None:
        """Begin a round."""
        if self._snapshots is not None:
            self._snapshots.next_round()

    def of(self, rollout: RolloutPosition) -> EnvironmentHandle:
        """Return the environment of a rollout that begins in this round."""
        path = self.tree.core.path(rollout.leaf)
        kept = None if self._snapshots is None else self._snapshots.find(path, rollout.id)
        return EnvironmentHandle(self, rollout, path, kept)

    def origin(self, step: RecordedStep) -> Origin:
        """Return the origin of a step's calls: the rollout whose turn made them."""
        core = self.tree.core
        path = tuple(core.state(step.observations[-1])[0])
        owner = next(number for number in range(core.rollouts) if core.rollout(number).path == path)
        return Origin(self._seed, self.tree.task.id, owner, path, step.number)

    async def take(self, environment: Environment, rollout: RolloutPosition) -> None:
        """Snapshot a rollout's environment, if a fork may need it."""
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
        """Close an environment; cancelling the caller does not interrupt it."""
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
        """Log an error once for each kind, as a tree can have thousands of rollouts."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("task %r, %s: %s (said once a task)", self.tree.task.id, what, format_error(error))


class EnvironmentHandle:
    """The environment of one rollout: restored from a snapshot or started fresh, then replayed to its node."""

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
        """Provide the environment in the rollout's first state; raises EnvironmentFailed or ForkRefused."""
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
        """Snapshot the state that the rollout has reached."""
        if self.environment is not None:
            await self._manager.take(self.environment, self._rollout)

    def _made(self) -> Environment:
        try:
            made = self._manager.compiled.agent.environment()
        except Exception as error:
            what = f"{type(error).__name__}: {without_secrets(format_error(error))}"
            raise EnvironmentFailed(f"the environment could not be made: {what}") from error
        if not isinstance(made, Environment):
            raise EnvironmentFailed(f"the environment could not be made: what was returned is a {type(made).__name__}")
        return made

    async def _bring(self, environment: Environment) -> None:
        """Restore or start the environment, and replay the calls since."""
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
        """Replay the calls of a step, compare their observations with the record, and return how many ran."""
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
