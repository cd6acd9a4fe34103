"""Notes of a rollout: verdicts, grades, replayed calls, calls of an agent of another framework."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from trunkline._internal.text import printable
from trunkline._internal.validation import check_bool, check_choice, check_float, check_optional, check_that
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline._core import CoreTree
    from trunkline.scoring.rewards.base import RewardPart, Scored


_WIDTH = 300  # cells of a reason that are kept
_MAX_GRADE = 1e308
_UNREADABLE = (msgspec.MsgspecError, ConfigError, UnicodeError, RecursionError)


def _make_printable(said: msgspec.Struct, *names: str) -> None:
    for name in names:
        given: Any = getattr(said, name)
        check_that(isinstance(given, str), f"{type(said).__name__}: {name} must be a string", given)
        msgspec.structs.force_setattr(said, name, printable(given, _WIDTH))


class Graded(msgspec.Struct, frozen=True, array_like=True, tag="graded"):
    """The result of one reward for one rollout: a part of its reward, or a reward that was replaced.

    Attributes:
        reward: The reward's name; it is made safe to print.
        value: Its value; None if it gave none.
        weight: What it counts in the rollout's reward, 0 if it was told beside it; None if it is of an earlier reward.
        why: Why there is no value, or what else is to be said, for people; it is made safe to print.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    reward: str
    value: float | None = None
    weight: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        _make_printable(self, "reward", "why")
        if self.value is not None and not (isinstance(self.value, float) and math.isnan(self.value)):
            check_float("Graded: value", self.value, -_MAX_GRADE, _MAX_GRADE)
        elif self.value is not None:
            msgspec.structs.force_setattr(self, "value", None)
        check_optional(check_float, "Graded: weight", self.weight, -_MAX_GRADE, _MAX_GRADE)


class Retried(msgspec.Struct, frozen=True, array_like=True, tag="retried"):
    """How a rollout had ended that was asked again.

    Attributes:
        was: Its termination before.
        by: The rollout that stands in its place.
        chosen: Whether it was asked again because of its result, and not because it broke or was cut.
        reward: Its reward before; None if it had none.
    """

    was: str
    by: int
    chosen: bool
    reward: float | None = None


class ExternalCalls(msgspec.Struct, frozen=True, array_like=True, tag="agent"):
    """Model calls of an agent of another framework, of one rollout or of several.

    Attributes:
        again: Starts of the agent over calls that were on record, for a fork or after a kill.
        diverged: Of these, starts in which it asked something else than its record has.
        replayed: Calls that were answered from the record.
        masked: Of these, calls whose requests differ in what masks cover.
        rewritten: Calls whose request holds replies of the rollout in other words than they were given in.
        beside: Calls that were not alone in flight, so that nothing can fork there.
        refused: Requests that the endpoint does not offer.
        seconds: CPU seconds of its processes.
        branched: Rollouts that go on from where another one's agent asked something else.
    """

    again: int = 0
    diverged: int = 0
    replayed: int = 0
    masked: int = 0
    rewritten: int = 0
    beside: int = 0
    refused: int = 0
    seconds: float = 0.0
    branched: int = 0

    def __add__(self, other: ExternalCalls) -> ExternalCalls:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return ExternalCalls(*(one + another for one, another in pairs))


def agent_calls(note: str | None) -> ExternalCalls | None:
    """What a note says of an agent's calls, over all of its starts; None for other rollouts."""
    found = [entry for entry in entries(note) if isinstance(entry, ExternalCalls)]
    return sum(found, ExternalCalls()) if found else None


def retried(note: str | None) -> Retried | None:
    """What a note says of a rollout that was asked again; None for others."""
    return next((entry for entry in entries(note) if isinstance(entry, Retried)), None)


def as_graded(part: RewardPart) -> Graded:
    """A part of a reward as notes hold it."""
    return Graded(part.name, part.value, part.weight, part.problem or "")


def as_noted(reward: str, scored: Scored) -> list[Graded]:
    """A reward's parts as notes hold them, and why there is no value where no part says it."""
    noted = [as_graded(part) for part in scored.parts]
    if scored.problem is not None and not any(one.why for one in noted if one.weight):
        noted.append(Graded(reward, None, 1.0, scored.problem))
    return noted


_grades_decoder = msgspec.json.Decoder(list[Graded | Retried | ExternalCalls | dict[str, Any] | str])


def graded(note: str | None) -> list[Graded]:
    """The grades in a note, in the order in which they were given; verdicts beside them need not be readable."""
    try:
        found = _grades_decoder.decode(note or "[]")
    except _UNREADABLE:
        return []
    return [entry for entry in found if isinstance(entry, Graded)]


def why_unscored(note: str | None) -> str:
    """Why a rollout has no reward, by its note; empty where its reward gave no reason."""
    return next((one.why for one in graded(note) if one.weight and one.value is None and one.why), "")


Action = Literal["mask", "drop", "penalty", "failed"]
ACTIONS: tuple[str, ...] = ("mask", "drop", "penalty", "failed")


_MAX_VERDICT = 1e100  # the largest amount, which is the largest reward that estimators take


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict of a filter, or of a strategy that keeps some of its leaves, on one rollout.

    Attributes:
        filter: The filter's name.
        action: ``mask``: nothing of the rollout is trained. ``drop``: it is left out of its group altogether.
            ``penalty``: ``amount`` is added to its reward where it is trained. ``failed``: the filter
            broke, or the task did before it could judge; no rollout is changed by it, and the group is not trained on.
        reason: Why, for people; it is made safe to print.
        count_in_baseline: Whether the reward of a masked rollout counts in its group's baseline. One that was dropped
            never does.
        amount: What a penalty adds to the reward.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    filter: str
    action: Action
    reason: str = ""
    count_in_baseline: bool = True
    amount: float = 0.0

    def __post_init__(self) -> None:
        # What is annotated need not be what was given: user filters make verdicts, and files hold them.
        _make_printable(self, "filter", "reason")
        check_choice("Verdict: action", self.action, *ACTIONS)
        check_bool("Verdict: count_in_baseline", self.count_in_baseline)
        check_float("Verdict: amount", self.amount, -_MAX_VERDICT, _MAX_VERDICT)
        if self.amount and self.action != "penalty":
            raise ConfigError(f"Verdict: amount belongs to a penalty, not to a {self.action}")


Entry = Verdict | Graded | Retried | ExternalCalls | str
# Verdicts carry no tag, so that old notes are read; what a reward said is a list, which is one by its own.
_decoder = msgspec.json.Decoder(list[Verdict | list[Any] | str])


def encode(said: Iterable[Entry]) -> str:
    """Write verdicts, grades and remarks as a note."""
    return msgspec.json.encode(list(said)).decode()


def entries(note: str | None) -> list[Entry]:
    """Read a note; a text of another author is an entry of its own."""
    if not note:
        return []
    try:
        found = _decoder.decode(note)
        return [
            msgspec.convert(entry, Graded | Retried | ExternalCalls) if isinstance(entry, list) else entry
            for entry in found
        ]
    except _UNREADABLE:
        return [note]


def read(note: str | None) -> list[Verdict]:
    """The verdicts in a note, in the order in which they were given."""
    return [entry for entry in entries(note) if isinstance(entry, Verdict)]


def note(core: CoreTree, rollout: int, *said: Entry) -> None:
    """Add verdicts, grades or remarks to a rollout's note."""
    if said:
        first, *rest = [*entries(core.rollout(rollout).note), *said]
        core.note(rollout, first if isinstance(first, str) and not rest else encode([first, *rest]))


def grade(core: CoreTree, rollout: int, *parts: Graded) -> None:
    """Replace the grades of a rollout's reward in its note."""
    found = entries(core.rollout(rollout).note)
    left = [entry for entry in found if not (isinstance(entry, Graded) and entry.weight is not None)]
    if [*left, *parts] != found:
        core.note(rollout, encode([*left, *parts]) if left or parts else "")


def clear(core: CoreTree, rollout: int, kept: str | None = None) -> None:
    """Remove all verdicts from a rollout's note but those of one source."""
    found = entries(core.rollout(rollout).note)
    left = [entry for entry in found if not isinstance(entry, Verdict) or entry.filter == kept]
    if len(left) < len(found):
        core.note(rollout, encode(left) if left else "")


def dropped(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.action == "drop" for verdict in verdicts)


def masked(verdicts: Sequence[Verdict]) -> bool:
    """Whether a verdict masks or drops the rollout, so that nothing of it is trained."""
    return any(verdict.action in {"mask", "drop"} for verdict in verdicts)


def counted(verdicts: Sequence[Verdict]) -> bool:
    """Whether the rollout's reward counts in baselines: no verdict drops it, and every mask counts it."""
    return not dropped(verdicts) and all(verdict.count_in_baseline for verdict in verdicts if verdict.action == "mask")


def penalty(verdicts: Iterable[Verdict]) -> float:
    """The sum of penalties to add to the reward."""
    return math.fsum(verdict.amount for verdict in verdicts)


_NOTE: Final = re.compile(r"tool calls replayed: (\d{1,9})", re.ASCII)


def noted(count: int) -> str:
    """The remark that so many tool calls of a rollout ran again."""
    return f"tool calls replayed: {count}"


def replays(note: str | None) -> int:
    """How many tool calls ran again, by a rollout's note, added up over all resumptions."""
    said = (_NOTE.fullmatch(entry) for entry in entries(note) if isinstance(entry, str))
    return sum(int(found[1]) for found in said if found)
