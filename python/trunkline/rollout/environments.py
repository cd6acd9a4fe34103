"""Environments, snapshots, restore by replay."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, cast

import msgspec

from trunkline._core import base_seed
from trunkline._internal.text import describe_error, excerpt, format_error, from_difference, without_secrets
from trunkline._internal.validation import short_repr
from trunkline.errors import EnvironmentFailed, ForkRefused, UnknownEffect
from trunkline.llm import messages
from trunkline.llm.response import RecordedStep, steps
from trunkline.rollout.types import Finished
from trunkline.scoring.notes import note, noted
from trunkline.scoring.rewards.base import LARGEST
from trunkline.tools.calls import Origin
from trunkline.tools.environment import Environment
from trunkline.tree.records import EnvironmentRecords, InfoMark, StepMark
from trunkline.tree.views import message_text
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence

    from trunkline.agent import CompiledAgent
    from trunkline.llm.batch.activity import RolloutActivity, UnreadActivity
    from trunkline.llm.types import ReplyChoice, ToolCall
    from trunkline.tools.toolbox import Toolbox
    from trunkline.tree.records import DecisionMark
    from trunkline.tree.views import Tree
    from trunkline.types import Task


Use = tuple[int, int, int]
"""When a snapshot was used last: the round, the rollout, and how many turns that had taken."""

Figures = tuple[float | None, str]
"""What an environment said of a step: its reward, and the termination if it was the last."""


class KeptSnapshot(NamedTuple):
    """A snapshot, its node or recorded action, its rollout, how far that had come, and its size where it is bytes."""

    place: Hashable
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

    def put(self, place: Hashable, rollout: int, turns: int, snapshot: Any) -> None:
        """Keep the snapshot of a place, unless it is too large or older than one that was dropped."""
        size = memoryview(snapshot).nbytes if isinstance(snapshot, bytes | bytearray | memoryview) else 0
        use = (self._round, rollout, turns)
        if size > self._most_bytes or use <= self._dropped:
            return
        self._kept[use] = KeptSnapshot(place, rollout, turns, snapshot, size)
        self._bytes += size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._dropped = min(self._kept)
            self._bytes -= self._kept.pop(self._dropped).size

    def find(self, path: Sequence[Hashable], rollout: int) -> KeptSnapshot | None:
        """Return the snapshot of the last place on a path that has one, of its first rollout; it counts as used."""
        on_path = set(path)
        passed = [use for use, kept in self._kept.items() if kept.place in on_path]
        if not passed:
            return None
        use = max(passed, key=lambda use: (self._kept[use].turns, -self._kept[use].rollout))
        kept = self._kept.pop(use)
        self._kept[self._round, rollout, kept.turns] = kept
        return kept


logger = logging.getLogger(__name__)

_BEFORE = 20
"""Characters that are shown of two texts before the first difference."""


class RecordedCalls(NamedTuple):
    """Calls on record, in the words of messages, with the observations and the step that must come of them again."""

    name: str
    toolbox: Toolbox
    calls: Sequence[ToolCall]
    origin: Origin
    messages: Sequence[bytes]
    message: Callable[[int, str], bytes]
    step: Figures
    first: int = 0  # index of the first call, where these are no calls of a turn


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
        self.task_seed = base_seed(seed, tree.task.id, (), 2**32 - 1)  # no turn has this number
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
        kept = self.kept(lambda: path, rollout.id)
        missed = path if kept is None else path[path.index(cast("int", kept.place)) + 1 :]
        return EnvironmentHandle(self, rollout, kept, missed)

    def kept(self, path: Callable[[], Sequence[Hashable]], rollout: int) -> KeptSnapshot | None:
        """Return the snapshot of the last place on the path of a rollout that begins in this round."""
        return None if self._snapshots is None else self._snapshots.find(path(), rollout)

    def origin(self, step: RecordedStep) -> Origin:
        """Return the origin of a step's calls: the rollout whose turn made them."""
        core = self.tree.core
        last = step.observations[-1]
        owner = next(number for number in range(core.rollouts) if last in core.path(core.rollout(number).leaf))
        return Origin(self._seed, self.tree.task.id, owner, core.rollout(owner).path, step.number)

    async def take(self, environment: Environment, place: Hashable, rollout: int, turns: int) -> None:
        """Snapshot a rollout's environment at a place, if a fork may need it."""
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
        self._snapshots.put(place, rollout, turns, snapshot)

    async def stepped(self, environment: Environment, rollout: int, turn: int) -> StepMark | None:
        """Ask an environment about a step; None where it says nothing of it. Raises EnvironmentFailed."""
        if type(environment).stepped is Environment.stepped:
            return None
        said = await self.compiled.toolbox.manage(environment, "stepped")
        mark = StepMark((rollout, turn)) if said is None else _read_step(environment, said, rollout, turn)
        return mark if mark.reward is not None or mark.ended else None

    async def again(
        self,
        recorded: RecordedCalls,
        environment: Environment,
        rollout: int,
        decisions: Mapping[tuple[int, int, int], DecisionMark],
    ) -> int:
        """Run recorded calls again that take the environment, compare with the record, and return how many ran."""
        if recorded.origin.rollout == rollout and recorded.toolbox.acts(recorded.calls):
            raise UnknownEffect(
                f"calls of {recorded.name} have side effects and are not made again, and the state that they left in "
                f"{type(environment).__name__} ended with the rollout's worker or run"
            )
        origin, first = recorded.origin, recorded.first
        places = {index: (origin.rollout, origin.turn, first + index) for index in range(len(recorded.calls))}
        decided = {index: decisions[place] for index, place in places.items() if place in decisions}
        seen = await recorded.toolbox.replay(recorded.calls, environment, origin, first, decided)
        for index, (call, was, one) in enumerate(zip(recorded.calls, recorded.messages, seen, strict=True)):
            if one is not None and recorded.message(index, one.text) != was:
                differs = _difference(message_text(msgspec.json.decode(was)), one.text)
                raise ForkRefused(f"call {index} of {recorded.name} ({excerpt(call.name, 64)}), run again, {differs}")
        now = figures(await self.stepped(environment, rollout, recorded.origin.turn))
        if recorded.step != now:
            raise ForkRefused(
                f"stepped() of the environment {type(environment).__name__} says {now} of {recorded.name}, run again, "
                f"where the record says {recorded.step}"
            )
        return sum(one is not None for one in seen)

    async def final_info(self, environment: Environment, rollout: int) -> InfoMark | None:
        """Ask an environment for the facts of its final state; raises EnvironmentFailed."""
        if type(environment).final_info is Environment.final_info:
            return None
        said = await self.compiled.toolbox.manage(environment, "final_info")
        place = f"final_info() of the environment {type(environment).__name__} returned"
        return None if said is None else InfoMark(rollout, read_info(said, place))

    async def close(self, environment: Environment, bringing: asyncio.Task[None] | None = None) -> None:
        """Close an environment, after what brings it to its state; cancelling the caller does not interrupt that."""
        task = asyncio.get_running_loop().create_task(self._close(environment, bringing))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.shield(task)

    async def _close(self, environment: Environment, bringing: asyncio.Task[None] | None) -> None:
        if bringing is not None:
            bringing.cancel()
            await asyncio.gather(bringing, return_exceptions=True)
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
        self,
        manager: EnvironmentManager,
        rollout: RolloutPosition,
        kept: KeptSnapshot | None,
        missed: Sequence[int] = (),
    ) -> None:
        self.environment: Environment | None = None
        self.over = False  # whether the rollout was closed in it
        self.facts: InfoMark | None = None
        self._manager = manager
        self._rollout = rollout
        self._kept = kept
        self._missed = missed

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Provide the environment in the rollout's first state; raises EnvironmentFailed or ForkRefused."""
        activity = self._rollout.activity
        activity.leave()
        environment = self._made()
        try:
            await self._bring(environment, self._recorded())
            self.environment = environment
            activity.run()
            yield
        except ForkRefused as refusal:
            self._manager.warn("fork refused", refusal)
            raise
        finally:
            activity.leave()
            await self._manager.close(environment)

    async def stepped(self, turn: int) -> StepMark | EnvironmentFailed | None:
        """Return what the environment says of a step, or how it failed to."""
        assert self.environment is not None
        try:
            return await self._manager.stepped(self.environment, self._rollout.id, turn)
        except EnvironmentFailed as error:
            return error

    async def ask_facts(self) -> None:
        """Ask for the facts of the rollout's final state; raises EnvironmentFailed."""
        assert self.environment is not None
        self.facts = await self._manager.final_info(self.environment, self._rollout.id)

    async def passed(self, step: StepMark | EnvironmentFailed | None) -> None:
        """Snapshot the state that a step has reached; raises how the step failed, or how it ended the rollout."""
        if isinstance(step, EnvironmentFailed):
            raise step
        if step is not None and step.ended:
            raise Finished(Termination(step.ended))
        if self.environment is not None:
            await self._manager.take(self.environment, self._rollout.leaf, self._rollout.id, self._rollout.turn)

    async def ready(self) -> None:
        """Wait until the environment has the state that the record leads to: here it has, once it is entered."""

    def _made(self) -> Environment:
        try:
            made = self._manager.compiled.agent.environment()
        except Exception as error:
            what = f"{type(error).__name__}: {without_secrets(format_error(error))}"
            raise EnvironmentFailed(f"the environment could not be made: {what}") from error
        if not isinstance(made, Environment):
            raise EnvironmentFailed(f"the environment could not be made: what was returned is a {type(made).__name__}")
        made.task_seed = self._manager.task_seed
        return made

    async def _bring(self, environment: Environment, missed: Iterator[RecordedCalls]) -> None:
        """Restore or start the environment, and replay the calls since."""
        manager, number = self._manager, self._rollout.id
        if self._kept is None:
            await manager.compiled.toolbox.manage(environment, "fresh", self._rollout.task)
        else:
            await manager.compiled.toolbox.manage(environment, "restore", self._kept.snapshot)
        start, replayed = time.perf_counter(), 0
        decisions: Mapping[tuple[int, int, int], DecisionMark] | None = None
        for recorded in missed:
            if decisions is None:
                decisions = EnvironmentRecords(manager.tree.core).decisions
            replayed += await manager.again(recorded, environment, number, decisions)
        if replayed:
            note(manager.tree.core, number, noted(replayed))
            logger.debug("rollout %d: %d calls replayed in %.3f s", number, replayed, time.perf_counter() - start)

    def _recorded(self) -> Iterator[RecordedCalls]:
        """Yield the calls of the turns on the path that has been missed."""
        compiled, core = self._manager.compiled, self._manager.tree.core
        marks = EnvironmentRecords(core) if self._missed else None
        for step in steps(core, self._missed):
            calls = compiled.dialect.read(self._manager.read_turn(step.turn)).calls
            if not calls or not step.observations:  # calls that have not run yet are not on record
                continue
            if len(calls) != len(step.observations):
                raise ForkRefused(
                    f"turn {step.number} has {len(calls)} calls and {len(step.observations)} observations"
                )
            yield RecordedCalls(
                f"turn {step.number}",
                compiled.toolbox,
                calls,
                self._manager.origin(step),
                [core.message(node) for node in step.observations],
                observations(compiled, calls, step.number),
                figures(None if marks is None else marks.step(self._rollout.id, step.number)),
            )


def observations(compiled: CompiledAgent, calls: Sequence[ToolCall], turn: int) -> Callable[[int, str], bytes]:
    """Return a function from a call's index and its result to the observation, as the tree has it."""
    return lambda index, text: compiled.dialect.observation(calls[index], text, messages.call_id(turn, index))


def figures(step: StepMark | None) -> Figures:
    """Return what an environment said of a step, without saying of which."""
    return (None, "") if step is None else (step.reward, step.ended)


def _read_step(environment: Environment, said: Any, rollout: int, turn: int) -> StepMark:
    """Read what ``stepped()`` returned; raises EnvironmentFailed."""
    try:
        reward, *flags = list(said)
        # By comparison, so that flags of NumPy count, and texts do not.
        terminated, truncated = ((False, True).index(flag) for flag in flags)
        value = None if reward is None else float("nan" if isinstance(reward, str | bytes | bytearray) else reward)
    except Exception:  # noqa: BLE001 - user code may return anything
        value, terminated, truncated = math.nan, 0, 0
    if value is not None and not -LARGEST <= value <= LARGEST:
        raise EnvironmentFailed(
            f"stepped() of the environment {type(environment).__name__} returned {short_repr(said)}: return None, or "
            f"(reward, terminated, truncated) with a number within {LARGEST:g} of 0 or None, and two of True and False"
        )
    ended: Literal["", "answer", "max_turns"] = "answer" if terminated else "max_turns" if truncated else ""
    return StepMark((rollout, turn), value, ended)


_MOST_INFO: Final = 1 << 16  # bytes of the facts of a final state
_DEEPEST: Final = 64


def read_info(said: object, place: str) -> dict[str, Any]:
    """Return facts of a final state as the record holds them; raises EnvironmentFailed that begins with ``place``."""
    if not isinstance(said, dict):
        raise EnvironmentFailed(f"{place} {short_repr(said)}: return a dict that JSON can hold, or None")
    try:
        text = msgspec.json.encode(said)
        facts: dict[str, Any] = msgspec.json.decode(text)
    except Exception as problem:  # noqa: BLE001 - user code may return anything
        raise EnvironmentFailed(f"{place} a dict that JSON cannot hold: {describe_error(problem)}") from None
    if len(text) > _MOST_INFO or not _is_shallow(facts, _DEEPEST):
        raise EnvironmentFailed(
            f"{place} {len(text):,} bytes of JSON: {_MOST_INFO:,} at most are kept, and {_DEEPEST} levels"
        )
    return facts


def _is_shallow(value: object, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_is_shallow(one, levels - 1) for one in inside)


def _difference(was: str, now: str) -> str:
    """Show two texts where they begin to differ."""
    start, *texts = from_difference(was, now, _BEFORE)
    shown = [without_secrets(excerpt(text[:200], 80)) for text in texts]
    place = f" (from character {start})" if start else ""
    return f"says '{shown[1]}' where the record says '{shown[0]}'{place}"
