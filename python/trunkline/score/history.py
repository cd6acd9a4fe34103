"""Scoring a tree again: the new reward takes the place of the old one, which stays in the rollout's note."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.score import verdicts
from trunkline.score.notes import Graded, as_noted, graded
from trunkline.score.verdicts import Verdict
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trunkline._core import Tree as Core
    from trunkline.score.rewards import Scored
    from trunkline.tree.trajectory import Trajectory
    from trunkline.tree.tree import Tree

__all__ = ["earlier", "seen", "set_aside", "write"]


def seen(tree: Tree) -> list[Trajectory]:
    """Return the rollouts that a reward is shown: those that have an outcome, in the order they were opened."""
    return [one for one in tree.rollouts if one.termination is not None and one.termination not in UNSCORED]


def set_aside(tree: Tree, reward: str | None, kept: Collection[str] | None = None) -> None:
    """Take the rewards off a tree, so that it is as it was before it was scored, and keep them in the notes.

    Args:
        tree: The tree.
        reward: What the reward is called that it was scored by; None where there was none, and nothing is to be kept.
        kept: Who else's verdicts stay; those of others are taken off as well. None for those of everybody.
    """
    for rollout in seen(tree):
        if reward is not None:
            _keep(tree.core, rollout, reward)
        tree.core.score(rollout.id, math.nan)
    for rollout in tree.rollouts if kept is not None else ():
        found = verdicts.entries(rollout.note)
        _put(tree.core, rollout, [one for one in found if not isinstance(one, Verdict) or one.filter in (kept or ())])


def _keep(core: Core, rollout: Trajectory, reward: str) -> None:
    """Note the reward that a rollout has; what it was made of has no part in the next one."""
    found = verdicts.entries(rollout.note)
    value = None if math.isnan(rollout.reward) else rollout.reward
    # Why there is none stands there already.
    noted = Graded(reward, value)  # which may have made a long name shorter
    own = [one for one in found if isinstance(one, Graded) and one.weight is not None and one.reward == noted.reward]
    past = [msgspec.structs.replace(one, weight=None) if isinstance(one, Graded) else one for one in found]
    _put(core, rollout, past if own and value is None else [*past, noted])


def write(tree: Tree, reward: str, said: Mapping[int, Scored]) -> None:
    """Score a tree, in the order in which its rollouts were opened.

    Args:
        tree: The tree.
        reward: What the reward is called.
        said: What it said, by rollout.
    """
    for number in sorted(said):
        tree.core.score(number, said[number].value)
        verdicts.note(tree.core, number, *as_noted(reward, said[number]))


def earlier(note: str | None) -> float | None:
    """Return the reward that a rollout had before the one it has, by its note; None where there was none."""
    past = [one for one in graded(note) if one.weight is None]
    return past[-1].value if past else None


def _put(core: Core, rollout: Trajectory, found: list[Verdict | Graded | str]) -> None:
    """Write a note, if it is another than before."""
    alone = found[0] if len(found) == 1 else None
    text = alone if isinstance(alone, str) else verdicts.encode(found) if found else ""
    if text != (rollout.note or ""):
        core.note(rollout.id, text)
