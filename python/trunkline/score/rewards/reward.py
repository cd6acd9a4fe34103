"""What a reward is, and what it says of one trajectory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trunkline.tree.trajectory import Trajectory

__all__ = ["LARGEST", "REWARD_TIMEOUT", "Part", "Reward", "Scored"]

LARGEST = 1e100
"""The largest reward, or weight of one, of which sums and squares are still numbers."""

REWARD_TIMEOUT = 300.0
"""Seconds that a reward has to give its result, unless it says otherwise."""


class Part(NamedTuple):
    """What one of several rewards said about a trajectory.

    Attributes:
        name: The reward's name.
        value: Its value; NaN if there is none.
        weight: What it counts.
        problem: Why there is no value, on one printable line.
    """

    name: str
    value: float
    weight: float = 1.0
    problem: str | None = None


class Scored(NamedTuple):
    """What a reward said about one trajectory. A reward may also return one, to say why there is no value.

    Attributes:
        value: The reward; NaN if there is none.
        problem: Why there is none, on one printable line; None if there is one, or if the reward said None
            itself.
        parts: What it is made of, where several rewards were asked.
    """

    value: float
    problem: str | None = None
    parts: tuple[Part, ...] = ()


Reward = Callable[["Trajectory"], "Awaitable[Scored | float | bool | None] | Scored | float | bool | None"]
"""What scores a trajectory: a function, a coroutine function, or an object that can be called like one.

It takes the trajectory (whose ``task`` has the accepted answers) and returns a number, True or False, or
None if it cannot say. An exception in it, also ``SystemExit``, leaves the trajectory unscored, and so does an
awaited result that takes longer than ``REWARD_TIMEOUT``. How long it may take, whether it runs in a thread and
whether it takes many trajectories at once is said with ``trunkline.reward``, or by attributes of those names.

One that holds something open while a run lasts, such as processes or connections, has ``opened()``, which returns what
is asked instead in one event loop and is closed by its ``async close()``.
"""
