"""The filter protocol, and the order in which filters judge a finished group."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.printable import printable, said
from trunkline.score.verdicts import Verdict, note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline._core import Tree as Core
    from trunkline.score.filters.group import Group

__all__ = ["Filter", "Finding", "check", "judge", "name_of", "unjudged"]

logger = logging.getLogger("trunkline.score")


class Finding(NamedTuple):
    """What a filter yields: a rollout's id, and what is said about it."""

    rollout: int
    verdict: Verdict


@runtime_checkable
class Filter(Protocol):
    """Says which rollouts of a finished group are not trained, or trained at another reward.

    A filter decides from the group alone, so that a run that was broken off can go on, and crosses to workers as a
    reward does. It may raise: then it has said nothing, the group counts as not judged, and the run goes on.

    Only :meth:`judge` is needed. Optional:

    * ``whole``: whether it judges groups, such as those without variance. Such filters come after all others, so that
      they see what those left; otherwise filters judge in the order in which they are given.
    * ``scored``: whether it needs rewards; a run without any is then refused.
    * ``name``: what its verdicts are found under; the name of its class when there is none.
    """

    def judge(self, group: Group) -> Iterable[tuple[int, Verdict]]:
        """Yield rollouts of the group and what is said about them."""
        ...


def name_of(judging: Filter) -> str:
    """Return what a filter is called."""
    return printable(str(getattr(judging, "name", type(judging).__name__)), 60)


def check(filters: object, *, scored: bool) -> tuple[Filter, ...]:
    """Return filters in the order in which they judge: those of whole groups after the others.

    Args:
        filters: What was given.
        scored: Whether the run has a reward.

    Raises:
        ConfigError: One is none, or needs rewards that there are none of.
    """
    if not isinstance(filters, list | tuple):
        raise ConfigError(f"filters must be a list of filters, not {shown(filters)}")
    for position, one in enumerate(filters):
        if isinstance(one, type) or not isinstance(one, Filter):
            raise ConfigError(f"filters[{position}] must have judge(group), which {shown(one)} lacks")
        if getattr(one, "scored", False) and not scored:
            raise ConfigError(f"filter {name_of(one)} compares rewards, and the run has none: give it a reward")
    return tuple(sorted(filters, key=lambda one: bool(getattr(one, "whole", False))))


def judge(filters: Sequence[Filter], group: Group) -> None:
    """Let filters judge a group, and write what they say on its rollouts.

    If one raises, none has said anything: a group that was judged in part would be trained as if it had been in whole.
    The first rollout is then told so.

    Args:
        filters: As :func:`check` ordered them.
        group: The group.
    """
    core = group.tree.core
    before = [(rollout.id, rollout.note) for rollout in group.rollouts]
    for one in filters:
        try:
            _note(core, [_checked(entry, core.rollouts) for entry in one.judge(group)])
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - anybody's code
            what = f"{type(problem).__name__}: {said(problem)}"
            task = printable(group.tree.task.id, 80)
            logger.warning("filter %s raised on task %s, which is left unjudged: %s", name_of(one), task, what)
            for number, noted in before:
                core.note(number, noted or "")
            unjudged([one], core, what)
            return


def unjudged(filters: Iterable[Filter], core: Core, why: str) -> None:
    """Say on a tree's first rollout that filters have not judged the group, so that nobody trains on it.

    Args:
        filters: Which of them.
        core: The tree.
        why: What came between.
    """
    if core.rollouts:
        note(core, 0, *(Verdict(name_of(one), "failed", why) for one in filters))


def _note(core: Core, found: Iterable[Finding]) -> None:
    """Write what a filter found; a note is read and written once."""
    said: dict[int, list[Verdict]] = {}
    for number, verdict in found:
        said.setdefault(number, []).append(verdict)
    for number, verdicts in said.items():
        note(core, number, *verdicts)


def _checked(entry: Any, rollouts: int) -> Finding:
    """Return what a filter yielded, if it is a rollout and a verdict.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(entry, tuple) and len(entry) == 2:
        number, verdict = entry
        if type(number) is int and 0 <= number < rollouts and isinstance(verdict, Verdict):
            return Finding(number, verdict)
    raise ConfigError(f"a filter must yield (rollout id, Verdict), not {shown(entry)}")
