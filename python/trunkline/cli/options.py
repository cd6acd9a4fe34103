"""Shared options, NAME:OPTION=VALUE."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from trunkline._internal.registry import load_named
from trunkline._internal.text import format_error
from trunkline.errors import ConfigError
from trunkline.llm.pricing import Price, read_price
from trunkline.rollout.budget import Budget, read_budget
from trunkline.scoring.confidence import CONFIDENCES
from trunkline.scoring.rewards import REWARDS
from trunkline.scoring.rewards.base import short_name
from trunkline.scoring.rewards.grading import WeightedRewards
from trunkline.strategies.stopping import ANSWER
from trunkline.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.scoring.rewards import Reward
    from trunkline.tree.views import Trajectory


__all__ = [
    "BudgetOption",
    "PriceOption",
    "Settled",
    "Threshold",
    "load_tools",
    "read_confidence",
    "read_rewards",
    "reward_option",
    "run_path",
    "safe_name",
]


class Threshold(click.ParamType[float]):
    """How many rollouts may break: a count, or a share below 1."""

    name = "threshold"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a count nor a share", param, ctx)
        if not 0 <= number < math.inf or (number > 1 and number != int(number)):
            self.fail(f"{value!r} must be a share below 1, or a whole number", param, ctx)
        return number


class BudgetOption(click.ParamType[Budget]):
    """The most that may be spent."""

    name = "budget"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Budget:
        """Read the limits."""
        try:
            return value if isinstance(value, Budget) else read_budget(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


class Settled(click.ParamType["str | float"]):
    """When a task is settled."""

    name = "settled"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        """Read ``answer``, or a reward."""
        if value == ANSWER:
            return ANSWER
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither answer nor a reward", param, ctx)


class PriceOption(click.ParamType[Price]):
    """What tokens cost."""

    name = "price"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Price:
        """Read the price."""
        try:
            return value if isinstance(value, Price) else read_price(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


def load_tools(names: tuple[str, ...], what: str = "--tools") -> list[Tool]:
    """Load tools: each name leads to a tool, a list of tools, or a module whose tools are all taken.

    Args:
        names: The names.
        what: What they were given as, for messages.

    Raises:
        ConfigError: If a name leads to anything else.
    """
    tools: list[Tool] = []
    for name in names:
        found = load_named(name, what)
        if ":" not in name:
            found = [value for value in vars(found).values() if isinstance(value, Tool)]
            if not found:
                raise ConfigError(f"{what} {name!r}: the module defines no tool; decorate its functions with @tool")
        listed = list(found) if isinstance(found, list | tuple) else [found]
        for item in listed:
            if not isinstance(item, Tool):
                raise ConfigError(
                    f"{what} {name!r}: {type(item).__name__} is not a tool; decorate the function with @tool"
                )
        tools += listed
    return tools


def run_path(out: str | None, label: str) -> Path:
    """Return where a run file goes: as told, or ``runs/TIME-LABEL.run``."""
    if out is not None:
        if not out:
            raise ConfigError("--out is empty; name a file")
        return Path(out)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    # Names sort by time, also those of one second.
    names = (f"{stamp}{'' if number == 1 else f'.{number}'}-{safe_name(label)}.run" for number in count(1))
    return next(path for name in names if not os.path.lexists(path := Path("runs") / name))


def safe_name(label: str) -> str:
    """Return a text as it may stand in the name of a file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")[:60] or "run"


_NONE: Final = "none"
_OPTION: Final = "--reward"


def reward_option(*, default: str, required: bool = False) -> Callable[[Any], Any]:
    """Return the option, whose values :func:`read_rewards` reads.

    Args:
        default: What is taken where none is given, for the help.
        required: Whether one must be given.
    """
    return click.option(
        _OPTION,
        "rewards",
        multiple=True,
        required=required,
        metavar="NAME[:OPTION=VALUE,...][@WEIGHT]",
        help=f"{REWARDS}, {_NONE}, or your own as MODULE:ATTR; repeatable, for a weighted sum: "
        f"--reward f1@0.5 --reward exact_match@0.5{default and f'.  [default: {default}]'}",
    )


def read_rewards(names: Sequence[str], default: str = _NONE) -> Reward | None:
    """Return the reward that values of the option stand for.

    Args:
        names: Each ``NAME``, ``NAME:OPTION=VALUE,...`` or ``MODULE:ATTR``, with ``@WEIGHT`` at its end or without.
        default: What is taken where there are none.

    Returns:
        The one reward; or the sum of several, each times its weight, of 1 where none is given; None for ``none``.

    Raises:
        ConfigError: One is unknown, has an option it cannot have, or cannot be called; or ``none`` is not alone.
    """
    read = [_weight(one) for one in names or [default]]
    if any(text == _NONE for text, _ in read):
        if read != [(_NONE, None)]:
            raise ConfigError(f"{_OPTION} {_NONE} leaves everything unscored: give it alone, and without a weight")
        return None
    if len(read) == 1 and read[0][1] is None:
        return _reward(read[0][0])
    seen: Counter[str] = Counter()
    rewards: dict[str, Reward] = {}
    weights: dict[str, float] = {}
    for text, weight in read:
        made = _reward(text)
        name = _called(text, made)
        seen[name] += 1
        name += f" {seen[name]}" if seen[name] > 1 else ""
        rewards[name] = made
        weights[name] = 1.0 if weight is None else weight
    return WeightedRewards(rewards, weights)


def _weight(given: str) -> tuple[str, float | None]:
    """Take the weight off the end of a value; what follows an ``@`` and is no number is part of an option."""
    text, at, number = given.rpartition("@")
    try:
        return (text, float(number)) if at else (given, None)
    except ValueError:
        return given, None


def _called(text: str, reward: Reward) -> str:
    """Return what a part is called: as it was asked for, or by its own name."""
    name = text.partition(":")[0]
    return name if name in REWARDS else short_name(reward)


def _reward(given: str) -> Reward:
    """Return one reward."""
    name, _, options = given.partition(":")
    if not name or (name not in REWARDS and not options):
        raise ConfigError(f"{_OPTION} {REWARDS.unknown(given, _NONE)}; your own is written module:attribute")
    made: Any = REWARDS.make(given, _OPTION)
    if not callable(made) or isinstance(made, type):
        raise ConfigError(f"{_OPTION} {given!r}: {type(made).__name__} is not callable")
    return made  # type: ignore[no-any-return]


def read_confidence(given: str) -> Callable[[Trajectory], float]:
    """Return what says how sure a rollout is.

    Args:
        given: One of :data:`~trunkline.scoring.confidence.CONFIDENCES`, or ``MODULE:FUNCTION``.

    Raises:
        ConfigError: There is none such, or it cannot be called; later, where it fails or returns no number.
    """
    found: Any = CONFIDENCES.make(given, "--confidence")
    if not callable(found):
        raise ConfigError(f"--confidence {given!r}: it is no function of a rollout")

    def sure(rollout: Trajectory) -> float:
        try:
            return float(found(rollout))
        except Exception as problem:
            raise ConfigError(f"--confidence {given}: {type(problem).__name__}: {format_error(problem)}") from problem

    return sure
