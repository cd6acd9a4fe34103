"""Filter protocol, Group, judging order."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from trunkline._core import TURN
from trunkline._internal.aio import current_task, raised_by_user_code
from trunkline._internal.old_names import old_method
from trunkline._internal.text import describe_error, printable
from trunkline._internal.validation import check_bool, check_choice, check_that, short_repr
from trunkline.errors import ConfigError, LLMError
from trunkline.llm.dialects.base import Parsed
from trunkline.llm.response import recorded
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict, note
from trunkline.tree.views import Node
from trunkline.types import FAILED, UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trunkline._core import CoreTree
    from trunkline.llm.types import ReplyChoice
    from trunkline.tree.views import Trajectory, Tree


logger = logging.getLogger("trunkline.scoring")


class Finding(NamedTuple):
    """A filter's verdict on a rollout, by the rollout's id."""

    rollout: int
    verdict: Verdict


@runtime_checkable
class Filter(Protocol):
    """Says which rollouts of a finished group are not trained, or trained at another reward.

    A filter decides from the group alone, so that a run that was broken off can go on, and crosses to workers as a
    reward does. It may raise: then it has said nothing, the group counts as not judged, and the run continues.

    Only ``judge`` is needed. Optional:

    * ``whole``: whether it judges groups, such as those without variance. Such filters come after all others, so that
      they see what those left; otherwise filters judge in the order in which they are given.
    * ``scored``: whether it needs rewards; a run without any is then refused.
    * ``name``: what its verdicts are found under; the name of its class when there is none.
    """

    def judge(self, group: Group) -> Iterable[tuple[int, Verdict]]:
        """Yield rollouts of the group and what is said about them."""
        ...


def name_of(judging: Filter) -> str:
    return printable(str(getattr(judging, "name", type(judging).__name__)), 60)


def check(filters: Any, *, scored: bool) -> tuple[Filter, ...]:
    """Return filters in the order in which they judge: those of whole groups after the others."""
    check_that(isinstance(filters, list | tuple), "filters must be a list of filters", filters)
    for position, one in enumerate(filters):
        if isinstance(one, type) or not isinstance(one, Filter):
            raise ConfigError(f"filters[{position}] must have judge(group), which {short_repr(one)} lacks")
        if getattr(one, "scored", False) and not scored:
            raise ConfigError(f"filter {name_of(one)} compares rewards, and the run has none: give it a reward")
    return tuple(sorted(filters, key=lambda one: bool(getattr(one, "whole", False))))


def judge(filters: Sequence[Filter], group: Group) -> None:
    """Let filters judge a group, and write their verdicts to its rollouts' notes."""
    for number, verdicts in findings(filters, group).items():
        note(group.tree.core, number, *verdicts)


def findings(filters: Sequence[Filter], group: Group) -> dict[int, list[Verdict]]:
    """Let filters judge a group, and return their verdicts by rollout; the group's notes stay as they are.

    If one raises, the only verdict is that it failed, on the first rollout: no group is judged in part.
    """
    own, rollouts = current_task(), group.tree.core.rollouts
    for one in filters:
        try:
            found = [_checked(entry, rollouts) for entry in one.judge(group)]
            notes.encode(verdict for _, verdict in found)  # what a note cannot hold is the filter's fault
        except BaseException as problem:
            if not raised_by_user_code(problem, own):
                raise
            what = describe_error(problem)
            task = printable(group.tree.task.id, 80)
            logger.warning("filter %s raised on task %s, which is left unjudged: %s", name_of(one), task, what)
            return {0: [Verdict(name_of(one), "failed", what)]} if rollouts else {}
        for number, verdict in found:
            group.found.setdefault(number, []).append(verdict)
    return group.found


def unjudged(filters: Iterable[Filter], core: CoreTree, why: str) -> None:
    """Note on a tree's first rollout that filters have not judged the group, so that it is not trained on."""
    if core.rollouts:
        note(core, 0, *(Verdict(name_of(one), "failed", why) for one in filters))


def _checked(entry: Any, rollouts: int) -> Finding:
    """Check that a filter yielded a rollout and a verdict."""
    if isinstance(entry, tuple) and len(entry) == 2:
        number, verdict = entry
        if type(number) is int and 0 <= number < rollouts and isinstance(verdict, Verdict):
            return Finding(number, verdict)
    raise ConfigError(f"a filter must yield (rollout id, Verdict), not {short_repr(entry)}")


OVERLONG = frozenset({Termination.MAX_TOKENS, Termination.MAX_CONTEXT})
"""Terminations by a limit of length."""


def treatment(name: str, action: object, count_in_baseline: object) -> None:
    check_choice(f"{name}: action", action, "mask", "drop")
    check_bool(f"{name}: count_in_baseline", count_in_baseline)


_WITHOUT_END = FAILED | {Termination.CENSORED, Termination.CANCELLED, Termination.RETRIED, None}


class Group:
    """All rollouts of one task, once the tree is complete.

    Args:
        tree: The tree.
        reader: How the agent's dialect reads a turn.

    Attributes:
        tree: The tree.
        rollouts: Every rollout, in the order they were opened.
        found: Verdicts by rollout that are not in the rollouts' notes yet.
    """

    def __init__(self, tree: Tree, reader: Callable[[ReplyChoice], Parsed]) -> None:
        self.tree = tree
        self.rollouts = tree.rollouts
        self.found: dict[int, list[Verdict]] = {}
        self._reader = reader
        self._read: dict[int, Parsed] = {}

    def verdicts(self, rollout: Trajectory) -> list[Verdict]:
        """The verdicts of earlier filters, and of the strategy, on a rollout."""
        return notes.read(rollout.note) + self.found.get(rollout.id, [])

    @property
    def ended(self) -> list[Trajectory]:
        """Rollouts that came to an end of their own and were not dropped: those that broke or were cut are no news."""
        return [
            rollout
            for rollout in self.rollouts
            if rollout.termination not in _WITHOUT_END and not notes.dropped(self.verdicts(rollout))
        ]

    @property
    def live(self) -> list[Trajectory]:
        """Rollouts that can be trained: they have an outcome, and no filter has masked or dropped them."""
        return [
            rollout
            for rollout in self.ended
            if rollout.termination not in UNSCORED and not notes.masked(self.verdicts(rollout))
        ]

    def turns(self, rollout: Trajectory) -> Iterator[Node]:
        """Yield the model turns on a rollout's path, those of its trunk included."""
        core = self.tree.core
        for number in core.path(core.rollout(rollout.id).leaf):
            if core.node(number).kind == TURN:
                yield Node(self.tree, number)

    def read(self, turn: Node) -> Parsed:
        """Read a model turn again as the agent's dialect does: calls, else an answer, else a problem.

        Args:
            turn: A node that is a model turn.
        """
        known = self._read.get(turn.id)
        if known is None:
            try:
                known = self._reader(recorded(self.tree.core, turn.id))
            except LLMError as problem:
                # The reply was unreadable when it came, too, and broke the rollout that it was drawn for.
                known = Parsed(problem=str(problem))
            self._read[turn.id] = known
        return known

    def output(self, turn: Node) -> str:
        """All that the model wrote in a turn: its reasoning, its text, the arguments of its calls."""
        choice = recorded(self.tree.core, turn.id)
        arguments = (call.arguments for call in choice.tool_calls)
        return "\n".join(filter(None, (choice.reasoning, choice.content, *arguments)))

    said = old_method("said", "output")
