"""Selection of rollouts and agent calls for training, and JSONL output."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from trunkline._core import MESSAGE, OBSERVATION, TURN, drift_of
from trunkline._internal.text import printable, quoted
from trunkline._internal.validation import check_bool, check_choice, short_repr
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.dialects.builtin import SEARCH_R1_PROBLEM, calls_of, find
from trunkline.rollout.programs.replay import Journal
from trunkline.scoring import notes
from trunkline.scoring.filters.base import Group, findings
from trunkline.scoring.filters.base import check as check_filters
from trunkline.tree.views import Tree, message_text
from trunkline.types import FAILED, UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import CoreTree
    from trunkline.llm.dialects.base import Dialect
    from trunkline.scoring.filters.base import Filter
    from trunkline.tree.views import Trajectory


logger = logging.getLogger(__name__)

_CUT = frozenset({Termination.CENSORED, Termination.CANCELLED, None})
_EARLY = frozenset({"settled", "enough", "budget", "deadline"})


class Rules(NamedTuple):
    """How rollouts without an outcome are trained: ``censored`` (None refuses their groups) and ``on_failed``.

    ``filters`` judge beside those of the run; what they say is written nowhere.
    """

    censored: Literal["mask", "keep"] | None
    on_failed: Literal["mask", "drop_group"]
    filters: Sequence[Filter] = ()
    dialect: str | Dialect = "native"
    allow_selected: bool = False

    def check(self) -> Rules:
        """Return these rules; ConfigError for an unknown value."""
        if self.censored is not None:
            check_choice("censored", self.censored, "mask", "keep")
        given: object = self.on_failed
        if given == "retry":
            raise ConfigError("on_failed='retry' is for the run, which has ended: here it is mask or drop_group")
        check_choice("on_failed", given, "mask", "drop_group")
        check_bool("allow_selected", self.allow_selected)
        return self._replace(filters=check_filters(self.filters, scored=True), dialect=find(self.dialect))

    def judged(self, tree: Tree) -> dict[int, list[notes.Verdict]]:
        """Return the verdicts on each rollout: those of its note, and those of the filters."""
        said = {rollout.id: notes.read(rollout.note) for rollout in tree.rollouts}
        if self.filters:
            dialect = find(self.dialect)
            for number, verdicts in findings(
                self.filters, Group(tree, lambda choice: dialect.parse(choice, []))
            ).items():
                said[number] += verdicts
        return said


class Chosen(NamedTuple):
    """A rollout of a group: reward with penalties, whether it counts in baselines, whether it is trained."""

    rollout: int
    reward: float
    counted: bool
    trained: bool

    @property
    def compared(self) -> float:
        """The reward in comparisons: NaN if it does not count."""
        return self.reward if self.counted else math.nan


def again(trees: Iterable[Tree]) -> Iterable[Tree]:
    """Return trees that can be iterated more than once; a run reads them anew each time."""
    if not isinstance(trees, Iterable):
        raise ConfigError(f"give a run, or a list of trees, not {short_repr(trees)}")
    return list(trees) if iter(trees) is trees else trees


def select(tree: Tree, rules: Rules) -> list[Chosen]:
    """Return a group's rollouts without dropped ones, none if it is left out; cut ones need a rule."""
    if not isinstance(tree, Tree):
        raise ConfigError(f"give a run, or a list of trees: {short_repr(tree)} is no tree")
    said = rules.judged(tree)
    failed = next((one for listed in said.values() for one in listed if one.action == "failed"), None)
    if failed is not None:
        task = printable(tree.task.id, 80)
        logger.warning("task %s is left out: filter %s has not judged it: %s", task, failed.filter, failed.reason)
        return []
    part = [
        rollout
        for rollout in tree.rollouts
        if not notes.dropped(said[rollout.id]) and not _is_retried(tree, rollout, rules)
    ]
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


def _is_retried(tree: Tree, rollout: Trajectory, rules: Rules) -> bool:
    """Whether another try stands in a rollout's place; UsageError if it was chosen by its result, unless allowed."""
    if rollout.termination != Termination.RETRIED:
        return False
    note = notes.retried(rollout.note)
    if note is not None and note.chosen and not rules.allow_selected:
        raise UsageError(
            f"task {quoted(tree.task.id)} has tries that were asked again because of their result, and training on the "
            "others favours that result: train.batch(allow_selected=True) takes them"
        )
    return True


def _chosen(rollout: Trajectory, said: list[notes.Verdict], rules: Rules) -> Chosen:
    ended = rollout.termination
    outcome = ended not in UNSCORED if ended not in _CUT else rules.censored == "keep"
    reward = rollout.reward + notes.penalty(said)
    counts = outcome and not math.isnan(reward)
    return Chosen(rollout.id, reward, counts and notes.counted(said), counts and not notes.masked(said))


def write_jsonl(records: Iterable[msgspec.Struct], path: str | Path) -> int:
    """Write records as JSON lines, one at a time.

    Args:
        records: Of ``trunkline.train.turns``, ``pairs`` or ``rows``. NaN becomes null.
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
    """One agent call: node, turn of the path, step, activity, validity, and the penalty of an invalid action."""

    node: int
    turn: int
    step: int
    active: bool
    valid: bool
    penalty: float


class AgentCalls:
    """Reads agent calls and the notes of teams; a turn without a note is active, valid and in its path's step."""

    def __init__(self, core: CoreTree) -> None:
        self._core = core
        self._journal = Journal(core)

    def of(self, rollout: int) -> list[AgentCall]:
        """Return the calls on a rollout's path, in order."""
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
        found = {}
        for record in self._journal.of(rollout):
            if record.kind == "ask" and record.nodes and (note := _read(record.data[2:])) is not None:
                found[record.nodes[0]] = note
        return found


def _read(noted: Any) -> _Note | None:
    """Return the note of a turn; None for none, or for a program's own."""
    try:
        return msgspec.convert(noted[0], _Note) if noted else None
    except msgspec.ValidationError:
        return None


def turns_of(tree: Tree, rollout: int) -> list[int]:
    """Return the model turns on a rollout's path."""
    core = tree.core
    return [node for node in core.path(core.rollout(rollout).leaf) if core.node(node).kind == TURN]


def draw_of(path: Sequence[int], turn: int) -> int:
    """Return which sample of its state a turn is, by its rollout's fork path."""
    return dict(zip(path[::2], path[1::2], strict=True)).get(turn, 0)


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN without values."""
    return math.fsum(values) / len(values) if values else math.nan


def context_of(core: CoreTree, turn: int) -> bytes | None:
    """Return the messages of a program's request as a JSON array; None where the path was sent."""
    context = core.node(turn).context
    if context is None or not core.has_messages(context):
        return None
    return core.request_context(context, b"[", b"]")


def has_ids(core: CoreTree, node: int, *, before: bool) -> bool:
    """Return whether the token ids of a node and of its prompt are known; ``before``: those of the nodes above are."""
    facts = core.node(node)
    if facts.kind != TURN:
        return before and core.tokens_of(node) is not None
    drifted = drift_of(core, node)
    # Where a drift replaced the end of the path, or all of it, the ids of the prompt are those that it says.
    known = (facts.context is None and before) if drifted is None else drifted[0] != "bridge" or before
    return known and (facts.generated == 0 or core.tokens_of(node) is not None)


def sent(core: CoreTree, turn: int) -> bytes:
    """Return the messages that a turn was asked with, as a JSON array."""
    return context_of(core, turn) or core.messages(core.node(turn).parent)


class CallHistory:
    """Conversations before the turns of one tree, with nothing but the tool calls of earlier turns."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._program = any(mark.startswith('{"record"') for mark in tree.core.marks())
        self._cut: dict[int, bytes] = {}

    def sent(self, turn: int) -> bytes:
        """Return the messages before a turn, a JSON array; a program's as they were sent. Raises UsageError."""
        core = self._tree.core
        if self._program or core.node(turn).context is not None:
            return sent(core, turn)
        kept, calls = [], b""
        for node in core.path(core.node(turn).parent):
            kind = core.node(node).kind
            if kind == TURN:
                if node not in self._cut:
                    self._cut[node] = _calls_alone(core.message(node))
                calls = self._cut[node]
                kept.append(calls)
            elif kind == OBSERVATION and not calls:
                self._check_told(node)
            else:
                kept.append(core.message(node))
        return b"[" + b",".join(filter(None, kept)) + b"]"

    def _check_told(self, observation: int) -> None:
        """Refuse an observation whose turn has no call that can be read, unless it says just that."""
        if self._tree.node(observation).text != SEARCH_R1_PROBLEM:
            raise UsageError(
                f"task {quoted(self._tree.task.id)}: node {observation} answers a turn in which no tool call can be "
                "read, and history='calls' reads calls of the dialects native, hermes and search-r1: say history='full'"
            )


def _calls_alone(turn: bytes) -> bytes:
    """Return a turn's message with its tool calls alone; nothing where it has none."""
    message = msgspec.json.decode(turn)
    if message.get("tool_calls"):
        return msgspec.json.encode({"role": message["role"], "content": None, "tool_calls": message["tool_calls"]})
    calls = calls_of(message_text(message))
    return msgspec.json.encode({"role": message["role"], "content": calls}) if calls else b""
