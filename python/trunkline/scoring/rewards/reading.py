"""Rewards as texts name them: NAME, NAME:OPTION=VALUE,... or MODULE:ATTR, with @WEIGHT or without."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from trunkline.errors import ConfigError
from trunkline.scoring.rewards import REWARDS
from trunkline.scoring.rewards.base import short_name
from trunkline.scoring.rewards.grading import WeightedRewards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.scoring.rewards import Reward

NONE: Final = "none"


def read_rewards(names: Sequence[str], option: str = "reward") -> Reward | None:
    """Make the reward that texts stand for; ``option`` is what errors call them.

    Each is ``NAME``, ``NAME:OPTION=VALUE,...`` or ``MODULE:ATTR``, with ``@WEIGHT`` at its end or without; several are
    a sum, each times its weight, of 1 where none is given. ``none`` is no reward.
    """
    read = [_weight(one) for one in names]
    if any(text == NONE for text, _ in read):
        if read != [(NONE, None)]:
            raise ConfigError(f"{option} {NONE} leaves everything unscored: give it alone, and without a weight")
        return None
    if len(read) == 1 and read[0][1] is None:
        return _reward(read[0][0], option)
    seen: Counter[str] = Counter()
    rewards: dict[str, Reward] = {}
    weights: dict[str, float] = {}
    for text, weight in read:
        made = _reward(text, option)
        name = text.partition(":")[0]
        name = name if name in REWARDS else short_name(made)
        seen[name] += 1
        name += f" {seen[name]}" if seen[name] > 1 else ""
        rewards[name] = made
        weights[name] = 1.0 if weight is None else weight
    return WeightedRewards(rewards, weights)


def read_reward(given: Any) -> Any:
    """Return what a text or several stand for, and anything else as it is."""
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, list | tuple) and texts and all(isinstance(one, str) for one in texts):
        return read_rewards(texts)
    return given


def _weight(given: str) -> tuple[str, float | None]:
    """Split the weight off a value; text behind an ``@`` that is no number belongs to an option."""
    text, at, number = given.rpartition("@")
    try:
        return (text, float(number)) if at else (given, None)
    except ValueError:
        return given, None


def _reward(given: str, option: str) -> Reward:
    name, _, options = given.partition(":")
    if not name or (name not in REWARDS and not options):
        raise ConfigError(f"{option} {REWARDS.unknown(given, NONE)}; your own is written module:attribute")
    made: Any = REWARDS.make(given, option)
    if not callable(made) or isinstance(made, type):
        raise ConfigError(f"{option} {given!r}: {type(made).__name__} is not callable")
    return made  # type: ignore[no-any-return]
