"""Which rollouts and calls are trained; JSONL."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from trunkline._core import MESSAGE, OBSERVATION, TURN
from trunkline._internal.text import printable, quoted
from trunkline._internal.validation import check_choice
from trunkline.errors import ArgumentError, ConfigError, UsageError
from trunkline.rollout.programs.replay import Journal
from trunkline.scoring import notes
from trunkline.types import FAILED, UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline._core import CoreTree
    from trunkline.tree.views import Trajectory, Tree


__all__ = [
    "AgentCall",
    "AgentCalls",
    "Chosen",
    "Rules",
    "again",
    "context_of",
    "select",
    "sent",
    "turns_of",
    "write_jsonl",
]


logger = logging.getLogger(__name__)

_CUT = frozenset({Termination.CENSORED, Termination.CANCELLED, None})
_EARLY = frozenset({"settled", "enough", "budget", "deadline"})


class Rules(NamedTuple):
    """What becomes of rollouts without an outcome of their own.

    Attributes:
        censored: ``mask``: nothing of what was cut off is trained. ``keep``: it is, where a value function has said
            what it is worth. None: groups with such rollouts, and groups that ended early, are refused.
        on_failed: ``mask``: nothing of what broke is trained. ``drop_group``: nor is the rest of its group.
    """

    censored: Literal["mask", "keep"] | None
    on_failed: Literal["mask", "drop_group"]

    def check(self) -> Rules:
        """Return these rules.

        Raises:
            ConfigError: One is a word that there is not.
        """
        if self.censored is not None:
            check_choice("censored", self.censored, "mask", "keep")
        given: object = self.on_failed
        if given == "retry":
            raise ConfigError("on_failed='retry' is for the run, which has ended: here it is mask or drop_group")
        check_choice("on_failed", given, "mask", "drop_group")
        return self


class Chosen(NamedTuple):
    """One rollout that is part of its group.

    Attributes:
        rollout: Its id.
        reward: Its reward with penalties; NaN while unscored.
        counted: Whether that counts where rewards are compared.
        trained: Whether it is trained.
    """

    rollout: int
    reward: float
    counted: bool
    trained: bool

    @property
    def compared(self) -> float:
        """The reward where rewards are compared: NaN if it does not count."""
        return self.reward if self.counted else math.nan


def again(trees: Iterable[Tree]) -> Iterable[Tree]:
    """Return trees that can be gone through more than once; a run reads them anew each time."""
    return list(trees) if iter(trees) is trees else trees


def select(tree: Tree, rules: Rules) -> list[Chosen]:
    """Return the rollouts of a group in their order, without dropped ones; none at all if the group is left out.

    Args:
        tree: The tree.
        rules: What becomes of rollouts without an outcome.

    Raises:
        UsageError: Rollouts of it were cut off, or it ended before its strategy was done, and nobody said what becomes
            of that.
    """
    said = {rollout.id: notes.read(rollout.note) for rollout in tree.rollouts}
    failed = next((one for listed in said.values() for one in listed if one.action == "failed"), None)
    if failed is not None:
        task = printable(tree.task.id, 80)
        logger.warning("task %s is left out: filter %s has not judged it: %s", task, failed.filter, failed.reason)
        return []
    part = [rollout for rollout in tree.rollouts if not notes.dropped(said[rollout.id])]
    if rules.on_failed == "drop_group" and any(rollout.termination in FAILED for rollout in part):
        return []
    cut = any(rollout.termination in _CUT for rollout in part)
    if rules.censored is None and (cut or tree.ended in _EARLY):
        what = "has rollouts that were cut off" if cut else f"ended early ({tree.ended})"
        raise UsageError(
            f"task {quoted(tree.task.id)} {what}, and stopping early favours short ones: say censored='mask' to train "
            "nothing of what was cut off, or censored='keep' to train what has a value"
        )
    return [_chosen(rollout, said[rollout.id], rules) for rollout in part]


def _chosen(rollout: Trajectory, said: list[notes.Verdict], rules: Rules) -> Chosen:
    ended = rollout.termination
    outcome = ended not in UNSCORED if ended not in _CUT else rules.censored == "keep"
    reward = rollout.reward + notes.penalty(said)
    counts = outcome and not math.isnan(reward)
    return Chosen(rollout.id, reward, counts and notes.counted(said), counts and not notes.masked(said))


def write_jsonl(records: Iterable[msgspec.Struct], path: str | Path) -> int:
    """Write records as JSON lines, one at a time.

    Args:
        records: Of :func:`trunkline.train.turns`, ``pairs`` or ``rows``. NaN becomes null.
        path: The file, which must not exist. Nothing is left of it if a record cannot be had.

    Returns:
        How many were written.

    Raises:
        ConfigError: There is a file already, or it cannot be made.
    """
    place, encoder, count = Path(path), msgspec.json.Encoder(), 0
    try:
        stream = place.open("xb")
    except OSError as problem:
        raise ConfigError(f"cannot write {printable(str(place))}: {problem.strerror or problem}") from None
    try:
        with stream:
            for record in records:
                stream.write(encoder.encode(record) + b"\n")
                count += 1
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    return count


_Note = tuple[bool, bool, Annotated[int, msgspec.Meta(ge=1, lt=2**31)], Annotated[float, msgspec.Meta(ge=0)]]
"""What a team notes of a turn: active, valid, step, and the penalty of an action that is not valid."""


class AgentCall(NamedTuple):
    """One agent call of a rollout.

    Attributes:
        node: Its turn.
        turn: Which turn of the path that is, from 0.
        step: Which step it belongs to, from 1.
        active: Whether anything depended on it.
        valid: Whether what it said is a valid action.
        penalty: What is subtracted from the reward for it; 0 for a call that is valid, or not active.
    """

    node: int
    turn: int
    step: int
    active: bool
    valid: bool
    penalty: float


class AgentCalls:
    """Reads the agent calls of a tree's rollouts.

    A call is a model turn on the rollout's path, and these are in call order. What a team noted with a turn is read
    from the rollout's records; any program may note the same four. A turn with no such note is active and valid, and in
    the step that the path says: one more than the turns before it that something was observed after.

    Args:
        core: The tree.
    """

    def __init__(self, core: CoreTree) -> None:
        self._core = core
        self._journal = Journal(core)

    def of(self, rollout: int) -> list[AgentCall]:
        """Return the calls of a rollout, in call order; those of a trunk it was forked from are among them."""
        core, noted = self._core, self._noted(rollout)
        found: list[AgentCall] = []
        step, moved = 1, False
        for node in core.path(core.rollout(rollout).leaf):
            kind = core.node(node).kind
            if kind == TURN:
                active, valid, own, penalty = noted.get(node, (True, True, step, 0.0))
                found.append(AgentCall(node, len(found), own, active, valid, penalty if active and not valid else 0.0))
                moved = True
            elif moved and kind in {OBSERVATION, MESSAGE}:
                step, moved = step + 1, False
        return found

    def _noted(self, rollout: int) -> dict[int, _Note]:
        """What is noted of the turns of a rollout."""
        found = {}
        for record in self._journal.of(rollout):
            if record.kind == "ask" and record.nodes and (note := _read(record.data[2:])) is not None:
                found[record.nodes[0]] = note
        return found


def _read(noted: Any) -> _Note | None:
    """Read the note of a turn; None where a program noted nothing, or something of its own."""
    try:
        return msgspec.convert(noted[0], _Note) if noted else None
    except msgspec.ValidationError:
        return None


def turns_of(tree: Tree, rollout: int) -> list[int]:
    """Return the model turns on a rollout's path, in order."""
    core = tree.core
    return [node for node in core.path(core.rollout(rollout).leaf) if core.node(node).kind == TURN]


def context_of(core: CoreTree, turn: int) -> bytes | None:
    """Return the messages that a program asked a turn with, a JSON array; None where its path was sent."""
    context = core.node(turn).context
    if context is None:
        return None
    try:
        return core.request_context(context, b"[", b"]")
    except ArgumentError:
        return None  # it says how the token ids that were sent drifted from those of the path


def sent(core: CoreTree, turn: int) -> bytes:
    """Return the messages that a turn was asked with, a JSON array: its context where it has one, else its path."""
    return context_of(core, turn) or core.messages(core.node(turn).parent)
