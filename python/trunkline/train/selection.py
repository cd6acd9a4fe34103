"""Which rollouts of a group are trained, and which count where rewards are compared."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from trunkline.bounds import choice
from trunkline.errors import ConfigError, UsageError
from trunkline.printable import printable, quoted
from trunkline.score import verdicts
from trunkline.types import FAILED, UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.tree.trajectory import Trajectory
    from trunkline.tree.tree import Tree

__all__ = ["Chosen", "Rules", "again", "select"]

logger = logging.getLogger(__name__)

_CUT = frozenset({Termination.CENSORED, Termination.CANCELLED, None})
_EARLY = frozenset({"settled", "enough", "budget", "deadline"})


class Rules(NamedTuple):
    """What becomes of rollouts without an outcome of their own.

    Attributes:
        censored: ``mask``: nothing of what was cut off is trained. ``keep``: it is, where a value function has said
            what it is worth. None: groups with such rollouts, and groups that ended early, are refused.
        on_failed: ``mask``: nothing of what broke is trained. ``drop_group``: nor is the rest of its group.
    """

    censored: Literal["mask", "keep"] | None
    on_failed: Literal["mask", "drop_group"]

    def check(self) -> Rules:
        """Return these rules.

        Raises:
            ConfigError: One is a word that there is not.
        """
        if self.censored is not None:
            choice("censored", self.censored, "mask", "keep")
        given: object = self.on_failed
        if given == "retry":
            raise ConfigError("on_failed='retry' is for the run, which has ended: here it is mask or drop_group")
        choice("on_failed", given, "mask", "drop_group")
        return self


class Chosen(NamedTuple):
    """One rollout that is part of its group.

    Attributes:
        rollout: Its id.
        reward: Its reward with penalties; NaN while unscored.
        counted: Whether that counts where rewards are compared.
        trained: Whether it is trained.
    """

    rollout: int
    reward: float
    counted: bool
    trained: bool

    @property
    def compared(self) -> float:
        """The reward where rewards are compared: NaN if it does not count."""
        return self.reward if self.counted else math.nan


def again(trees: Iterable[Tree]) -> Iterable[Tree]:
    """Return trees that can be gone through more than once; a run reads them anew each time."""
    return list(trees) if iter(trees) is trees else trees


def select(tree: Tree, rules: Rules) -> list[Chosen]:
    """Return the rollouts of a group in their order, without dropped ones; none at all if the group is left out.

    Args:
        tree: The tree.
        rules: What becomes of rollouts without an outcome.

    Raises:
        UsageError: Rollouts of it were cut off, or it ended before its strategy was done, and nobody said what becomes
            of that.
    """
    said = {rollout.id: verdicts.read(rollout.note) for rollout in tree.rollouts}
    failed = next((one for listed in said.values() for one in listed if one.action == "failed"), None)
    if failed is not None:
        task = printable(tree.task.id, 80)
        logger.warning("task %s is left out: filter %s has not judged it: %s", task, failed.filter, failed.reason)
        return []
    part = [rollout for rollout in tree.rollouts if not verdicts.dropped(said[rollout.id])]
    if rules.on_failed == "drop_group" and any(rollout.termination in FAILED for rollout in part):
        return []
    cut = any(rollout.termination in _CUT for rollout in part)
    if rules.censored is None and (cut or tree.ended in _EARLY):
        what = "has rollouts that were cut off" if cut else f"ended early ({tree.ended})"
        raise UsageError(
            f"task {quoted(tree.task.id)} {what}, and stopping early favours short ones: say censored='mask' to train "
            "nothing of what was cut off, or censored='keep' to train what has a value"
        )
    return [_chosen(rollout, said[rollout.id], rules) for rollout in part]


def _chosen(rollout: Trajectory, said: list[verdicts.Verdict], rules: Rules) -> Chosen:
    ended = rollout.termination
    outcome = ended not in UNSCORED if ended not in _CUT else rules.censored == "keep"
    reward = rollout.reward + verdicts.penalty(said)
    counts = outcome and not math.isnan(reward)
    return Chosen(rollout.id, reward, counts and verdicts.counted(said), counts and not verdicts.masked(said))
