"""Failures, program records and weight versions kept in the tree.

A record is the mark ``{"record": [rollout, nth, kind, key, nodes, data, how]}``, written in the step in which the nodes
were appended that it is about. The mark ``{"forked": [rollout, source, count]}`` says whose records a rollout begins
with. ``{"diverged": [rollout, equal]}`` says how many records an agent repeated before it asked something else, and
``{"branch": [rollout, of]}`` that a rollout continues another one from there.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from trunkline._internal.text import format_error, printable
from trunkline._internal.validation import check_text, check_that
from trunkline.errors import LLMError, RolloutError, TreeError
from trunkline.types import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trunkline._core import CoreTree


_MESSAGE_LENGTH = 10_000  # characters of an exception's message that are kept
_MOST_TRIES = 100  # attempts whose outcome is kept, the first ones
_MAX_ATTEMPTS = 1_000_000  # attempts that are believed; a recorded failure is data, and may be damaged


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a rollout broke. A tree keeps it as the JSON that ``encode`` writes.

    Attributes:
        kind: The error's class name; empty where another writer left plain text.
        message: What happened; safe to print, whatever its source.
        attempts: How often it was tried, from 1.
        retryable: Whether trying again later could succeed.
        blame: What failed: ``endpoint`` and its URL, ``tool``, ``environment``, ``program``, ``worker``, ``rollout``,
            or ``code`` for an unexpected exception.
        tries: What came of each attempt, a line each, where there was more to say than the message.
        evidence: The beginning of what was answered last, at most 2,000 characters; empty where nothing was.
    """

    kind: str
    message: str
    attempts: int = 1
    retryable: bool = False
    blame: str = ""
    tries: tuple[str, ...] = ()
    evidence: str = ""

    def __post_init__(self) -> None:
        # Here, because a failure is read from files as well as made: no way around it leads to a terminal.
        for name in ("kind", "message", "blame", "evidence"):
            msgspec.structs.force_setattr(self, name, printable(getattr(self, name)))
        msgspec.structs.force_setattr(self, "tries", tuple(map(printable, self.tries)))
        msgspec.structs.force_setattr(self, "attempts", min(max(self.attempts, 1), _MAX_ATTEMPTS))

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception."""
        kind, message = type(error).__name__, format_error(error, _MESSAGE_LENGTH)
        if not isinstance(error, RolloutError):
            return cls(kind, message, blame="code")
        # User code may have set any value.
        attempts = error.attempts if isinstance(error.attempts, int) else 1
        made = cls(kind, message, attempts, bool(error.retryable), str(error.blame))
        return made.witnessed(error) if isinstance(error, LLMError) else made

    def witnessed(self, error: LLMError) -> Failure:
        """Return this failure with the endpoint, the result of each attempt and the beginning of the last answer."""
        # User code may have set any value.
        blame = f"{error.blame} {error.endpoint}".strip()[:_MESSAGE_LENGTH]
        listed = error.tries[:_MOST_TRIES] if isinstance(error.tries, list | tuple) else ()
        tries = tuple(str(line)[:_MESSAGE_LENGTH] for line in listed)
        return msgspec.structs.replace(self, blame=blame, tries=tries, evidence=str(error.evidence)[:_MESSAGE_LENGTH])

    def encode(self) -> str:
        """Return the failure as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> Failure:
        """Read a rollout's recorded error.

        Args:
            text: What ``encode`` wrote, or the plain text of another writer, which becomes the message.
        """
        try:
            return _failure_decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return cls("", text)


_failure_decoder = msgspec.json.Decoder(Failure)


def usage_of(counts: Iterable[int], error: str | None) -> Usage:
    """Return a rollout's usage from the core's counts, with the retries of a call that failed for good."""
    usage = Usage(*counts)
    if error:
        usage.retries += Failure.decode(error).attempts - 1
    return usage


How: TypeAlias = Literal["", "alone", "given up"]
"""How something came to its end: beside other things, while nothing else was under way, or not at all."""


class Record(NamedTuple):
    """A recorded action of a program: rollout, kind, key, number among its like, result as JSON, and its nodes."""

    rollout: int
    kind: str
    key: str
    nth: int
    data: Sequence[Any]
    nodes: Sequence[int]
    how: How = ""

    @property
    def alone(self) -> bool:
        """Whether nothing else was under way meanwhile."""
        return self.how == "alone"

    @property
    def given_up(self) -> bool:
        """Whether the program gave it up without a result."""
        return self.how == "given up"

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.key}".rstrip()


class _Mark(msgspec.Struct, omit_defaults=True):
    """Marks of programs; other kinds are skipped."""

    record: tuple[int, int, str, str, list[int], list[Any], How] | None = None
    forked: tuple[int, int, int] | None = None
    diverged: tuple[int, int] | None = None
    branch: tuple[int, int] | None = None


_mark_decoder = msgspec.json.Decoder(_Mark)


class Records:
    """Reads the records of a tree; TreeError for an impossible fork of records.

    Attributes:
        diverged: How many records a rollout's agent repeated before it asked something else.
        branches: Rollouts that continue one that diverged, with that one.
    """

    def __init__(self, core: CoreTree) -> None:
        self.diverged: dict[int, int] = {}
        self.branches: dict[int, int] = {}
        self._core = core
        self._records: dict[int, list[Record]] = {}
        self._forked: dict[int, tuple[int, int, bool]] = {}
        self._marks = 0
        self.read()

    def read(self) -> None:
        """Read the marks written since the last call."""
        texts = self._core.marks(self._marks)
        self._marks += len(texts)
        for text in texts:
            mark = _mark_decoder.decode(text)
            if mark.forked is not None:
                rollout, source, count = mark.forked
                if not (0 <= source < rollout and count >= 0):
                    raise TreeError(f"rollout {rollout} cannot begin with {count} records of rollout {source}")
                followed = len(self._records.get(source, ())) > count
                self._forked[rollout] = source, count, followed
            if mark.diverged is not None:
                self.diverged.update([mark.diverged])
            if mark.branch is not None:
                self.branches.update([mark.branch])
            if mark.record is not None:
                rollout, nth, kind, key, nodes, data, how = mark.record
                self._records.setdefault(rollout, []).append(Record(rollout, kind, key, nth, data, nodes, how))

    def own(self, rollout: int) -> list[Record]:
        """Return the records of a rollout's own program."""
        return self._records.get(rollout, [])

    def of(self, rollout: int) -> list[Record]:
        """Return all records of a rollout's program, those inherited by its fork first."""
        return [*self._inherited(rollout), *self._records.get(rollout, ())]

    def following(self, rollout: int) -> Record | None:
        """Return what the rollout that a fork's records are of had done next by then; None for what is no fork."""
        source, count, followed = self._forked.get(rollout, (-1, 0, False))
        return self._records[source][count] if followed else None

    def _inherited(self, rollout: int) -> list[Record]:
        return [record for part in self._parts(rollout) for record in part[1]]

    def _parts(self, rollout: int) -> list[tuple[int, list[Record]]]:
        """Whose records a rollout begins with, and which, the first ones first."""
        parts = []
        while rollout in self._forked:
            rollout, count, _ = self._forked[rollout]
            parts.append((rollout, self._records.get(rollout, [])[:count]))
        return parts[::-1]


M = TypeVar("M")


def read_marks(core: CoreTree, kinds: Mapping[str, type[M]], what: str) -> Iterator[tuple[int, M]]:
    """Yield the marks of some kinds, told by their first field, with their numbers; TreeError for a damaged one."""
    for number, text in enumerate(core.marks()):
        kind = kinds.get(text[2:].partition('"')[0])
        if kind is not None:
            try:
                yield number, msgspec.json.decode(text, type=kind)
            except msgspec.MsgspecError as problem:
                raise TreeError(f"mark {number} of {what} is damaged: {problem}") from None


class StepMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an environment said of a step, by rollout and turn: its reward, and the termination if it was the last."""

    step: tuple[int, int]
    reward: float | None = None
    ended: Literal["", "answer", "max_turns"] = ""

    def and_then(self, later: StepMark) -> StepMark:
        """Return this and a later mark of the same turn as one: a program may run several calls after a turn."""
        rewards = [mark.reward for mark in (self, later) if mark.reward is not None]
        return StepMark(self.step, sum(rewards) if rewards else None, later.ended or self.ended)


class InfoMark(msgspec.Struct, frozen=True):
    """The facts that an environment left of a rollout's final state."""

    info: int
    facts: dict[str, Any]


class DecisionMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ``before_tool`` made of a call, by rollout, turn and index: a text that refuses it, or other arguments."""

    before_tool: tuple[int, int, int]
    refusal: str | None = None
    arguments: str = ""


class ToolDecision(msgspec.Struct, frozen=True):
    """What ``before_tool`` made of a call.

    Attributes:
        turn: The turn that makes the call, from 0.
        index: Its place among the calls of that turn, from 0.
        refusal: The text that the model read; None for a call that was changed.
        arguments: The arguments with which it ran; None for a call that was refused.
    """

    turn: int
    index: int
    refusal: str | None
    arguments: dict[str, Any] | None


_KINDS: dict[str, type[StepMark | InfoMark | DecisionMark]] = {
    "step": StepMark,
    "info": InfoMark,
    "before_tool": DecisionMark,
}


class EnvironmentRecords:
    """Reads what environments said of a tree's rollouts, and ``before_tool`` of their calls.

    Raises:
        TreeError: A mark is damaged.
    """

    def __init__(self, core: CoreTree) -> None:
        self.info: dict[int, dict[str, Any]] = {}
        self.decisions: dict[tuple[int, int, int], DecisionMark] = {}
        self._core = core
        self._steps: dict[tuple[int, int], StepMark] = {}
        for _, mark in read_marks(core, _KINDS, "an environment"):
            if isinstance(mark, StepMark):
                before = self._steps.get(mark.step)
                self._steps[mark.step] = mark if before is None else before.and_then(mark)
            elif isinstance(mark, DecisionMark):
                self.decisions[mark.before_tool] = mark
            else:
                self.info[mark.info] = mark.facts
        marked = self._steps or self.decisions
        paths = (core.rollout(number).path for number in range(core.rollouts)) if marked else ()
        self._numbers = {path: number for number, path in enumerate(paths)}

    def step(self, rollout: int, turn: int) -> StepMark | None:
        """Return what was said of a rollout's turn, by the environment of the rollout that took it."""
        return self._steps.get((self._taker(rollout, turn), turn)) if self._steps else None

    def _taker(self, rollout: int, turn: int) -> int:
        """Return the rollout that took a turn on the path of another."""
        path = self._core.rollout(rollout).path
        while len(path) > 2 and turn < path[-2]:
            path = path[:-2]
        return self._numbers.get(path, -1)

    def decided(self, rollout: int) -> list[ToolDecision]:
        """Return the decisions on calls of a rollout's path, in call order."""
        found = []
        for (taker, turn, index), mark in sorted(self.decisions.items()):
            if turn < self._core.rollout(rollout).turns and self._taker(rollout, turn) == taker:
                arguments = msgspec.json.decode(mark.arguments) if mark.refusal is None else None
                found.append(ToolDecision(turn, index, mark.refusal, arguments))
        return sorted(found, key=lambda one: (one.turn, one.index))

    def rewards(self, rollout: int) -> list[float]:
        """Return the step reward of each turn on a rollout's path; NaN where none was given."""
        found = [self.step(rollout, turn) for turn in range(self._core.rollout(rollout).turns)]
        return [math.nan if step is None or step.reward is None else step.reward for step in found]


_LONGEST = 100
_MARK = re.compile(r' weights:("(?:[^"\\]|\\.)*")\Z')
_DIGITS = re.compile(r"[0-9]{1,10}\Z")
_MAX_VERSION = 2**31


def check_version(name: str, version: object) -> str | None:
    """Return a version of weights; ConfigError unless it is None or a short printable text."""
    if version is None:
        return None
    version = check_text(name, version)
    fits = version.isprintable() and 0 < len(version.strip()) <= _LONGEST
    check_that(fits, f"{name} must be a printable text of up to {_LONGEST} characters such as 'step-12'", version)
    return version


def versioned(namespace: str, version: str | None) -> str:
    """Return a merge namespace with a version, so that turns of two versions never merge."""
    return namespace if version is None else f"{namespace} weights:{json.dumps(version)}"


def version_in(namespace: str) -> str | None:
    """Return the version in a namespace; None without one."""
    found = _MARK.search(namespace)
    return None if found is None else str(json.loads(found[1]))


def number_of(version: str | None) -> int:
    """Return the number at the end of a version, as columns of tokens hold it; -1 without one."""
    found = _DIGITS.search(version or "")
    return -1 if found is None or int(found[0]) >= _MAX_VERSION else int(found[0])
