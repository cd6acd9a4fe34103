"""Independent chains: the baseline every tree is compared with, and what makes them begin differently."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from trunkline._core import split_evenly
from trunkline._internal.text import quoted
from trunkline._internal.validation import check_bool, check_float, check_int, check_optional, check_that
from trunkline.errors import ConfigError
from trunkline.llm.request import Sampling
from trunkline.strategies.base import Fork
from trunkline.tree.views import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.strategies.base import View
    from trunkline.tree.views import Trajectory


_MOST = 16  # first actions that a chain is told to avoid, the latest ones
_WIDTH = 200  # characters shown of each


class Chain(msgspec.Struct, frozen=True):
    """``n`` tries of each question, each from the prompt to its end; ``n`` more, where an earlier run is continued.

    Args:
        n: Rollouts a task, at least 1.
        temperatures: A ladder for the first turn alone: the n draws are split evenly into one block for each
            temperature, in this order. Empty: the agent's own.
        wave: How many start at a time, so that a task that is settled early saves the rest; all when None.
        avoid: Whether each chain is told, in a message of the user behind the prompt, how the chains before it began,
            and to begin differently. They then start one after the other, and all take their steps together: n rounds
            instead of one, each as slow as its slowest call, and a prompt that is shared up to the message only.

    Raises:
        ConfigError: If an option has a value it cannot have, or no effect.
    """

    n: int = 1
    temperatures: tuple[float, ...] = ()
    wave: int | None = None
    avoid: bool = False

    branches: ClassVar[bool] = False
    continues: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int("Chain: n", self.n, 1, 2**20)
        given: Any = self.temperatures
        check_that(isinstance(given, list | tuple), "Chain: temperatures must be a list of numbers", given)
        msgspec.structs.force_setattr(self, "temperatures", tuple(given))
        for place, temperature in enumerate(given):
            check_float(f"Chain: temperatures[{place}]", temperature, 0.0, math.inf)
        if len(given) > self.n:
            raise ConfigError(f"Chain: {len(given)} temperatures need n of at least {len(given)}, not {self.n}")
        check_optional(check_int, "Chain: wave", self.wave, 1, self.n)
        check_bool("Chain: avoid", self.avoid)
        if self.avoid and self.n == 1:
            raise ConfigError("Chain: avoid needs n of at least 2: a single chain has none before it")
        if self.avoid and self.wave is not None:
            raise ConfigError("Chain: avoid starts one chain at a time, so there is no wave: leave one of them out")

    @property
    def stepwise(self) -> bool:
        """Whether rollouts wait for each other after each step: a chain must have begun before the next is told how."""
        return self.avoid

    def rollouts(self) -> int:
        """Return n."""
        return self.n

    def at_once(self) -> int:
        """Return how many grow at a time."""
        return self.n if self.wave is None else self.wave

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        pace = ", begun one after the other" if self.avoid else "" if self.wave is None else f", {self.wave} at a time"
        return f"n = {self.n}{pace}"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the chains that begin at once: forks of the prompt."""
        return self._next(view) if self.avoid or view.tree.core.rollouts else _plain(self, 0)

    def ended(self, view: View) -> Iterable[Fork]:
        """Yield the chains that begin next, if those that began last have all ended."""
        if self.wave is None and not self.avoid:
            return ()  # all began at once
        # Of a round that opens one chain alone, the newest has either ended or taken a step: one hook follows it.
        return self._next(view) if view.rollouts[-1].id == view.tree.core.rollouts - 1 else ()

    def stepped(self, view: View) -> Iterable[Fork]:
        """Yield the next chain, if the one before it has just begun."""
        return self.ended(view)

    def _next(self, view: View) -> Iterable[Fork]:
        """Yield the next chains: all, a wave, or one that is told how the earlier ones began."""
        begun = view.tree.core.rollouts - view.taken
        return self._forks(begun, 1, _told(view)) if self.avoid else _plain(self, begun)

    def _forks(self, begun: int, size: int, say: str) -> tuple[Fork, ...]:
        """The forks of some chains; equal ones stand together."""
        rungs = groupby(self._samplings()[begun : begun + size])
        return tuple(Fork(n=len(list(draws)), say=say, sampling=sampling) for sampling, draws in rungs)

    def _samplings(self) -> list[Sampling | None]:
        """The sampling of each draw's first turn; equal ones stand together and go out as one request."""
        if not self.temperatures:
            return [None] * self.n
        rungs = zip(split_evenly(self.n, len(self.temperatures)), self.temperatures, strict=True)
        return [sampling for size, rung in rungs for sampling in [Sampling(temperature=rung)] * size]


@lru_cache(maxsize=64)
def _plain(chain: Chain, begun: int) -> tuple[Fork, ...]:
    """The forks of the next chains, which are the same for all trees."""
    return chain._forks(begun, chain.at_once(), "")


def _told(view: View) -> str:
    """The message to the next chain about how the earlier ones began; empty where nothing is known."""
    actions = (_first_action(view, rollout) for rollout in view.tree.rollouts)
    begun = list(dict.fromkeys(filter(None, actions)))[-_MOST:]
    listed = "".join(f"\n- {action}" for action in begun)
    said = f"Other tries of this task began with the actions below. Begin with a different one.{listed}"
    return said if begun else ""


def _first_action(view: View, rollout: Trajectory) -> str:
    """A rollout's first action on one line: its tool calls, else the end of its text; empty without one."""
    path = map(rollout.tree.node, rollout.tree.core.path(rollout.leaf.id))
    turn = next((node for node in path if node.kind is Kind.TURN), None)
    if turn is None:
        return ""
    made = ", ".join(f"{call.name}({call.arguments})" for call in view.calls(turn.id))
    return quoted(made or turn.text.strip()[-_WIDTH:], _WIDTH)
