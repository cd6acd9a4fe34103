"""The tables of a study, in Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from studies.arms import ARMS
from studies.cell import POOL
from studies.compare import by_preset, comparable, compare, effective, of_arm
from studies.null import check, even_odds
from studies.quality import LEAST, qualities
from studies.saved import FIGURES, saved
from studies.sharing import SMALL_CACHE, TREE
from studies.tries import COSTS, TOKENS, measure
from trunkline._core import tree_ratio, tree_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from studies.answers.cell import Asked
    from studies.cell import Group
    from studies.compare import Comparison
    from studies.interval import Interval
    from studies.null import Check
    from studies.quality import Quality
    from studies.sharing import Sharing

__all__ = ["NOTICE", "checks_of", "markdown", "plain", "rows", "saved_markdown", "scope", "sharing_markdown", "signed"]

NOTICE: Final = "*This describes the simulator `sim-1`, not language models.*"

_FIGURES: Final = (("majority", "majority"), ("passed", "pass@k"), ("mixed", "mixed groups"))


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with the notice below it.

    Args:
        head: Names of the columns.
        body: The cells.
    """
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{NOTICE}\n"


def markdown(groups: Sequence[Group], arms: Sequence[str]) -> str:
    """All tables of a study.

    Args:
        groups: What came of it.
        arms: Names of the arms.
    """
    presets, budgets = comparable(groups), (("equal generated tokens", TOKENS), ("equal cost", COSTS))
    family = len(presets) * len(budgets) * len(arms) * len(_FIGURES)
    parts = [f"# Strategies: all tables\n\n{counted(family, 'gains')}\n"]
    for preset, own in presets.items():
        parts.append(f"## {preset}\n\n{scope(own)}\n")
        for title, prices in budgets:
            table = [_compared(compare(own, arm, prices, family), own) for arm in arms]
            parts.append(f"### At {title}\n\n{rows(_head(title), table)}")
    if any(group.guesses for group in groups):
        parts.append(_estimators(groups, arms))
    checks = checks_of(groups, arms)
    if checks:
        parts.append(_nulls(checks))
    return "\n".join(parts)


def sharing_markdown(found: Sequence[Sharing]) -> str:
    """The table of what a token budget buys as chains and as trees.

    Args:
        found: What was measured, by length.
    """
    head = ["steps", "turns", "tokens", "chains", "predicted", "measured", "measured / predicted", "trees / chains"]
    head += ["idealised", "prompt: chain", "tree", "saved", "small cache: chain", "tree", "saved"]
    body = []
    for one in found:
        tree, flat = tree_steps(TREE.trees, TREE.forks, one.length.steps)
        figures = (one.chains, one.predicted, one.measured)
        cells = [str(one.length.steps), f"{one.turns:.1f}", f"{one.budget:.0f}", *(f"{each:.1f}" for each in figures)]
        cells += [plain(one.match, 3), plain(one.gain, 2), f"{flat / tree:.2f}"]
        for prompts in (one.roomy, one.tight):
            cells += [f"{prompts.chain:.0f}", f"{prompts.tree:.0f}", f"{prompts.saved:.0%}"]
        body.append(cells)
    text = (
        f"Rollouts a question that the same generated tokens buy as chains and as {_name()}. `predicted` is what trees "
        "were to give by the tokens of the steps of other chains of the question; `idealised` takes all steps for "
        f"equally long ({tree_ratio(TREE.forks, TREE.rounds):.1f} for long chains). `prompt` is uncached prompt tokens "
        f"a rollout where all questions are asked at once; the small cache holds {SMALL_CACHE:,} tokens."
    )
    return f"## What sharing saves\n\n{text}\n\n{rows(head, body)}"


def saved_markdown(groups: Sequence[Group], arms: Sequence[str]) -> str:
    """The tables of what a rollout costs beside a chain.

    Args:
        groups: What came of the study.
        arms: Names of the arms.
    """
    presets = by_preset(groups)
    family = len(presets) * len(arms) * FIGURES
    parts = [f"{counted(family, 'shares', '1')}\n"]
    for preset, own in presets.items():
        table = []
        for arm in arms:
            found = saved(own, arm, family)
            table.append([arm, f"{found.rollouts:.1f}", plain(found.generated, 3), plain(found.tools, 3)])
        head = ["strategy", "rollouts", "generated tokens of a rollout / of a chain", "tool calls, likewise"]
        parts.append(f"## {preset}\n\n{scope(own)}\n\n{rows(head, table)}")
    return "\n".join(parts)


def _name() -> str:
    return f"TreeGRPO({TREE.trees}, {TREE.forks}, {TREE.rounds})"


def checks_of(groups: Sequence[Group], arms: Sequence[str]) -> list[Check]:
    """The checks of the preset ``null``, for arms that see no labels; none where it was not run.

    Args:
        groups: What came of the study.
        arms: Names of the arms.
    """
    own = by_preset(groups).get("null", [])
    even = {key for key, pool in of_arm(own, POOL).items() if even_odds(pool.tries)}
    unlabelled = [arm for arm in arms if own and not ARMS[arm].labels]
    found: list[Check] = []
    for arm in unlabelled:
        trees = [tree for key, tree in of_arm(own, arm).items() if key in even]
        draws = [tree.draws for tree in trees] if ARMS[arm].blind else None
        found += check(arm, [measure(tree.tries) for tree in trees], draws, 3 * len(unlabelled))
    return found


def counted(family: int, noun: str, equal: str = "0") -> str:
    """How many comparisons tables make, and that their intervals allow for it.

    Args:
        family: How many.
        noun: What the tables call them.
        equal: The value where nothing differs.
    """
    return (
        f"There are {family} {noun} in these tables. Their intervals hold together with 95 % (Bonferroni): where "
        f"nothing differs, one study of twenty has an interval that leaves {equal} out."
    )


def scope(groups: Sequence[Group | Asked]) -> str:
    """Which questions a table is about.

    Args:
        groups: What came of them.
    """
    seeds = sorted({group.seed for group in groups})
    questions = len({(group.seed, group.question) for group in groups})
    return f"{questions} questions of worlds {seeds[0]} to {seeds[-1]}."


def _head(title: str) -> list[str]:
    unit = "tokens" if title.endswith("tokens") else "cost"
    figures = [name for _, figure in _FIGURES for name in (figure, "gain")]
    return ["strategy", "rollouts", unit, "as chains", *figures, "effective n"]


def _compared(found: Comparison, groups: Sequence[Group]) -> list[str]:
    cells = [found.arm, f"{found.own['rollouts'].value:.1f}", f"{found.cost.value:.0f}", f"{found.chains:.2f}"]
    for name, _ in _FIGURES:
        cells += [f"{found.own[name].value:.3f}", signed(found.gain[name])]
    return [*cells, plain(effective(groups, found.arm).tries, 1)]


def _estimators(groups: Sequence[Group], arms: Sequence[str]) -> str:
    presets = ", ".join(by_preset(groups))
    body = [_judged(arm, quality) for arm in arms for quality in qualities(groups, arm) if quality.steps]
    head = ["strategy", "estimator", "of", "steps", "bias", "MSE", "slope", "sign"]
    text = (
        f"Steps of one random rollout of a tree, over {presets}. `slope` is how much of a true advantage the estimate "
        f"has; `sign` counts steps whose true advantage is at least {LEAST}, and an estimate of 0 as half right."
    )
    return f"## Estimators\n\n{text}\n\n{rows(head, body)}"


def _judged(arm: str, quality: Quality) -> list[str]:
    return [
        arm,
        quality.estimator,
        quality.target,
        str(quality.steps),
        signed(quality.bias),
        plain(quality.error, 3),
        plain(quality.slope, 2),
        plain(quality.sign, 2),
    ]


def _nulls(checks: Sequence[Check]) -> str:
    body = [
        [one.arm, one.figure, f"{one.theory:.4f}", plain(one.found, 4), "yes" if one.passed else "**NO**"]
        for one in checks
    ]
    text = f"{len(checks)} intervals that hold together with 95 % (Bonferroni)."
    head = ["strategy", "figure", "theory", "found", "held"]
    return f"## The check of null\n\n{text}\n\n{rows(head, body)}"


def signed(found: Interval) -> str:
    """A difference with its interval."""
    return _shown(found, "+.3f")


def plain(found: Interval, digits: int) -> str:
    """A figure with its interval.

    Args:
        found: The figure.
        digits: Behind the point.
    """
    return _shown(found, f".{digits}f")


def _shown(found: Interval, form: str) -> str:
    if math.isnan(found.value):
        return "-"
    if math.isnan(found.low):
        return format(found.value, form)
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"
