"""When a task has enough, and when it is settled: two ways to end a tree before its strategy is done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._core import Tally
from trunkline._internal.validation import check_float, check_int, check_optional, check_that, short_repr
from trunkline.errors import ConfigError
from trunkline.strategies.base import at_once, stepwise
from trunkline.tree.answers import normalise
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from trunkline._core import CoreTree
    from trunkline.strategies.base import Strategy


ANSWER = "answer"
"""As ``stop_when``: the answer that most rollouts give can no longer change."""


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    """When a tree ends before its strategy has finished."""

    enough: int | None = None
    cut_tail: str = msgspec.field(default="censor", name="tail")
    stop_when: Any = msgspec.field(default=None, name="settled")

    def __post_init__(self) -> None:
        check_optional(check_int, "enough", self.enough, 1)
        check_that(self.cut_tail in {"censor", "keep"}, "cut_tail must be censor or keep", self.cut_tail)
        if self.cut_tail != "censor" and self.enough is None:
            raise ConfigError(
                f"cut_tail={self.cut_tail} says what becomes of rollouts that enough= cuts: set enough as well"
            )
        if self.stop_when is not None and self.stop_when != ANSWER:
            if isinstance(self.stop_when, str):
                raise ConfigError(f"stop_when must be answer or a reward, not {short_repr(self.stop_when)}")
            check_float("stop_when", self.stop_when, -math.inf)

    def check(self, strategy: Strategy, *, scored: bool) -> None:
        """Refuse settings that could never take effect."""
        planned, name = strategy.rollouts(), type(strategy).__name__
        if self.enough is not None and self.enough > planned:
            raise ConfigError(f"enough={self.enough} is never reached: {name} plans {planned} rollouts a task")
        if self.stop_when is None:
            return
        if self.stop_when != ANSWER and not scored:
            raise ConfigError(f"stop_when={self.stop_when:g} is a reward, but nothing is scored: give the run a reward")
        if at_once(strategy) >= planned and not stepwise(strategy):
            raise ConfigError(
                f"stop_when is looked at between rounds, and {name} starts its {planned} rollouts at once: nothing "
                f"would be saved; start them in waves, such as Chain({max(2, planned)}, wave={max(1, planned // 2)})"
            )

    def is_settled(self, core: CoreTree, planned: int) -> str | None:
        """Why a tree at rest is settled; None if it is not."""
        if self.stop_when is None:
            return None
        return self._agreed(core, planned) if self.stop_when == ANSWER else self._rewarded(core)

    def _agreed(self, core: CoreTree, planned: int) -> str | None:
        tally, ended = Tally(), 0
        for rollout in range(core.rollouts):
            facts = core.rollout(rollout)
            ended += facts.termination is not None
            if facts.termination is not None and facts.termination not in UNSCORED:
                tally.vote(normalise(facts.answer or "") or None)
        left = max(planned, core.rollouts) - ended
        if tally.leader is None or not tally.settled(left):
            return None
        return f"settled: the leading answer is {tally.margin:g} votes ahead with {left} tries left"

    def _rewarded(self, core: CoreTree) -> str | None:
        for rollout in range(core.rollouts):
            facts = core.rollout(rollout)
            # Values of states, which unscored rollouts may have, are no rewards.
            if facts.termination is not None and facts.termination not in UNSCORED and facts.reward >= self.stop_when:
                return f"settled: rollout {rollout} has a reward of at least {self.stop_when:g}"
        return None
