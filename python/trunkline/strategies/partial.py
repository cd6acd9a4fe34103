"""Partial rollouts (ParallelMuse): the most uncertain turns of a few rollouts, drawn again and played to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal, get_args

import msgspec

from trunkline._core import MESSAGE, TURN, partial_top_up, top_turns
from trunkline._internal.validation import check_int, check_text, check_that, short_repr
from trunkline.errors import ConfigError
from trunkline.strategies.base import Fork
from trunkline.types import FAILED, Termination

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from trunkline.agent import Agent
    from trunkline.strategies.base import View


_NEVER: Final = 3


def founders(view: View, most: int) -> list[int]:
    """Initial rollouts of an earlier run, the best per chain: answered, else cut short, else of a full context."""
    best: dict[int, tuple[int, int]] = {}
    for number in range(view.taken):
        facts = view.tree.core.rollout(number)
        rank = _rank(facts.termination)
        if rank < best.get(facts.subgroup, (_NEVER, 0))[0]:
            best[facts.subgroup] = rank, number
    return [number for _, number in sorted(best.values())[:most]]


def _rank(termination: str | None) -> int:
    """The rank of an earlier rollout as a founder; lower is better."""
    if termination == Termination.ANSWER:
        return 0
    if termination is None or termination in FAILED:
        return _NEVER
    return 2 if termination == Termination.MAX_CONTEXT else 1


def candidates(view: View, subgroup: int, there: int, tools: Collection[str] = ()) -> Iterator[int]:
    """Yield the turns of a subgroup that may be drawn again.

    Turns without a tool call and states already forked at are left out. In a program, a turn without a call is left out
    only if it ended a rollout, since programs run tools themselves.
    """
    core = view.tree.core
    opened = map(core.rollout, range(min(there, core.rollouts)))
    own = [facts for facts in opened if facts.subgroup == subgroup]
    states = {facts.point for facts in own[1:]}
    for facts in own:
        for node in core.path(facts.leaf):
            turn = core.node(node)
            if turn.kind != TURN or turn.parent in states or not view.can_fork(turn.parent):
                continue
            if _calls(view, node, tools):
                states.add(turn.parent)
                yield node


def _calls(view: View, turn: int, tools: Collection[str]) -> bool:
    """Whether a turn calls one of these tools; without tools, whether anything followed it."""
    called = [call.name for call in view.calls(turn)]
    if tools:
        return any(name in tools for name in called)
    # A program may take the next turn, or observe something, without a call.
    core = view.tree.core
    return bool(called) or any(core.node(child).kind in {TURN, MESSAGE} for child in core.children(turn))


Region = Literal["think", "tool", "all", "mixed"]


class Partial(msgspec.Struct, frozen=True):
    """I rollouts; R times the K most uncertain turns of each are drawn again T times; fresh ones fill the budget up.

    That is ParallelMuse (arXiv 2510.24698): ``I (1 + K R T)`` rollouts, and for each initial one as many more as
    ``floor(B / I)`` leaves room for. A fork is at the state before the turn, which is itself drawn again; then
    the rollout runs to its end, and limits hold for its whole path. A round looks at all rollouts that were expanded
    for an initial one so far, and takes states that none of them was forked at yet. Never taken are turns that call no
    tool, and turns without log-probabilities in the region. In a program any turn may be taken but the last one.

    The initial rollouts are new, or those of an earlier run that is continued; what is missing there is new.

    Args:
        initial: I, initial rollouts.
        top_k: K, turns of each initial rollout and those expanded for it, in a round.
        rounds: R.
        samples: T, draws of each of these turns.
        budget: B, rollouts in all, the initial ones included.
        region: Whose perplexity counts: ``think``, ``tool`` (the call), ``all`` of the turn; or ``mixed``, half of the
            turns by ``tool``, rounded up, and the rest by ``think``.
        tools: Names of tools: only turns that call one of these are taken; any tool will do if empty.

    Raises:
        ConfigError: If an option has a value it cannot have, or the budget is less than ``I (1 + K R T)``.
    """

    initial: int = 1
    top_k: int = 2
    rounds: int = 1
    samples: int = 3
    budget: int = 8
    region: Region = "tool"
    tools: tuple[str, ...] = ()

    continues: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("initial", "top_k", "rounds", "samples", "budget"):
            check_int(f"Partial: {name}", getattr(self, name), 1, 2**20)
        check_that(
            self.region in get_args(Region), f"Partial: region must be {', '.join(get_args(Region))}", self.region
        )
        check_that(isinstance(self.tools, list | tuple), "Partial: tools must be a list of names", self.tools)
        for tool in self.tools:
            check_text("Partial: tools", tool)
        if self.budget < self._least:
            raise ConfigError(f"Partial: budget must be at least I (1 + K R T) = {self._least}, not {self.budget}")

    @property
    def _least(self) -> int:
        return self.initial * (1 + self.top_k * self.rounds * self.samples)

    @property
    def uncertain(self) -> Region:
        """The region whose log-probabilities it needs."""
        return self.region

    def fits(self, agent: Agent) -> None:
        """Refuse an agent that lacks a tool of ``tools``.

        Raises:
            ConfigError: Naming the tool.
        """
        known = [tool.name for tool in agent.tools]
        for tool in self.tools:
            if tool not in known:
                has = ", ".join(known) or "no tool"
                raise ConfigError(f"Partial: tools names {short_repr(tool)}, which the agent lacks; it has {has}")

    def rollouts(self) -> int:
        """Return how many there are in all: B, less what is left over when it is divided by I."""
        return self.budget // self.initial * self.initial

    def at_once(self) -> int:
        """Return the rollouts of a round, or those that are fresh."""
        return max(self.initial * self.top_k * self.samples, self.rollouts() - self._least)

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        branches = f"I (1 + K R T) = {self.initial} (1 + {self.top_k} x {self.rounds} x {self.samples})"
        return f"{branches} = {self._least}; {self.rollouts() - self._least} fresh or more: {self.rollouts()}"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the initial rollouts that an earlier run does not have, else the first round."""
        missing = self.initial - len(founders(view, self.initial))
        return [Fork(n=missing)] if missing else self.ended(view)

    def ended(self, view: View) -> Iterable[Fork]:
        """Yield the next round, or what fills the budget up.

        Which round that is follows from the tree: those before it are made again, on what was there at the time.
        """
        core, first = view.tree.core, founders(view, self.initial)
        there = view.taken + self.initial - len(first)
        first += range(view.taken, min(there, core.rollouts))  # fewer where no budget paid for all
        branched = [0] * len(first)
        for _ in range(self.rounds):
            turns = [self._turns(view, founder, there) for founder in first]
            picked = sum(map(len, turns))
            if picked and there == core.rollouts:
                return [
                    Fork(core.node(turn).parent, self.samples, subgroup=core.rollout(founder).subgroup)
                    for founder, drawn in zip(first, turns, strict=True)
                    for turn in drawn
                ]
            there += picked * self.samples
            branched = [before + len(now) for before, now in zip(branched, turns, strict=True)]
        if there != core.rollouts:
            return []
        fresh = partial_top_up(self.budget, branched, self.top_k, self.rounds, self.samples)
        return [
            Fork(n=n, subgroup=core.rollout(founder).subgroup) for founder, n in zip(first, fresh, strict=True) if n
        ]

    def _turns(self, view: View, founder: int, there: int) -> list[int]:
        """Pick the turns of a round, when so many rollouts were there."""
        core = view.tree.core
        turns = list(candidates(view, core.rollout(founder).subgroup, there, self.tools))
        unsure = [value for turn in turns for value in core.node(turn).perplexity]
        return [turns[place] for place in top_turns(unsure, self.top_k, region=self.region)]
