"""What the preset ``null`` must show: every strategy at its theoretical value, or something is wrong.

One choice decides a question, right or wrong at even odds, and nothing else says which; over questions, right and
wrong can be exchanged. So a try is right with one half, and so is the majority, whatever a strategy goes by. That holds
where one wrong answer can be chosen; questions that have none, or two, are left out.

Rollouts that were forked behind the deciding choice share it. Where a tree's rollouts go back to D draws of it, one at
least is right with ``1 - 2**-D``; for chains D is their number. That needs forks that depend on nothing that was said.

A strategy that looks at perplexities, prunes, or merges equal draws has a D that depends on whether draws agree. There
the exchange still says that a tree's rollouts are all right as often as all wrong: of the trees that are not mixed, one
half passes.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from studies.interval import Interval, known, mean
from trunkline._core import TURN
from trunkline.sim.model.choices import PRESETS, Point, point_success
from trunkline.sim.model.episode import chain_key
from trunkline.sim.world.language import parse_question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from studies.tries import Measures, Try
    from trunkline.tree.views import Tree

__all__ = ["Check", "check", "deciding_turn", "draws_of", "even_odds"]

_EVEN = 0.75
"""A choice decides where its right option is less likely than this; elsewhere in ``null`` it is certain."""


class Check(NamedTuple):
    """One figure of ``null`` beside its theoretical value.

    Attributes:
        arm: Whose.
        figure: Which.
        theory: What it must be.
        found: What it is, with an interval; the intervals of all checks hold together with 95 %.
    """

    arm: str
    figure: str
    theory: float
    found: Interval

    @property
    def passed(self) -> bool:
        """Whether the interval holds the theoretical value."""
        return self.found.holds(self.theory)


def deciding_turn(question: str, pool: Tree) -> int:
    """The turn of ``sim-agent`` in ``null`` that decides a question, from 0.

    Args:
        question: Its text.
        pool: Some chains of it: where a document is to be chosen and they all visit the same, there was no choice,
            and the belief that follows decides.
    """
    chain = parse_question(question)
    if chain is None:
        return 0  # a word problem is worked out in one turn
    hops = len(chain.relations)
    dials = PRESETS["null"]
    for hop in range(hops):
        for action in (True, False):
            if point_success(Point(chain_key(chain), hop, hops, action, True), dials)[0] < _EVEN:
                turn = 1 + 2 * hop + (not action)
                return turn + 1 if action and len(_visits(pool, turn)) < 2 else turn
    raise AssertionError("a question of the null preset has a deciding choice")


def draws_of(tree: Tree, turn: int) -> int:
    """How many independent draws of a turn the scored rollouts of a tree go back to.

    Args:
        tree: A labelled tree.
        turn: Which turn, from 0.
    """
    draws = set()
    for rollout in tree.rollouts:
        if not math.isnan(rollout.reward):
            # A fork path names turn and draw of every fork; those behind the turn share its draw.
            forks = zip(rollout.path[::2], rollout.path[1::2], strict=True)
            draws.add(tuple(fork for fork in forks if fork[0] <= turn))
    return len(draws)


def even_odds(tries: Sequence[Try]) -> bool:
    """Whether a question has one wrong answer; it may have none, or two.

    Args:
        tries: Independent chains of it in ``null``, which are at even odds if so. A single one that is not right may
            have broken.
    """
    wrong = [each.answer for each in tries if each.reward == 0]
    return len(wrong) > 1 and len(set(wrong)) == 1


def check(arm: str, groups: Sequence[Measures], draws: Sequence[int] | None, family: int) -> list[Check]:
    """Compare what an arm shows in ``null`` with what it must.

    Args:
        arm: Its name.
        groups: What it shows, a question.
        draws: Of each, how many rollouts drew the deciding choice; None where forks depend on what was said.
        family: How many checks there are in all.
    """
    return [
        Check(arm, "single try", 0.5, mean([group.single for group in groups], family)),
        Check(arm, "majority", 0.5, mean([group.majority for group in groups], family)),
        _alike(arm, groups, family) if draws is None else _drawn(arm, groups, draws, family),
    ]


def _drawn(arm: str, groups: Sequence[Measures], draws: Sequence[int], family: int) -> Check:
    """By the draws of the deciding choice."""
    failing = [0.5**count for count in draws]
    passed = math.fsum(group.passed for group in groups) / len(groups)
    # Its variance is known, and must not be read off data in which nothing failed.
    error = math.sqrt(math.fsum(chance * (1 - chance) for chance in failing)) / len(failing)
    theory = 1 - math.fsum(failing) / len(failing)
    return Check(arm, "pass@k", theory, known(passed, error, len(groups), family))


def _alike(arm: str, groups: Sequence[Measures], family: int) -> Check:
    """By the groups that are not mixed: each of them passes with one half, whatever the others do."""
    theory = math.fsum((1 + group.mixed) / 2 for group in groups) / len(groups)
    passed = math.fsum(group.passed for group in groups) / len(groups)
    error = math.sqrt(math.fsum(1 - group.mixed for group in groups)) / 2 / len(groups)
    return Check(arm, "pass@k", theory, known(passed, error, len(groups), family))


def _visits(tree: Tree, turn: int) -> Counter[str]:
    """Which documents the rollouts of a tree visited in a turn."""
    found: Counter[str] = Counter()
    for rollout in tree.rollouts:
        turns = [node for node in rollout.nodes if node.kind == TURN]
        if turn < len(turns):
            for call in turns[turn].message.get("tool_calls") or ():
                found[call["function"]["arguments"].partition('"goal"')[0]] += 1
    return found
