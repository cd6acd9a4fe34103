"""Equal budgets: how many chains a tree is worth, and what that many chains show.

The number of chains is a real number, measured on the *other* world seeds among questions of as many hops. So it
depends on nothing that the compared groups drew, and the chains it stands for are a plain sample: cutting a group off
where its tokens run out would favour short tries. Between two whole numbers stands the lottery between them, by its
expectation.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from studies.tries import Measures, measure, price
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from studies.tries import Prices, Try

__all__ = ["chains_measure", "chains_worth", "cost_curve"]


def cost_curve(pools: Sequence[Sequence[Try]], prices: Prices) -> list[float]:
    """What 0, 1, 2, ... chains of a question cost on average, in generated tokens.

    Args:
        pools: For each question as many chains, in the order of their draws.
        prices: What things cost.
    """
    size = len(pools[0])
    return [math.fsum(price(pool[:count], prices) for pool in pools) / len(pools) for count in range(size + 1)]


def chains_worth(budget: float, curve: Sequence[float]) -> float:
    """How many chains a budget buys.

    Args:
        budget: In generated tokens.
        curve: As :func:`cost_curve` gives it.

    Returns:
        A number from 1 to that of the chains behind the curve.

    Raises:
        ConfigError: The budget is outside of what the chains cost.
    """
    if not curve[1] <= budget <= curve[-1]:
        raise ConfigError(
            f"a strategy costs {budget:.0f} tokens a question, and 1 to {len(curve) - 1} chains cost "
            f"{curve[1]:.0f} to {curve[-1]:.0f}; give it another size"
        )
    below = max(count for count in range(1, len(curve)) if curve[count] <= budget)
    if below == len(curve) - 1:
        return float(below)
    return below + (budget - curve[below]) / (curve[below + 1] - curve[below])


def chains_measure(pool: Sequence[Try], chains: float) -> Measures:
    """What so many chains of a question show, in expectation.

    Every run of neighbours in the pool, around its end, is a sample of so many chains; their mean is taken.

    Args:
        pool: Independent chains.
        chains: How many, from 1 to all; between two whole numbers a lottery.
    """
    below = math.floor(chains)
    share = chains - below
    pool = tuple(pool)
    shown = _windows(pool, below)
    if share == 0:
        return shown
    above = _windows(pool, below + 1)
    return Measures(*((1 - share) * low + share * high for low, high in zip(shown, above, strict=True)))


@cache
def _windows(pool: tuple[Try, ...], count: int) -> Measures:
    around = [*pool, *pool]
    starts = range(len(pool) if count < len(pool) else 1)
    found = [measure(around[start : start + count]) for start in starts]
    return Measures(*(math.fsum(values) / len(found) for values in zip(*found, strict=True)))
