"""Strategy, Fork, Stop, Drop, View."""

from __future__ import annotations

from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

from trunkline._core import PROMPT, ROOT, TURN, fork_points
from trunkline._internal.text import describe_error
from trunkline._internal.validation import check_int, check_optional, check_text, check_that
from trunkline.errors import ConfigError
from trunkline.llm.request import Sampling
from trunkline.llm.response import recorded
from trunkline.tree.records import Failure
from trunkline.tree.views import Trajectory
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from trunkline._core import CoreTree, RolloutView
    from trunkline.llm.types import ToolCall
    from trunkline.tree.views import Tree


INSIDE = (
    "an endpoint that goes on from token ids: trunkline.LLM(tokens=TokenMode(api='completions')) or 'generate' "
    "(--tokens completions, --tokens generate)"
)
"""The requirement of a fork inside a turn."""


TOOK = "it took the steps it was given"
"""Why a rollout ended that had a limit of steps."""


_TOOK: Final = Failure("Stopped", TOOK).encode()


def prompt(core: CoreTree) -> int:
    """Return the last node of the prompt."""
    node = ROOT
    while below := [child for child in core.children(node) if core.node(child).kind == PROMPT]:
        node = below[0]
    return node


def was_to_move(facts: RolloutView, stands_at: int) -> bool:
    """Whether a rollout was cut off where its model was to move; calls of a turn may not have been made."""
    if facts.termination != Termination.CENSORED:
        return False
    return stands_at != TURN or facts.error == _TOOK


class Fork(msgspec.Struct, frozen=True):
    """Grow new rollouts from a state: a node after which the model moves.

    Attributes:
        point: Node of the state: the end of the prompt (None), the last observation of a step that a model turn
            follows, or where a rollout stands that was cut off or waits between two steps. In rollouts of a program
            also a model turn that another one follows at once. With ``at``, a model turn.
        n: How many draws to take there.
        at: Token of the turn ``point`` from which on it is drawn again; the tokens before it are kept. It needs an
            endpoint that continues from given tokens (``trunkline.TokenMode`` over completions or generate). Inside a
            character it stands for that character's first token.
        steps: Model turns that each of them may take; one that has taken them ends as ``censored``. To their own end
            when None.
        say: A message of the user that is put in behind the point, on the path of these rollouts.
        subgroup: The initial chain they are expanded for. When None: that of the rollout that came to the point
            first; at the prompt, a new one for each.
        sampling: What the draws, which are the first turns of these rollouts, are sampled with: fields that are set
            take the place of the agent's.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    point: int | None = None
    n: int = 1
    at: int | None = None
    steps: int | None = None
    say: str = ""
    subgroup: int | None = None
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        for name, least in (("point", 0), ("at", 1), ("steps", 1), ("subgroup", 0)):
            check_optional(check_int, f"Fork: {name}", getattr(self, name), least, 2**32 - 2)
        check_int("Fork: n", self.n, 1, 2**20)
        check_text("Fork: say", self.say)
        if self.at is not None and (self.point is None or self.say):
            raise ConfigError("Fork: at is a token of a model turn: name the turn as point, and say nothing")
        check_that(isinstance(self.sampling, Sampling | None), "Fork: sampling must be a Sampling", self.sampling)


class _Decision(msgspec.Struct, frozen=True):
    """A decision about one rollout."""

    rollout: int
    reason: str

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_int(f"{name}: rollout", self.rollout, 0)
        check_text(f"{name}: reason", self.reason)


class Stop(_Decision, frozen=True):
    """End a rollout that waits between two steps, as ``censored``: kept with its reason, and never scored 0.

    Attributes:
        rollout: Its id.
        reason: Why, for the record.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    reason: str = "stopped by the strategy"


class Drop(_Decision, frozen=True):
    """Leave a rollout out of what is made of the tree: it stays in it, noted as dropped; see ``scoring/notes.py``.

    Attributes:
        rollout: Its id.
        reason: Why, for the record.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    reason: str = "dropped by the strategy"


Move = Fork | Stop | Drop
"""The moves of a hook."""


@runtime_checkable
class Strategy(Protocol):
    """Decides where the rollouts of one task start, and which end early.

    Growth goes in rounds. ``start`` opens the first; once every rollout of a round has ended (or, under a strategy
    that is ``stepwise``, waits between two steps), the hooks are asked for the next, and so on until they yield
    nothing and nothing waits. What a hook is shown does not depend on which was faster, and its answer must not depend
    on anything else: hooks are pure functions of the view, so that a run that was broken off can go on.

    Only ``rollouts`` and ``start`` are needed. Optional:

    * ``ended(view)``: rollouts have ended; they are ``view.rollouts``, in logical order (round, fork path). Yields
      forks and drops.
    * ``stepped(view)``: rollouts wait between two steps, likewise. Yields forks, stops and drops; rollouts that are
      not stopped go on.
    * ``stepwise``: whether rollouts wait after each step until all have taken it. True where there is a ``stepped``.
    * ``at_once()``: how many rollouts of a task grow at a time, at most; as many as it is planned to get without it.
    * ``formula()``: how ``rollouts`` comes about, for people: ``"M (1 + N L) = 2 (1 + 2 x 1) = 6"``.
    * ``value``: like a reward, for rollouts that ran out of ``Fork.steps``: what it says backs up as V(s), and is in no
      score of the run.
    * ``uncertain``: the region (``"think"``, ``"tool"``, ``"all"``, ``"mixed"``) whose log-probabilities it needs; a
      server that gives none for it is refused before the run, and so is an agent that does not ask for them.
    * ``likeliest``: how many of the likeliest tokens it needs at each place, for that; 2 without it, since one alone
      says nothing of doubt.
    * ``inside``: whether it forks inside turns (``Fork.at``); where that cannot be done the run is refused.
    * ``branches``: whether it forks beyond the prompt. True where there is an ``ended`` or a ``stepped``.
    * ``continues``: whether ``start`` takes up the rollouts of an earlier run: the first ``view.taken`` of the
      tree, which have all ended by then.
    * ``fits(agent)``: raises a ``ConfigError`` if it cannot be played by this agent.
    """

    def rollouts(self) -> int:
        """How many rollouts a task is planned to get, at most; forks beyond that end the task."""
        ...

    def start(self, view: View) -> Iterable[Move]:
        """Yield the forks a task begins with; the tree holds its prompt, and what an earlier run left there."""
        ...


def at_once(strategy: Strategy) -> int:
    """Return how many rollouts of a task grow at a time, at most."""
    return int(getattr(strategy, "at_once", strategy.rollouts)())


def stepwise(strategy: Strategy) -> bool:
    """Return whether the rollouts of a task wait after each step until all have taken it."""
    return bool(getattr(strategy, "stepwise", hasattr(strategy, "stepped")))


def check_plan(strategy: Strategy) -> None:
    """Check the numbers that a strategy says of its size."""
    for hook in ("rollouts", "at_once"):
        what = f"strategy {type(strategy).__name__}: {hook}()"
        try:
            size = getattr(strategy, hook, strategy.rollouts)()
        except Exception as problem:
            raise ConfigError(f"{what} raised {describe_error(problem)}") from problem
        check_int(what, size, 1, 2**32 - 2)


class View:
    """A tree at rest: no rollout grows while a hook looks at it.

    Args:
        tree: The tree.
        numbers: Ids of the rollouts that the hook is asked about.
        seed: The run's seed.
        taken: How many rollouts, the first ones, an earlier run has grown.
        read_turn: Returns the tool calls of a model turn; those of the message's own field when not given.
        closed: Nodes of states that cannot be drawn from.

    Attributes:
        taken: How many rollouts, the first ones, were taken over from an earlier run.
        tree: The tree; ``tree.core`` has the columns that selection in the core is fed with.
    """

    def __init__(
        self,
        tree: Tree,
        numbers: Sequence[int],
        seed: int,
        taken: int = 0,
        read_turn: Callable[[int], Sequence[ToolCall]] | None = None,
        closed: Collection[int] = (),
    ) -> None:
        self.tree = tree
        self._closed = closed
        self.taken = taken
        self._read_turn = read_turn
        self._numbers = numbers
        self._rollouts: list[Trajectory] | None = None
        self._seed = seed

    @property
    def rollouts(self) -> list[Trajectory]:
        """Those that the hook is asked about, in logical order: as they were opened."""
        if self._rollouts is None:
            self._rollouts = [Trajectory(self.tree, number) for number in sorted(self._numbers)]
        return self._rollouts

    def seed(self, number: int = 0) -> int:
        """Return a seed for a decision, 0 to 2**64 - 1: a function of run seed, task and how far the tree has grown.

        Args:
            number: Which decision, for a hook that makes several.
        """
        moment = (number, self.tree.core.rollouts, *(rollout.turns for rollout in self.rollouts))
        key = pack(f"<q{len(moment)}I", self._seed, *moment)
        name = self.tree.task.id.encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(key + name, digest_size=8, person=b"strategy").digest(), "little")

    def can_fork(self, point: int) -> bool:
        """Whether draws can be taken at a state.

        They cannot where the call that an agent of another framework made there was not alone in flight, or was not
        answered in full: a fork there is refused.

        Args:
            point: The state's node.
        """
        return point not in self._closed

    def fork_points(self, leaves: Sequence[int] | None = None) -> list[int]:
        """Return the nodes after which a model turn followed and draws can be taken, leaf by leaf, from the root down.

        Args:
            leaves: The last nodes of the rollouts whose paths are looked at; those of all when None.
        """
        parents, kinds, every = self.tree.core.shape()
        return list(filter(self.can_fork, fork_points(parents, kinds, every if leaves is None else leaves)))

    def subgroup(self, number: int) -> list[int]:
        """Return the last nodes of a subgroup's rollouts, in the order they were opened.

        Args:
            number: The initial chain that they were expanded for.
        """
        core = self.tree.core
        facts = map(core.rollout, range(core.rollouts))
        return [rollout.leaf for rollout in facts if rollout.subgroup == number]

    def calls(self, turn: int) -> Sequence[ToolCall]:
        """Return the tool calls of a model turn, as the agent's dialect reads them: a model's words, so anything.

        Args:
            turn: The turn's node.
        """
        return recorded(self.tree.core, turn).tool_calls if self._read_turn is None else self._read_turn(turn)
