"""Variance, length, repetition, void, prefix, presets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from statistics import fmean, pstdev, stdev
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from trunkline._core import drift_of
from trunkline._internal.validation import check_bool, check_choice, check_float, check_int, check_optional, check_that
from trunkline.errors import ConfigError
from trunkline.llm.types import CUT_OFF
from trunkline.scoring.filters.base import OVERLONG, treatment
from trunkline.scoring.notes import Action, Verdict, counted, penalty
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.scoring.filters.base import Group
    from trunkline.tree.views import Node, Trajectory


class OverlongPenalty(msgspec.Struct, frozen=True, kw_only=True):
    """Takes from the reward of long trajectories, the more the longer (DAPO's soft overlong punishment).

    With L generated tokens it adds ``min(-(L - (length - buffer)) / buffer * factor, 0)`` (Yu et al. 2025, arXiv
    2503.14476): nothing up to ``length - buffer``, and ``-factor`` at ``length``. The reward itself stays as it is in
    the run file; training views add the penalty.

    Args:
        length: Tokens of the longest response, over all turns of the path.
        buffer: Tokens before that within which the penalty grows.
        factor: The penalty at ``length``.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "overlong_penalty"
    length: int = 20480
    buffer: int = 4096
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_int("OverlongPenalty: length", self.length, 1)
        check_int("OverlongPenalty: buffer", self.buffer, 1, self.length)
        check_float("OverlongPenalty: factor", self.factor, 0, 1e6, above=True)

    def amount(self, tokens: int) -> float:
        """Return what is added to the reward of a trajectory of so many generated tokens: 0, or less.

        Args:
            tokens: Generated tokens, at least 0.
        """
        return min(-(tokens - (self.length - self.buffer)) / self.buffer * self.factor, 0.0)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory that is penalised.

        Raises:
            ConfigError: The server reports no usage, so that the length of a trajectory is not known.
        """
        for rollout in group.ended:
            tokens = _generated(group, rollout)
            amount = self.amount(tokens)
            if amount:
                yield rollout.id, Verdict(self.name, "penalty", f"{tokens} generated tokens", amount=amount)


class OverlongMask(msgspec.Struct, frozen=True, kw_only=True):
    """Masks trajectories that a limit cut off (TRL's ``mask_truncated_completions``, SkyRL's overlong filtering).

    Args:
        action: ``mask`` or ``drop``.
        count_in_baseline: Whether the reward of a masked trajectory counts in the baseline, as it does in both.
        turns: Whether those that ran out of turns are masked too, beside those that ran out of tokens or context.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "overlong_mask"
    action: Action = "mask"
    count_in_baseline: bool = True
    turns: bool = False

    def __post_init__(self) -> None:
        treatment("OverlongMask", self.action, self.count_in_baseline)
        check_bool("OverlongMask: turns", self.turns)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory that was cut off."""
        limits = OVERLONG | ({Termination.MAX_TURNS} if self.turns else set())
        for rollout in group.ended:
            if rollout.termination in limits:
                yield (
                    rollout.id,
                    Verdict(self.name, self.action, f"ended as {rollout.termination}", self.count_in_baseline),
                )


def _generated(group: Group, rollout: Trajectory) -> int:
    """Tokens that the model generated on a path, its trunk included."""
    total = 0
    for turn in group.turns(rollout):
        if turn.generated_tokens is None:
            raise ConfigError(
                "the server reports no usage for a turn, so its length is not known: use overlong_mask, which goes by "
                "how rollouts end"
            )
        total += turn.generated_tokens
    return total


_MOST = 1 << 17  # characters at the end of a turn that are looked at; what repeats itself without end does so there
_AT_ONCE = 1 << 12  # windows between two looks at the counts: what repeats early is found early


def repeats(text: str, window: int, times: int) -> bool:
    """Whether ``window`` characters stand at ``times`` places of the last 131,072 characters; places may overlap."""
    text = text[-_MOST:]
    places = len(text) - window + 1
    if places < times or not _suspicious(text, window, times):
        return False
    # Hashes stand for stretches, which would take their whole length each. They are keyed and have 64 bits.
    counts: Counter[int] = Counter()
    hashes = (hash(text[start : start + window]) for start in range(places))
    while some := list(islice(hashes, _AT_ONCE)):
        counts.update(some)
        if any(counts[one] >= times for one in some):
            return True
    return False


def _suspicious(text: str, window: int, times: int) -> bool:
    """Whether a look at a few pieces leaves the question open; most texts are decided here, without counting windows.

    Of ``times`` places two are a multiple of ``times - 1`` apart, so a shorter piece that begins there stands in both.
    """
    stride = min(times - 1, window)
    size = window - stride + 1
    pieces = [hash(text[start : start + size]) for start in range(0, len(text) - size + 1, stride)]
    return len(set(pieces)) < len(pieces)


class Repetition(msgspec.Struct, frozen=True, kw_only=True):
    """Masks trajectories in which the model repeats itself.

    A stretch of ``window`` characters stands at ``times`` places, in all that the model wrote in a turn: reasoning,
    text, arguments of calls. The defaults are TreePO's (arXiv 2508.17445), which looks at the last piece of text.

    Args:
        window: Characters of the stretch.
        times: Places at which it must stand; they may overlap.
        where: ``last``: in the last turn. ``any``: in any turn, each by itself.
        action: ``mask`` or ``drop``.
        count_in_baseline: Whether the reward of a masked trajectory counts in the baseline.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "repetition"
    window: int = 32
    times: int = 8
    where: Literal["last", "any"] = "last"
    action: Action = "mask"
    count_in_baseline: bool = True

    def __post_init__(self) -> None:
        check_int("Repetition: window", self.window, 1, 1024)
        check_int("Repetition: times", self.times, 2)
        check_choice("Repetition: where", self.where, "last", "any")
        treatment("Repetition", self.action, self.count_in_baseline)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory that repeats itself, with the first turn that does."""
        known: dict[int, bool] = {}
        for rollout in group.ended:
            turns = list(enumerate(group.turns(rollout), 1))
            for place, turn in turns if self.where == "any" else turns[-1:]:
                if self._found(group, turn, known):
                    reason = f"turn {place} repeats {self.window} characters {self.times} times"
                    yield rollout.id, Verdict(self.name, self.action, reason, self.count_in_baseline)
                    break

    def _found(self, group: Group, turn: Node, known: dict[int, bool]) -> bool:
        """Whether a turn repeats itself, computed once for all rollouts that share it."""
        if turn.id not in known:
            known[turn.id] = repeats(group.output(turn), self.window, self.times)
        return known[turn.id]


class VoidTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Masks trajectories with a void turn, whole (SimpleTIR, Xue et al. 2025, arXiv 2509.02479).

    The agent's dialect says what is a call and what an answer. A turn with a blank answer is void, one with a failed
    call is not. With ``Agent(on_void_turn="stop")`` a rollout ends at a void turn, as ``filtered`` and unscored;
    else the model is told and continues.

    Args:
        action: ``mask`` or ``drop``.
        count_in_baseline: Whether the reward of a masked trajectory counts in the baseline, as it does in SimpleTIR.
        truncated: Whether a turn that the token limit cut off is void too. It was never read, so it holds neither.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "void_turns"
    action: Action = "mask"
    count_in_baseline: bool = True
    truncated: bool = True

    def __post_init__(self) -> None:
        treatment("VoidTurns", self.action, self.count_in_baseline)
        check_bool("VoidTurns: truncated", self.truncated)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory that has a void turn, with the first."""
        for rollout in group.ended:
            turns = enumerate(group.turns(rollout), 1)
            if place := next((place for place, turn in turns if self._void(group, turn)), 0):
                reason = f"turn {place} neither calls a tool nor answers"
                yield rollout.id, Verdict(self.name, self.action, reason, self.count_in_baseline)

    def _void(self, group: Group, turn: Node) -> bool:
        if turn.finish in CUT_OFF:
            return self.truncated
        parsed = group.read(turn)
        return not parsed.calls and not (parsed.answer or "").strip()


_POLICIES = ("bridge", "realign", "fork")


class ExactPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """Drops trajectories with a turn whose prompt did not go on from its path's token ids (as rLLM does).

    Such turns are known where token ids are (``trunkline.TokenMode``); without them nothing is found.

    Args:
        allowed: Policies that make up for it, among ``bridge``, ``realign`` and ``fork``; none by default.
        action: ``mask`` or ``drop``.
        count_in_baseline: Whether the reward of a masked trajectory counts in the baseline.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "exact_prefix"
    allowed: Sequence[str] = ()
    action: Action = "drop"
    count_in_baseline: bool = True

    def __post_init__(self) -> None:
        treatment("ExactPrefix", self.action, self.count_in_baseline)
        fits = isinstance(self.allowed, list | tuple) and all(policy in _POLICIES for policy in self.allowed)
        check_that(fits, f"ExactPrefix: allowed must list some of {', '.join(_POLICIES)}", self.allowed)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory whose prompt drifted, with the first turn at which it did."""
        for rollout in group.ended:
            for place, turn in enumerate(group.turns(rollout), 1):
                found = drift_of(group.tree.core, turn.id)
                if found is not None and found[0] not in self.allowed:
                    reason = f"the prompt of turn {place} drifted from its path ({found[0]})"
                    yield rollout.id, Verdict(self.name, self.action, reason, self.count_in_baseline)
                    break


class ZeroVariance(msgspec.Struct, frozen=True, kw_only=True):
    """Drops groups whose rewards differ by no more than a threshold; whatever masks rollouts has judged before.

    Compared are the rewards of the group's live rollouts: those that have one, and that nothing has masked or dropped.
    A group without any is dropped. The standard deviation is computed without rounding, so that equal rewards are
    equal. The defaults are DAPO's (Yu et al. 2025, arXiv 2503.14476, in TreePO's recipe): a group is kept if its
    standard deviation is above 0, or if it has one rollout. Dr.MAS's rule, not all rewards equal, comes to the same.
    ``trunkline.filters`` has those of SimpleTIR, slime and SkyRL.

    Args:
        measure: ``std`` or ``spread`` (largest less smallest reward).
        ddof: 0 or 1: the squares are divided by n - ddof.
        threshold: Up to this the group is dropped.
        single: Whether a live rollout that is alone is kept.
        low: Least mean reward of a group that is kept; no limit when None.
        high: Largest one.
        clipped: Whether a group is kept in which every live rollout hit its limit of tokens or context.
        unclipped: Live rollouts below that limit that a group needs.
        shaped: Whether penalties are in the rewards that are compared.
        masked: Whether masked rollouts whose reward counts in the baseline are compared as well.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "zero_variance"
    whole: ClassVar[bool] = True
    scored: ClassVar[bool] = True
    measure: Literal["std", "spread"] = "std"
    ddof: int = 0
    threshold: float = 0.0
    single: bool = True
    low: float | None = None
    high: float | None = None
    clipped: bool = True
    unclipped: int = 0
    shaped: bool = False
    masked: bool = False

    def __post_init__(self) -> None:
        check_choice("ZeroVariance: measure", self.measure, "std", "spread")
        check_int("ZeroVariance: ddof", self.ddof, 0, 1)
        check_float("ZeroVariance: threshold", self.threshold, 0)
        check_int("ZeroVariance: unclipped", self.unclipped, 0)
        for name in ("single", "clipped", "shaped", "masked"):
            check_bool(f"ZeroVariance: {name}", getattr(self, name))
        for name in ("low", "high"):
            check_optional(check_float, f"ZeroVariance: {name}", getattr(self, name), -math.inf)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"ZeroVariance: low is {self.low:g}, which is above high, {self.high:g}")

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield every rollout of a group that is dropped."""
        reason = self._reason(group)
        if reason:
            for rollout in group.rollouts:
                yield rollout.id, Verdict(self.name, "drop", reason, count_in_baseline=False)

    def _reason(self, group: Group) -> str:
        """Why a group is dropped; empty if it is kept."""
        rewards = self._rewards(group)
        if not rewards:
            return "no rollout is left that has a reward"
        below = sum(rollout.termination not in OVERLONG for rollout in group.live)
        if below < self.unclipped or (not below and not self.clipped):
            return f"{below} of {len(group.live)} rollouts ended below their limit of length"
        mean = fmean(rewards)
        if (self.low is not None and mean < self.low) or (self.high is not None and mean > self.high):
            return f"the mean reward is {mean:.4g}"
        if len(rewards) == 1:
            return "" if self.single else "one rollout is left"
        found = self._measure(rewards)
        return f"the {self.measure} of {len(rewards)} rewards is {found:.4g}" if found <= self.threshold else ""

    def _rewards(self, group: Group) -> list[float]:
        compared = group.live
        if self.masked:
            compared = [
                rollout
                for rollout in group.ended
                if rollout.termination not in UNSCORED and counted(group.verdicts(rollout))
            ]
        added = [penalty(group.verdicts(rollout)) if self.shaped else 0.0 for rollout in compared]
        rewards = [rollout.reward + extra for rollout, extra in zip(compared, added, strict=True)]
        return [reward for reward in rewards if not math.isnan(reward)]

    def _measure(self, rewards: Sequence[float]) -> float:
        if self.measure == "spread":
            return max(rewards) - min(rewards)
        # Of the statistics module: exact fractions inside.
        return stdev(rewards) if self.ddof else pstdev(rewards)


class SimpleTIR(ZeroVariance, frozen=True, kw_only=True):
    """Drops groups up to a standard deviation of 0.001, and those whose live rollouts all hit their limit of length.

    Its optional window of accuracy is ``low=0.1, high=0.9``, and its ``remove_clip`` with ``min_n`` is ``unclipped=4``.
    """

    threshold: float = 1e-3
    clipped: bool = False


class Slime(ZeroVariance, frozen=True, kw_only=True):
    """Drops groups up to a sample standard deviation (divided by n - 1) of 1e-6, and groups of one."""

    ddof: int = 1
    threshold: float = 1e-6
    single: bool = False


class SkyRL(ZeroVariance, frozen=True, kw_only=True):
    """Drops groups of two live rollouts or more whose rewards lie within 1e-6."""

    measure: Literal["std", "spread"] = "spread"
    threshold: float = 1e-6


class TreeRLRepetition(Repetition, frozen=True, kw_only=True):
    """Masks trajectories with a turn in which 50 characters stand at more than 20 places (TreeRL, arXiv 2506.11902)."""

    window: int = 50
    times: int = 21
    where: Literal["last", "any"] = "any"
