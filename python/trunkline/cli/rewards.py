"""``--reward``: one reward, or several with their weights."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from trunkline.cli.named import make_named
from trunkline.errors import ConfigError
from trunkline.score.rewards.catalog import REWARDS, find
from trunkline.score.rewards.naming import short_name
from trunkline.score.rewards.weighting import WeightedRewards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.score.rewards import Reward

__all__ = ["read_rewards", "reward_option"]

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
        help=f"{', '.join(REWARDS)}, {_NONE}, or your own as MODULE:ATTR; repeatable, for a weighted sum: "
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
        known = ", ".join((*REWARDS, _NONE))
        raise ConfigError(f"{_OPTION} {given!r} is none of {known}; your own is written module:attribute")
    made: Any = make_named(given, _OPTION, REWARDS, lambda known: find(known, options=bool(options)))
    if not callable(made) or isinstance(made, type):
        raise ConfigError(f"{_OPTION} {given!r}: {type(made).__name__} is not callable")
    return made  # type: ignore[no-any-return]
